"""A constraint that ends an output where it has written a string, however a vocabulary writes it."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np

from keras_transformer.checks import check
from keras_transformer.decoding.constraints import Constraint
from keras_transformer.decoding.words import bytes_of_ids, written_by
from keras_transformer.execution import ops


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class StopStrings(Constraint):
    """Ends an output with the token that completes a string, in whatever pieces the vocabulary writes it.

    `StopStrings.of(texts, tokenizer)` makes one. The token is part of the output, and so is the text that it may have
    after the string: cut the detokenized text at the string. Strings are compared byte by byte. A string within the
    prefix of an output ends nothing; one that begins there does. In a beam, a hypothesis with a string is finished.

    Args:
        texts: tuple of str. Or an array or a tensor `(batch, n, length)` of int32 with strings for each row: their
            bytes, the last one first, and 0 in the places that are left.
        written: str, the bytes that each id adds to a text, as characters up to 255, with U+0100 between the ids.

    Raises:
        ValueError: If there is no string, or one is empty.

    >>> from keras_transformer.text import ByteTokenizer
    >>> StopStrings.of(["User:"], ByteTokenizer()).texts
    ('User:',)
    """

    texts: Any = ()
    written: str = ""

    @classmethod
    def of(cls, texts, tokenizer):
        """Makes the constraint for the outputs that a tokenizer writes.

        Args:
            texts: List of str; or a tensor, as for the constructor.
            tokenizer: A tokenizer of this library.
        """
        check(not isinstance(texts, str), "`texts` must be a list of str.", texts=texts)
        return cls(texts, written_by(tokenizer))

    def __post_init__(self):
        for texts in self.plain(texts="int32").values():
            fits = isinstance(texts, (list, tuple)) and len(texts) > 0
            fits = fits and all(isinstance(text, str) and text for text in texts)
            check(fits, "`texts` must be a list of str that are not empty.", texts=texts)
            object.__setattr__(self, "texts", tuple(texts))
        check(isinstance(self.written, str), "`written` must be a str.", written=self.written)

    def begun(self):
        # Large constants would be in the graph of each step.
        texts = _backwards(self.texts) if isinstance(self.texts, tuple) else self.texts
        table, starts, longest = _table(self.written)
        return _BegunStopStrings(*map(ops.convert_to_tensor, (texts, table, starts)), longest)


@dataclasses.dataclass(frozen=True, eq=False)
class _BegunStopStrings(Constraint):
    """`StopStrings` of one search.

    texts: int32 `(batch or 1, n, length)`, as in `StopStrings`.
    table, starts: The bytes of all ids in a row, uint8, and where those of each id start, int32 `(ids + 1,)`.
    longest: The largest number of bytes of an id.
    """

    texts: Any
    table: Any
    starts: Any
    longest: int

    def ended(self, written, lengths, search):
        tokens, texts = written(), self.texts
        lengths = ops.broadcast_to(lengths, ops.shape(tokens)[:2])
        return ops.cond(
            ops.any(texts > 0),
            lambda: self._found(texts, tokens, lengths),
            lambda: ops.zeros_like(lengths, "bool"),
        )

    def _found(self, texts, tokens, lengths):
        """Says which hypotheses, int32 `(batch, width, max_length)`, have a string that ends in their newest token."""
        longest = self.longest
        reach = longest + ops.shape(texts)[-1] - 1
        # The newest tokens, the last one first: (batch, width, reach).
        slots = lengths[..., None] - 1 - ops.arange(reach, dtype="int32")
        ids = ops.take_along_axis(tokens, ops.maximum(slots, 0), axis=-1)
        ids = ops.minimum(ids, self.starts.shape[0] - 2)
        first = ops.take(self.starts, ids)
        sizes = ops.where(slots >= 0, ops.take(self.starts, ids + 1) - first, 0)
        # The bytes of these tokens, the last one first, -1 after the first byte of the output.
        sums = ops.cumsum(sizes, axis=-1)
        places = ops.arange(reach, dtype="int32")
        token = ops.sum(ops.cast(sums[..., None, :] <= places[:, None], "int32"), axis=-1)
        ends = ops.take_along_axis(first + sums - 1, ops.minimum(token, reach - 1), axis=-1)
        written = ops.take(self.table, ops.maximum(ends - places, 0))
        written = ops.where(token < reach, ops.cast(written, "int32"), -1)
        # A string ends at any byte of the newest token: (batch, width, n, longest, length).
        windows = ops.arange(longest, dtype="int32")[:, None] + ops.arange(
            ops.shape(texts)[-1], dtype="int32"
        )
        windows = ops.take(written, windows, axis=-1)[:, :, None]
        texts = texts[:, None, :, None]
        equal = ops.all(ops.logical_or(ops.equal(windows, texts), ops.equal(texts, 0)), axis=-1)
        inside = ops.arange(longest, dtype="int32") < sizes[:, :, None, :1]
        equal = ops.logical_and(ops.logical_and(equal, inside), texts[..., 0] > 0)
        return ops.any(equal, axis=(-2, -1))


def _backwards(texts):
    """Returns the bytes of strings, the last one first and filled up with 0, int32 `(1, n, length)`."""
    texts = [text.encode()[::-1] for text in texts]
    longest = max(map(len, texts))
    return np.array([[list(text.ljust(longest, b"\0")) for text in texts]], "int32")


@functools.lru_cache(maxsize=8)
def _table(written):
    """Returns the bytes of all ids in a row, uint8; where those of each id start, int32; and their largest number."""
    # A model may have ids that its tokenizer lacks: they are all the last one, which has no bytes.
    texts = [*bytes_of_ids(written), b""]
    sizes = np.array([len(text) for text in texts])
    table = np.frombuffer(b"".join(texts) or b"\0", "uint8")
    return table, np.append(0, np.cumsum(sizes)).astype("int32"), max(1, int(sizes.max()))
