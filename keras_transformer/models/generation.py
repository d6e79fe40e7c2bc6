"""Writing and scoring sequences, for every model that decodes."""

import dataclasses
import functools
import operator
import random
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.backend import compiled, compiles, runs_forward_only, unchanged
from keras_transformer.checks import check_positive
from keras_transformer.decoding import (
    Constraint,
    Greedy,
    Hypotheses,
    MaxLength,
    MinLength,
    RowOptions,
    Strategy,
    decode,
    row_keys,
)
from keras_transformer.layers.cache import TreeCache
from keras_transformer.layers.projection import has_int8_weights, held_operands
from keras_transformer.models.ids import as_ids, check_all_ids, lengths_of, matrix_of_ids
from keras_transformer.models.parallel import in_parts
from keras_transformer.models.r_drop import RDrop
from keras_transformer.shapes import reshaped

# A compiled `generate` pads its sources to a multiple of this: each new shape costs a compilation.
SOURCE_LENGTH_STEP = 16

# Number of hypotheses from which on an int8 model searches the halves of a batch side by side.
LARGE_BATCH = 32

# Number of compiled functions that a model keeps.
KEPT_FUNCTIONS = 32


class Scores(NamedTuple):
    """How likely a model finds given targets.

    scores: float32 `(batch,)` or `(batch, n)`, sums of log probabilities.
    token_scores: float32 `(batch, target_len)` or `(batch, n, target_len)`, the log probability of each token, 0
        where there is none.
    alignments: float32, the same with one more axis, `source_len`: how much each target token attends to each
        source token, the mean over the heads of the last layer but one (Garg et al., 2019, section 4.1). None for a
        language model, which has no source.
    """

    scores: Any
    token_scores: Any
    alignments: Any


class Generation(RDrop):
    """Adds `generate`, `score` and `search` to a model.

    The model has `pad_id`, `bos_id`, `eos_id`, `source_vocab_size` and `target_vocab_size`, and defines `start` and
    `score_all`. `max_positions` is the number of positions of a model that learned them, else None. `stop_ids` are ids
    that end an output as `eos_id` does.
    """

    max_positions = None
    max_source_positions = None
    stop_ids = ()

    def _checked_source(self, source):
        """Returns `source` as int32: ids of the vocabulary, within the positions of the source."""
        source = matrix_of_ids(source, "source", "(batch, source_len)")
        check_all_ids("source", source, self.source_vocab_size)
        if self.max_source_positions is not None:
            longest = int(ops.max(lengths_of(source, self.pad_id)))
            if longest > self.max_source_positions:
                raise ValueError(
                    f"`source` must be within the model's {self.max_source_positions} positions. "
                    f"Received: {longest} tokens."
                )
        return source

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
        """Writes a target for each source, or for a language model the continuation of each prompt.

        Args:
            source: int `(batch, source_len)`, sources or prompts of any lengths, padded on the right. A source of
                padding alone gets an empty target; a prompt of padding alone begins with `bos_id`.
            strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
            max_length: Longest output, `eos_id` included. None for twice each row's own length plus 16, beside
                its prefix, or what `MinLength` asks for if that is more. It never passes the last position of a model
                that learned its positions.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.
            constraints: List of constraints that every output must satisfy, such as `[MinLength(5), NoRepeatNgram(3)]`.
            prefix: int `(batch, prefix_len)`, the begin of each output, padded on the right. It is part of the output
                and of its score; the constraints judge what comes after it. None for a language model.

        Returns:
            `Hypotheses(tokens, lengths, scores)`: int32 `(batch, n_best, max_length)`, int32
            `(batch, n_best)`, float32 `(batch, n_best)`.

        Raises:
            ValueError: If `source` has another rank than 2, is empty or holds ids outside the vocabulary; `max_length`
                is not positive or beyond the last position; `prefix` holds no ids, is padded on the left or too long;
                or the constraints contradict one another.
        """
        source = self._checked_source(source)
        ids = ops.convert_to_numpy(source)
        if not isinstance(strategy, Strategy):
            raise ValueError(f"`strategy` must be a strategy such as `Greedy()`. Received: {strategy!r}.")
        if max_length is not None:
            check_positive(max_length=max_length)
        longest = self._longest_output(ids, max_length)
        constraints = checked_constraints(constraints, longest)
        jit_compile = compiles(jit_compile)
        if jit_compile:
            length = source.shape[1]
            padded = at_most(length + -length % SOURCE_LENGTH_STEP, self.max_source_positions)
            source = ops.pad(source, ((0, 0), (0, max(padded - length, 0))), constant_values=self.pad_id)
        inputs = {"source": source}
        prefix_len = 0
        if prefix is not None:
            inputs["prefix"] = prefix = self._checked_prefix(prefix, len(ids), longest)
            prefix_len = prefix.shape[1]
        if hasattr(strategy, "seed"):
            seed = random.randrange(2**31) if strategy.seed is None else strategy.seed
            inputs["seed"] = ops.convert_to_tensor(seed, "int32")
            strategy = dataclasses.replace(strategy, seed=None)  # one function for every seed
        function = self._compiled("search", jit_compile, strategy, max_length, constraints)
        hypotheses = function(inputs)
        limit = max_length
        if limit is None:
            limit = default_limit(ids.shape[1], prefix_len, constraints, self.max_positions)
        return hypotheses._replace(tokens=hypotheses.tokens[:, :, :limit])

    def search(
        self,
        source,
        strategy,
        max_length=None,
        *,
        constraints=(),
        prefix=None,
        seed=None,
        row_options=RowOptions(),  # noqa: B008
    ):
        """Computes `generate` inside a graph: tensors in, tensors out.

        Args:
            source: int32 `(batch, source_len)`.
            strategy: How to choose tokens.
            max_length: Longest output; None as in `generate`. A row ends at the last position that the model has.
            constraints: Tuple of constraints that every output must satisfy.
            prefix: int32 `(batch, prefix_len)`, the begin of each output, or None.
            seed: int32 scalar, for a strategy that draws; the strategy's own when None.
            row_options: `RowOptions`: limits, temperatures and seeds that differ from row to row.

        Returns:
            `Hypotheses`.

        Raises:
            ValueError: If the strategy draws and has no seed, and `seed` and `row_options.seed` are None.
        """
        if seed is None:
            seed = getattr(strategy, "seed", 0) if row_options.seed is None else row_options.seed
        if seed is None:
            raise ValueError(f"`search` needs a `seed`, or a strategy with one. Received: {strategy}.")
        if max_length is None:
            prefix_len = 0 if prefix is None else ops.shape(prefix)[1]
            longest = default_limit(ops.shape(source)[1], prefix_len, constraints, self.max_positions)
        else:
            longest = max_length

        def search_rows(rows):
            """Searches some of the rows, which are given by a nest of tensors."""
            source, prefix, row_options = rows
            lengths = lengths_of(source, self.pad_id)
            prefix_lengths = 0 if prefix is None else lengths_of(prefix, self.pad_id)
            limits = default_limit(lengths, prefix_lengths, constraints) if max_length is None else max_length
            limits = self.row_limits(at_most(limits, self.max_positions), lengths, prefix_lengths)
            step, cache, prompt, starts = self.start(source, strategy.width, prefix)
            return decode(
                step,
                cache,
                strategy,
                prompt,
                longest,
                starts=starts,
                constraints=constraints,
                row_limits=limits,
                source_lengths=lengths,
                keys=row_keys(source, self.pad_id) if hasattr(strategy, "seed") else None,
                seed=seed,
                eos_id=(self.eos_id, *self.stop_ids),
                pad_id=self.pad_id,
                row_options=row_options,
            )

        batch = ops.shape(source)[0]
        with held_operands(self):
            # Products of floats gain nothing from two halves.
            if not (has_int8_weights(self) and runs_forward_only()):
                return search_rows((source, prefix, row_options))
            half, least = -(-batch // 2), max(2, LARGE_BATCH // strategy.width)
            if isinstance(batch, int):
                size = batch if batch < least else half
            else:
                size = ops.where(batch < least, batch, half)
            options = (x if x is None else ops.broadcast_to(x, (batch,)) for x in row_options)
            n, width = strategy.n_best, longest if isinstance(longest, int) else None
            results = ((n, width), "int32"), ((n,), "int32"), ((n,), "float32")
            return Hypotheses(*in_parts(search_rows, (source, prefix, RowOptions(*options)), results, size))

    def row_limits(self, limits, lengths, prefix_lengths):
        """Returns the longest output of each row. A source of padding alone ends at once: it fills up a batch.

        Args:
            limits: The limit of a row with a source, an int or int32 `(batch,)`.
            lengths: int32 `(batch,)`, lengths of the sources.
            prefix_lengths: int32 `(batch,)`, lengths of the prefixes, or 0.
        """
        return ops.where(lengths > 0, limits, prefix_lengths)

    def room(self, lengths):
        """Returns how long the output of each source may get: int32 `(batch,)`, or None for any length.

        Args:
            lengths: int32 `(batch,)`, lengths of the sources.
        """
        return None if self.max_positions is None else ops.full_like(lengths, self.max_positions)

    def start(self, source, width=1, prefix=None):
        """Reads sources, and prepares the steps that write their outputs.

        An int8 model does so for each half of a large batch, inside a loop.

        Args:
            source: int32 `(batch, source_len)`.
            width: Number of hypotheses for each source.
            prefix: int32 `(batch, prefix_len)`, the begin of each output, padded on the right; or None.

        Returns:
            `step(tokens, cache, index) -> (logits, cache)` and the first cache, as `decoding.decode` takes them; the
            prompt, int32 `(batch, prompt_len)`; and the slot where each row of it starts, int32 `(batch,)`, or None.
        """
        raise NotImplementedError

    def score(self, source, target, jit_compile=None):
        """Scores given targets, or for a language model given continuations: one pass, no search.

        Args:
            source: int `(batch, source_len)`, sources or prompts, padded on the right.
            target: int `(batch, target_len)`, or `(batch, n, target_len)` for several targets of each source, such as
                the tokens of `Hypotheses`; without `bos_id`, with `eos_id` where it counts, padded on the right. An
                empty target scores 0.
            jit_compile: True to compile with XLA, False for the portable graph, None for XLA where there is an
                accelerator.

        Returns:
            `Scores(scores, token_scores, alignments)`.

        Raises:
            ValueError: If a shape does not fit, an id is outside the vocabulary, or a source or a target goes beyond
                the last position of a model that learned them.
        """
        source = self._checked_source(source)
        target = as_ids(target, "target")
        if len(target.shape) not in (2, 3) or 0 in target.shape or target.shape[0] != source.shape[0]:
            raise ValueError(
                "`target` must have shape `(batch, target_len)` or `(batch, n, target_len)`, without an empty axis, "
                f"and the batch of `source`. Received: shape={tuple(target.shape)} for {source.shape[0]} sources."
            )
        check_all_ids("target", target, self.target_vocab_size)
        several = target if len(target.shape) == 3 else target[:, None]
        room = self.room(lengths_of(source, self.pad_id))
        lengths = ops.max(lengths_of(several, self.pad_id), axis=1)
        if room is not None and ops.any(lengths > room):
            lengths, room = (ops.convert_to_numpy(x).tolist() for x in (lengths, room))
            raise ValueError(
                f"`source` and `target` must be within the model's {self.max_positions} positions. "
                f"Received: targets of {lengths} tokens, where there is room for {room}."
            )
        scores = self._compiled("score_all", compiles(jit_compile))({"source": source, "target": several})
        if several is target:
            return scores
        return Scores(*(part if part is None else part[:, 0] for part in scores))

    def score_all(self, source, target):
        """Computes `score` inside a graph.

        Args:
            source: int32 `(batch, source_len)`.
            target: int32 `(batch, n, target_len)`.

        Returns:
            `Scores`.
        """
        raise NotImplementedError

    def compile(self, *args, **kwargs):
        """Configures the model for training, as `RDrop.compile`, and forgets the functions that `generate`
        compiled."""
        super().compile(*args, **kwargs)
        self._functions.clear()

    @functools.cached_property
    def _functions(self):
        return CompiledFunctions()

    def _compiled(self, name, jit_compile, *settings):
        """Returns the compiled `search` or `score_all`."""
        if not all(layer.built for layer in self.layers):
            self.build_added_layers()

        def make():
            function = getattr(self, name)
            if name == "search":
                strategy, max_length, constraints = settings
                function = functools.partial(
                    function, strategy=strategy, max_length=max_length, constraints=constraints
                )
            return compiled(lambda inputs: function(**inputs), self, jit_compile, name == "score_all")

        return self._functions.get((name, jit_compile, *settings), self.variables, make)

    def _longest_output(self, ids, max_length):
        """Returns how long all outputs of a batch may be, or None for any length.

        Raises:
            ValueError: If the model has no positions for them.
        """
        room = self.room(lengths_of(ids, self.pad_id))
        if room is None:
            return max_length
        room = int(ops.min(room))
        if room < 1 or (max_length is not None and max_length > room):
            raise ValueError(
                f"`source` and `max_length` must leave all tokens within the model's {self.max_positions} positions. "
                f"Received: max_length={max_length}, where there is room for {max(room, 0)}."
            )
        return room if max_length is None else max_length

    def _checked_prefix(self, prefix, batch_size, max_length):
        """Returns `prefix` as int32, without columns of padding alone."""
        prefix = matrix_of_ids(prefix, "prefix", "(batch, prefix_len)")
        ids = ops.convert_to_numpy(prefix)
        real = ids != self.pad_id
        lengths = real.sum(axis=1)
        ended = (ids == self.eos_id).any(axis=1) & (ids[range(len(ids)), lengths - 1] != self.eos_id)
        rules = {
            "a row for each source": len(ids) == batch_size,
            f"ids from 0 to {self.target_vocab_size - 1}": (ids >= 0).all()
            and (ids < self.target_vocab_size).all(),
            "padding on the right alone": (real[:, 1:] <= real[:, :-1]).all(),
            "no token after `eos_id`": not (ended | ((ids == self.eos_id).sum(axis=1) > 1)).any(),
            f"at most max_length={max_length} tokens": max_length is None or lengths.max() <= max_length,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(
                    f"`prefix` must have {rule}. Received: {ids.tolist()!s:.200} for {batch_size} sources."
                )
        return prefix[:, : max(1, int(lengths.max()))]


class CompiledFunctions:
    """Keeps compiled functions of a model as long as it has the variables that they were made with.

    `enable_lora`, `quantize` and new layers change the variables of a model. New values of int8 variables need new
    functions too. A change of another attribute is not seen: `compile` forgets all functions.
    """

    def __init__(self):
        self.variables, self.functions = [], {}
        self.unchanged = lambda: True

    def get(self, key, variables, make):
        """Returns the function of a key, and makes it if there is none for these variables."""
        same = len(variables) == len(self.variables) and all(map(operator.is_, variables, self.variables))
        if not (same and self.unchanged()):
            self.variables, self.functions = list(variables), {}
            self.unchanged = unchanged(variables)
        if key not in self.functions:
            if len(self.functions) == KEPT_FUNCTIONS:
                del self.functions[next(iter(self.functions))]  # the oldest
            self.functions[key] = make()
        return self.functions[key]

    def clear(self):
        """Forgets all functions."""
        self.functions = {}


def tree_step(decode_rows, decoder, batch_size, width, trunk, starts=None):
    """Returns the step of a search whose hypotheses share one cache, and the first cache.

    Args:
        decode_rows: `decode_rows(tokens, cache=, index=, positions=, key_positions=, attention_mask=)`, which returns
            logits and the new cache of tokens int `(batch, length)`.
        decoder: The `Decoder` that makes the cache.
        batch_size: Number of rows.
        width: Number of hypotheses for each row.
        trunk: Number of slots for the prompt, which all hypotheses of a row share.
        starts: int `(batch,)`, the slot where each row starts, when rows are padded on the left, or None.

    Returns:
        `step(tokens, cache, index) -> (logits, cache)`, as `decoding.decode` takes it, and a `TreeCache`.
    """

    def step(tokens, cache, index):
        _, branches, length = ops.shape(tokens)
        cache, place = cache.at(index, length, starts)
        logits, layers = decode_rows(
            reshaped(tokens, (batch_size, branches * length)),
            cache=cache.layers,
            index=place.slot,
            positions=place.positions,
            key_positions=place.key_positions,
            attention_mask=place.mask,
        )
        logits = reshaped(logits, (batch_size, branches, length, logits.shape[-1]))
        return logits, cache._replace(layers=layers)

    ancestors = ops.zeros((batch_size, width, 0), "int32")
    return step, TreeCache(decoder.empty_cache(batch_size, trunk), ancestors)


def default_limit(source_len, prefix_len, constraints, max_positions=None):
    """Returns the longest output where none was asked for: enough for any pair of languages, but finite.

    Ints give an int, tensors a tensor.
    """
    limit = 2 * source_len + 16 + prefix_len
    for constraint in constraints:
        if isinstance(constraint, MinLength):
            least = constraint.of(source_len)
            limit = max(limit, least) if isinstance(limit, int) else ops.maximum(limit, least)
    return at_most(limit, max_positions)


def at_most(limit, max_positions):
    """Returns the lesser of two lengths, ints or tensors; None is no limit."""
    if limit is None or max_positions is None:
        return max_positions if limit is None else limit
    both = isinstance(limit, int) and isinstance(max_positions, int)
    return min(limit, max_positions) if both else ops.minimum(limit, max_positions)


def checked_constraints(constraints, max_length):
    """Returns the constraints as a tuple.

    Raises:
        ValueError: If one is no constraint, or a minimum length lies above a maximum.
    """
    if not isinstance(constraints, (list, tuple)):
        raise ValueError(
            f"`constraints` must be a list or a tuple of constraints. Received: {constraints!r}."
        )
    constraints = tuple(constraints)
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"`constraints` must hold constraints such as `MinLength(5)`. Received: {constraint!r}."
            )
    least = max((c.length for c in constraints if isinstance(c, MinLength)), default=0)
    most = [c.length for c in constraints if isinstance(c, MaxLength) and not c.ratio]
    most = min(most + ([] if max_length is None else [max_length]), default=least)
    if least > most:
        raise ValueError(
            f"No output is at least {least} and at most {most} tokens long. "
            f"Received: constraints={list(constraints)}, max_length={max_length}."
        )
    return constraints
