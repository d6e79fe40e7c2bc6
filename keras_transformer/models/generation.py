"""Writing and scoring sequences, for every model that decodes."""

import dataclasses
import functools
import random
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.checks import check
from keras_transformer.decoding import Greedy, Hypotheses, Strategy, decode, row_keys
from keras_transformer.decoding.limits import Limits, at_most
from keras_transformer.execution import ops
from keras_transformer.execution.compiled import KeepsFunctions, compiled, compiles
from keras_transformer.execution.inference import inference
from keras_transformer.execution.parts import search_rows
from keras_transformer.layers.cache import TreeCache
from keras_transformer.masks import lengths_of
from keras_transformer.models.ids import ids_of, matrix_of_ids

# A compiled `generate` pads its sources to a multiple of this: each new shape costs a compilation.
SOURCE_LENGTH_STEP = 16


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


class Generation(KeepsFunctions):
    """Adds `generate`, `score` and `search` to a model.

    The model has `pad_id`, `bos_id`, `eos_id`, `source_vocab_size` and `target_vocab_size`, and defines `start` and
    `score_all`. `max_positions` is the number of positions of a model that learned them, else None. `stop_ids` are ids
    that end an output as `eos_id` does.
    """

    max_positions = None
    max_source_positions = None
    shares_positions = False  # whether an output continues its source in the same positions
    stop_ids = ()

    def limits(self, max_length=None, constraints=()):
        """Returns the `Limits` of the outputs of a search.

        Args:
            max_length: Longest output, an int or int32 `(batch,)`; None for the default of `generate`.
            constraints: List of constraints that every output must satisfy.
        """
        return Limits(max_length, constraints, self.max_positions, self.shares_positions)

    def _checked_source(self, source):
        """Returns `source` as int32: ids of the vocabulary, within the positions of the source."""
        source = matrix_of_ids(source, "source", "(batch, source_len)", self.source_vocab_size)
        if self.max_source_positions is not None:
            longest = int(ops.max(lengths_of(source, self.pad_id)))
            rule = f"`source` must be within the model's {self.max_source_positions} positions."
            check(longest <= self.max_source_positions, rule, source_len=longest)
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
        phrases=None,
    ):
        """Writes a target for each source, or for a language model the continuation of each prompt.

        Args:
            source: int `(batch, source_len)`, sources or prompts of any lengths, padded on the right. A source of
                padding alone gets an empty target; a prompt of padding alone begins with `bos_id`.
            strategy: How to choose tokens: `Greedy()`, `Beam()`, `DiverseBeam()`, `Sample()`.
            max_length: Longest output, `eos_id` included. None for twice the length of each source plus 16 plus the
                length of its prefix, or for the minimum length if that is larger. An output never passes the last
                position of a model that learned its positions.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.
            constraints: List of constraints that every output must satisfy, such as `[MinLength(5), NoRepeatNgram(3)]`.
            prefix: int `(batch, prefix_len)`, the first tokens of each output, padded on the right. They are part of
                the output and of its score; the constraints judge what comes after them. None for a language model.
            phrases: int `(batch, phrases, length)`, what each output must hold, for a `PhraseBeam`. A phrase is padded
                on the right with `pad_id`; one of padding alone is none. None for no phrases.

        Returns:
            `Hypotheses(tokens, lengths, scores)`: int32 `(batch, n_best, max_length)`, int32
            `(batch, n_best)`, float32 `(batch, n_best)`.

        Raises:
            ValueError: If `source` has another rank than 2, is empty, holds ids outside the vocabulary or is a tensor
                of a graph; `max_length` is not positive or beyond the last position; `prefix` holds no ids, is padded
                on the left or too long; `phrases` have another shape or the strategy is no `PhraseBeam`; or the
                constraints contradict one another.
        """
        source = self._checked_source(source)
        batch_size, source_len = source.shape
        check(
            isinstance(strategy, Strategy),
            "`strategy` must be a strategy such as `Greedy()`.",
            strategy=strategy,
        )
        limits = self.limits(max_length, constraints)
        longest = limits.longest(lengths_of(source, self.pad_id))
        prefix_len, inputs = 0, {}
        if prefix is not None:
            inputs["prefix"] = self._checked_prefix(prefix, batch_size, longest)
            prefix_len = inputs["prefix"].shape[1]
        if phrases is not None:
            inputs["phrases"] = self._checked_phrases(phrases, batch_size)
        if hasattr(strategy, "seed"):
            seed = random.randrange(2**31) if strategy.seed is None else strategy.seed
            inputs["seed"] = ops.convert_to_tensor(seed, "int32")
            strategy = dataclasses.replace(strategy, seed=None)  # one function for every seed
        jit_compile = compiles(jit_compile)
        if jit_compile:
            padded = at_most(source_len + -source_len % SOURCE_LENGTH_STEP, self.max_source_positions)
            missing = max(padded - source_len, 0)
            source = ops.pad(source, ((0, 0), (0, missing)), constant_values=self.pad_id)
        function = self._compiled("search", jit_compile, strategy, max_length, limits.constraints)
        hypotheses = function({"source": source, **inputs})
        return hypotheses._replace(tokens=hypotheses.tokens[:, :, : limits.of(source_len, prefix_len)])

    def search(
        self,
        source,
        strategy,
        max_length=None,
        *,
        target_len=None,
        constraints=(),
        prefix=None,
        min_length=None,
        temperature=None,
        top_p=None,
        seed=None,
        phrases=None,
    ):
        """Computes `generate` inside a graph: tensors in, tensors out.

        `max_length`, `min_length`, `temperature`, `top_p` and `seed` are one value for all rows, or `(batch,)`, a value
        for each row.

        Args:
            source: int32 `(batch, source_len)`.
            strategy: How to choose tokens.
            max_length: Longest output; None as in `generate`. A row ends at the last position that the model has.
            target_len: int or int32 scalar, the number of columns of the result; no output is longer. None for the
                largest `max_length`.
            constraints: Tuple of constraints that every output must satisfy.
            prefix: int32 `(batch, prefix_len)`, the first tokens of each output, or None.
            min_length: Shortest output, `eos_id` included. A lower limit of a row wins over it.
            temperature: float32, in place of that of `Sample`; 0 for the likeliest token at each step.
            top_p: float32, above 0 and at most 1, in place of that of `Sample`.
            seed: int32, for a strategy that draws; the strategy's own when None.
            phrases: int32 `(batch, phrases, length)`, what each output must hold, for a `PhraseBeam`.

        Returns:
            `Hypotheses`.

        Raises:
            ValueError: If the strategy draws and has no seed, and `seed` is None; or the constraints contradict one
                another.
        """
        seed = getattr(strategy, "seed", 0) if seed is None else seed
        check(seed is not None, "`search` needs a `seed`, or a strategy with one.", strategy=strategy)
        limits = self.limits(max_length, constraints)
        source_len = ops.shape(source)[1]
        if target_len is None:
            target_len = limits.of(source_len, 0 if prefix is None else ops.shape(prefix)[1])
        options = {"min_length": min_length, "temperature": temperature, "top_p": top_p}
        options |= {"seed": seed, "phrases": phrases}
        by_row = {name: x for name, x in {**options, "max_length": max_length}.items() if np.ndim(x)}

        def search_given(rows):
            """Searches the rows that it is given: all, or at times half of them."""
            source, prefix, by_row = rows
            lengths = lengths_of(source, self.pad_id)
            row_options = {**options, **by_row}
            row_limits = dataclasses.replace(limits, max_length=row_options.pop("max_length", max_length))
            step, cache, prompt, starts = self.start(source, strategy.width, prefix)
            return decode(
                step,
                cache,
                strategy,
                prompt,
                row_limits.of_rows(lengths, 0 if prefix is None else lengths_of(prefix, self.pad_id)),
                target_len=target_len,
                starts=starts,
                constraints=limits.constraints,
                source_lengths=lengths,
                keys=row_keys(source, self.pad_id) if hasattr(strategy, "seed") else None,
                eos_id=(self.eos_id, *self.stop_ids),
                pad_id=self.pad_id,
                **row_options,
            )

        n, columns = strategy.n_best, target_len if isinstance(target_len, int) else None
        results = ((n, columns), "int32"), ((n,), "int32"), ((n,), "float32")
        with inference(self):
            found = search_rows(search_given, self, (source, prefix, by_row), strategy.width, results)
            return Hypotheses(*found)

    def start(self, source, width=1, prefix=None):
        """Reads sources, and prepares the steps that write their outputs.

        For an int8 model it runs once for each half of a large batch.

        Args:
            source: int32 `(batch, source_len)`.
            width: Number of hypotheses for each source.
            prefix: int32 `(batch, prefix_len)`, the first tokens of each output, padded on the right; or None.

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
        target = ops.convert_to_tensor(target)
        rule = (
            "`target` must have shape `(batch, target_len)` or `(batch, n, target_len)`, without an empty axis, "
            "and the batch of `source`."
        )
        fits = len(target.shape) in (2, 3) and 0 not in target.shape and target.shape[0] == source.shape[0]
        check(fits, rule, shape=tuple(target.shape), batch_size=source.shape[0])
        target = ids_of(target, "target", self.target_vocab_size)
        several = target if len(target.shape) == 3 else target[:, None]
        room = self.limits().room(lengths_of(source, self.pad_id))
        lengths = ops.max(lengths_of(several, self.pad_id), axis=1)
        rule = f"`source` and `target` must be within the model's {self.max_positions} positions."
        fits = room is None or not ops.any(lengths > room)
        lengths, room = (ops.convert_to_numpy(x).tolist() for x in (lengths, room))
        check(fits, rule, target_lengths=lengths, room=room)
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
        """Configures the model for training, and forgets the functions that `generate` and `score` compiled."""
        super().compile(*args, **kwargs)
        self._functions.clear()

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

    def _checked_phrases(self, phrases, batch_size):
        """Returns `phrases` as int32."""
        phrases = ops.convert_to_tensor(phrases)
        rule = "`phrases` must have shape `(batch, phrases, length)`, without an empty axis, and the batch of `source`."
        fits = len(phrases.shape) == 3 and 0 not in phrases.shape and phrases.shape[0] == batch_size
        check(fits, rule, shape=tuple(phrases.shape), batch_size=batch_size)
        phrases = ids_of(phrases, "phrases", self.target_vocab_size)
        ids = ops.convert_to_numpy(phrases)
        real = ids != self.pad_id
        rules = {
            "padding on the right alone": (real[..., 1:] <= real[..., :-1]).all(),
            "no token that ends an output": not np.isin(ids[real], (self.eos_id, *self.stop_ids)).any(),
        }
        for rule, holds in rules.items():
            check(holds, f"`phrases` must have {rule}.", phrases=ids.tolist())
        return phrases

    def _checked_prefix(self, prefix, batch_size, longest):
        """Returns `prefix` as int32, without columns of padding alone."""
        prefix = matrix_of_ids(prefix, "prefix", "(batch, prefix_len)", self.target_vocab_size)
        ids = ops.convert_to_numpy(prefix)
        real = ids != self.pad_id
        lengths = real.sum(axis=1)
        ended = (ids == self.eos_id).any(axis=1) & (ids[range(len(ids)), lengths - 1] != self.eos_id)
        rules = {
            "a row for each source": len(ids) == batch_size,
            "padding on the right alone": (real[:, 1:] <= real[:, :-1]).all(),
            "no token after `eos_id`": not (ended | ((ids == self.eos_id).sum(axis=1) > 1)).any(),
            f"at most max_length={longest} tokens": longest is None or lengths.max() <= longest,
        }
        for rule, holds in rules.items():
            check(holds, f"`prefix` must have {rule}.", prefix=ids.tolist(), batch_size=batch_size)
        return prefix[:, : max(1, int(lengths.max()))]


def tree_step(decode_rows, decoder, batch_size, width, trunk, starts=None):
    """Returns the step of a search whose hypotheses share one cache, and the first cache.

    Args:
        decode_rows: `decode_rows(tokens, cache=, index=)` with a `Place` as the index. It returns the logits and the
            new cache of tokens int `(batch, length)`.
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
            ops.reshape(tokens, (batch_size, branches * length)),
            cache=cache.layers,
            index=place,
        )
        logits = ops.reshape(logits, (batch_size, branches, length, logits.shape[-1]))
        return logits, cache._replace(layers=layers)

    ancestors = ops.zeros((batch_size, width, 0), "int32")
    return step, TreeCache(decoder.empty_cache(batch_size, trunk), ancestors)
