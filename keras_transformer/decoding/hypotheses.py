"""The hypotheses of a search, the base class of the strategies that choose their tokens, and greedy search."""

import copy
import dataclasses
import functools
import math
import numbers
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.execution import ops
from keras_transformer.fields import Fields

# The most hypotheses of a row: a number from a file must not fill the memory.
MOST_RESULTS = 10_000
# The log probability of an impossible token.
NEVER = -math.inf


class Hypotheses(NamedTuple):
    """The results of a search, best first.

    Attributes:
        tokens: int32 `(batch, n_best, max_length)`, without `bos_id`, with `pad_id` after `eos_id`.
        lengths: int32 `(batch, n_best)`; `eos_id` counts.
        scores: float32 `(batch, n_best)`, the sums of the model's log probabilities; -inf where the constraints
            allowed no output.
    """

    tokens: Any
    lengths: Any
    scores: Any


class LoggedHypotheses(NamedTuple):
    """`Hypotheses` with the log probabilities of each token and of the likeliest ones in its place.

    Attributes:
        tokens: As in `Hypotheses`.
        lengths: As in `Hypotheses`.
        scores: As in `Hypotheses`.
        likeliest: int32 `(batch, n_best, max_length, k)`, the `k` tokens that the model found likeliest, best first.
        log_probs: float32 `(batch, n_best, max_length, 1 + k)`, the log probability of the token itself, and of the
            likeliest ones. They are the model's: no temperature, cut or constraint changes them.
    """

    tokens: Any
    lengths: Any
    scores: Any
    likeliest: Any
    log_probs: Any


def hypotheses_of(parts):
    """Makes `Hypotheses` of 3 tensors, and `LoggedHypotheses` of 5."""
    parts = tuple(parts)
    return (Hypotheses if len(parts) == 3 else LoggedHypotheses)(*parts)


def one_of(tokens, ids):
    """Whether tokens are one of a few ids.

    Args:
        tokens: int tensor of any shape.
        ids: A sequence of int, not empty.

    Returns:
        bool tensor of the same shape.
    """
    return functools.reduce(ops.logical_or, [ops.equal(tokens, token_id) for token_id in ids])


def mask_of(ids, vocab_size):
    """Returns which ids of a vocabulary are among some ids, bool `(vocab_size,)`.

    Args:
        ids: A sequence of int.
        vocab_size: int.
    """
    return ops.convert_to_tensor(np.isin(np.arange(vocab_size), ids))


class Beams(NamedTuple):
    """The current hypotheses of a search, `width` for each row.

    tokens: int32 `(batch, width, max_length)`, padded on the right.
    lengths: int32 `(batch, width)`.
    scores: float32 `(batch, width)`, the sums of the model's log probabilities.
    finished: bool `(batch, width)`.
    """

    tokens: Any
    lengths: Any
    scores: Any
    finished: Any

    def extended(self, tokens, log_probs, search):
        """Adds one token to each unfinished hypothesis.

        A hypothesis whose token is impossible ends without the token, and its score becomes -inf.

        Args:
            tokens: int32 `(batch, width)`.
            log_probs: float32 `(batch, width)`, the log probability of each token, -inf for an impossible one.
            search: `Search`.

        Returns:
            `Beams`.
        """
        grows = ops.logical_and(ops.logical_not(self.finished), log_probs > NEVER)
        slots = ops.arange(ops.shape(self.tokens)[-1], dtype="int32")
        here = ops.logical_and(ops.equal(slots, self.lengths[..., None]), grows[..., None])
        lengths = self.lengths + ops.cast(grows, "int32")
        written = ops.where(here, tokens[..., None], self.tokens)
        ends = search.ends(tokens, lengths, lambda: written)
        return Beams(
            written,
            lengths,
            ops.where(self.finished, self.scores, self.scores + log_probs),
            ops.logical_or(ops.logical_not(grows), ends),
        )


class Search(NamedTuple):
    """The settings of a search that its strategy does not choose. They stay the same while it runs.

    Attributes:
        limits: The longest output of each row, int32 `(batch,)`, or an int for all rows. The tokens of the prompt after
            its first count, and the end counts. A row whose limit is not positive gets no token.
        source_lengths: int32 `(batch,)`, for constraints that are relative to the source; None where there is none.
        keys: uint32 `(batch,)`. The random numbers of a row depend on its key and on the seed. The row's number when
            None.
        eos_ids: tuple of int, the tokens that end a row.
        pad_id: int, the token after the end.
        constraints: tuple of the constraints, which `decode` fills in.
    """

    limits: Any
    source_lengths: Any = None
    keys: Any = None
    eos_ids: tuple = (3,)
    pad_id: int = 0
    constraints: tuple = ()

    def ends(self, tokens, lengths, written):
        """Returns which hypotheses end with their newest token, bool `(batch, n)`.

        Args:
            tokens: int32 `(batch, n)`, the newest tokens.
            lengths: int32 `(batch, n)`, or `(batch, 1)` where all are the same.
            written: Function without arguments that returns all tokens of the hypotheses, int32
                `(batch, n, max_length)`.
        """
        ends = ops.logical_or(one_of(tokens, self.eos_ids), lengths >= self.limits[:, None])
        for constraint in self.constraints:
            ended = constraint.ended(written, lengths, self)
            ends = ends if ended is None else ops.logical_or(ends, ended)
        return ends


class Prediction(NamedTuple):
    """The model's scores for the next token, before and after the constraints.

    logits: float32 `(batch, width, vocab_size)`, the model's.
    allowed: float32 `(batch, width, vocab_size)`, the logits after the constraints: with penalties, and -inf for
        forbidden tokens.
    normalizer: float32 `(batch, width)`, `log(sum(exp(logits)))`.
    allowed_normalizer: float32 `(batch, width)`, the same sum over the logits with penalties. Forbidden tokens are
        part of the sum, so the other tokens keep their probabilities. None where no constraint changes logits.
    """

    logits: Any
    allowed: Any
    normalizer: Any
    allowed_normalizer: Any

    def log_probs(self, tokens, parents=None):
        """Returns the model's log probability of each token.

        Args:
            tokens: int32 `(batch, n)`.
            parents: int32 `(batch, n)`, the hypothesis that each token follows. None: token `i` follows hypothesis `i`.

        Returns:
            float32 `(batch, n)`, -inf for forbidden tokens.
        """
        width, vocab_size = self.logits.shape[1:]
        if parents is None:
            parents = ops.broadcast_to(ops.arange(width, dtype="int32"), ops.shape(tokens))
        shape = (-1, width * vocab_size)
        flat = ops.reshape(self.logits, shape), ops.reshape(self.allowed, shape)
        logits, allowed = ops.take_by_row(flat, parents * vocab_size + tokens)
        return ops.where(ops.equal(allowed, NEVER), NEVER, logits - ops.take_by_row(self.normalizer, parents))


def top_k(x, k):
    """Finds the `k` largest values of the last axis and their indices; of equal values, the lowest index first.

    The result is exact. For a vocabulary this is several times as fast as a sort: the `k` largest values lie in the
    `k` chunks with the largest maxima. One pass over the vocabulary finds these chunks, and only they are sorted.

    Args:
        x: float32 `(batch, n)`.
        k: int, at most `n`.

    Returns:
        float32 `(batch, k)` values and int32 `(batch, k)` indices.
    """
    size = x.shape[-1]
    if size < 1024 or size < 32 * k:
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    # The chunk size is a divisor of `size` near its root. Without such a divisor it is the root, and `x` is padded. At
    # least `k` chunks are left.
    root = min(math.isqrt(size), size // k)
    divisors = (d for d in range(root // 3, min(3 * root, size // k + 1)) if size % d == 0)
    chunk = min(divisors, key=lambda d: abs(d - root), default=root)
    x = ops.pad(x, ((0, 0), (0, -size % chunk)), constant_values=NEVER) if size % chunk else x
    chunks = ops.reshape(x, (-1, x.shape[-1] // chunk, chunk))
    best = ops.cast(ops.top_k(ops.max(chunks, axis=-1), k)[1], "int32")
    # Of equal values the lowest index comes first.
    best = ops.sort(best, axis=-1)
    values, inside = ops.top_k(ops.reshape(ops.take_by_row(chunks, best), (-1, k * chunk)), k)
    inside = ops.cast(inside, "int32")
    indices = ops.take_by_row(best, inside // chunk) * chunk + inside % chunk
    return values, ops.minimum(indices, size - 1) if size % chunk else indices


class RowFields(Fields):
    """Base of frozen dataclasses whose fields may hold a tensor `(batch, ...)`, a value for each row."""

    def plain(self, **dtypes):
        """Makes tensors of the arrays in some fields, and returns the other ones, whose values can be checked.

        Args:
            **dtypes: The dtype of each field.

        Returns:
            A dict of the fields without an array.
        """
        values = {name: getattr(self, name) for name in dtypes}
        arrays = {
            name for name, x in values.items() if hasattr(x, "shape") and not isinstance(x, numbers.Number)
        }
        for name in arrays:
            object.__setattr__(self, name, ops.convert_to_tensor(values[name], dtypes[name]))
        return {name: x for name, x in values.items() if name not in arrays}


def tensors_of(objects):
    """Returns the tensors of each object, a list of dicts by the names of their fields."""
    return [{name: x for name, x in vars(each).items() if ops.is_tensor(x)} for each in objects]


def with_tensors(objects, tensors):
    """Gives objects other tensors.

    Args:
        objects: A sequence of strategies and constraints.
        tensors: What `tensors_of` returned for them, with other values. With None in place of each tensor the objects
            can be compared and hashed.

    Returns:
        A tuple of copies, and of the objects themselves that have no tensor.
    """

    def with_fields(each, fields):
        each = copy.copy(each) if fields else each
        vars(each).update(fields)
        return each

    return tuple(map(with_fields, objects, tensors))


@dataclasses.dataclass(frozen=True, eq=False)
class Strategy(RowFields):
    """Base class of strategies: small frozen objects that choose the tokens of a search.

    A search has `width` hypotheses for each row and returns the best `n_best`. It calls `begin` once, `advance` at
    each step and `end` once. A strategy of your own overrides `advance`, and the others where it needs to. A field may
    hold a tensor `(batch, ...)`, a value for each row.
    """

    width = 1
    n_best = 1

    def prepared(self, vocab_size, pad_id, eos_ids):
        """Returns the strategy for one `generate`, whose values are known, with all that it draws or checks once.

        Args:
            vocab_size: Number of ids of the model.
            pad_id: The id that fills the rows up.
            eos_ids: tuple of int, the ids that end an output.

        Raises:
            ValueError: If a field does not fit the ids of the model.
        """
        return self

    def begin(self, beams, search):
        """Returns the first `extra`: a nest of tensors that the strategy keeps in addition to the beams.

        Args:
            beams: `Beams`.
            search: `Search`.
        """
        return ()

    def advance(self, beams, extra, prediction, search):
        """Takes one step.

        Args:
            beams: `Beams`.
            extra: The value that `begin` or the previous step returned.
            prediction: `Prediction` for each hypothesis.
            search: `Search`.

        Returns:
            The new `Beams`; the new `extra`; int32 `(batch, width)`, the newest token of each hypothesis; int32
            `(batch, width)`, the parent of each hypothesis, or None where every hypothesis keeps its place.
        """
        raise NotImplementedError

    def results(self, columns):
        """Returns the shape of each result without the batch, and its dtype, for `columns` tokens (None: not known)."""
        n = self.n_best
        return ((n, columns), "int32"), ((n,), "int32"), ((n,), "float32")

    def end(self, beams, extra, search, further=()):
        """Returns the `Hypotheses` of a finished search, best first.

        A hypothesis with the score -inf becomes empty: the constraints left it no token. So does one with the score
        NaN: the model's logits were NaN.

        Args:
            beams: `Beams`.
            extra: The value that the last step returned.
            search: `Search`.
            further: Further tensors of the result, `(batch, width, ...)`.
        """
        found = beams.scores > NEVER
        tokens = ops.where(found[..., None], beams.tokens, search.pad_id)
        lengths = ops.where(found, beams.lengths, 0)
        hypotheses = hypotheses_of((tokens, lengths, beams.scores, *further))
        if self.width == 1:
            return hypotheses
        return ops.take_by_row(hypotheses, top_k(beams.scores, self.n_best)[1])


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Greedy(Strategy):
    """Takes the likeliest token at each step; of equally likely tokens, the lowest id.

    >>> Greedy()
    Greedy()
    """

    def advance(self, beams, extra, prediction, search):
        vocab_size = prediction.allowed.shape[-1]
        _, tokens = top_k(ops.reshape(prediction.allowed, (-1, vocab_size)), 1)
        return beams.extended(tokens, prediction.log_probs(tokens), search), (), tokens, None
