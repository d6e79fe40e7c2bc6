"""Puts words of the source where a translation has unknown tokens."""

import itertools
import re

import numpy as np


class UnknownWords:
    """Replaces the unknown tokens of translations by the source words that they attend to most.

    (Luong et al., 2015, "Addressing the Rare Word Problem in Neural Machine Translation", section 3, with attention in
    place of their positions.)

    Args:
        translator: A `Translator`.
    """

    def __init__(self, translator):
        self._source, self._target = translator.tokenizers
        self._first, self._last = len(translator.source_start), translator.room
        self._unk = self._target.pieces([self._target.unk_id])[0]
        # The text that the tokenizer writes for an unknown token, with the blanks that it adds.
        mark = self._target.detokenize([[self._target.unk_id]]).numpy()[0].decode().strip()
        has_unknown = mark and np.any(self._target.is_unknown([self._target.unk_id]))
        self._mark = re.compile(f" ?{re.escape(mark)} ?" if has_unknown else "(?!)")

    def in_texts(self, translations):
        """Returns which translations hold an unknown token, bool NumPy `(batch,)`, for a list of bytes."""
        return np.array(
            [bool(self._mark.search(text.decode("utf-8", "replace"))) for text in translations], bool
        )

    def replaced(self, text, translation, target_pieces, attention):
        """Replaces the unknown tokens of one translation.

        A source token that is unknown too is copied alone; of any other token the whole word is copied, without the
        punctuation around it.

        Args:
            text: The source, bytes.
            translation: The translation, bytes.
            target_pieces: Its pieces, bytes `(target_len,)`.
            attention: float32 `(target_len, source_len)`.

        Returns:
            The new translation, bytes. It is the old one where the unknown tokens cannot be found in its text.
        """
        text, translation = (each.decode("utf-8", "replace") for each in (text, translation))
        places = [i for i, piece in enumerate(target_pieces) if piece.decode() == self._unk]
        words = self._words(text)
        if len(self._mark.findall(translation)) != len(places) or not words:
            return translation.encode()
        ends = self._first + len(words)
        copies = iter([words[int(attention[i, self._first : ends].argmax())] for i in places])
        return self._mark.sub(lambda match: next(copies), translation).strip().encode()

    def _words(self, text):
        """Returns what is copied for each token of a text, a list of str."""
        words = text.split()
        # Up to the end of each word: a tokenizer does not join the characters of two words.
        until = [" ".join(words[: i + 1]) for i in range(len(words))]
        rows = [row.numpy() for row in self._source.tokenize([*until])] if words else []
        copies = []
        for word, row in zip(words, rows, strict=True):
            own = row[len(copies) :]
            unknown = np.asarray(self._source.is_unknown(own), bool)
            runs = self._unknown_parts(word) if unknown.any() else []
            whole = re.sub(r"^\W+|\W+$", "", word) or word
            parts = iter(runs) if len(runs) == unknown.sum() else itertools.repeat(whole)
            copies += [next(parts) if is_unknown else whole for is_unknown in unknown]
        return copies[: self._last]

    def _unknown_parts(self, word):
        """Returns the parts of a word that the vocabulary cannot write, a list of str."""
        rows = self._source.tokenize(list(word))
        unknown = [bool(np.any(self._source.is_unknown(row))) for row in rows]
        groups = itertools.groupby(zip(word, unknown, strict=True), key=lambda pair: pair[1])
        return ["".join(character for character, _ in group) for is_unknown, group in groups if is_unknown]
