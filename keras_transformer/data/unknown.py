"""Counts the tokens of texts that a vocabulary cannot write."""

import numpy as np

from keras_transformer.data.corpus import slices

EXAMPLES, LONGEST_EXAMPLE = 5, 20
# The end of a warning, after the number of texts.
WARNING = "hold text that the vocabulary cannot write{}. The model reads it as unknown: their answers may be invented."
SMALL_SHARE = 0.01  # above it, `Batches` warns


class UnknownTokens:
    """The number of unknown tokens of texts, and a few words that hold one.

    >>> from keras_transformer.text import SentencePieceTokenizer
    >>> tokenizer = SentencePieceTokenizer.train(["a dog runs"] * 9, 20)
    >>> unknown = UnknownTokens.of(["a dog", "a cat"], tokenizer)
    >>> unknown.count, unknown.examples
    (2, ['cat'])

    Args:
        tokenizer: The tokenizer of the texts. One without `is_unknown` knows every text.

    Attributes:
        count: Number of unknown tokens, an int.
        tokens: Number of all tokens, an int.
        texts: Number of texts with an unknown token, an int.
        invalid: Number of texts of bytes that are not UTF-8, an int.
        examples: Up to five words that hold one, a list of str.
    """

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.count = self.tokens = self.texts = self.invalid = 0
        self.examples = []

    @classmethod
    def of(cls, texts, tokenizer):
        """Counts the unknown tokens of a sequence of str."""
        unknown = cls(tokenizer)
        for some in slices(texts):
            unknown.add(some, tokenizer.tokenize(some))
        return unknown

    def add(self, texts, ids):
        """Counts the unknown tokens of more texts.

        Args:
            texts: List of str, or of UTF-8 bytes.
            ids: Their ids, int32 ragged `(batch, None)`.
        """
        self.invalid += sum(isinstance(text, bytes) and not _is_utf8(text) for text in texts)
        if not hasattr(self._tokenizer, "is_unknown"):
            return
        self.tokens += int(ids.flat_values.shape[0])
        unknown_counts = self.rows(ids)
        self.count += int(unknown_counts.sum())
        self.texts += int((unknown_counts > 0).sum())
        for row in np.flatnonzero(unknown_counts):
            if len(self.examples) >= EXAMPLES:
                return
            text = texts[row]
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            words = list(dict.fromkeys(text.split()))
            unknown = self.rows(self._tokenizer.tokenize(words)) > 0
            new = [word[:LONGEST_EXAMPLE] for word, is_new in zip(words, unknown, strict=True) if is_new]
            self.examples = list(dict.fromkeys([*self.examples, *new]))[:EXAMPLES]

    def warning(self, count, name):
        """Returns a warning of the texts with an unknown token, or None if there are none.

        Args:
            count: Number of all texts, an int.
            name: What the texts are, such as "lines".

        Returns:
            A str, or None.
        """
        examples = f", for example in {', '.join(map(repr, self.examples))}"
        return f"{self.texts:,} of {count:,} {name} {WARNING.format(examples)}" if self.count else None

    def rows(self, ids):
        """Returns the number of unknown tokens of each row of ragged ids, int `(batch,)`."""
        unknown = np.asarray(self._tokenizer.is_unknown(ids.flat_values), bool)
        ends = np.concatenate([[0], np.cumsum(unknown)])[ids.row_splits.numpy()]
        return np.diff(ends)

    @property
    def share(self):
        """The share of unknown tokens among all tokens, in [0, 1]."""
        return self.count / max(1, self.tokens)

    def __str__(self):
        return (
            f"{self.share:.2%} of the tokens are unknown to the vocabulary ({self.count:,} of {self.tokens:,}, in "
            f"{self.texts:,} texts), for example in {', '.join(map(repr, self.examples))}"
        )


def _is_utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
