"""A tokenizer of WordPiece subwords."""

import bisect
import collections
import functools
import json

import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

from keras_transformer.checks import check, check_positive
from keras_transformer.text.added_tokens import AddedTokens, as_added_tokens, join
from keras_transformer.text.base import (
    Tokenizer,
    as_ragged,
    bytes_of,
    list_of_sentences,
    read_json,
    valid_utf8,
)
from keras_transformer.text.normal_forms import normalized
from keras_transformer.untrusted import read_text

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Number of characters. A longer word is unknown.
LONGEST_WORD = 100
# Number of bytes without `##`, the limit of tensorflow-text's operation.
LONGEST_PIECE = 256
SENTENCES_AT_ONCE = 4096

# Characters that are words of their own: Chinese ideographs, and punctuation with the signs of ASCII.
_IDEOGRAPH = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_BLANK = r"[\s\p{Z}]"
_SIGN = r"[!-/:-@\[-`{-~\p{P}]"
# Control characters and invalid UTF-8.
_NO_TEXT = r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\t\n\r]|\x{FFFD}"
_LONG_WORD = f"[^ ]{{{LONGEST_WORD + 1},}}"
# A private-use character. `_NO_TEXT` has removed it from every text, so no piece has it.
_UNKNOWN = "\ue000"


class WordPieceTokenizer(Tokenizer):
    """BERT's tokenizer (Devlin et al., 2019, section 3; Wu et al., 2016, section 4.1), as TensorFlow ops.

    It works in these steps:

    - Control characters are removed; with `strip_accents` accents too; with `lower_case` capitals become small.
    - Words are separated by spaces. Each punctuation sign and each Chinese ideograph is a word of its own.
    - A word becomes the longest piece that starts it, then the longest piece that continues it, and so on. A piece
      that continues a word starts with `##`. If no piece fits, or the word has more than 100 characters, the whole
      word becomes `[UNK]`.

    The ids are those of transformers' `BertTokenizer`, with one exception: text such as "[SEP]" does not become a
    special id here, unless it is an added token.

    Args:
        vocabulary: List of str, the pieces in the order of their ids, or the path of a vocab.txt with one piece a
            line. It must contain the special tokens.
        lower_case: Whether capitals become small letters.
        strip_accents: Whether accents are removed; the value of `lower_case` when None.
        special_tokens: The pieces of padding, of an unknown word, before a text, after a text, and of a masked word, a
            tuple of five str: BERT's by default.
        added_tokens: Tokens that are found in a text before it is split into words, a sequence of str or of
            `AddedToken`. Those that are not in `vocabulary` get the ids after it, in their order.

    Attributes:
        vocab_size: Number of ids.
        num_pieces: Number of those of `vocabulary`.
        pad_id, unk_id, cls_id, sep_id, mask_id: The special ids. `bos_id` is `cls_id`, `eos_id` is `sep_id`.
        content: The bytes of the file that `save` writes.

    Raises:
        ValueError: If the file cannot be read, a special piece is missing, or a piece is empty, longer than 256
            bytes, in the list twice, or contains a space.

    >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "!"]
    >>> tokenizer = WordPieceTokenizer(pieces)
    >>> tokenizer.tokenize(["Playing!"])
    <tf.RaggedTensor [[5, 6, 7]]>
    >>> tokenizer.detokenize([[5, 6, 7]]).numpy()
    array([b'playing !'], dtype=object)
    """

    def __init__(
        self, vocabulary, lower_case=True, strip_accents=None, special_tokens=SPECIAL, added_tokens=()
    ):
        super().__init__()
        self.special_tokens = tuple(special_tokens)
        pieces = vocabulary if isinstance(vocabulary, (list, tuple)) else _read_lines(vocabulary)
        _check_pieces(pieces, self.special_tokens)
        self.lower_case = lower_case
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.added_tokens = as_added_tokens(added_tokens)
        known = {*pieces}
        new = [token.content for token in self.added_tokens if token.content not in known]
        self._pieces = [*pieces, *new]
        self.num_pieces, self.vocab_size = len(pieces), len(self._pieces)
        special = map(self._pieces.index, self.special_tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special
        self.bos_id, self.eos_id = self.cls_id, self.sep_id
        # The vocabulary is a constant, and no resource or table, so a loaded export has nothing to initialise.
        try:
            self._ops = tf_text.FastWordpieceTokenizer(
                list(pieces),
                max_bytes_per_word=4 * LONGEST_WORD,
                token_out_type=tf.int32,
                unknown_token=self.special_tokens[1],
            )
        except RuntimeError as error:
            raise ValueError(
                f"`vocabulary` must be one that tensorflow-text can use. tensorflow-text reports: {error}"
            ) from None
        self._table = tf.constant(self._pieces)
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._added = AddedTokens(self.added_tokens, ids, self._normalized_for_tokens)
        self._special_ids = [ids[token.content] for token in self.added_tokens if token.special]

    def _normalized(self, strings):
        return _normalized(strings, self.lower_case, self.strip_accents)

    def _normalized_for_tokens(self, strings):
        return tf.strings.regex_replace(self._normalized(strings), _BLANK, " ")

    @classmethod
    def train(cls, sentences, vocab_size, *, lower_case=True, strip_accents=None, max_characters=1000):
        """Learns a vocabulary from sentences: frequent pieces, and all single characters.

        Args:
            sentences: Iterable of str.
            vocab_size: Number of ids, the five special ids included. A small text gives fewer.
            lower_case: Whether capitals become small letters.
            strip_accents: Whether accents are removed; the value of `lower_case` when None.
            max_characters: Largest number of different characters. The most frequent ones stay; a word with another
                character is unknown.

        Returns:
            The tokenizer, with the ids 0 `[PAD]`, 1 `[UNK]`, 2 `[CLS]`, 3 `[SEP]`, 4 `[MASK]`, then the pieces.

        Raises:
            ValueError: If there is no text, or the single characters alone need more than `vocab_size` ids.
        """
        check_positive(vocab_size=vocab_size, max_characters=max_characters)
        sentences = list_of_sentences(sentences)
        strip = lower_case if strip_accents is None else strip_accents
        counts = collections.Counter()
        for start in range(0, len(sentences), SENTENCES_AT_ONCE):
            texts = tf.constant(sentences[start : start + SENTENCES_AT_ONCE], tf.string)
            for text in _spaced_words(_normalized(texts, lower_case, strip)).numpy():
                counts.update(text.decode().split())
        if not counts:
            raise ValueError(
                f"`sentences` must hold text. Received: {len(sentences)} sentences, all of them empty."
            )

        @functools.cache
        def learned(threshold):
            """Returns the pieces that occur at least `threshold` times, and the single characters."""
            thresholds = {"lower_thresh": threshold, "upper_thresh": threshold}
            return learner.learn(
                counts, vocab_size, list(SPECIAL), max_unique_chars=max_characters, **thresholds
            )

        # A higher threshold gives fewer pieces. Find the lowest one that gives at most `vocab_size`: double it until
        # it is high enough, then bisect.
        threshold, highest = 2, max(2, *counts.values())
        while len(learned(threshold)) > vocab_size and threshold < highest:
            threshold = min(2 * threshold, highest)
        if len(learned(threshold)) > vocab_size:
            raise ValueError(
                "`vocab_size` must have room for the characters of the text. "
                f"Received: vocab_size={vocab_size}, and the characters alone need {len(learned(threshold))} ids."
            )
        candidates = range(max(2, threshold // 2), threshold)
        index = bisect.bisect_left(candidates, True, key=lambda each: len(learned(each)) <= vocab_size)
        return cls(learned(candidates.start + index), lower_case, strip_accents)

    def tokenize(self, strings):
        """Converts strings to ids.

        Args:
            strings: Strings `(batch,)`, or a single string.

        Returns:
            int32 ragged `(batch, None)`; `(length,)` for a single string. `[CLS]` and `[SEP]` are not added.
        """
        texts = valid_utf8(tf.convert_to_tensor(strings, tf.string))
        if not self._added:
            return self._ids_of(self._normalized(texts))
        if texts.shape.rank == 0:
            return self.tokenize(texts[None])[0]
        parts, ids, rows = self._added.split(texts)
        return join(self._ids_of(self._normalized(parts)), ids, rows, tf.size(texts, tf.int64))

    def _ids_of(self, texts):
        words = _spaced_words(texts)
        return self._ops.tokenize(tf.strings.regex_replace(words, _LONG_WORD, _UNKNOWN))

    @property
    def hides_characters(self):
        return {"added_tokens": self.added_tokens} if self.added_tokens else {}

    def locate(self, texts, characters):
        # A character is normalised alone, as it is inside a text.
        normal = _with_spaced_signs(self._normalized(characters.flat_values))
        normal = characters.with_flat_values(tf.strings.regex_replace(normal, _BLANK, " "))
        words = tf.strings.split(tf.strings.reduce_join(normal, axis=-1), " ")
        sizes = bytes_of(words)
        before = tf.cumsum(sizes.flat_values + 1, exclusive=True)
        before -= tf.gather(before, tf.gather(words.row_starts(), words.value_rowids()))
        known = tf.strings.regex_replace(words.flat_values, f"^{_LONG_WORD}$", _UNKNOWN)
        ids, starts, ends = self._ops.tokenize_with_offsets(known)
        word = ids.value_rowids()
        ends = tf.where(
            tf.gather(known != words.flat_values, word),
            tf.gather(sizes.flat_values, word),
            tf.cast(ends.flat_values, tf.int32),
        )
        start = tf.gather(before, word)
        values = ids.flat_values, tf.cast(starts.flat_values, tf.int32) + start, ends + start
        ids, starts, ends = (
            words.with_flat_values(ids.with_flat_values(each)).merge_dims(1, 2) for each in values
        )
        return ids, bytes_of(normal), starts, ends

    def _begins(self, ids, begins):
        return ids.with_flat_values(
            ~tf.strings.regex_full_match(tf.gather(self._table, ids.flat_values), "##.*")
        )

    def detokenize(self, ids):
        """Converts ids to strings, with a space between all words and signs.

        Args:
            ids: int `(batch, length)`, ragged or padded, or `(length,)`.

        Returns:
            Strings `(batch,)`, or a single string. `[PAD]`, `[CLS]`, `[SEP]` and added tokens that are special are
            removed; an id out of range is read as `[UNK]`.
        """
        special = self.pad_id, self.cls_id, self.sep_id, *self._special_ids
        ids, single = as_ragged(ids, special, self.unk_id, self.vocab_size)
        pieces = ids.with_flat_values(tf.gather(self._table, ids.flat_values))
        texts = tf.strings.reduce_join(pieces, axis=-1, separator=" ")
        texts = normalized(tf.strings.regex_replace(texts, " ##", ""), "NFC")
        return texts[0] if single else texts

    def written(self):
        special = {self.pad_id, self.cls_id, self.sep_id, *self._special_ids}
        pieces = (f" {piece}".replace(" ##", "", 1) for piece in self._pieces)
        return [b"" if i in special else piece.encode() for i, piece in enumerate(pieces)]

    @property
    def content(self):
        """The bytes that `save` writes: JSON with the pieces and the options."""
        config = {
            "lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
            "pieces": self._pieces[: self.num_pieces],
        }
        options = ("special_tokens", SPECIAL), ("added_tokens", ())
        config |= {name: getattr(self, name) for name, usual in options if getattr(self, name) != usual}
        return json.dumps(config, ensure_ascii=False, indent=0).encode()

    @classmethod
    def load(cls, path):
        """Reads a tokenizer.

        Args:
            path: Path of a file that `save` wrote.

        Raises:
            ValueError: If the file is missing or damaged.
        """

        def make(config):
            options = {name: config[name] for name in config if name != "pieces"}
            return cls(list(config["pieces"]), **options)

        return read_json(path, make)


def _normalized(strings, lower_case, strip_accents):
    """Normalises texts, as TensorFlow ops."""
    texts = tf.strings.regex_replace(valid_utf8(strings), _NO_TEXT, "")
    texts = tf.strings.regex_replace(texts, _IDEOGRAPH, r" \0 ")
    if strip_accents:
        texts = tf.strings.regex_replace(normalized(texts, "NFD"), r"\p{Mn}", "")
    if lower_case:
        # Without the first step ICU would write a sigma at the end of a word in another form. The second step covers
        # ASCII: ICU would lower "I" by the rules of the machine's language.
        texts = tf.strings.lower(tf.strings.regex_replace(texts, "Σ", "σ"))
        texts = tf.strings.lower(texts, encoding="utf-8")
    return texts


def _spaced_words(texts):
    """Puts one space between the words of normalised texts, as TensorFlow ops."""
    return tf.strings.regex_replace(_with_spaced_signs(texts), f"{_BLANK}+", " ")


def _with_spaced_signs(texts):
    """Puts a space before and after each sign of normalised texts, as TensorFlow ops."""
    return tf.strings.regex_replace(texts, _SIGN, r" \0 ")


def _read_lines(path):
    """Reads the lines of a vocab.txt; only a newline ends a line. `data` reads lines too, but `text` may not use it."""
    try:
        # A byte order mark is not text.
        text = read_text(path).removeprefix("\ufeff").removesuffix("\n")
        return [line.removesuffix("\r") for line in text.split("\n")] if text else []
    except (OSError, ValueError) as error:
        raise ValueError(f"`vocabulary` cannot be read: {error}") from None


def _check_pieces(pieces, special):
    rule = f"`special_tokens` must be {len(SPECIAL)} str, for {', '.join(SPECIAL)}."
    fits = len(special) == len(SPECIAL) and all(isinstance(piece, str) for piece in special)
    check(fits, rule, special_tokens=special)
    missing = [piece for piece in special if piece not in pieces]
    if missing:
        raise ValueError(f"`vocabulary` must have {', '.join(special)}. Received: {missing[0]} is missing.")
    for piece, count in collections.Counter(pieces).items():
        bare = piece.removeprefix("##") or piece if isinstance(piece, str) else ""
        # Half of a pair of surrogates is not text.
        is_text = bare.encode(errors="replace").decode() == bare
        if count > 1 or not bare or not is_text or " " in bare or len(bare.encode()) > LONGEST_PIECE:
            raise ValueError(
                f"`vocabulary` must hold different pieces of 1 to {LONGEST_PIECE} bytes, without spaces. "
                f"Received: {piece!r:.300}, {count} times."
            )
