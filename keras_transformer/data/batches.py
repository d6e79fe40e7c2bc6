"""Batches of sentence pairs, in a few fixed shapes."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tqdm

from keras_transformer.checks import check, check_choice, check_positive, warn
from keras_transformer.data import corpus
from keras_transformer.data.corpus import IdStore, slices
from keras_transformer.data.epochs import dataset_of
from keras_transformer.data.frame import Frame
from keras_transformer.data.unknown import SMALL_SHARE, UnknownTokens


class Batches:
    """Tokenised sentence pairs, in batches of similar numbers of tokens and of a few fixed shapes.

    Pairs of similar length share a bucket, and all batches of a bucket have one shape, so XLA compiles the model once
    for each bucket. The last batch of a bucket is filled with rows of padding, which the losses ignore. The order of
    the batches depends only on `seed` and the number of the epoch.

    With `sampling`, each epoch splits the sentences into other subwords. The buckets are made from epoch 0. Every
    other epoch sorts its pairs into the same number of batches of the same shapes.

    Args:
        pairs: Sequence of (source, target) str: a list, or what `read_parallel` and `read_tsv` return. Ids take two to
            four bytes each; beyond 64 MB they are in a temporary file.
        tokenizers: A tokenizer with `tokenize` and `vocab_size`, with `sampling` also `sampled`; or a pair of them, for
            the sources and for the targets.
        batch_tokens: Largest number of positions in a batch, padding included: rows times the longer side. A batch has
            pairs of one bucket only, so each bucket makes one batch at least, and few pairs make smaller batches.
        max_length: Largest number of tokens of a side, with the ids around them.
        too_long: What happens to a pair with a longer side: "skip" leaves it out and "truncate" cuts it, both with a
            warning; "error" raises.
        num_buckets: Largest number of shapes. With few pairs, a smaller number makes larger batches with more padding:
            192 pairs of 3 to 60 bytes, with 4096 `batch_tokens`, are 10 batches with 27% padding, or in one bucket 3
            batches with 46%.
        seed: Int, the seed of the order and of `sampling`.
        sampling: Float, the `alpha` of `tokenizer.sampled`: draws other subwords of each sentence in each epoch. A
            draw that is too long for its batch is replaced by the most likely subwords. None uses the most likely
            subwords always.
        frame: The `Frame`, the ids around the texts, such as `translator.frame`.

    Attributes:
        kept: Number of pairs that are in the batches.
        skipped: Number of pairs that are left out: too long, or with an empty side.
        truncated: Number of pairs that are cut.
        shapes: List of the buckets' shapes `(rows, source_len, target_len)`.
        steps: Number of batches in an epoch.
        tokens: Number of real target tokens in an epoch, eos included. With `sampling` it is that of epoch 0; other
            epochs are near it.
        unknown: A dict from "source" and "target" to the `UnknownTokens` of all pairs. Above 1% there is a warning.
        padding: Share of padding among all positions of an epoch, in [0, 1]. With `sampling` it is that of epoch 0.

    Raises:
        ValueError: If an argument is out of range, `pairs` holds something other than pairs of str, or no pair is left.

    >>> from keras_transformer.text import ByteTokenizer
    >>> batches = Batches([("ab", "c"), ("d", "ef")], ByteTokenizer(), batch_tokens=8, max_length=8)
    >>> batches.shapes, batches.tokens
    ([(2, 3, 3)], 5)
    """

    def __init__(
        self,
        pairs,
        tokenizers,
        *,
        batch_tokens=4096,
        max_length=128,
        too_long="skip",
        num_buckets=10,
        seed=0,
        sampling=None,
        frame=Frame(),  # noqa: B008
    ):
        check_choice(("skip", "truncate", "error"), too_long=too_long)
        pair = tuple(tokenizers) if isinstance(tokenizers, (tuple, list)) else (tokenizers, tokenizers)
        rule = "`tokenizers` must be one tokenizer, or a pair: of the sources and of the targets."
        fits = len(pair) == 2 and all(hasattr(each, "vocab_size") for each in pair)
        check(fits, rule, tokenizers=tokenizers)
        check(isinstance(frame, Frame), "`frame` must be a `Frame`, such as `translator.frame`.", frame=frame)
        around = (frame.source_start, frame.end_of_source), (frame.target_start, (frame.eos_id,))
        self._around = [[np.array(ids, "int32") for ids in side] for side in around]
        self._max_length = max_length
        self._added = np.array([len(start) + len(end) for start, end in self._around])
        least = int(self._added.max()) + 1
        check(max_length >= least, f"`max_length` must be at least {least}.", max_length=max_length)
        check_positive(num_buckets=num_buckets)
        rule = "`batch_tokens` must be at least `max_length`."
        check(batch_tokens >= max_length, rule, batch_tokens=batch_tokens, max_length=max_length)
        self.seed = seed
        self.sampling = sampling
        self._pad_id, self._bos_id = frame.pad_id, frame.bos_id
        self._tokenizers = pair
        ids = self._tokenized(pairs)
        self._texts = pairs
        self._chosen = self._selected(*(side.lengths for side in ids), too_long)
        self._pairs = _Segmented(ids, self._chosen, self._added, max_length)
        self._make_buckets(batch_tokens, num_buckets)

    def _tokenized(self, pairs):
        """Returns the ids of all sources and of all targets, two `FlatIds`."""
        stores = [IdStore(tokenizer.vocab_size) for tokenizer in self._tokenizers]
        self.unknown = dict(zip(("source", "target"), map(UnknownTokens, self._tokenizers), strict=True))
        count = -(-len(pairs) // corpus.SENTENCES_AT_ONCE)
        # The bar appears only where it takes long, and only on a terminal.
        shown = {"delay": 3, "leave": False, "disable": None}
        for texts in tqdm.tqdm(slices(pairs), "tokenizing", count, **shown):
            for pair in texts:
                if not isinstance(pair, (list, tuple)) or [type(side) for side in pair] != [str, str]:
                    raise ValueError(
                        f"`pairs` must hold pairs (source, target) of str. Received: {pair!r:.200}."
                    )
            for store, tokenizer, unknown, side in zip(
                stores, self._tokenizers, self.unknown.values(), zip(*texts, strict=True), strict=True
            ):
                ragged = tokenizer.tokenize(list(side))
                unknown.add(side, ragged)
                store.add(ragged.flat_values.numpy(), ragged.row_lengths().numpy())
        for side, unknown in self.unknown.items():
            if unknown.share > SMALL_SHARE:
                advice = "Their text is lost. Use a vocabulary that is made from such texts."
                warn(f"{side}: {unknown}. {advice}")
        return [store.rows() for store in stores]

    def _selected(self, source_lengths, target_lengths, too_long):
        """Returns the numbers of the pairs to use. Counts the others and warns of them."""
        max_length, count = self._max_length, len(source_lengths)
        longer = np.maximum(source_lengths + self._added[0], target_lengths + self._added[1])
        usable = np.minimum(source_lengths, target_lengths) > 0
        fitting = usable & (longer <= max_length)
        empty, long = count - int(usable.sum()), int(usable.sum() - fitting.sum())
        if long and too_long == "error":
            raise ValueError(
                f"{long} of {count} pairs are longer than `max_length`={max_length} tokens; the longest has "
                f"{longer[usable].max()}."
            )
        chosen = _numbers_of(usable if too_long == "truncate" else fitting)
        self.truncated = long if too_long == "truncate" else 0
        self.kept = len(chosen)
        self.skipped = count - self.kept
        messages = []
        if empty:
            messages.append(f"{empty} with an empty side (skipped)")
        if long:
            action = "truncated" if self.truncated else "skipped"
            messages.append(f"{long} longer than `max_length`={max_length} tokens ({action})")
        if messages:
            warn(f"Of {count} pairs: {', '.join(messages)}.")
        if not self.kept:
            raise ValueError(
                f"No sentence pair is left to use. Received: {count} pairs, {empty} of them with an "
                f"empty side, {long} longer than `max_length`={max_length} tokens."
            )
        return chosen

    def _make_buckets(self, batch_tokens, num_buckets):
        sides = room = self._pairs.lengths()
        if self.sampling is not None:
            self._likeliest_lengths, sides = sides, self.segmented(0).lengths()
            # A batch must have room for the most likely subwords too, which may replace a draw.
            room = np.maximum(sides, self._likeliest_lengths)
        longer = room.max(axis=1)
        bounds = _bounds(longer, num_buckets)
        self._buckets = [
            _numbers_of((longer > shorter) & (longer <= bound))
            for shorter, bound in zip([0, *bounds[:-1]], bounds, strict=True)
        ]
        longest = np.array([room[bucket].max(axis=0) for bucket in self._buckets])
        # `_resorted` needs that a pair that fits a bucket fits all later ones.
        if self.sampling is not None:
            longest = np.maximum.accumulate(longest)
        self.shapes, counts = [], []
        for bound, bucket, lengths in zip(bounds, self._buckets, longest, strict=True):
            count = -(-len(bucket) // max(1, batch_tokens // bound))
            # The fewest rows that need no further batch, so that the last batch has the least padding.
            rows = -(-len(bucket) // count)
            self.shapes.append((int(rows), *map(int, lengths)))
            counts.append(int(count))
        self.steps = sum(counts)
        self.tokens = int(sides[:, 1].sum())
        positions = sum(n * r * (s + t) for n, (r, s, t) in zip(counts, self.shapes, strict=True))
        self.padding = 1.0 - float(sides.sum()) / positions

    def plan(self, epoch, pairs=None):
        """Returns which pairs are in each batch of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            pairs: The result of `segmented(epoch)`, so that it is not computed again; or None.

        Returns:
            A list of `steps` tuples `(bucket, indices)`: the number of the bucket, and an int array of pairs.
        """
        rng = np.random.default_rng([self.seed, epoch])
        buckets = self._buckets
        if self.sampling is not None:
            buckets = self._resorted(self.segmented(epoch) if pairs is None else pairs, rng)
        batches = []
        for bucket, indices in enumerate(buckets):
            rows = self.shapes[bucket][0]
            shuffled = rng.permutation(indices)
            batches += [(bucket, shuffled[i : i + rows]) for i in range(0, len(shuffled), rows)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def _resorted(self, pairs, rng):
        """Returns the buckets of an epoch with sampled subwords: the first bucket gets the shortest pairs, and so on.

        Each bucket gets as many pairs as in epoch 0, and only pairs whose most likely subwords fit into it. There are
        always enough of them: the pairs that were in this bucket and in those before it in epoch 0 all fit.
        """
        lengths = np.maximum(pairs.lengths(), self._likeliest_lengths).max(axis=1)
        # A random order among equal lengths.
        remaining = rng.permutation(len(pairs))
        remaining = remaining[np.argsort(lengths[remaining], kind="stable")]
        buckets = []
        for (_, *room), bucket in zip(self.shapes, self._buckets, strict=True):
            fits = (self._likeliest_lengths[remaining] <= room).all(axis=1)
            taken = np.flatnonzero(fits)[: len(bucket)]
            buckets.append(remaining[taken])
            remaining = np.delete(remaining, taken)
        return buckets

    def segmented(self, epoch):
        """Returns the ids of all pairs in an epoch. With `sampling` the subwords are drawn for this epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            A sequence of pairs `(source ids, target ids)` of int32 arrays, without the ids around them.
        """
        if self.sampling is None:
            return self._pairs
        # It is another stream of random numbers than that of `plan`.
        rng = np.random.default_rng([self.seed, epoch, 1])
        stores = [IdStore(tokenizer.vocab_size) for tokenizer in self._tokenizers]
        for numbers in slices(range(self.kept)):
            pairs = [self._pairs[i] for i in numbers]
            texts = zip(*(self._texts[self._chosen[i]] for i in numbers), strict=True)
            for store, tokenizer, side, likeliest, added in zip(
                stores, self._tokenizers, texts, zip(*pairs, strict=True), self._added, strict=True
            ):
                draws = tokenizer.sampled(side, self.sampling, int(rng.integers(2**32)))
                rows = [
                    draw if len(draw) + added <= self._max_length else other
                    for draw, other in zip(draws, likeliest, strict=True)
                ]
                store.add(np.concatenate(rows), [len(row) for row in rows])
        sides = [store.rows() for store in stores]
        return _Segmented(sides, np.arange(self.kept), self._added, self._max_length)

    def batch(self, bucket, indices, pairs=None):
        """Makes one batch.

        Args:
            bucket: Number of the bucket.
            indices: Which pairs, at most as many as the bucket has rows.
            pairs: The result of `segmented`, and nothing else; the pairs with the most likely subwords when None.

        Returns:
            `({"source": ..., "target": ...}, targets)`, int32 arrays: ids `(rows, source_len)` that end with
            `end_of_source`, ids `(rows, target_len)` that start with bos, and targets `(rows, target_len)` that end
            with eos.
        """
        pairs, indices = self._pairs if pairs is None else pairs, np.asarray(indices, "int64")
        rows, *widths = self.shapes[bucket]
        (source, _), (target, lengths) = (
            self._table(side, indices, pairs, rows, width) for side, width in enumerate(widths)
        )
        shifted = np.full_like(target, self._pad_id)
        shifted[: len(indices), 0] = self._bos_id
        before_the_last = np.arange(1, target.shape[1]) < lengths[:, None]
        shifted[: len(indices), 1:] = np.where(before_the_last, target[: len(indices), :-1], self._pad_id)
        return {"source": source, "target": shifted}, target

    def _table(self, side, indices, pairs, rows, width):
        """Returns one side of a batch, int32 `(rows, width)`, and the lengths of its real rows, int `(indices,)`."""
        (start, end), added = self._around[side], self._added[side]
        ids, lengths = pairs.ids_of(side, indices, width - added)
        long = lengths > width - added
        if long.any():
            # A draw that is longer than the batch gives way to the most likely subwords.
            ids[long], lengths[long] = self._pairs.ids_of(side, indices[long], width - added)
        table = np.full((rows, width), self._pad_id, "int32")
        real, first = table[: len(indices)], len(start)
        real[:, :first] = start
        real[:, first : width - len(end)] = np.where(
            np.arange(width - added) < lengths[:, None], ids, self._pad_id
        )
        ends = first + lengths[:, None] + np.arange(len(end))
        real[np.arange(len(indices))[:, None], ends] = end
        return table, lengths + added

    def arrays(self, epoch, first_step=0):
        """Yields the batches of one epoch as NumPy arrays, in the order of `dataset`.

        Args:
            epoch: Number of the epoch, from 0.
            first_step: Number of batches to leave out.

        Yields:
            What `batch` returns.
        """
        pairs = self.segmented(epoch)
        for bucket, indices in self.plan(epoch, pairs)[first_step:]:
            yield self.batch(bucket, indices, pairs)

    def texts(self, epoch, step):
        """Returns the sentences of one batch.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the batch in the epoch, from 0.

        Returns:
            A list of (source, target) str.
        """
        return [self._texts[self._chosen[i]] for i in self.plan(epoch)[step][1]]

    def dataset(self, first_epoch=0, epochs=None, *, first_step=0):
        """Returns the batches for `model.fit`, each epoch in an order of its own.

        Args:
            first_epoch: Number of the first epoch, from 0.
            epochs: Number of epochs. None for an endless dataset: pass `steps_per_epoch=batches.steps` to `fit`.
            first_step: Number of batches to leave out of the first epoch.

        Returns:
            A `tf.data.Dataset` of `({"source": ..., "target": ...}, targets)`, int32: ids `(rows, source_len)` that
            end with eos, ids `(rows, target_len)` that start with bos, and targets `(rows, target_len)` that end with
            eos. With a single bucket the shape is static, which blockwise attention needs.
        """
        rows, *lengths = self.shapes[0] if len(self.shapes) == 1 else (None, None, None)
        source, target = (tf.TensorSpec((rows, length), tf.int32) for length in lengths)
        signature = ({"source": source, "target": target}, target)
        return dataset_of(self.arrays, self.steps, signature, first_epoch, epochs, first_step)


class _Segmented(Sequence):
    """The chosen pairs as ids.

    Args:
        sides: `FlatIds` of the sources and of the targets.
        chosen: int `(pairs,)`, which of their rows.
        added: int `(2,)`, the number of ids that a batch puts around a source and around a target.
        max_length: Largest number of ids of a row, with those around it; the rest is cut.
    """

    def __init__(self, sides, chosen, added, max_length):
        self._sides, self._chosen, self._added, self._room = sides, chosen, added, max_length - added

    def __len__(self):
        return len(self._chosen)

    def __getitem__(self, index):
        number = self._chosen[index]
        return tuple(side[number][:room] for side, room in zip(self._sides, self._room, strict=True))

    def ids_of(self, side, indices, width):
        """Returns the ids of one side of pairs, and their lengths.

        Args:
            side: 0 for the sources, 1 for the targets.
            indices: int `(rows,)`, which pairs.
            width: Number of ids of each row.

        Returns:
            int32 `(rows, width)`, with other ids behind the end of a short row; and int `(rows,)`, which may be larger
            than `width`.
        """
        numbers = self._chosen[indices]
        lengths = np.minimum(self._sides[side].lengths[numbers], self._room[side])
        return self._sides[side].first_ids(numbers, width), lengths

    def lengths(self):
        """Returns the lengths of both sides of each pair, with the ids around them, int `(pairs, 2)`."""
        lengths = np.stack([side.lengths[self._chosen] for side in self._sides], axis=1)
        return np.minimum(lengths, self._room) + self._added


def _numbers_of(chosen):
    """Returns the numbers of the rows that are True, in as few bytes as hold them: a corpus has millions."""
    return np.flatnonzero(chosen).astype(np.min_scalar_type(-len(chosen)))


def _bounds(lengths, num_buckets):
    """Returns the largest length of each bucket, ascending, so that all buckets together have the least padding.

    Dynamic programming over the different lengths: `cost[i]` is the smallest number of positions that hold all pairs
    of the `i` shortest lengths, with the number of buckets that the loop has reached.
    """
    bounds, counts = np.unique(lengths, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    # last[i, j]: the positions of a last bucket that holds the lengths from number j to number i.
    last = (before[1:, None] - before[:-1]) * bounds[:, None]
    last = np.where(np.tri(len(bounds), dtype=bool), last, np.inf)
    cost = np.concatenate([[0], bounds * before[1:]])  # with a single bucket
    cuts = []
    for _ in range(min(num_buckets, len(bounds)) - 1):
        totals = cost[:-1] + last
        cuts.append(totals.argmin(axis=1))
        cost = np.concatenate([[0], totals.min(axis=1)])
    chosen, end = [], len(bounds)
    for cut in reversed(cuts):
        chosen.append(bounds[end - 1])
        end = cut[end - 1]
        if end == 0:
            break
    if end:
        chosen.append(bounds[end - 1])
    return np.sort(chosen)
