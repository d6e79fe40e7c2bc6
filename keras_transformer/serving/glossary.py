"""Finds what a translation must hold: terms of a glossary, texts that stay as they are, words that are unknown."""

import itertools
import re
import unicodedata

import numpy as np

from keras_transformer.checks import check
from keras_transformer.data import read_tsv

# The names of characters of writing systems without blanks between words. Korean has blanks, but adds its particles to
# the word before them.
WITHOUT_BLANKS = ("CJK ", "HIRAGANA", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ")
WITH_PARTICLES = (*WITHOUT_BLANKS, "HANGUL ")


class Glossary:
    """Terms with their translations. A text has a term where it has its characters, as a word of its own.

    Upper and lower case differ. A term may be followed by a Korean particle, and a term in a writing system without
    blanks, or next to text in one, may be anywhere. Where two terms overlap, the first one counts, and of those that
    begin at one place the longest. A match of `copy` wins over a term.

    Args:
        terms: A dict from the source's term to its translation, both str.
        copy: Regular expression; each match in a source must be in its translation as it is, empty ones left out. None
            for no such text.

    Raises:
        ValueError: If a term or its translation is not a str or is blank, or `copy` is not a regular expression or
            matches an empty text.

    >>> Glossary({"guide dog": "Blindenhund", "dog": "Hund"}, copy="https?://[^ ]+").found_in("A guide dog: http://a.b")
    ['Blindenhund', 'http://a.b']
    """

    def __init__(self, terms=(), copy=None):
        self.terms, self.copy = {}, copy
        for source, target in dict(terms).items():
            fits = all(isinstance(text, str) and text.strip() for text in (source, target))
            check(fits, "`glossary` must hold a text and its translation.", term=source, translation=target)
            self.terms[unicodedata.normalize("NFC", source.strip())] = target.strip()
        try:
            self._copied = None if copy is None else re.compile(copy)
        except re.error as error:
            message = f"`copy` must be a regular expression: {error}. Received: copy={copy!r:.200}."
            raise ValueError(message) from None
        check(copy is None or not self._copied.match(""), "`copy` must not match an empty text.", copy=copy)
        self._by_first = {}
        for source in sorted(self.terms, key=len, reverse=True):
            self._by_first.setdefault(source[0], []).append(source)

    @classmethod
    def read(cls, path, copy=None):
        """Reads a file of lines `source<TAB>target`.

        Args:
            path: Path of the file, UTF-8, plain or `.gz`.
            copy: As for `Glossary`.

        Returns:
            A `Glossary`.

        Raises:
            ValueError: If a line has no tab, or no text before or after it, a term has two translations, or the file
                cannot be read. The message names the line.
        """
        terms = {}
        for number, pair in enumerate(read_tsv(path), start=1):
            source, target = map(str.strip, pair)
            here = f"{path}, line {number}: `glossary` must have"
            check(source and target, f"{here} a term and its translation.", term=source, translation=target)
            known = terms.setdefault(source, target)
            rule = f"{here} one translation for each term."
            check(known == target, rule, term=source, translations=[known, target])
        return cls(terms, copy)

    def found_in(self, text):
        """Finds what the translation of a text must hold.

        Args:
            text: A str.

        Returns:
            A list of str, each once, in the order of their places in the text.
        """
        text = unicodedata.normalize("NFC", text)
        needed, place = {}, 0
        matches = self._copied.finditer(text) if self._copied else ()
        copied = {match.start(): match[0] for match in matches if match[0]}
        while place < len(text):
            if place in copied:
                needed[copied[place]] = None
                place += len(copied[place])
                continue
            for term in self._by_first.get(text[place], ()):
                end = place + len(term)
                cuts = any(start in copied for start in range(place, end))
                if text.startswith(term, place) and not cuts and _is_word(text, place, end):
                    needed[self.terms[term]] = None
                    place = end
                    break
            else:
                place += 1
        return list(needed)

    def lacking(self, needed, translation):
        """Finds what a translation lacks. It has a term as a word of its own, and copied text anywhere.

        Args:
            needed: List of str, as `found_in` returns it.
            translation: A str.

        Returns:
            A list of str, those of `needed` that the translation lacks.
        """
        terms = set(self.terms.values())
        return [text for text in needed if not _has(translation, text, is_word=text in terms)]


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


def goes_on(text):
    """Returns whether a text that follows a term at once makes it a part of a longer word."""
    return text != "" and _are_joined(f"a{text[0]}", WITH_PARTICLES)


def _has(translation, text, is_word):
    """Returns whether a translation has a text, as a word of its own or anywhere."""
    start = translation.find(text)
    while is_word and start >= 0 and not _is_word(translation, start, start + len(text)):
        start = translation.find(text, start + 1)
    return start >= 0


def _is_word(text, start, end):
    """Returns whether a part of a text is not a part of a longer word."""
    joined_before = start > 0 and _are_joined(text[start - 1 : start + 1], WITHOUT_BLANKS)
    joined_after = end < len(text) and _are_joined(text[end - 1 : end + 1], WITH_PARTICLES)
    return not joined_before and not joined_after


def _are_joined(neighbours, scripts):
    """Returns whether two characters are of one word: both are letters, and none is of a script."""
    return all(_is_letter(character) and not _is_of(character, scripts) for character in neighbours)


def _is_letter(character):
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def _is_of(character, scripts):
    return unicodedata.name(character, "").startswith(scripts)
