"""Sampling: reproducible random numbers, and cuts that drop unlikely tokens."""

import dataclasses
import functools
import numbers
import random
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check, check_count, check_range
from keras_transformer.decoding.hypotheses import MOST_RESULTS, NEVER, Strategy, top_k
from keras_transformer.execution import ops

LARGEST_SEED = 2**31 - 1
# The cuts of most steps keep fewer tokens than this. Where they do, no more are sorted.
FEW = 64


class _Cuts(NamedTuple):
    """The cuts that rows may have of their own: numbers, or `(rows, 1)`, int32 and float32."""

    top_k: Any
    top_p: Any
    min_p: Any


NO_CUTS = _Cuts(0, 1.0, 0.0)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Sample(Strategy):
    """Draws each token from the model's distribution, after optional cuts.

    The cuts come in this order, and each works on the tokens that the cut before it kept: `top_k` (Fan et al., 2018),
    `top_p` (Holtzman et al., 2020), `min_p` (Nguyen et al., 2024), `typical_p` (Meister et al., 2023). Of equally
    likely tokens the lowest ids are kept.

    The samples of a row depend only on the seed and on the row's own source. The other rows and the order of the batch
    do not change them. The same source twice in a batch gives the same samples twice; `num_samples` gives different
    samples of one source.

    `temperature`, `top_k`, `top_p`, `min_p` and `seed` may each be an array or a tensor `(batch,)`, a value for each
    row of a batch. Its values are not checked.

    Args:
        temperature: Divisor of the logits. Below 1 the distribution gets sharper, above 1 flatter. 0 takes the
            likeliest token at each step, as `Greedy` does.
        top_k: Keep this many tokens; 0 for all.
        top_p: Keep the fewest tokens that hold at least this probability together.
        seed: int for the same samples each time, None for new samples at each `generate`.
        min_p: Keep the tokens that are at least this share as likely as the likeliest token.
        typical_p: Keep the tokens whose information is nearest to the entropy: the fewest that hold at least this
            probability together.
        num_samples: Number of samples for each source, at most 10,000; the likeliest comes first.
        most_k: Where `top_k` has a value for each row, the largest of them, so that no more tokens are sorted. A row
            whose `top_k` is 0 keeps this many. 0 for the size of the vocabulary. With a `most_k` above 0, a `top_k`
            for all rows must be from 1 to `most_k`.
        log_probs: Number of the likeliest tokens whose log probabilities are kept at each place, with that of the token
            itself; the result is `LoggedHypotheses`. None for none.
        logged: With `log_probs`, whether they are kept; without them their tensors have no places. A bool, or inside a
            graph without XLA a bool scalar.

    Raises:
        ValueError: If an argument is out of its range.

    >>> Sample(top_p=0.9, seed=7, num_samples=3).n_best
    3
    """

    temperature: Any = 1.0
    top_k: Any = 0
    top_p: Any = 1.0
    seed: Any = None
    min_p: Any = 0.0
    typical_p: float = 1.0
    num_samples: int = 1
    most_k: int = 0
    log_probs: int | None = None
    logged: Any = True

    def __post_init__(self):
        check_range(0, **self.plain(temperature="float32"))
        plain = self.plain(top_k="int32")
        check_count(**plain, most_k=self.most_k)
        fits = not (plain and self.most_k) or 0 < self.top_k <= self.most_k
        rule = "`top_k` must be from 1 to `most_k`, where `most_k` is above 0."
        check(fits, rule, top_k=self.top_k, most_k=self.most_k)
        check_range(0, 1, above=True, **self.plain(top_p="float32"), typical_p=self.typical_p)
        check_range(0, 1, **self.plain(min_p="float32"))
        check_count(1, MOST_RESULTS, num_samples=self.num_samples)
        if self.log_probs is not None:
            check_count(1, MOST_RESULTS, log_probs=self.log_probs)
        if self.seed is not None:
            check_count(0, LARGEST_SEED, **self.plain(seed="int32"))

    @property
    def width(self):
        return self.num_samples

    @property
    def n_best(self):
        return self.num_samples

    def prepared(self, vocab_size, pad_id, eos_ids):
        seed = random.randint(0, LARGEST_SEED) if self.seed is None else self.seed
        # A tensor is not a part of the compiled function.
        return dataclasses.replace(self, seed=ops.convert_to_tensor(seed, "int32"))

    def results(self, columns):
        results = super().results(columns)
        if self.log_probs is None:
            return results
        places = columns if self.logged is True else None
        shape = self.n_best, places, self.log_probs
        return *results, (shape, "int32"), ((*shape[:2], self.log_probs + 1), "float32")

    def begin(self, beams, search):
        if self.log_probs is None:
            return ()
        batch_size, _, places = ops.shape(beams.tokens)
        places = places if self.logged is True else places * ops.cast(self.logged, "int32")
        shape = batch_size, self.width, places
        likeliest = ops.zeros((*shape, self.log_probs), "int32")
        return likeliest, ops.zeros((*shape, self.log_probs + 1), "float32")

    def advance(self, beams, extra, prediction, search):
        batch_size, width, vocab_size = ops.shape(prediction.allowed)
        logits = ops.reshape(prediction.allowed, (-1, vocab_size))  # (batch * width, vocab_size)

        def of_hypotheses(x):
            """Returns a number as it is, and the values of rows, `(batch,)`, as `(batch * width, 1)`."""
            if isinstance(x, numbers.Real):
                return x
            return ops.reshape(ops.broadcast_to(ops.reshape(x, (-1, 1)), (batch_size, width)), (-1, 1))

        temperature = of_hypotheses(self.temperature)
        if isinstance(temperature, numbers.Real) and temperature == 0:
            tokens = top_k(logits, 1)[1]
        else:
            rule = "`search` and `decode` need a `Sample` with a `seed`. Only `generate` draws one."
            check(self.seed is not None, rule, seed=self.seed)
            uniform = ops.reshape(_uniform(self.seed, beams.lengths, search.keys), (-1, 1))
            draw = self._drawn if isinstance(temperature, numbers.Real) else self._drawn_or_likeliest
            cuts = _Cuts(*map(of_hypotheses, (self.top_k, self.top_p, self.min_p)))
            tokens = draw(logits, uniform, temperature, cuts)
        tokens = ops.reshape(tokens, (batch_size, width))
        log_probs = prediction.log_probs(tokens)
        if self.log_probs is not None:
            extra = self._logged(beams, extra, prediction, log_probs)
        return beams.extended(tokens, log_probs, search), extra, tokens, None

    def end(self, beams, extra, search):
        return super().end(beams, extra, search, extra)

    def _logged(self, beams, extra, prediction, log_probs):
        """Adds the log probabilities of the newest tokens, float32 `(batch, width)`, and the likeliest to `extra`."""

        def added():
            logits = prediction.logits - prediction.normalizer[..., None]
            batch_size, width, vocab_size = ops.shape(logits)
            best = top_k(ops.reshape(logits, (-1, vocab_size)), min(self.log_probs, vocab_size))
            best = [ops.reshape(x, (batch_size, width, -1)) for x in best]
            missing = ((0, 0), (0, 0), (0, max(0, self.log_probs - vocab_size)))
            values, ids = (ops.pad(x, missing) for x in best)
            values = ops.concatenate([log_probs[..., None], values], axis=-1)
            slots = ops.arange(ops.shape(extra[0])[2], dtype="int32")
            grows = ops.logical_and(ops.logical_not(beams.finished), log_probs > NEVER)
            here = ops.logical_and(ops.equal(slots, beams.lengths[..., None]), grows[..., None])[..., None]
            return tuple(
                ops.where(here, x[:, :, None], old) for x, old in zip((ids, values), extra, strict=True)
            )

        return added() if self.logged is True else ops.cond(self.logged, added, lambda: extra)

    def _drawn_or_likeliest(self, logits, uniform, temperature, cuts):
        """Draws a token for each hypothesis; at a temperature of 0 takes the likeliest.

        Args:
            logits: float32 `(rows, vocab_size)`.
            uniform: float32 `(rows, 1)`, numbers in [0, 1).
            temperature: float32 `(rows, 1)`.
            cuts: `_Cuts`.

        Returns:
            int32 `(rows, 1)`.
        """
        draws, likeliest = temperature > 0, top_k(logits, 1)[1]

        def drawn():
            # Without a draw a row needs no cut.
            used = _Cuts(
                *(
                    x if isinstance(x, numbers.Real) else ops.where(draws, x, ops.cast(neutral, x.dtype))
                    for x, neutral in zip(cuts, NO_CUTS, strict=True)
                )
            )
            tokens = self._drawn(logits, uniform, ops.where(draws, temperature, 1.0), used)
            return ops.where(draws, tokens, likeliest)

        return ops.cond(ops.any(draws), drawn, lambda: likeliest)

    def _drawn(self, logits, uniform, temperature, cuts):
        """Draws a token for each hypothesis: int32 `(rows, 1)`. `temperature` is a float, or float32 `(rows, 1)`."""
        highest = ops.max(logits, axis=-1, keepdims=True)
        logits = ops.where(logits > NEVER, (logits - highest) / temperature, NEVER)
        ids, logits = self._kept(logits, cuts)
        drawn = _draw(logits, uniform)
        return drawn if ids is None else ops.take_by_row(ids, drawn)

    def _kept(self, logits, cuts):
        """Applies the cuts to logits `(rows, vocab_size)`.

        Returns:
            ids: int32 `(rows, kept)`, likeliest first; None for all ids in their order.
            logits: float32 `(rows, kept)`, -inf for tokens that a cut dropped.
        """
        by_row = [not isinstance(x, numbers.Real) for x in cuts]
        # As in `NO_CUTS`: above 0, below 1, above 0.
        used = cuts.top_k > 0, cuts.top_p < 1, cuts.min_p > 0
        for_all = any(each for each, varies in zip(used, by_row, strict=True) if not varies)
        if for_all or self.typical_p < 1 or self.most_k:
            most = self.most_k or logits.shape[-1]
            most = most if by_row[0] else min(most, cuts.top_k or most)
            return self._cut(*top_k(logits, min(most, logits.shape[-1])), cuts)
        if not any(by_row):
            return None, logits
        # Rows without a cut keep the order of their ids, so that they draw what they draw alone. A sort of the
        # vocabulary takes longer than the rest of a small step, so it is left out if no row needs it.
        ids = ops.broadcast_to(ops.arange(logits.shape[-1], dtype="int32"), ops.shape(logits))
        rows = functools.reduce(ops.logical_or, [x for x, varies in zip(used, by_row, strict=True) if varies])

        def cut():
            pairs = zip(self._cut_few(logits, cuts, rows), (ids, logits), strict=True)
            return tuple(ops.where(rows, of_cut, plain) for of_cut, plain in pairs)

        return ops.cond(ops.any(rows), cut, lambda: (ids, logits))

    def _cut_few(self, logits, cuts, rows):
        """Applies the cuts of rows. It sorts the vocabulary only if the `FEW` likeliest tokens of a row are not enough.

        Args:
            logits: float32 `(rows, vocab_size)`.
            cuts: `_Cuts`.
            rows: bool `(rows, 1)`, which rows have a cut.

        Returns:
            What `_kept` returns, with all places.
        """
        vocab_size = logits.shape[-1]

        def of_all():
            return self._cut(*top_k(logits, vocab_size), cuts)

        if vocab_size < 32 * FEW:
            return of_all()
        values, ids = top_k(logits, FEW)
        share = ops.exp(_log_sum(values) - _log_sum(logits))
        no_k = ops.less_equal(cuts.top_k, 0)
        few = [
            ops.logical_not(rows),
            ops.logical_and(ops.logical_not(no_k), ops.less_equal(cuts.top_k, FEW)),
            ops.logical_and(no_k, ops.logical_and(ops.less(cuts.top_p, 1.0), share >= cuts.top_p)),
            ops.logical_and(no_k, ops.exp(values[:, -1:] - values[:, :1]) < cuts.min_p),
        ]

        def of_few():
            cut = self._cut(values, ids, cuts, ops.where(no_k, share, 1.0))
            missing = ((0, 0), (0, vocab_size - FEW))
            return tuple(
                ops.pad(x, missing, constant_values=fill) for x, fill in zip(cut, (0, NEVER), strict=True)
            )

        return ops.cond(ops.all(functools.reduce(ops.logical_or, few)), of_few, of_all)

    def _cut(self, logits, ids, cuts, share=1.0):
        """Applies the cuts to the likeliest tokens.

        Args:
            logits: float32 `(rows, kept)`, the largest first.
            ids: int32 `(rows, kept)`.
            cuts: `_Cuts`.
            share: The probability of all of these tokens, float32 `(rows, 1)`, where `top_k` does not count.

        Returns:
            What `_kept` returns.
        """
        top_p, min_p = cuts.top_p, cuts.min_p
        top_k_by_row, top_p_by_row, min_p_by_row = (not isinstance(x, numbers.Real) for x in cuts)
        if top_k_by_row:
            places = ops.arange(logits.shape[-1], dtype="int32")
            kept = ops.logical_or(places < cuts.top_k, cuts.top_k <= 0)
            logits = ops.where(kept, logits, NEVER)
        if top_p_by_row or top_p < 1:
            probs = ops.softmax(logits, axis=-1) * share
            kept = ops.cumsum(probs, axis=-1) - probs < top_p
            kept = ops.logical_or(kept, top_p >= 1) if top_p_by_row else kept
            logits = ops.where(kept, logits, NEVER)
        if min_p_by_row or min_p:
            probs = ops.softmax(logits, axis=-1)
            logits = ops.where(probs >= min_p * probs[:, :1], logits, NEVER)
        if self.typical_p < 1:
            logits = ops.where(self._typical(logits), logits, NEVER)
        return ids, logits

    def _typical(self, logits):
        """Marks the typical tokens (Meister et al., 2023, "Locally Typical Sampling", equation 6)."""
        probs = ops.softmax(logits, axis=-1)
        information = -ops.log_softmax(logits, axis=-1)
        entropy = ops.sum(ops.where(probs > 0, probs * information, 0.0), axis=-1, keepdims=True)
        distance = ops.where(probs > 0, ops.abs(information - entropy), -NEVER)
        order = ops.argsort(distance, axis=-1)
        sorted_probs = ops.take_along_axis(probs, order, axis=-1)
        kept = ops.cumsum(sorted_probs, axis=-1) - sorted_probs < self.typical_p
        # The place of each token in `order`.
        place = ops.argsort(order, axis=-1)
        return ops.take_along_axis(kept, place, axis=-1)


def _log_sum(logits):
    """Returns the logarithm of the sum of exponentials of each row, float32 `(rows, 1)`."""
    return ops.logsumexp(logits, axis=-1, keepdims=True)


def _draw(logits, uniform):
    """Draws an index for each row with the probabilities `softmax(logits)`, by the inverse of their running sum.

    Args:
        logits: float32 `(rows, n)`.
        uniform: float32 `(rows, 1)`, numbers in [0, 1).

    Returns:
        int32 `(rows, 1)`.
    """
    probs = ops.where(logits > NEVER, ops.exp(logits - ops.max(logits, axis=-1, keepdims=True)), 0.0)
    possible = probs > 0
    running = ops.cumsum(probs, axis=-1)
    # XLA sums in blocks, so the running sum may rise at an impossible token. Such tokens are excluded explicitly.
    reached = ops.logical_and(running > uniform * running[:, -1:], possible)
    last = logits.shape[-1] - 1 - ops.argmax(ops.cast(possible, "int32")[:, ::-1], axis=-1)
    drawn = ops.where(ops.any(reached, axis=-1), ops.argmax(ops.cast(reached, "int32"), axis=-1), last)
    return ops.cast(drawn, "int32")[:, None]


def _uniform(seed, lengths, keys):
    """Returns a number in [0, 1) for each hypothesis, float32 `(batch, width)`.

    It depends only on the seed, the row's key, the number of the hypothesis and its length, so it is the same on every
    backend.

    Args:
        seed: int, or int32 `(batch,)`.
        lengths: int32 `(batch, width)`.
        keys: uint32 `(batch,)`, or None for the row's number.
    """
    width = lengths.shape[1]
    if keys is None:
        keys = ops.cast(ops.arange(ops.shape(lengths)[0], dtype="int32"), "uint32")
    mixed = _mix(ops.cast(ops.cast(seed, "int32"), "uint32"))
    mixed = _mix(ops.bitwise_xor(mixed, keys))[:, None]
    mixed = _mix(ops.bitwise_xor(mixed, ops.cast(ops.arange(1, width + 1, dtype="int32"), "uint32")[None]))
    mixed = _mix(ops.bitwise_xor(mixed, ops.cast(lengths + 1, "uint32")))
    return ops.cast(_without_low_bits(mixed, 8), "float32") * 2.0**-24


def row_keys(token_ids, pad_id):
    """Returns a number for each row that depends on its tokens and not on its padding.

    Args:
        token_ids: int `(batch, length)`.
        pad_id: int, the id of padding.

    Returns:
        uint32 `(batch,)`, for `Search(keys=)`.

    >>> keys = row_keys([[5, 7, 0], [5, 7, 9]], pad_id=0)
    >>> bool(keys[0] == row_keys([[5, 7]], pad_id=0)[0]), bool(keys[0] == keys[1])
    (True, False)
    """
    token_ids = ops.convert_to_tensor(token_ids, "int32")
    positions = ops.cast(ops.cumsum(ops.cast(ops.not_equal(token_ids, pad_id), "int32"), axis=1), "uint32")
    mixed = _mix(ops.bitwise_xor(_mix(positions), ops.cast(token_ids, "uint32")))
    mixed = ops.where(ops.not_equal(token_ids, pad_id), mixed, ops.zeros_like(mixed))
    return ops.sum(mixed, axis=1)


def feature_keys(features):
    """Returns a number for each row of a nest of tensors that depends on its values and on their places.

    Values of 0 count for nothing, so a row has the same key in a batch that is filled up with zeros.

    Args:
        features: A nest of tensors `(batch, ...)` of numbers.

    Returns:
        uint32 `(batch,)`, for `Search(keys=)`.

    >>> keys = feature_keys(np.array([[0.5, 0.0], [0.5, 0.7]]))
    >>> bool(keys[0] == feature_keys(np.array([[0.5]]))[0]), bool(keys[0] == keys[1])
    (True, False)
    """
    keys = 0
    for x in keras.tree.flatten(features):
        x = ops.convert_to_tensor(x)
        dtype = keras.backend.standardize_dtype(x.dtype)
        bits = ops.view(ops.cast(x, "float32"), "uint32") if "float" in dtype else ops.cast(x, "uint32")
        bits = ops.reshape(bits, (ops.shape(bits)[0], -1))
        places = _mix(ops.cast(ops.arange(ops.shape(bits)[1], dtype="int32"), "uint32"))
        mixed = ops.where(ops.equal(bits, 0), ops.zeros_like(bits), _mix(ops.bitwise_xor(places, bits)))
        keys = _mix(keys + ops.sum(mixed, axis=1))
    return keys


def _mix(x):
    """Hashes uint32 numbers with the finalizer of MurmurHash3 (Appleby), after adding an offset so that 0 changes."""
    x = x + np.uint32(0x9E3779B9)
    x = ops.bitwise_xor(x, _without_low_bits(x, 16)) * np.uint32(0x85EBCA6B)
    x = ops.bitwise_xor(x, _without_low_bits(x, 13)) * np.uint32(0xC2B2AE35)
    return ops.bitwise_xor(x, _without_low_bits(x, 16))


def _without_low_bits(x, count):
    """Shifts uint32 numbers to the right. A tensor as the count: Keras on JAX may make a float of a plain number."""
    return ops.right_shift(x, ops.cast(count, "uint32"))
