"""Packs texts of any length into rows of one length. A row holds several texts."""

import bisect

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check, check_choice, check_positive, warn
from keras_transformer.data.epochs import dataset_of


class PackedRows:
    """Texts, of which some ids are targets, packed into rows of a fixed length.

    Each text goes into one row. The texts are placed from the longest to the shortest, each into the row where it
    leaves the least room (best-fit decreasing). `segment_ids` number the texts of a row, so that the model lets no
    text attend to another and starts its positions at 0 (Krell et al., 2021, "Efficient Sequence Packing without
    Cross-contamination"). The inputs are all ids of a text but the last one, its targets all but the first one.

    All epochs have the same rows. Their order depends only on `seed` and the number of the epoch.

    Args:
        texts: List of texts, each a pair: its ids, an int array `(length,)`; and which of them are targets, a bool
            array `(length,)`. The model reads the others and does not learn to write them.
        length: Number of tokens in a row.
        batch_size: Number of rows in a batch. The last batch of an epoch is filled with rows of padding.
        too_long: What happens to a text that is longer than a row. "split" cuts it into several texts. "skip" leaves it
            out, with a warning. "error" raises.
        seed: Int, the seed of the order.
        pad_id: The id of padding in the inputs.
        target_pad_id: The target of padding, and of ids that are not targets; `pad_id` when None. No token may have
            this id as its target.
        packed: Whether a row may hold several texts.

    Attributes:
        kept: Number of texts that are in the rows.
        skipped: Number of texts that are left out: too long, or without a target.
        split: Number of texts that are cut.
        rows: Number of rows.
        steps: Number of batches in an epoch.
        tokens: Number of targets in an epoch.
        padding: Share of padding among all positions of an epoch, in [0, 1].

    Raises:
        ValueError: If an argument is out of range, `texts` holds something other than such pairs, a token has
            `target_pad_id` as its target, or no text is left.

    >>> rows = PackedRows([([5, 7, 11, 3], [False, False, True, True])], length=4, batch_size=1)
    >>> rows.batch([0])[1].tolist()
    [[0, 11, 3, 0]]
    """

    def __init__(
        self,
        texts,
        length,
        batch_size,
        *,
        too_long="split",
        seed=0,
        pad_id=0,
        target_pad_id=None,
        packed=True,
    ):
        check_positive(length=length, batch_size=batch_size)
        check_choice(("split", "skip", "error"), too_long=too_long)
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self._pad_ids = pad_id, pad_id if target_pad_id is None else target_pad_id
        self._texts = self._selected([_text_of(pair) for pair in texts], too_long)
        if any((_targets(text) == self._pad_ids[1]).any() for text in self._texts):
            raise ValueError(
                "`target_pad_id` must not be the target of a token, because the loss would ignore that token. "
                f"Received: target_pad_id={self._pad_ids[1]}, which is a target in the texts."
            )
        sizes = [text.shape[1] - 1 for text in self._texts]
        self._rows = best_fit_decreasing(sizes, length) if packed else [[i] for i in range(len(sizes))]
        self.rows = len(self._rows)
        self.steps = -(-self.rows // batch_size)
        self.tokens = sum(len(_targets(text)) for text in self._texts)
        self.padding = 1.0 - sum(sizes) / (self.steps * batch_size * length)

    def _selected(self, texts, too_long):
        """Returns the texts to use, of at most `length + 1` ids. Counts the others and warns of them."""
        usable = [text for text in texts if len(_targets(text))]
        fitting = [text for text in usable if text.shape[1] - 1 <= self.length]
        long = len(usable) - len(fitting)
        if long and too_long == "error":
            raise ValueError(
                f"{long} of {len(texts)} texts are longer than `length`={self.length} tokens; the longest has "
                f"{max(text.shape[1] for text in usable) - 1}."
            )
        self.split = long if too_long == "split" else 0
        self.kept = len(usable) if self.split else len(fitting)
        self.skipped = len(texts) - self.kept
        if self.skipped:
            warn(
                f"Of {len(texts)} texts: {self.skipped} skipped, {len(usable) - self.kept} of them longer than "
                f"`length`={self.length} tokens, the others blank or without a token to predict."
            )
        if not self.kept:
            raise ValueError(
                f"At least one text must have a token to predict. Received: {len(texts)} texts, none to use."
            )
        if self.split:
            pieces = [
                text[:, start : start + self.length + 1]
                for text in usable
                for start in range(0, text.shape[1] - 1, self.length)
            ]
            fitting = [piece for piece in pieces if len(_targets(piece))]
        return fitting

    def plan(self, epoch):
        """Returns which rows are in each batch of an epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            A list of `steps` int arrays, the numbers of the rows of each batch.
        """
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        return [order[i : i + self.batch_size] for i in range(0, self.rows, self.batch_size)]

    def batch(self, rows):
        """Makes one batch.

        Args:
            rows: Numbers of at most `batch_size` rows.

        Returns:
            `({"token_ids": ..., "segment_ids": ...}, targets)`, three int32 arrays `(batch_size, length)`.
        """
        shape = self.batch_size, self.length
        pad_id, target_pad_id = self._pad_ids
        token_ids, targets = np.full(shape, pad_id, "int32"), np.full(shape, target_pad_id, "int32")
        segment_ids = np.zeros(shape, "int32")
        for i, row in enumerate(rows):
            start = 0
            for segment, text in enumerate((self._texts[t] for t in self._rows[row]), start=1):
                (ids, learned), size = text, text.shape[1] - 1
                cells = i, slice(start, start + size)
                token_ids[cells], segment_ids[cells] = ids[:-1], segment
                targets[cells] = np.where(learned[1:], ids[1:], target_pad_id)
                start += size
        return {"token_ids": token_ids, "segment_ids": segment_ids}, targets

    def dataset(self, first_epoch=0, epochs=None, *, first_step=0):
        """Returns the batches for `model.fit`, each epoch in an order of its own.

        Args:
            first_epoch: Number of the first epoch, from 0.
            epochs: Number of epochs. None for an endless dataset: pass `steps_per_epoch=texts.steps` to `fit`.
            first_step: Number of batches to leave out of the first epoch.

        Returns:
            A `tf.data.Dataset` of `({"token_ids": ..., "segment_ids": ...}, targets)`, each int32
            `(batch_size, length)`: the inputs of a `LanguageModel`, and the targets.
        """

        def batches_of(epoch, skipped):
            return map(self.batch, self.plan(epoch)[skipped:])

        ids = tf.TensorSpec((self.batch_size, self.length), tf.int32)
        signature = ({"token_ids": ids, "segment_ids": ids}, ids)
        return dataset_of(batches_of, self.steps, signature, first_epoch, epochs, first_step)


class PackedTexts(PackedRows):
    """Texts packed into rows of a fixed length, to train a `LanguageModel` with little padding.

    The inputs of a text are `bos` and its ids; the targets are its ids and `eos`. The target of padding is
    `target_pad_id`, which the loss ignores. `PackedRows` says which texts share a row.

    Args:
        documents: List of texts, each a list of ids or an int array `(length,)`, without special ids.
        length: Number of tokens in a row.
        batch_size: Number of rows in a batch. The last batch of an epoch is filled with rows of padding.
        bos_id: The id before each text. With None there is none, and the first id of a text is not predicted.
        eos_id: The id after each text. With None there is none, and the last id of a text is not an input.
        **options: `too_long`, `seed`, `pad_id`, `target_pad_id` and `packed` of `PackedRows`. A text that is split
            begins with `bos` and ends with `eos` once.

    The attributes are those of `PackedRows`.

    Raises:
        ValueError: If an argument is out of range, `documents` holds something other than lists of ids, a token has
            `target_pad_id` as its target, or no text is left.

    >>> rows = PackedTexts([[5, 7, 11], [8], [13, 6]], length=6, batch_size=2)
    >>> rows.rows, rows.padding
    (2, 0.25)
    >>> rows.batch([0])[0]["segment_ids"][0].tolist()
    [1, 1, 1, 1, 2, 2]
    """

    def __init__(self, documents, length, batch_size, *, bos_id=2, eos_id=3, **options):
        bos, eos = ([] if end is None else [end] for end in (bos_id, eos_id))
        texts = [_with_ends(ids, bos, eos) for ids in documents]
        super().__init__(texts, length, batch_size, **options)


def _with_ends(ids, bos, eos):
    """Returns the ids of a text between two lists of ids, int `(length,)`, and which of them are targets."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"`documents` must hold lists of ids. Received: {ids!r:.200}.")
    ids_and_ends = np.concatenate([bos, ids, eos]).astype("int32")
    # A blank text would teach that texts end at once.
    return ids_and_ends, np.full(len(ids_and_ends), ids.size > 0)


def _text_of(pair):
    """Returns a text as int32 `(2, length)`: its ids, and 1 for each that is a target."""
    rule = "`texts` must hold pairs of ids and of a bool for each of them, whether it is a target."
    check(isinstance(pair, (tuple, list)) and len(pair) == 2, rule, text=pair)
    ids, learned = map(np.asarray, pair)
    fits = ids.ndim == 1 and (not ids.size or (ids.dtype.kind in "iu" and learned.dtype == bool))
    check(fits and ids.shape == learned.shape, rule, ids=ids, learned=learned)
    return np.stack([ids, learned]).astype("int32")


def _targets(text):
    """Returns the ids of a text that are targets, `(targets,)`. `text` is what `_text_of` returns."""
    return text[0, 1:][text[1, 1:] == 1]


def best_fit_decreasing(sizes, length):
    """Packs texts into rows: from the longest to the shortest, each into the row with the least room that is enough.

    Args:
        sizes: Number of tokens of each text, at most `length`.
        length: Number of tokens in a row.

    Returns:
        A list of rows, each a list of the numbers of its texts.

    >>> best_fit_decreasing([3, 1, 4, 2], length=5)
    [[2, 1], [0, 3]]
    """
    rows = []
    # A dict from a number of free tokens to the rows that have it.
    rows_with_room = {}
    # The keys of `rows_with_room` in ascending order.
    rooms = []
    for i in np.argsort(-np.asarray(sizes), kind="stable").tolist():
        index = bisect.bisect_left(rooms, sizes[i])
        if index == len(rooms):
            row, room = len(rows), length
            rows.append([])
        else:
            room = rooms[index]
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                del rows_with_room[room], rooms[index]
        rows[row].append(i)
        room -= sizes[i]
        if room:
            if room not in rows_with_room:
                rows_with_room[room] = []
                bisect.insort(rooms, room)
            rows_with_room[room].append(row)
    return rows
