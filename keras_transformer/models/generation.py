"""Writing and scoring sequences, for every model that decodes."""

import functools
import itertools
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check, check_known_ids
from keras_transformer.decoding import Greedy, Search, Strategy, decode, feature_keys, row_keys
from keras_transformer.decoding.hypotheses import hypotheses_of, tensors_of, with_tensors
from keras_transformer.decoding.loop import Limits, at_most
from keras_transformer.execution import native, ops
from keras_transformer.execution.inference import KeepsFunctions, groups_of_lengths, inference, search_rows
from keras_transformer.layers.cache import TreeCache
from keras_transformer.masks import lengths_of

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

    The model has `pad_id`, `bos_id`, `eos_id`, `target_vocab_size` and `source_vocab_size`, which is None where its
    source has no ids. It defines `start` and `score_all`. `max_positions` is the number of positions of a model that
    learned them, else None. `stop_ids` are ids that end an output as `eos_id` does.
    """

    max_positions = None
    max_source_positions = None
    # Whether an output continues its source in the same positions.
    shares_positions = False
    # Whether the source has ids: only they have a length, and so a default of `max_length`.
    reads_ids = True
    stop_ids = ()

    def limits(self, max_length=None, constraints=()):
        """Returns the `Limits` of the outputs of a search.

        Args:
            max_length: Longest output, an int or int32 `(batch,)`; None for the default of `generate`.
            constraints: List of constraints that every output must satisfy.
        """
        return Limits(max_length, constraints, self.max_positions, self.shares_positions)

    def _source_lengths(self, source):
        """Returns the number of tokens of each row of a source, int32 `(batch,)`; None for a source without ids."""
        return lengths_of(source, self.pad_id) if self.reads_ids else None

    def _source_len(self, source, max_length):
        """Returns the length of the longest row of a source, which gives the default of `max_length`."""
        rule = "`max_length` must be given: only a source of ids has a length that could give a default."
        check(self.reads_ids or max_length is not None, rule, max_length=max_length)
        return ops.shape(source)[1] if self.reads_ids else None

    def _checked_source(self, source):
        """Returns `source` as int32: ids of the vocabulary, within the positions of the source. Or as tensors."""
        if not self.reads_ids:
            return features_of(source, "source")
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
    ):
        """Writes a target for each source, or for a language model the continuation of each prompt.

        Args:
            source: int `(batch, source_len)`, sources or prompts of any lengths, padded on the right. A source of
                padding alone gets an empty target; a prompt of padding alone begins with `bos_id`. For a source
                without ids a tensor or a nest of tensors, batch first.
            strategy: How to choose tokens: `Greedy()`, `Beam()`, `DiverseBeam()`, `PhraseBeam()`, `Sample()`.
            max_length: Longest output, `eos_id` included. None for twice the length of each source plus 16 plus the
                length of its prefix, or for the minimum length if that is larger; a source without ids has no such
                default. An output never passes the last position of a model that learned its positions.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.
            constraints: List of constraints that every output must satisfy, such as `[MinLength(5), NoRepeatNgram(3)]`.
            prefix: int `(batch, prefix_len)`, the first tokens of each output, padded on the right. They are part of
                the output and of its score; the constraints judge what comes after them. None for a language model.

        Returns:
            `Hypotheses(tokens, lengths, scores)`: int32 `(batch, n_best, max_length)`, int32
            `(batch, n_best)`, float32 `(batch, n_best)`. `LoggedHypotheses` for a `Sample` with `log_probs`.

        Raises:
            ValueError: If `source` has another rank than 2, is empty, holds ids outside the vocabulary or is a tensor
                of a graph; `max_length` is not positive or beyond the last position; `prefix` holds no ids, is padded
                on the left or too long; the strategy or a constraint has values for another number of rows, or
                phrases that the model cannot write; or the constraints contradict one another.
        """
        source = self._checked_source(source)
        batch_size, source_len = rows_of(source), self._source_len(source, max_length)
        check(
            isinstance(strategy, Strategy),
            "`strategy` must be a strategy such as `Greedy()`.",
            strategy=strategy,
        )
        limits = self.limits(max_length, constraints)
        lengths = self._source_lengths(source)
        longest = limits.longest(lengths)
        prefix_len, inputs = 0, {"source": source}
        if prefix is not None:
            inputs["prefix"] = self._checked_prefix(prefix, batch_size, longest)
            prefix_len = inputs["prefix"].shape[1]
        strategy = strategy.prepared(self.target_vocab_size, self.pad_id, (self.eos_id, *self.stop_ids))
        objects = strategy, *limits.constraints
        tensors = tensors_of(objects)
        for name, x in itertools.chain(*map(dict.items, tensors)):
            rule = f"`{name}` must be one value, or have a value for each row of `source`."
            check(x.shape[:1] in ((), (batch_size,)), rule, shape=tuple(x.shape), batch_size=batch_size)
        jit_compile = native.compiles(jit_compile)
        if jit_compile and self.reads_ids:
            padded = at_most(source_len + -source_len % SOURCE_LENGTH_STEP, self.max_source_positions)
            missing = max(padded - source_len, 0)
            inputs["source"] = ops.pad(source, ((0, 0), (0, missing)), constant_values=self.pad_id)
        # One function serves all values of the tensors, such as every seed, and without XLA all lengths of the source
        # and all values of `max_length`.
        objects = with_tensors(objects, map(dict.fromkeys, tensors))
        columns = None if max_length is None else ops.zeros((1, max_length), "int8")

        def search(inputs, tensors, columns):
            strategy, *constraints = with_tensors(objects, tensors)
            longest = None if columns is None else ops.shape(columns)[1]
            return self.search(strategy=strategy, max_length=longest, constraints=constraints, **inputs)

        have_lengths = [i for i, has in ((0, self.reads_ids), (2, max_length is not None)) if has]
        compiled = self._compiled(
            search, jit_compile, "search", max_length is None, *objects, lengths=have_lengths
        )
        target_len = limits.of(source_len, prefix_len)
        groups = [] if jit_compile or lengths is None else groups_of_lengths(lengths, limits.of)
        if len(groups) > 1:
            rows = (_rows_at((inputs, tensors), group, lengths) for group in groups)
            return _joined([compiled(*each, columns) for each in rows], groups, target_len, self.pad_id)
        hypotheses = compiled(inputs, tensors, columns)
        return _with_columns(hypotheses, target_len, self.pad_id)

    def search(
        self, source, strategy, max_length=None, *, target_len=None, constraints=(), prefix=None, keys=None
    ):
        """Computes `generate` inside a graph: tensors in, tensors out.

        Args:
            source: int32 `(batch, source_len)`; for a source without ids a tensor or a nest of tensors, batch first, or
                the `Memory` of it, which `encode` returned.
            strategy: How to choose tokens.
            max_length: Longest output, an int for all rows or int32 `(batch,)`; None as in `generate`. A row ends at
                the last position that the model has.
            target_len: int or int32 scalar, the number of columns of the result; no output is longer. None for the
                largest `max_length`.
            constraints: Tuple of constraints that every output must satisfy.
            prefix: int32 `(batch, prefix_len)`, the first tokens of each output, or None.
            keys: uint32 `(batch,)`, numbers of the rows on which a `Sample` depends; None for those of `source`. A
                `Memory` needs them, from `decoding.feature_keys`.

        Returns:
            `Hypotheses`.

        Raises:
            ValueError: If a `Sample` has no seed, or the constraints contradict one another; or, outside of a graph, if
                an id is not in the vocabulary.
        """
        limits = self.limits(max_length, constraints)
        source_len = self._source_len(source, max_length)
        if self.reads_ids:
            check_known_ids(self.source_vocab_size, source=source)
        if prefix is not None:
            check_known_ids(self.target_vocab_size, prefix=prefix)
        if target_len is None:
            target_len = limits.of(source_len, 0 if prefix is None else ops.shape(prefix)[1])
        objects = strategy, *limits.constraints

        def search_given(rows):
            """Searches the rows that it is given: all, or at times half of them."""
            source, prefix, max_length, keys, tensors = rows
            strategy, *constraints = with_tensors(objects, tensors)
            limits = self.limits(max_length, constraints)
            lengths = self._source_lengths(source)
            prefix_lengths = 0 if prefix is None else lengths_of(prefix, self.pad_id)
            if keys is None and hasattr(strategy, "seed"):
                keys = row_keys(source, self.pad_id) if self.reads_ids else feature_keys(source)
            search = Search(
                limits.of_rows(lengths, prefix_lengths),
                lengths,
                keys,
                (self.eos_id, *self.stop_ids),
                self.pad_id,
            )
            step, cache, prompt, starts = self.start(source, strategy.width, prefix)
            return decode(
                step,
                cache,
                strategy,
                prompt,
                search,
                target_len=target_len,
                starts=starts,
                constraints=limits.constraints,
            )

        rows = source, prefix, max_length, keys, tensors_of(objects)
        results = strategy.results(target_len if isinstance(target_len, int) else None)
        with inference(self):
            return hypotheses_of(search_rows(search_given, self, rows, strategy.width, results))

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
            source: int `(batch, source_len)`, sources or prompts, padded on the right; or what another source reads.
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
        batch_size = rows_of(source)
        fits = len(target.shape) in (2, 3) and 0 not in target.shape and target.shape[0] == batch_size
        check(fits, rule, shape=tuple(target.shape), batch_size=batch_size)
        target = ids_of(target, "target", self.target_vocab_size)
        several = target if len(target.shape) == 3 else target[:, None]
        room = self.limits().room(self._source_lengths(source))
        lengths = ops.max(lengths_of(several, self.pad_id), axis=1)
        rule = f"`source` and `target` must be within the model's {self.max_positions} positions."
        fits = room is None or not ops.any(lengths > room)
        lengths, room = (ops.convert_to_numpy(x).tolist() for x in (lengths, room))
        check(fits, rule, target_lengths=lengths, room=room)
        jit_compile = native.compiles(jit_compile)
        score_all = self._compiled(self.score_all, jit_compile, "score_all", differentiable=True)
        scores = score_all(source, several)
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

    def _compiled(self, function, jit_compile, *key, **options):
        """Returns the compiled function, the same one for the same key."""
        if not all(layer.built for layer in self.layers):
            self.build_added_layers()
        make = functools.partial(native.compiled, function, self, jit_compile, **options)
        return self._functions.get((jit_compile, *key), self.variables, make)

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


def _rows_at(rows, group, lengths):
    """Returns some rows of the inputs and tensors of a search, without columns of the source that are padding alone.

    Args:
        rows: The inputs and the tensors, two dicts.
        group: int array, the numbers of the rows; the last one has the longest source.
        lengths: int `(batch,)`, the number of tokens of each source.
    """
    inputs, tensors = keras.tree.map_structure(
        lambda x: ops.take(x, group, axis=0) if len(x.shape) else x, rows
    )
    return {**inputs, "source": inputs["source"][:, : max(1, int(lengths[group[-1]]))]}, tensors


def _joined(parts, groups, target_len, pad_id):
    """Puts the `Hypotheses` of groups of rows into the order of the batch, with `target_len` columns."""
    parts = [_with_columns(each, target_len, pad_id) for each in parts]
    order = np.argsort(np.concatenate(groups))
    return hypotheses_of(ops.take(ops.concatenate(x), order, axis=0) for x in zip(*parts, strict=True))


def _with_columns(hypotheses, count, pad_id):
    """Returns hypotheses with `count` columns: others are cut off, missing ones are padding."""

    def fitted(name, x):
        # Lengths and scores have no columns.
        if len(x.shape) == 2 or x.shape[2] == count:
            return x
        missing = ((0, 0), (0, 0), (0, max(0, count - x.shape[2])), *[(0, 0)] * (len(x.shape) - 3))
        return ops.pad(x[:, :, :count], missing, constant_values=pad_id if name == "tokens" else 0)

    return type(hypotheses)(*map(fitted, hypotheses._fields, hypotheses))


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
            ops.reshape(tokens, (batch_size, branches * length)), cache=cache.layers, index=place
        )
        logits = ops.reshape(logits, (batch_size, branches, length, logits.shape[-1]))
        return logits, cache._replace(layers=layers)

    ancestors = ops.zeros((batch_size, width, 0), "int32")
    return step, TreeCache(decoder.empty_cache(batch_size, trunk), ancestors)


def log_probs_of(target, logits, pad_id):
    """Returns the log probability of each token, 0 for padding, and which tokens are real: `(batch, target_len)`
    each."""
    log_probs = ops.take_along_axis(ops.log_softmax(logits, axis=-1), target[..., None], axis=-1)[..., 0]
    real = ops.arange(ops.shape(target)[1], dtype="int32") < lengths_of(target, pad_id)[:, None]
    return ops.where(real, log_probs, 0.0), real


def left_padded(tokens, lengths, pad_id):
    """Moves each row's tokens, int32 `(batch, length)`, to its right end; returns them and the slots where they
    start."""
    length = ops.shape(tokens)[1]
    starts = length - lengths
    places = ops.arange(length, dtype="int32") - starts[:, None]
    moved = ops.take_along_axis(tokens, ops.maximum(places, 0), axis=1)
    return ops.where(places >= 0, moved, pad_id), starts


def matrix_of_ids(x, name, shape, vocab_size):
    """Returns `x` as int32 of rank 2.

    Raises:
        ValueError: If it is not an array, has another rank or an empty axis, or `ids_of` raises.
    """
    ragged = getattr(x, "ragged_rank", 0) or hasattr(x, "flat_values")
    check(
        not ragged,
        f"`{name}` must be dense, not ragged, and padded on the right: `x.to_tensor()`.",
        **{name: x},
    )
    try:
        array = ops.convert_to_tensor(x)
    except (ValueError, TypeError):
        # `x` is None, or its rows have different lengths.
        array = None
    rule = f"`{name}` must be an array of ids `{shape}`, rows filled up on the right with `pad_id`."
    check(array is not None, rule, **{name: x})
    rule = f"`{name}` must have shape `{shape}`, without an empty axis."
    check(len(array.shape) == 2 and 0 not in array.shape, rule, shape=tuple(array.shape))
    return ids_of(array, name, vocab_size)


def ids_of(x, name, vocab_size):
    """Returns `x`, which has no empty axis, as int32.

    Raises:
        ValueError: If it does not hold ints, holds an id outside the vocabulary, or is a tensor of a graph, which has
            no values yet.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    check("int" in dtype, f"`{name}` must hold ids, ints.", dtype=dtype)
    check_known_ids(vocab_size, **{name: values_of(x, name)})
    return ops.cast(x, "int32")


def values_of(x, name):
    """Returns the values of a tensor, a NumPy array.

    Raises:
        ValueError: If it is a tensor of a graph, which has no values yet.
    """
    try:
        values = ops.convert_to_numpy(x)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        # Each backend has its own error for a tensor without values.
        values = None
    rule = f"`{name}` must have values: `generate` and `score` do not run inside a graph. Use `model.search` there."
    check(values is not None, rule, **{name: x})
    return values


def features_of(x, name):
    """Returns what a source layer reads: a nest of tensors of one batch size, from a nest of arrays.

    Raises:
        ValueError: If it holds no tensor, one of them has no batch or an empty one, the batch sizes differ, or it is a
            tensor of a graph.
    """
    x = keras.tree.map_structure(ops.convert_to_tensor, x)
    shapes = [tuple(each.shape) for each in keras.tree.flatten(x)]
    rule = f"`{name}` must be a tensor or a nest of tensors, batch first, with one batch size that is not 0."
    sizes = {shape[:1] for shape in shapes}
    check(len(sizes) == 1 and not sizes & {(), (0,)}, rule, shapes=shapes)
    for each in keras.tree.flatten(x):
        # Whether it has values, of which none is copied from an accelerator.
        values_of(each[:0], name)
    return x


def rows_of(source):
    """Returns the batch size of a nest of tensors, an int or an int32 scalar."""
    return ops.shape(keras.tree.flatten(source)[0])[0]
