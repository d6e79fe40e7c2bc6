"""Generation: what a model needs to write sequences, whatever the model."""

import dataclasses
import functools
import random
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.backend import compiled, compiles
from keras_transformer.checks import check_positive
from keras_transformer.decoding import Greedy, Strategy, decode, row_keys
from keras_transformer.models.limits import (
    at_most,
    check_constraints,
    check_targets,
    default_limit,
    most_tokens,
)

# A compiled `generate` pads its sources to a multiple of this: each new shape costs a compilation.
SOURCE_LENGTH_STEP = 16


class Scores(NamedTuple):
    """How likely a model finds given targets.

    scores: float32 `(batch,)` or `(batch, n)`, sums of log probabilities.
    token_scores: float32 `(batch, target_len)` or `(batch, n, target_len)`, the log probability of each token, 0
        where there is none.
    alignments: float32, the same with one more axis, `source_len`: how much each target token attends to each
        source token, the mean over the heads of the last layer but one (Garg et al., 2019, section 4.1). None of a
        language model, which has no source.
    """

    scores: Any
    token_scores: Any
    alignments: Any


class Generation:
    """Adds `generate` and `score` to a model that has `start`, `encode`, `decode`, `pad_id`, `bos_id` and `eos_id`."""

    @functools.cached_property
    def _functions(self):
        return functools.lru_cache(maxsize=32)(self._compile)

    @property
    def longest(self):
        """How many positions a sequence may take where they are learned, else None."""
        return getattr(getattr(self, "positions", None), "max_length", None)

    def room(self, source):
        """How long the output of each source may get, int NumPy `(batch,)`; None where there is no end.

        Args:
            source: int NumPy `(batch, source_len)`.
        """
        return None if self.longest is None else np.full(len(source), self.longest)

    def search(self, source, strategy, max_length=None, *, constraints=(), prefix=None, seed=None):
        """What `generate` compiles: tensors in, tensors out, for use inside a graph.

        Args:
            source: int32 `(batch, source_len)`. A row of padding alone gets an empty output.
            strategy: As in `generate`.
            max_length: As in `generate`; where there is a last position, a row ends there instead.
            constraints: As in `generate`.
            prefix: As in `generate`.
            seed: int32 scalar, for a strategy that draws; its own when None.

        Returns:
            `Hypotheses`.

        Raises:
            ValueError: If the strategy draws and neither it nor the caller names a seed.
        """
        batch_size = ops.shape(source)[0]
        source_lengths = ops.sum(ops.cast(ops.not_equal(source, self.pad_id), "int32"), axis=1)
        prompt, starts = ops.full((batch_size, 1), self.bos_id, "int32"), None
        prefix_len = prefix_lengths = 0
        if prefix is not None:
            prefix_len, prefix_lengths = ops.shape(prefix)[1], lengths_of(prefix, self.pad_id)
            prompt = ops.concatenate([prompt, prefix], axis=1)
            prompt, starts = left_padded(prompt, prefix_lengths + 1, self.pad_id)
        row_limits = at_most(max_length, self.longest)
        if max_length is None:
            max_length = default_limit(ops.shape(source)[1], prefix_len, constraints, self.longest)
            row_limits = default_limit(source_lengths, prefix_lengths, constraints, self.longest)
        # Nothing is said of an empty source: a row that fills up a batch costs no step.
        row_limits = ops.where(source_lengths > 0, row_limits, prefix_lengths)
        step, cache = self.start(source, strategy.width, ops.shape(prompt)[1], starts)
        return decode(
            step,
            cache,
            strategy,
            prompt,
            max_length,
            starts=starts,
            constraints=constraints,
            row_limits=row_limits,
            source_lengths=source_lengths,
            keys=row_keys(source, self.pad_id),
            seed=seed_of(strategy, seed),
            eos_id=self.eos_id,
            pad_id=self.pad_id,
        )

    def generate(
        self,
        source,
        strategy=Greedy(),  # noqa: B008
        max_length=None,
        jit_compile=None,
        *,
        constraints=(),
        prefix=None,
    ):
        """Writes a target for each source.

        Args:
            source: int `(batch, source_len)`, padded on the right.
            strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
            max_length: Longest output, `eos_id` included. None for twice each row's own length plus 16, beside
                its prefix, or what `MinLength` asks for if that is more; never beyond the last position of a model
                that learned its positions.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.
            constraints: What every output must satisfy, such as `[MinLength(5), NoRepeatNgram(3)]`.
            prefix: int `(batch, prefix_len)`, what each output begins with, padded on the right. It is part of
                the output and of its score; the constraints judge what comes after it.

        Returns:
            `Hypotheses(tokens, lengths, scores)`: int32 `(batch, n_best, max_length)`, int32
            `(batch, n_best)`, float32 `(batch, n_best)`.

        Raises:
            ValueError: If `source` is not of rank 2 or empty, `max_length` is not positive or beyond the last position,
                `prefix` holds no ids, is not padded on the right or too long, or the constraints contradict one
                another.
        """
        source = _matrix(source, "source", "(batch, source_len)")
        ids = ops.convert_to_numpy(source)
        if ids.min() < 0 or ids.max() >= self.source_vocab_size:
            raise ValueError(
                f"`source` must hold ids from 0 to {self.source_vocab_size - 1}. "
                f"Received: ids from {ids.min()} to {ids.max()}."
            )
        if max_length is not None:
            check_positive(max_length=max_length)
        most = most_tokens(self.room(ids), max_length, self.longest)
        if not isinstance(strategy, Strategy):
            raise ValueError(f"`strategy` must be a strategy such as `Greedy()`. Received: {strategy!r}.")
        constraints = check_constraints(constraints, most)
        jit_compile = compiles(jit_compile)
        length = source.shape[1]
        inputs = {"source": _to_step(source, self.pad_id, self.longest) if jit_compile else source}
        prefix_len = 0
        if prefix is not None:
            inputs["prefix"] = prefix = self._checked_prefix(prefix, source, most)
            prefix_len = prefix.shape[1]
        if hasattr(strategy, "seed"):
            seed = random.randrange(2**31) if strategy.seed is None else strategy.seed
            inputs["seed"] = ops.convert_to_tensor(seed, "int32")
            strategy = dataclasses.replace(strategy, seed=None)  # one function for every seed
        limit = (
            default_limit(length, prefix_len, constraints, self.longest) if max_length is None else max_length
        )
        found = self._functions("search", jit_compile, strategy, max_length, constraints)(inputs)
        return found._replace(tokens=found.tokens[:, :, :limit])

    def _checked_prefix(self, prefix, source, max_length):
        """int32 `prefix`, if it is what `generate` asks for."""
        prefix = _matrix(prefix, "prefix", "(batch, prefix_len)")
        ids = ops.convert_to_numpy(prefix)
        real = ids != self.pad_id
        lengths = real.sum(axis=1)
        ended = (ids == self.eos_id).any(axis=1) & (ids[range(len(ids)), lengths - 1] != self.eos_id)
        rules = {
            "a row for each source": len(ids) == source.shape[0],
            f"ids from 0 to {self.target_vocab_size - 1}": (ids >= 0).all()
            and (ids < self.target_vocab_size).all(),
            "padding on the right alone": (real[:, 1:] <= real[:, :-1]).all(),
            "no token after `eos_id`": not (ended | ((ids == self.eos_id).sum(axis=1) > 1)).any(),
            f"at most max_length={max_length} tokens": max_length is None or lengths.max() <= max_length,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(
                    f"`prefix` must have {rule}. Received: {ids.tolist()} for {source.shape[0]} sources."
                )
        return prefix[:, : max(1, int(lengths.max()))]

    def score(self, source, target, jit_compile=None):
        """How likely the model finds given targets: one pass, no search.

        Args:
            source: int `(batch, source_len)`, padded on the right.
            target: int `(batch, target_len)`, or `(batch, n, target_len)` for several targets of each source, such as
                the tokens of `Hypotheses`; without `bos_id`, with `eos_id` where it counts, padded on the right. An
                empty target scores 0.
            jit_compile: As in `generate`.

        Returns:
            `Scores(scores, token_scores, alignments)`.

        Raises:
            ValueError: If a shape does not fit, or a target goes beyond the last position of a model that learned them.
        """
        source = _matrix(source, "source", "(batch, source_len)")
        target = ops.convert_to_tensor(target, "int32")
        if len(target.shape) not in (2, 3) or 0 in target.shape or target.shape[0] != source.shape[0]:
            raise ValueError(
                "`target` must have shape `(batch, target_len)` or `(batch, n, target_len)`, without an empty axis, "
                f"and the batch of `source`. Received: shape={tuple(target.shape)} for {source.shape[0]} sources."
            )
        several = target if len(target.shape) == 3 else target[:, None]
        check_targets(
            ops.convert_to_numpy(several), self.pad_id, self.room(ops.convert_to_numpy(source)), self.longest
        )
        scores = self._functions("score_all", compiles(jit_compile))({"source": source, "target": several})
        return (
            scores
            if several is target
            else Scores(*(part if part is None else part[:, 0] for part in scores))
        )

    def score_all(self, source, target):
        """`score` inside a graph, for `(batch, n, target_len)`."""
        batch_size, n, target_len = ops.shape(target)
        memory = self.encode(source, training=False)
        memory = type(memory)(*(ops.repeat(part, n, axis=0) for part in memory))
        flat = ops.reshape(target, (batch_size * n, target_len))
        shifted = ops.concatenate([ops.full((batch_size * n, 1), self.bos_id, "int32"), flat[:, :-1]], axis=1)
        logits, attention = self.decode(shifted, memory, training=False, return_attention_scores=True)
        log_probs, real = log_probs_of(flat, logits, self.pad_id)
        _, cross = attention[-2:][0]
        alignments = ops.where(real[..., None], ops.mean(cross, axis=1), 0.0)
        return Scores(
            ops.reshape(ops.sum(log_probs, axis=1), (batch_size, n)),
            ops.reshape(log_probs, (batch_size, n, target_len)),
            ops.reshape(alignments, (batch_size, n, target_len, ops.shape(source)[1])),
        )

    def _compile(self, name, jit_compile, *settings):
        function = getattr(self, name)
        if name == "search":
            strategy, max_length, constraints = settings
            function = functools.partial(
                function, strategy=strategy, max_length=max_length, constraints=constraints
            )
        return compiled(lambda inputs: function(**inputs), self, jit_compile)


def seed_of(strategy, seed):
    """The seed that was given, or the strategy's own.

    Raises:
        ValueError: If it draws, and there is neither.
    """
    seed = getattr(strategy, "seed", 0) if seed is None else seed
    if seed is None:
        raise ValueError(f"`search` needs a `seed`, or a strategy with one. Received: {strategy}.")
    return seed


def _matrix(x, name, shape):
    """int32 `x`, if it holds ints, has rank 2 and no empty axis."""
    x = ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must hold ids, ints. Received: dtype={dtype}.")
    x = ops.cast(x, "int32")
    if len(x.shape) != 2 or 0 in x.shape:
        raise ValueError(
            f"`{name}` must have shape `{shape}`, without an empty axis. Received: shape={tuple(x.shape)}."
        )
    return x


def _to_step(source, pad_id, longest):
    """Sources padded to a length that recurs, and has a position."""
    length = source.shape[1]
    padding = max(at_most(length + -length % SOURCE_LENGTH_STEP, longest) - length, 0)
    return ops.pad(source, ((0, 0), (0, padding)), constant_values=pad_id)


def lengths_of(token_ids, pad_id):
    """How many tokens each row has, up to its last that is no padding: int32 `(batch,)`."""
    places = ops.arange(1, ops.shape(token_ids)[1] + 1, dtype="int32")
    return ops.max(ops.where(ops.not_equal(token_ids, pad_id), places, 0), axis=1)


def log_probs_of(target, logits, pad_id):
    """The log probability of each token, 0 where there is none, and where there is one: `(batch, target_len)` each."""
    log_probs = ops.take_along_axis(ops.log_softmax(logits, axis=-1), target[..., None], axis=-1)[..., 0]
    real = ops.arange(ops.shape(target)[1], dtype="int32") < lengths_of(target, pad_id)[:, None]
    return ops.where(real, log_probs, 0.0), real


def left_padded(tokens, lengths, pad_id):
    """Each row's tokens, int32 `(batch, length)`, moved to its right end, and where they start there."""
    length = ops.shape(tokens)[1]
    starts = length - lengths
    places = ops.arange(length, dtype="int32") - starts[:, None]
    moved = ops.take_along_axis(tokens, ops.maximum(places, 0), axis=1)
    return ops.where(places >= 0, moved, pad_id), starts
