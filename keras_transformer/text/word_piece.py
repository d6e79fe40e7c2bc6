"""WordPiece subwords."""

import bisect
import collections
import functools
import json

import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

from keras_transformer.checks import check_positive
from keras_transformer.text.base import as_ragged, valid_utf8

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; a longer one is unknown
LONGEST_PIECE = 256  # bytes without the mark; what the operation takes
NORMALISED_AT_ONCE = 4096

# What is a word by itself: punctuation, ASCII's signs and the ideographs of Chinese.
_ALONE = (
    r"[!-/:-@\[-`{-~\p{P}\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_NO_TEXT = r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\t\n\r]|\x{FFFD}"  # control characters, what was no UTF-8
_LONG_WORD = f"[^ ]{{{LONGEST_WORD + 1},}}"
_UNKNOWN = "\ue000"  # of private use, which no text has left by then


class WordPieceTokenizer(tf.Module):
    """BERT's subwords (Devlin et al., 2019, section 3; Wu et al., 2016, section 4.1), as TensorFlow ops.

    Control characters go, accents and capitals where asked; words are what stands between spaces and signs, signs are
    words of their own; a word is the longest piece that begins it, then the longest that goes on, marked with `##`. A
    word that is not made of pieces, or has more than 100 characters, is `[UNK]`. The ids are those of transformers'
    `BertTokenizer`, but for text that spells a special piece: it does not become one here.

    Neither direction adds `[CLS]` or `[SEP]`; `detokenize` drops them.

    Args:
        vocabulary: The pieces in the order of their ids, a list of str, or the path of a vocab.txt, one a line.
            `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]` are among them.
        lower_case: Whether capitals become small letters.
        strip_accents: Whether accents go, and letters are taken apart; as `lower_case` when None.

    Raises:
        ValueError: If the file cannot be read, a special piece is missing, or a piece is empty, longer than 256
            bytes, there twice or with a space.
    """

    def __init__(self, vocabulary, lower_case=True, strip_accents=None):
        super().__init__()
        pieces = vocabulary if isinstance(vocabulary, (list, tuple)) else _read_lines(vocabulary)
        _check_pieces(pieces)
        self.lower_case = lower_case
        self.strip_accents = lower_case if strip_accents is None else strip_accents
        self.vocab_size = len(pieces)
        self._pieces = list(pieces)
        special = map(self._pieces.index, SPECIAL)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special
        self.bos_id, self.eos_id = self.cls_id, self.sep_id
        # A constant, no resource and no table: nothing is to be initialised where it is loaded.
        try:
            self._ops = tf_text.FastWordpieceTokenizer(
                self._pieces, max_bytes_per_word=4 * LONGEST_WORD, token_out_type=tf.int32
            )
        except RuntimeError as error:
            raise ValueError(f"`vocabulary` does not suit tensorflow-text, which says: {error}") from None
        self._table = tf.constant(self._pieces)

    @classmethod
    def train(cls, sentences, vocab_size, *, lower_case=True, strip_accents=None, max_characters=1000):
        """Learns pieces from sentences: those that occur often enough, and each character.

        Args:
            sentences: Iterable of str.
            vocab_size: Number of ids, the five special ones included; little text gets fewer.
            lower_case: As in the constructor.
            strip_accents: As in the constructor.
            max_characters: Number of different characters, the most frequent ones; words with others are unknown.

        Returns:
            The tokenizer: 0 `[PAD]`, 1 `[UNK]`, 2 `[CLS]`, 3 `[SEP]`, 4 `[MASK]`, then the pieces.

        Raises:
            ValueError: If there is no text, or its characters alone are more than `vocab_size`.
        """
        check_positive(vocab_size=vocab_size, max_characters=max_characters)
        sentences = list(sentences)
        strip = lower_case if strip_accents is None else strip_accents
        counts = collections.Counter()
        for start in range(0, len(sentences), NORMALISED_AT_ONCE):
            texts = tf.constant(sentences[start : start + NORMALISED_AT_ONCE], tf.string)
            for text in _spaced_words(texts, lower_case, strip).numpy():
                counts.update(text.decode().split())
        if not counts:
            raise ValueError(
                f"`sentences` must hold text. Received: {len(sentences)} sentences, all of them empty."
            )

        @functools.cache
        def learned(least):
            """The vocabulary of all pieces that occur so many times."""
            thresholds = {"lower_thresh": least, "upper_thresh": least}
            return learner.learn(
                counts, vocab_size, list(SPECIAL), max_unique_chars=max_characters, **thresholds
            )

        least, most = 2, max(2, *counts.values())
        while len(learned(least)) > vocab_size and least < most:
            least = min(2 * least, most)
        if len(learned(least)) > vocab_size:
            raise ValueError(
                "`vocab_size` must have room for the characters of the text. "
                f"Received: vocab_size={vocab_size}, and {len(learned(least))} pieces of them alone."
            )
        thresholds = range(max(2, least // 2), least)
        fitting = bisect.bisect_left(thresholds, True, key=lambda least: len(learned(least)) <= vocab_size)
        return cls(learned(thresholds.start + fitting), lower_case, strip_accents)

    def tokenize(self, strings):
        """Strings `(batch,)` to int32 ragged ids `(batch, None)`; a single string to `(length,)`."""
        texts = tf.convert_to_tensor(strings, tf.string)
        words = _spaced_words(texts, self.lower_case, self.strip_accents)
        return self._ops.tokenize(tf.strings.regex_replace(words, _LONG_WORD, _UNKNOWN))

    def detokenize(self, ids):
        """Ids `(batch, length)`, ragged or padded, to strings `(batch,)`; an id out of range reads as unk.

        There is a space between words and signs, however they were written.
        """
        ids, single = as_ragged(ids, (self.pad_id, self.cls_id, self.sep_id), self.unk_id)
        inside = (ids >= 0) & (ids < self.vocab_size)
        ids = tf.where(inside, ids, tf.ones_like(ids) * self.unk_id)
        pieces = ids.with_flat_values(tf.gather(self._table, ids.flat_values))
        texts = tf.strings.reduce_join(pieces, axis=-1, separator=" ")
        texts = tf_text.normalize_utf8(tf.strings.regex_replace(texts, " ##", ""), "NFC")
        return texts[0] if single else texts

    def pieces(self, ids):
        """The text of each id, a list of str: for people to look at."""
        return [self._pieces[i] for i in ids]

    @property
    def content(self):
        """What `save` writes: the pieces and the options, as JSON."""
        said = {
            "lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
            "pieces": list(self._pieces),
        }
        return json.dumps(said, ensure_ascii=False, indent=0).encode()

    def save(self, path):
        """Writes the pieces and the options to a file."""
        with open(path, "wb") as file:
            file.write(self.content)

    @classmethod
    def load(cls, path):
        """A tokenizer as `save` wrote it.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        try:
            with open(path, encoding="utf-8") as file:
                said = json.load(file)
            return cls(list(said["pieces"]), said["lower_case"], said["strip_accents"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"Cannot read a tokenizer from {path}: {error!r}") from None


def _spaced_words(strings, lower_case, strip_accents):
    """The words of texts, with spaces between, as a TensorFlow op."""
    texts = tf.strings.regex_replace(valid_utf8(strings), _NO_TEXT, "")
    if strip_accents:
        texts = tf.strings.regex_replace(tf_text.normalize_utf8(texts, "NFD"), r"\p{Mn}", "")
    if lower_case:
        # ICU would write a last sigma otherwise, and i as the machine's language does.
        texts = tf.strings.lower(tf.strings.regex_replace(texts, "Σ", "σ"))
        texts = tf.strings.lower(texts, encoding="utf-8")
    return tf.strings.regex_replace(tf.strings.regex_replace(texts, _ALONE, r" \0 "), r"[\s\p{Z}]+", " ")


def _read_lines(path):
    """The lines of a vocab.txt."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = file.read().split("\n")
    except (OSError, ValueError) as error:
        raise ValueError(f"`vocabulary` cannot be read: {error}") from None
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1] == "" else lines


def _check_pieces(pieces):
    missing = [piece for piece in SPECIAL if piece not in pieces]
    if missing:
        raise ValueError(f"`vocabulary` must have {', '.join(SPECIAL)}. Received: {missing[0]} is missing.")
    for piece, count in collections.Counter(pieces).items():
        bare = piece.removeprefix("##") or piece if isinstance(piece, str) else ""
        if count > 1 or not bare or " " in bare or len(bare.encode(errors="replace")) > LONGEST_PIECE:
            raise ValueError(
                f"`vocabulary` must hold different pieces of 1 to {LONGEST_PIECE} bytes, without spaces. "
                f"Received: {piece!r:.300}, {count} times."
            )
