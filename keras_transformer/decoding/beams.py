"""The hypotheses of a search, and the few gathers and selections that every strategy is made of."""

import math
from typing import Any, NamedTuple

import keras
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
        return select(self, parents)

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
        part in a search, and leaves the probabilities of the rest as they are. None where nothing is penalised.
    """

    logits: Any
    allowed: Any
    normalizer: Any
    allowed_normalizer: Any

    def log_probs(self, tokens, parents=None):
        """The model's log probability of each token after each parent, -inf where it is forbidden.

        Args:
            tokens: int32 `(batch, n)`.
            parents: int32 `(batch, n)`; None where each hypothesis goes on with a token of its own.
        """
        width, vocab_size = self.logits.shape[1:]
        if parents is None:
            parents = ops.broadcast_to(ops.arange(width, dtype="int32"), ops.shape(tokens))
        logits, allowed = select(
            [ops.reshape(x, (-1, width * vocab_size)) for x in (self.logits, self.allowed)],
            parents * vocab_size + tokens,
        )
        return ops.where(allowed > NEVER, logits - select(self.normalizer, parents), NEVER)


def select(nest, indices):
    """`x[row, indices[row]]` for each row and each tensor of a nest.

    Args:
        nest: Tensors `(batch, n, ...)`, all of one `n`.
        indices: int32 `(batch, m)`, each at least 0 and below `n`.

    Returns:
        The nest, its tensors `(batch, m, ...)`.
    """
    n = ops.shape(keras.tree.flatten(nest)[0])[1]
    batch_size, m = ops.shape(indices)
    flat = ops.reshape(indices + ops.arange(batch_size, dtype="int32")[:, None] * n, (-1,))

    def of(x):
        rest = ops.shape(x)[2:]
        taken = ops.take(ops.reshape(x, (-1, *rest)), flat, axis=0)
        return ops.reshape(taken, (batch_size, m, *rest))

    return keras.tree.map_structure(of, nest)


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
    size = x.shape[-1]
    if size < 1024 or size < 32 * k:
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    chunk = _chunk(size)
    x = ops.pad(x, ((0, 0), (0, -size % chunk)), constant_values=NEVER) if size % chunk else x
    chunks = ops.reshape(x, (-1, x.shape[-1] // chunk, chunk))
    best = ops.cast(ops.top_k(ops.max(chunks, axis=-1), k)[1], "int32")
    best = ops.sort(best, axis=-1)  # so that of equals the lowest comes first
    values, inside = ops.top_k(ops.reshape(select(chunks, best), (-1, k * chunk)), k)
    inside = ops.cast(inside, "int32")
    indices = select(best, inside // chunk) * chunk + inside % chunk
    return values, ops.minimum(indices, size - 1) if size % chunk else indices


def _chunk(size):
    """The size of chunks: near the root of `size`, a divisor of it if there is one, else it must be padded."""
    root = math.isqrt(size)
    divisors = (d for d in range(root // 3, 3 * root) if size % d == 0)
    return min(divisors, key=lambda d: abs(d - root), default=root)
