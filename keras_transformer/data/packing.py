"""Texts of any lengths to rows of one length that each hold several."""

import bisect
import warnings

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_positive
from keras_transformer.data.epochs import dataset_of


class PackedTexts:
    """Texts packed into rows of a fixed length, for a `LanguageModel`: none crosses a row's end, and none sees another.

    Each text goes to the row that it fills best, the longest first (best-fit decreasing); its own mask and positions
    keep it to itself (Krell et al., 2021, "Efficient Sequence Packing without Cross-contamination"). Its inputs are
    `bos`, then its ids; its targets its ids, then `eos`: what follows each token in the text, never the next text.
    Targets of padding are `target_pad_id`, which the loss passes over. The rows stay; their order follows from
    `seed` and the epoch alone.

    Args:
        documents: List of texts, each a list of ids or an int array.
        length: Length of a row, in tokens.
        batch_size: Number of rows in a batch; the last of an epoch is filled up with rows of padding.
        too_long: What becomes of longer texts: "split" cuts them into texts of `length` and one of the rest, of which
            only the first begins with `bos` and the last ends with `eos`; "skip" leaves them out and warns with their
            number; "error" raises.
        seed: Seed of the order.
        pad_id: The id that fills rows up.
        bos_id: The id before each text; None for none: then a text's first id has no target of its own.
        eos_id: The id after each text; None for none: then its last id is no input.
        target_pad_id: The target of padding, which must be no other's; `pad_id` when None.

    Attributes:
        kept: Number of texts in the rows.
        skipped: Number of texts left out: too long, or too short to have a target.
        split: Number of texts cut.
        rows: Number of rows.
        steps: Number of batches in an epoch.
        tokens: Number of targets in an epoch.
        padding: Share of padding among all positions of an epoch, in [0, 1].

    Raises:
        ValueError: If an argument is out of range, `target_pad_id` is the target of a token, or no text is left.

    >>> rows = PackedTexts([[5, 7, 11], [8], [13, 6]], length=6, batch_size=2)
    >>> rows.rows, rows.padding
    (2, 0.25)
    >>> rows.batch([0])[0]["segment_ids"][0].tolist()
    [1, 1, 1, 1, 2, 2]
    """

    def __init__(
        self,
        documents,
        length,
        batch_size,
        *,
        too_long="split",
        seed=0,
        pad_id=0,
        bos_id=2,
        eos_id=3,
        target_pad_id=None,
    ):
        check_positive(length=length, batch_size=batch_size)
        if too_long not in ("split", "skip", "error"):
            raise ValueError(
                f'`too_long` must be "split", "skip" or "error". Received: too_long={too_long!r}.'
            )
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self._pad_ids = pad_id, pad_id if target_pad_id is None else target_pad_id
        self._texts = self._fitting([_ended(d, bos_id, eos_id) for d in documents], too_long)
        if any((text[1:] == self._pad_ids[1]).any() for text in self._texts):
            raise ValueError(
                "`target_pad_id` must be no token's target: the loss would pass over it. "
                f"Received: target_pad_id={self._pad_ids[1]}, which texts hold."
            )
        sizes = [len(text) - 1 for text in self._texts]
        self._rows = packed(sizes, length)
        self.rows = len(self._rows)
        self.steps = -(-self.rows // batch_size)
        self.tokens = sum(sizes)
        self.padding = 1.0 - self.tokens / (self.steps * batch_size * length)

    def _fitting(self, texts, too_long):
        """The texts that can be used, each with one id more than it has inputs."""
        usable = [text for text in texts if len(text) > 1]
        fitting = [text for text in usable if len(text) - 1 <= self.length]
        long = len(usable) - len(fitting)
        if long and too_long == "error":
            raise ValueError(
                f"{long} of {len(texts)} texts are longer than `length`={self.length} tokens; the longest has "
                f"{max(map(len, usable)) - 1}."
            )
        self.split = long if too_long == "split" else 0
        self.kept = len(usable) if self.split else len(fitting)
        self.skipped = len(texts) - self.kept
        if self.skipped:
            warnings.warn(
                f"Of {len(texts)} texts: {self.skipped} skipped, {len(usable) - self.kept} of them longer than "
                f"`length`={self.length} tokens, the others without a token to predict.",
                stacklevel=3,
            )
        if not self.kept:
            raise ValueError(f"No text is left to use. Received: {len(texts)} texts.")
        if self.split:
            fitting = [
                text[start : start + self.length + 1]
                for text in usable
                for start in range(0, len(text) - 1, self.length)
            ]
        return fitting

    def plan(self, epoch):
        """The batches of an epoch: a list of arrays of the numbers of their rows."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        return [order[i : i + self.batch_size] for i in range(0, self.rows, self.batch_size)]

    def batch(self, rows):
        """One batch, as arrays: `({"token_ids", "segment_ids"}, targets)`, int32 `(batch_size, length)` each.

        Args:
            rows: Which rows.
        """
        shape = self.batch_size, self.length
        pad_id, target_pad_id = self._pad_ids
        token_ids, targets = np.full(shape, pad_id, "int32"), np.full(shape, target_pad_id, "int32")
        segment_ids = np.zeros(shape, "int32")
        for at, row in enumerate(rows):
            start = 0
            for number, i in enumerate(self._rows[row], 1):
                text = self._texts[i]
                place = at, slice(start, start + len(text) - 1)
                token_ids[place], targets[place], segment_ids[place] = text[:-1], text[1:], number
                start += len(text) - 1
        return {"token_ids": token_ids, "segment_ids": segment_ids}, targets

    def dataset(self, first_epoch=0, epochs=None, *, first_step=0):
        """Batches for `model.fit`, prefetched: `steps` an epoch, each epoch in its own order.

        Args:
            first_epoch: Number of the epoch to begin with.
            epochs: How many; None for ever, with `fit(steps_per_epoch=packed.steps)`.
            first_step: Batches of the first epoch to leave out.

        Returns:
            A `tf.data.Dataset` of what `batch` gives: the inputs of a `LanguageModel`, and the targets.
        """

        def batches_of(epoch, skipped):
            return map(self.batch, self.plan(epoch)[skipped:])

        ids = tf.TensorSpec((self.batch_size, self.length), tf.int32)
        signature = ({"token_ids": ids, "segment_ids": ids}, ids)
        return dataset_of(batches_of, self.steps, signature, first_epoch, epochs, first_step)


def _ended(ids, bos_id, eos_id):
    """A text between its beginning and its end, int32 `(length,)`."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"`documents` must hold lists of ids. Received: {ids!r:.200}.")
    ends = ([] if end is None else [end] for end in (bos_id, eos_id))
    bos, eos = ends
    return np.concatenate([bos, ids, eos]).astype("int32")


def packed(sizes, length):
    """Which of the texts each row holds: a list of lists of numbers, by best-fit decreasing.

    Args:
        sizes: How many tokens each text has, at most `length`.
        length: Length of a row.
    """
    rows, with_room, rooms = [], {}, []  # the rows with room for 1, 2 and so on, and in order which there are
    for i in np.argsort(-np.asarray(sizes), kind="stable").tolist():
        at = bisect.bisect_left(rooms, sizes[i])
        if at == len(rooms):
            row, room = len(rows), length
            rows.append([])
        else:
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[at]
        rows[row].append(i)
        room -= sizes[i]
        if room:
            if room not in with_room:
                with_room[room] = []
                bisect.insort(rooms, room)
            with_room[room].append(row)
    return rows
