"""Sentence pairs to batches of a few fixed shapes."""

import warnings

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_positive
from keras_transformer.data.epochs import dataset_of

TOKENIZED_AT_ONCE = 4096


class Batches:
    """Tokenised pairs, in batches by tokens of a few fixed shapes.

    Each pair goes to the bucket that fits its longer side; a bucket has one shape, so a model compiled with XLA
    compiles once a bucket. The last batch of a bucket is filled up with rows of padding, which
    no loss counts. The order follows from `seed` and the epoch alone. Where segmentations are sampled, the buckets
    come from those of epoch 0 and stay; other epochs sort their pairs into as many batches of the same shapes.

    Args:
        pairs: List of (source, target) str.
        source_tokenizer: Has `tokenize`.
        target_tokenizer: Likewise; the source's when None.
        batch_tokens: Positions in a batch, padding included: rows times the bucket's longer side.
        max_length: Longest side of a pair in tokens, bos or eos included.
        too_long: What becomes of longer pairs: "skip" leaves them out and warns with their number,
            "truncate" cuts them and warns, "error" raises.
        num_buckets: Number of shapes, at most.
        seed: Seed of the order, and of sampled segmentations.
        sampling: Draws other segmentations in each epoch: what `tokenizer.sampled` takes as `alpha`. None for
            the likeliest in all epochs. A draw too long for its batch gives way to the likeliest.

    Attributes:
        kept: Number of pairs in the batches.
        skipped: Number of pairs left out: too long, or with an empty side.
        truncated: Number of pairs cut.
        shapes: The buckets' shapes, `(rows, source_len, target_len)`.
        steps: Number of batches in an epoch.
        tokens: Number of real target tokens in an epoch, eos included; with sampling in epoch 0, near that of others.
        padding: Share of padding among all positions of an epoch, in [0, 1]; with sampling likewise.

    Raises:
        ValueError: If an argument is out of range, or no pair is left.
    """

    def __init__(
        self,
        pairs,
        source_tokenizer,
        target_tokenizer=None,
        *,
        batch_tokens=4096,
        max_length=128,
        too_long="skip",
        num_buckets=10,
        seed=0,
        sampling=None,
        pad_id=0,
        bos_id=2,
        eos_id=3,
    ):
        if too_long not in ("skip", "truncate", "error"):
            raise ValueError(
                f'`too_long` must be "skip", "truncate" or "error". Received: too_long={too_long!r}.'
            )
        if max_length < 2:
            raise ValueError(f"`max_length` must be at least 2. Received: max_length={max_length}.")
        check_positive(num_buckets=num_buckets)
        if batch_tokens < max_length:
            raise ValueError(
                "`batch_tokens` must be at least `max_length`. "
                f"Received: batch_tokens={batch_tokens}, max_length={max_length}."
            )
        self.seed = seed
        self.sampling = sampling
        self._special = pad_id, bos_id, eos_id
        self._limit = max_length - 1  # room for bos or eos
        self._tokenizers = source_tokenizer, target_tokenizer or source_tokenizer
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or [type(side) for side in pair] != [str, str]:
                raise ValueError(f"`pairs` must hold pairs (source, target) of str. Received: {pair!r:.200}.")
        sides = zip(*pairs, strict=True) if pairs else ((), ())
        sides = [_tokenized(t, side) for t, side in zip(self._tokenizers, sides, strict=True)]
        self._texts, self._pairs = self._fitting(pairs, list(zip(*sides, strict=True)), too_long)
        self._bucket_up(batch_tokens, num_buckets)

    def _fitting(self, texts, pairs, too_long):
        """The pairs that can be used, as text and as ids, with counts of the others, and a warning that tells them."""
        usable = [i for i, (s, t) in enumerate(pairs) if len(s) and len(t)]
        empty = len(pairs) - len(usable)
        limit, max_length = self._limit, self._limit + 1
        fitting = [i for i in usable if max(map(len, pairs[i])) <= limit]
        long = len(usable) - len(fitting)
        if long and too_long == "error":
            raise ValueError(
                f"{long} of {len(pairs)} pairs are longer than `max_length`={max_length} tokens; the longest has "
                f"{max(max(map(len, pairs[i])) for i in usable) + 1}."
            )
        if long and too_long == "truncate":
            fitting = usable
        self.truncated = long if too_long == "truncate" else 0
        self.kept = len(fitting)
        self.skipped = len(pairs) - self.kept
        messages = []
        if empty:
            messages.append(f"{empty} with an empty side (skipped)")
        if long:
            done = "truncated" if self.truncated else "skipped"
            messages.append(f"{long} longer than `max_length`={max_length} tokens ({done})")
        if messages:
            warnings.warn(f"Of {len(pairs)} pairs: {', '.join(messages)}.", stacklevel=3)
        if not fitting:
            raise ValueError(
                f"No sentence pair is left to use. Received: {len(pairs)} pairs, {empty} of them with an "
                f"empty side, {long} longer than `max_length`={max_length} tokens."
            )
        return [texts[i] for i in fitting], [tuple(side[:limit] for side in pairs[i]) for i in fitting]

    def _bucket_up(self, batch_tokens, num_buckets):
        self._least = _lengths(self._pairs)
        sides = _lengths(self.segmented(0))
        most = np.maximum(sides, self._least)  # a batch must have room for the likeliest too
        bounds = _bounds(most.max(axis=1), num_buckets)
        bucket_of = np.searchsorted(bounds, most.max(axis=1))
        self._buckets = [np.flatnonzero(bucket_of == b) for b in range(len(bounds))]
        longest = np.array([most[bucket].max(axis=0) for bucket in self._buckets])
        if self.sampling is not None:  # what fits one bucket fits all after it, as `_sorted` needs
            longest = np.maximum.accumulate(longest)
        self.shapes, counts = [], []
        for bound, bucket, lengths in zip(bounds, self._buckets, longest, strict=True):
            count = -(-len(bucket) // max(1, batch_tokens // bound))
            rows = -(-len(bucket) // count)  # as even as can be: the last batch has the least to fill up
            self.shapes.append((int(rows), *map(int, lengths)))
            counts.append(int(count))
        self.steps = sum(counts)
        self.tokens = int(sides[:, 1].sum())
        positions = sum(n * r * (s + t) for n, (r, s, t) in zip(counts, self.shapes, strict=True))
        self.padding = 1.0 - float(sides.sum()) / positions

    def plan(self, epoch, pairs=None):
        """The batches of an epoch: a list of (bucket, indices of its pairs).

        Args:
            epoch: Number of the epoch.
            pairs: What `segmented` gave for it, or None.
        """
        order = np.random.default_rng([self.seed, epoch])
        buckets = self._buckets
        if self.sampling is not None:
            buckets = self._sorted(self.segmented(epoch) if pairs is None else pairs, order)
        batches = []
        for bucket, indices in enumerate(buckets):
            rows = self.shapes[bucket][0]
            shuffled = order.permutation(indices)
            batches += [(bucket, shuffled[i : i + rows]) for i in range(0, len(shuffled), rows)]
        return [batches[i] for i in order.permutation(len(batches))]

    def _sorted(self, pairs, order):
        """An epoch's buckets, as large as those of epoch 0: the shortest pairs to the first.

        A bucket takes pairs whose likeliest segmentations fit it alone. There are enough of them: all that it and
        the buckets before it had in epoch 0 fit.
        """
        lengths = np.maximum(_lengths(pairs), self._least).max(axis=1)
        left = order.permutation(len(pairs))  # chance decides among equal lengths
        left = left[np.argsort(lengths[left], kind="stable")]
        buckets = []
        for (_, *room), bucket in zip(self.shapes, self._buckets, strict=True):
            fits = (self._least[left] <= room).all(axis=1)
            taken = np.flatnonzero(fits)[: len(bucket)]
            buckets.append(left[taken])
            left = np.delete(left, taken)
        return buckets

    def segmented(self, epoch):
        """The pairs of an epoch as ids: drawn anew where they are sampled."""
        if self.sampling is None:
            return self._pairs
        draw = np.random.default_rng([self.seed, epoch, 1])  # beside the order's
        sides = [
            tokenizer.sampled(texts, self.sampling, int(draw.integers(2**32)))
            for tokenizer, texts in zip(self._tokenizers, zip(*self._texts, strict=True), strict=True)
        ]
        return [
            tuple(
                drawn if len(drawn) <= self._limit else usual for drawn, usual in zip(new, pair, strict=True)
            )
            for new, pair in zip(zip(*sides, strict=True), self._pairs, strict=True)
        ]

    def batch(self, bucket, indices, pairs=None):
        """One batch, as arrays: `({"source", "target"}, targets)`, int32.

        Args:
            bucket: Number of the bucket.
            indices: Which pairs.
            pairs: What `segmented` gave; the likeliest segmentations when None.
        """
        pad_id, bos_id, eos_id = self._special
        pairs = self._pairs if pairs is None else pairs
        rows, source_len, target_len = self.shapes[bucket]
        source = np.full((rows, source_len), pad_id, "int32")
        shifted = np.full((rows, target_len), pad_id, "int32")
        target = np.full((rows, target_len), pad_id, "int32")
        for row, i in enumerate(indices):
            s, t = (
                ids if len(ids) < room else usual
                for ids, usual, room in zip(pairs[i], self._pairs[i], (source_len, target_len), strict=True)
            )
            source[row, : len(s)], source[row, len(s)] = s, eos_id
            shifted[row, 0], shifted[row, 1 : len(t) + 1] = bos_id, t
            target[row, : len(t)], target[row, len(t)] = t, eos_id
        return {"source": source, "target": shifted}, target

    def texts(self, epoch, step):
        """The pairs of one batch as text: a list of (source, target) str."""
        return [self._texts[i] for i in self.plan(epoch)[step][1]]

    def dataset(self, first_epoch=0, epochs=None, *, first_step=0):
        """Batches for `model.fit`, prefetched: `steps` an epoch, each epoch in its own order.

        Args:
            first_epoch: Number of the epoch to begin with.
            epochs: How many; None for ever, with `fit(steps_per_epoch=batches.steps)`.
            first_step: Batches of the first epoch to leave out.

        Returns:
            A `tf.data.Dataset` of `({"source", "target"}, targets)`: ids `(rows, source_len)`,
            `(rows, target_len)` that starts with bos, `(rows, target_len)` that ends with eos. With one bucket
            the shape is known beforehand, as attention in blocks needs it.
        """
        rows, *lengths = self.shapes[0] if len(self.shapes) == 1 else (None, None, None)
        source, target = (tf.TensorSpec((rows, length), tf.int32) for length in lengths)

        def batches_of(epoch, skipped):
            pairs = self.segmented(epoch)
            for bucket, indices in self.plan(epoch, pairs)[skipped:]:
                yield self.batch(bucket, indices, pairs)

        signature = ({"source": source, "target": target}, target)
        return dataset_of(batches_of, self.steps, signature, first_epoch, epochs, first_step)


def _tokenized(tokenizer, sentences):
    """A list of int32 arrays, tokenised once."""
    rows = []
    for start in range(0, len(sentences), TOKENIZED_AT_ONCE):
        ragged = tokenizer.tokenize(list(sentences[start : start + TOKENIZED_AT_ONCE]))
        rows += np.split(ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1])
    return rows


def _lengths(pairs):
    """Of both sides with bos or eos, `(pairs, 2)`."""
    return np.array([(len(source) + 1, len(target) + 1) for source, target in pairs])


def _bounds(lengths, num_buckets):
    """Upper bounds of the buckets that pad least in all; the last is the longest length.

    Dynamic programming over the lengths: `cost[i]` is the least number of positions that hold all pairs of
    the `i` shortest lengths.
    """
    bounds, counts = np.unique(lengths, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    # Row i: what it costs when the last bucket holds the lengths from j to i.
    last = (before[1:, None] - before[:-1]) * bounds[:, None]
    last = np.where(np.tri(len(bounds), dtype=bool), last, np.inf)
    cost = np.concatenate([[0], bounds * before[1:]])  # one bucket for all
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
