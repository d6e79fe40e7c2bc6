"""The hypotheses of a search, and the few gathers and selections that every strategy is made of."""

import math
from typing import Any, NamedTuple

from keras import ops

NEVER = -math.inf  # the log probability of what cannot be


class Hypotheses(NamedTuple):
    """What decoding found, best first.

    tokens: int32 `(batch, n_best, max_length)`, without `bos_id`, `pad_id` after `eos_id`.
    lengths: int32 `(batch, n_best)`, counting `eos_id`.
    scores: float32 `(batch, n_best)`, sums of the model's log probabilities; -inf where the constraints
        left nothing to say.
    """

    tokens: Any
    lengths: Any
    scores: Any


class Beams(NamedTuple):
    """The hypotheses that a search is at, `width` for each row.

    tokens: int32 `(batch, width, max_length)`, padded on the right.
    lengths: int32 `(batch, width)`.
    scores: float32 `(batch, width)`, sums of the model's log probabilities.
    finished: bool `(batch, width)`.
    """

    tokens: Any
    lengths: Any
    scores: Any
    finished: Any

    def select(self, parents):
        """The hypotheses at `parents`, int32 `(batch, new_width)`."""
        return Beams(*(select(part, parents) for part in self))

    def extended(self, tokens, log_probs, search):
        """Each unfinished hypothesis with one token more; one whose token cannot be (-inf) ends without it."""
        grows = ops.logical_and(ops.logical_not(self.finished), log_probs > NEVER)
        slots = ops.arange(ops.shape(self.tokens)[-1], dtype="int32")
        here = ops.logical_and(ops.equal(slots, self.lengths[..., None]), grows[..., None])
        lengths = self.lengths + ops.cast(grows, "int32")
        ends = ops.logical_or(ops.equal(tokens, search.eos_id), lengths >= search.limits[:, None])
        return Beams(
            ops.where(here, tokens[..., None], self.tokens),
            lengths,
            ops.where(self.finished, self.scores, self.scores + log_probs),
            ops.logical_or(ops.logical_not(grows), ends),
        )


class Search(NamedTuple):
    """What stays the same while a search runs.

    limits: int32 `(batch,)`, the longest output of each row.
    source_lengths: int32 `(batch,)`, or None.
    keys: uint32 `(batch,)`, what a row's random numbers follow from, beside the seed.
    seed: int32 scalar.
    eos_id, pad_id: int.
    """

    limits: Any
    source_lengths: Any
    keys: Any
    seed: Any
    eos_id: int
    pad_id: int


class Prediction(NamedTuple):
    """What the model says of the next token, and what the constraints leave of it.

    logits: float32 `(batch, width, vocab_size)`, the model's.
    allowed: The same after the constraints: penalised, and -inf for what is forbidden.
    normalizer: float32 `(batch, width)`, the logarithm of the sum of `exp(logits)`.
    allowed_normalizer: The same of the penalised logits, forbidden ones included: what is forbidden takes no
        part in a search, and leaves the probabilities of the rest as they are.
    """

    logits: Any
    allowed: Any
    normalizer: Any
    allowed_normalizer: Any

    def log_probs(self, tokens, parents=None):
        """The model's log probability of each token, -inf where it is forbidden."""
        logits, allowed, normalizer = self.logits, self.allowed, self.normalizer
        if parents is None:
            parents = ops.broadcast_to(ops.arange(tokens.shape[1], dtype="int32"), ops.shape(tokens))
        vocab_size = logits.shape[-1]
        flat = parents * vocab_size + tokens

        def at(x):
            return select(ops.reshape(x, (-1, x.shape[1] * vocab_size)), flat)

        return ops.where(at(allowed) > NEVER, at(logits) - select(normalizer, parents), NEVER)


def select(x, indices):
    """`x[row, indices[row]]` for each row: `(batch, n, ...)` at int32 `(batch, m)` to `(batch, m, ...)`."""
    n, m = x.shape[1], ops.shape(indices)[1]
    rows = ops.arange(ops.shape(x)[0], dtype="int32")[:, None] * n
    rest = ops.shape(x)[2:]
    flat = ops.take(ops.reshape(x, (-1, *rest)), ops.reshape(indices + rows, (-1,)), axis=0)
    return ops.reshape(flat, (-1, m, *rest))


def top_k(x, k):
    """The `k` largest of the last axis and where they stand; of equals, the lowest index first.

    Exact, and several times as fast as a sort over a vocabulary: the best `k` lie in the `k` chunks with the
    highest peaks, so one pass over the vocabulary finds the peaks and the sort sees `k` chunks.

    Args:
        x: float32 `(batch, n)`.
        k: int, at most `n`.

    Returns:
        float32 and int32 `(batch, k)`.
    """
    chunk = _chunk(x.shape[-1], k)
    if chunk is None:
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    chunks = ops.reshape(x, (-1, x.shape[-1] // chunk, chunk))
    best = ops.cast(ops.top_k(ops.max(chunks, axis=-1), k)[1], "int32")
    best = ops.sort(best, axis=-1)  # so that of equals the lowest comes first
    values, inside = ops.top_k(ops.reshape(select(chunks, best), (-1, k * chunk)), k)
    inside = ops.cast(inside, "int32")
    return values, select(best, inside // chunk) * chunk + inside % chunk


def _chunk(size, k):
    """The divisor of `size` nearest to its root, or None where a plain sort is as good."""
    if size < 1024:
        return None
    divisors = [d for d in range(16, size // 16 + 1) if size % d == 0 and size // d >= k]
    return min(divisors, key=lambda d: abs(d - math.sqrt(size)), default=None)
