"""Searches with a real model: the same in every mode, on every backend, whatever the batch."""

import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import WRITERS
from contracts import as_numpy, assert_close, needs_half_precision, portable_first, refuses
from keras import ops
from reference import log_softmax
from searches import (
    BOS,
    CONSTRAINTS,
    EOS,
    MAX_LENGTH,
    PAD,
    PREFIX,
    SOURCE,
    STRATEGIES,
    VOCAB,
    assert_same,
    writer,
    written,
)

from keras_transformer import layers
from keras_transformer.decoding import (
    Beam,
    Greedy,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    PhraseBeam,
    Sample,
    Search,
    SuppressTokens,
    decode,
)
from keras_transformer.execution import inference as execution_inference
from keras_transformer.execution import native
from keras_transformer.execution.inference import groups_of_lengths
from keras_transformer.layers import TreeCache
from keras_transformer.models import EncoderDecoder, Transformer

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def model():
    return writer()


@pytest.mark.slow
@pytest.mark.tensorflow
def test_strategies_and_constraints_are_the_same_on_both_backends(model):
    pairs = ["greedy+free", "diverse+all", "cut sample+all"]
    done = subprocess.run(
        [sys.executable, str(HERE / "searches.py"), "compiled", *pairs],
        env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(pairs)
    for name, names, *found in lines:
        expected = written(model, STRATEGIES[name], CONSTRAINTS[names], None, "eager", MAX_LENGTH)
        assert found == expected[:2], (name, names)


@pytest.mark.parametrize("strategy", [Greedy(), pytest.param(Beam(2), marks=pytest.mark.slow)], ids=repr)
def test_a_prefix_that_ends_is_all_there_is(model, strategy):
    prefix = np.array([[5, EOS], [5, 6], [EOS, PAD]], "int32")
    found = as_numpy(model.generate(SOURCE, strategy, max_length=7, prefix=prefix))
    assert found.lengths[0, 0] == 2 and found.tokens[0, 0].tolist() == [5, EOS, *[PAD] * 5]
    assert found.lengths[2, 0] == 1 and found.tokens[2, 0].tolist() == [EOS, *[PAD] * 6]
    assert found.lengths[1, 0] > 2


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("strategy", "mode"),
    [(Greedy(), "portable"), (Beam(3, n_best=3), "eager"), (Beam(3, n_best=3), "compiled")],
    ids=["greedy-portable", "beam-eager", "beam-compiled"],
)
def test_the_cache_grows_without_a_trace(model, strategy, mode, monkeypatch):
    """Room for 2, 4, 8, 16 steps gives what room for all gives."""
    endless = (SuppressTokens((EOS,)),)
    expected = written(model, strategy, endless, PREFIX, "eager")
    monkeypatch.setattr(execution_inference, "FIRST_STEPS", 2)
    fresh = writer()
    assert_same(written(fresh, strategy, endless, PREFIX, mode), expected)
    assert np.max(expected[1]) == 2 * 5 + 16 + 1  # the longest source, and its prefix


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("strategy", [Greedy(), Beam(3)], ids=["greedy", "beam"])
def test_lengths_may_differ_from_call_to_call(model, strategy):
    """The portable graph is traced again with open lengths: sources first, then prefixes."""
    for length in (3, 5, 4):
        found = model.generate(SOURCE[:2, :length], strategy, jit_compile=False)
        assert found.tokens.shape[2] == 2 * length + 16
    for length in (1, 3, 2):
        prefix = np.full((3, length), 7, "int32")
        found = as_numpy(model.generate(SOURCE, strategy, max_length=9, prefix=prefix, jit_compile=False))
        assert np.all(found.tokens[:, 0, :length] == 7)
        expected = model.search(SOURCE, strategy, 9, prefix=prefix)
        assert_same(found, as_numpy(expected))


# The same strategies, and those that hold values for each row.
BY_ROW = {
    **STRATEGIES,
    "sample by row": Sample(np.array([0.0, 0.7, 1.4]), top_p=np.array([1.0, 0.5, 0.8]), seed=np.arange(3)),
    "phrases": PhraseBeam(4, phrases=[[[5, 6], [9, 0]], [[7, 0], [0, 0]], [[8, 8], [0, 0]]]),
}


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "known"), [("greedy", True), ("beam", False), ("sample by row", True), ("phrases", False)]
)
def test_the_halves_of_a_large_batch_are_searched_as_the_whole(name, known, monkeypatch):
    """Whether the number of rows is known while the graph is traced, and with values for each row."""
    rows, model, strategy = [], writer(), BY_ROW[name]
    model.quantize("int8")
    start = model.start
    monkeypatch.setattr(model, "start", lambda x, *more: rows.append(x.shape[0]) or start(x, *more))
    limits, prefix = ops.convert_to_tensor([9, 4, 7]), ops.convert_to_tensor(PREFIX)
    constraints = [MinLength(np.array([2, 3, 2]))]

    def search(source):
        return model.search(
            source, strategy, limits, target_len=MAX_LENGTH, prefix=prefix, constraints=constraints
        )

    found = []
    for least in (10**6, strategy.width):  # 3 rows are then two halves of 2, one of which is there twice
        monkeypatch.setattr(execution_inference, "LARGE_BATCH", least)
        with native.inference_graph():
            spec = tf.TensorSpec((3 if known else None, 5), "int32")
            found.append(
                as_numpy(tf.function(search).get_concrete_function(spec)(ops.convert_to_tensor(SOURCE)))
            )
    assert_same(*found)
    assert rows == ([3, 2] if known else [None, None])


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("greedy", None),
        pytest.param("beam", None, marks=pytest.mark.slow),
        pytest.param("greedy", 200, marks=pytest.mark.slow),
        pytest.param("sample by row", None, marks=pytest.mark.slow),
        pytest.param("phrases", None, marks=pytest.mark.slow),
    ],
)
def test_one_half_of_a_batch_does_not_wait_for_the_other(name, most, monkeypatch):
    """TensorFlow begins the next turn of a loop when the operations with side effects of the last one are over."""
    model = writer()
    model.quantize("int8")
    monkeypatch.setattr(execution_inference, "LARGE_BATCH", 2)

    def search(source, longest):
        return model.search(source, BY_ROW[name], longest if most is None else most)

    with native.inference_graph():
        specs = tf.TensorSpec((3, 5), "int32"), tf.TensorSpec((), "int32")
        graph = tf.function(search).get_concrete_function(*specs).graph
    halves = [op for op in graph.get_operations() if op.type == "While" and "map" in op.name]
    assert len(halves) == 1
    functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
    body = functions[halves[0].get_attr("body").name]
    assert {"StatelessWhile"} <= {node.op for node in body.node_def}
    assert not {"While", "If"} & {node.op for node in body.node_def}, "the search itself has a side effect"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sample by row", {}),
        pytest.param("phrases", {"max_length": 9, "prefix": PREFIX}, marks=pytest.mark.slow),
        pytest.param("beam", {"constraints": [MinLength(np.array([2, 3, 2]))]}, marks=pytest.mark.slow),
    ],
)
def test_rows_of_very_different_lengths_are_searched_in_groups(model, name, arguments, monkeypatch):
    sources, start, source = [], model.start, np.array([[5, 7, 11, 4, 9], [8, 0, 0, 0, 0], [6, 4, 7, 0, 0]])
    whole = as_numpy(model.generate(source, BY_ROW[name], jit_compile=False, **arguments))
    monkeypatch.setattr(model, "start", lambda x, *more: sources.append(x.shape) or start(x, *more))
    for name_of_cost in ("LEAST_PADDING", "POSITIONS_OF_A_STEP"):
        monkeypatch.setattr(execution_inference, name_of_cost, 0)
    model._functions.clear()
    assert_same(as_numpy(model.generate(source, BY_ROW[name], jit_compile=False, **arguments)), whole)
    if keras.backend.backend() == "tensorflow":  # elsewhere each group would be compiled
        assert sources[0][0] == 1, "the shortest row is searched alone"


def test_a_group_saves_more_padding_than_its_steps_cost():
    def sizes(lengths):
        return [len(group) for group in groups_of_lengths(np.array(lengths), lambda longest: 64)]

    assert sizes([2000] + [10] * 15) == [15, 1]
    assert sizes([2000, 10, 10] * 8 + [10] * 4 + [300] * 20) == [20, 20, 8]
    assert sizes([40] * 31 + [60]) == [32]
    assert sizes([0, 3000]) == [2]


@pytest.mark.tensorflow
def test_all_lengths_share_one_graph(monkeypatch):
    fresh = writer()
    traces = traces_of(fresh, monkeypatch)
    for length in (5, 9, 7):
        found = as_numpy(fresh.generate(SOURCE, max_length=length, jit_compile=False))
        assert_same(found, as_numpy(fresh.search(source=SOURCE, strategy=Greedy(), max_length=length)))
    assert len(traces) == 1 + 3  # those of `search` itself


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", ["float", "int8"])
def test_a_search_reads_weights_before_its_loops_and_nothing_else(mode):
    model = Transformer(VOCAB, num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.1)
    if mode == "int8":
        model.quantize("int8")
    with native.inference_graph():
        graph = tf.function(lambda x: model.search(x, Beam(2), MAX_LENGTH)).get_concrete_function(
            tf.TensorSpec((None, 5), "int32")
        )
    loops = [f for f in graph.graph.as_graph_def().library.function if "while_body" in f.signature.name]
    assert loops
    assert not [node.name for loop in loops for node in loop.node_def if node.op == "ReadVariableOp"]
    # An export knows no seed of a dropout.
    assert not [variable.name for variable in graph.variables if "seed" in variable.name]


class NotesShapes(Transformer):
    """Notes the shapes of the ids that it decodes."""

    def decode(self, target, *args, **kwargs):
        self.shapes.append(tuple(target.shape))
        return super().decode(target, *args, **kwargs)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("max_length", [MAX_LENGTH, None])
@pytest.mark.parametrize("strategy", [Greedy(), Beam(3)])
def test_a_step_of_an_open_batch_knows_the_number_of_its_tokens(strategy, max_length):
    """Attention of few queries is much faster where the graph knows that they are few, as an export's does."""
    model = NotesShapes(VOCAB, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    model.shapes = []
    with native.inference_graph():
        search = tf.function(lambda x: model.search(x, strategy, max_length))
        graph = search.get_concrete_function(tf.TensorSpec((None, None), "int32")).graph.as_graph_def()
    assert {*model.shapes} == {(None, strategy.width)}
    if max_length is not None:  # else each shape of the cache has two unknown sizes
        step = max(graph.library.function, key=lambda function: len(function.node_def)).node_def
        assert not [node.name for node in step if node.op == "Pack" and "decoder" in node.name]


class CountsAndDrops(layers.FeedForward):
    """A user's layer that drops in every call, and counts its calls."""

    def build(self, shape):
        super().build(shape)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=None):
        self.calls.assign_add(1.0)
        return super().call(x, training=True)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("max_length", [6, 100])
def test_a_layer_that_changes_in_a_search_keeps_its_changes(max_length):
    own = CountsAndDrops(32, dropout=0.5)
    decoder = layers.Decoder([layers.DecoderLayer(2, None, 0.0, feed_forward=own)])
    embeddings = layers.Embeddings(VOCAB, 16, layers.PositionalEncoding(), dropout=0.0)
    model = EncoderDecoder(embeddings, layers.Encoder(1, 2, 32, dropout=0.0), embeddings, decoder)
    found = [
        as_numpy(model.generate(SOURCE, Greedy(), max_length, constraints=[MinLength(max_length)])).scores
        for _ in range(3)
    ]
    assert len({scores.tobytes() for scores in found}) == 3
    assert float(own.calls.value) == 3 * max_length


@pytest.mark.tensorflow
def test_nothing_grows_after_the_end(model, monkeypatch):
    """One step is taken, so there is never room for more than the first."""
    sizes = []
    grown = TreeCache.grown
    monkeypatch.setattr(
        TreeCache, "grown", lambda self, steps: sizes.append(int(steps)) or grown(self, steps)
    )
    model.search(SOURCE, Greedy(), 1000, prefix=np.array([[5, EOS], [6, EOS], [EOS, PAD]], "int32"))
    assert sizes == [64]


def traces_of(model, monkeypatch):
    """A list that grows with each trace of `model.search`."""
    traces, search = [], model.search
    monkeypatch.setattr(model, "search", lambda **inputs: traces.append(1) or search(**inputs))
    return traces


def test_one_function_serves_every_seed(monkeypatch):
    fresh = writer()
    traces = traces_of(fresh, monkeypatch)
    for seed in (1, 2, None):
        fresh.generate(SOURCE, Sample(seed=seed), max_length=5)
    assert len(traces) == 1


@pytest.mark.slow
def test_one_function_serves_all_values_of_rows_and_each_row_has_its_own(model, monkeypatch):
    fresh = writer()
    traces = traces_of(fresh, monkeypatch)
    temperature, seed, shortest = np.array([0.0, 0.7, 1.4]), np.array([5, 6, 7]), np.array([0, 4, 9])
    for rows in ([0, 1, 2], [2, 0, 1]):
        strategy = Sample(temperature[rows], seed=seed[rows])
        constraints = [MinLength(shortest[rows])]
        found = as_numpy(fresh.generate(SOURCE[rows], strategy, 9, constraints=constraints))
        for place, row in enumerate(rows):
            own = Sample(temperature[row], seed=seed[row]) if row else Greedy()
            constraints = [MinLength(shortest[row])] if row else ()
            alone = as_numpy(model.search(SOURCE[row : row + 1], own, 9, constraints=constraints))
            assert_same([part[place : place + 1] for part in found], alone)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "arguments",
    [{"strategy": Sample(np.ones(2))}, {"constraints": [MinLength(np.ones(2))]}],
    ids=["strategy", "constraint"],
)
def test_values_for_another_number_of_rows_are_refused(model, arguments):
    refuses(r"have a value for each row.*shape=\(2,\), batch_size=3", model.generate, SOURCE, **arguments)


@pytest.mark.slow
def test_a_minimum_above_the_default_limit_raises_it(model):
    for length in (30, np.array([30])):
        found = as_numpy(model.generate(SOURCE[2:, :2], Greedy(), constraints=[MinLength(length)]))
        assert found.lengths[0, 0] >= 30


@pytest.mark.slow
@needs_half_precision
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_a_beam_runs_in_half_precision(dtype):
    found = as_numpy(writer(dtype=dtype).generate(SOURCE, Beam(3, n_best=3), max_length=9))
    assert np.all(np.isfinite(found.scores)) and np.all(found.lengths > 0)


# What is found


@pytest.mark.parametrize("jit_compile", portable_first())
@pytest.mark.parametrize("make", [writer, WRITERS["recurrent"][0]], ids=["transformer", "recurrent"])
def test_score_agrees_with_the_forward_pass(make, jit_compile):
    model = make()
    target = np.array([[5, 9, 10, EOS], [7, EOS, PAD, PAD], [4, 6, 8, 11]], "int32")
    shifted = np.pad(target, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]
    logits, attention = model({"source": SOURCE, "target": shifted}, return_attention_scores=True)
    log_p = np.take_along_axis(log_softmax(as_numpy(logits)), target[..., None], axis=-1)[..., 0]
    expected = np.where(target == PAD, 0.0, log_p)
    found = as_numpy(model.score(SOURCE, target, jit_compile=jit_compile))
    np.testing.assert_allclose(found.token_scores, expected, atol=1e-4)
    np.testing.assert_allclose(found.scores, expected.sum(axis=1), atol=1e-4)
    mean = as_numpy(attention["cross"][-2:][0]).mean(axis=1)
    np.testing.assert_allclose(found.alignments, np.where(target[..., None] == PAD, 0.0, mean), atol=1e-5)
    assert found.alignments.shape == (3, 4, 5)
    np.testing.assert_allclose(found.alignments[0].sum(axis=-1), np.ones(4), rtol=1e-5)
    assert np.all(found.alignments[0, :, 4] == 0), "nothing attends to padding"


@pytest.mark.slow
@pytest.mark.tensorflow
def test_score_has_the_gradient_of_the_forward_pass(model):
    target = np.array([[5, 9, 10, EOS], [7, EOS, PAD, PAD], [4, 6, 8, 11]], "int32")
    shifted = np.pad(target, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]

    def forward():
        log_p = tf.nn.log_softmax(model({"source": SOURCE, "target": shifted}))
        return tf.reduce_sum(tf.gather(log_p, target, batch_dims=2)[target != PAD])

    weights = [weight.value for weight in model.trainable_weights]

    def gradients(function):
        with tf.GradientTape() as tape:
            value = function()
        return tape.gradient(value, weights)

    expected = gradients(forward)
    found = gradients(lambda: tf.reduce_sum(model.score(SOURCE, target, jit_compile=False).scores))
    assert any(np.abs(as_numpy(each)).max() > 0.1 for each in expected)
    for got, wanted in zip(found, expected, strict=True):
        assert_close(tf.convert_to_tensor(got), tf.convert_to_tensor(wanted), 1e-4)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_tape_does_not_watch_a_search(model):
    weights = [weight.value for weight in model.trainable_weights]
    with tf.GradientTape() as tape:
        found = model.generate(SOURCE, max_length=3, jit_compile=False)
        total = tf.reduce_sum(found.scores) + sum(tf.reduce_sum(weight) for weight in weights)
    for gradient in tape.gradient(total, weights):
        np.testing.assert_array_equal(gradient, np.ones(gradient.shape))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_search_that_is_forgotten_leaves_no_graph():
    graphs = []

    class Watched(Transformer):
        def search(self, *args, **kwargs):
            graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
            return super().search(*args, **kwargs)

    model = Watched(VOCAB, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    model.generate(SOURCE, max_length=3, jit_compile=False)
    model.compile()  # forgets the search
    gc.collect()
    assert [graph() for graph in graphs] == [None]


def test_the_function_that_was_not_used_for_longest_is_forgotten(monkeypatch):
    monkeypatch.setattr(execution_inference, "KEPT_FUNCTIONS", 2)
    functions, made = execution_inference.CompiledFunctions(), []
    for key in "abacab":
        functions.get(key, [], lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "b"]


def test_threads_share_one_compiled_function():
    functions, made = execution_inference.CompiledFunctions(), []

    def make():
        time.sleep(0.05)  # long enough for the other threads to ask
        made.append("function")
        return made[-1]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: functions.get("key", [], make), range(8)))
    assert made == ["function"] and found == made * 8


@pytest.mark.tensorflow
@pytest.mark.parametrize("method", ["generate", "score"])
def test_generate_and_score_inside_a_graph_are_refused_and_name_search(model, method):
    arguments = {"generate": (), "score": (np.array([[5, EOS]] * 3),)}[method]
    function = tf.function(lambda source: getattr(model, method)(source, *arguments), autograph=False)
    refuses(r"inside a graph.*`model.search`", function, SOURCE)


@pytest.fixture
def bfloat16_everywhere():
    usual = keras.config.floatx()
    keras.config.set_floatx("bfloat16")
    yield
    keras.config.set_floatx(usual)


@pytest.mark.slow
@needs_half_precision
@pytest.mark.parametrize("name", ["diverse", "cut sample"])
def test_a_search_runs_where_keras_computes_in_bfloat16(bfloat16_everywhere, name):
    """A range or a number without a dtype of its own would have Keras's."""
    table = ops.ones((VOCAB, VOCAB), "float32")

    def step(tokens, cache, index):
        return ops.take(table, tokens, axis=0), cache

    constraints = CONSTRAINTS["all"][:1] + CONSTRAINTS["all"][2:]
    strategy = STRATEGIES[name]
    if name == "cut sample":
        strategy = dataclasses.replace(strategy, temperature=np.array([0.5]), top_p=np.array([0.9]))
    found = decode(step, (), strategy, [[BOS, 5]], Search(6), constraints=constraints)
    assert keras.backend.standardize_dtype(found.scores.dtype) == "float32"
    assert np.all(as_numpy(found.lengths) >= 4)


@pytest.mark.slow
def test_samples_differ_with_each_call_unless_seeded(model):
    def samples(seed):
        return as_numpy(model.generate(SOURCE, Sample(seed=seed, num_samples=5), max_length=9).tokens)

    np.testing.assert_array_equal(samples(1), samples(1))
    assert np.any(samples(1) != samples(2))
    assert np.any(samples(None) != samples(None))
    keras.utils.set_random_seed(3)
    first = samples(None)
    keras.utils.set_random_seed(3)
    np.testing.assert_array_equal(samples(None), first)


WRONG_SHAPES = [(5,), (2, 3, 5), (0, 3), (3, 0)]
NO_ARRAYS = [None, [[5, 6], [7]], {"source": [[5]]}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "beam"}, "strategy='beam'"),
        ({"constraints": [3]}, "constraint=3"),
        ({"constraints": [MinLength(9)], "max_length": 5}, "at least 9 and at most 5"),
        ({"constraints": [MinLength(9), MaxLength(4)]}, "at least 9 and at most 4"),
        ({"prefix": np.ones((2, 3), "int32")}, "a row for each source"),
        ({"prefix": np.ones((3, 6), "int32"), "max_length": 5}, "at most max_length=5 tokens"),
        ({"prefix": [[0, 5], [5, 6], [5, 6]]}, "padding on the right alone"),
        ({"prefix": [[5, EOS, 5], [5, 6, 7], [5, 6, 7]]}, "no token after `eos_id`"),
        ({"prefix": [[5, VOCAB], [5, 6], [5, 6]]}, "from 0 to 22. Received: lowest=5, highest=23"),
        ({"prefix": np.ones((3,), "int32")}, "shape=(3,)"),
        ({"constraints": [NoRepeatNgram]}, "NoRepeatNgram"),
        ({"max_length": 0}, "`max_length` must be a positive integer. Received: max_length=0."),
        *(({"source": np.ones(shape, "int32")}, f"Received: shape={shape}.") for shape in WRONG_SHAPES),
        *(({"source": source}, "`source` must be an array of ids") for source in NO_ARRAYS),
        ({"source": tf.ragged.constant([[5, 7], [8]])}, "`source` must be dense"),
        ({"source": [[5, 23]]}, "lowest=5, highest=23"),
        ({"source": [[-1]]}, "lowest=-1, highest=-1"),
        ({"source": [[5.0, 6.0]]}, "dtype='float32'"),
    ],
)
def test_unusable_arguments_are_refused(model, arguments, message):
    with pytest.raises(ValueError) as error:
        model.generate(**{"source": SOURCE, **arguments})
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["source", "prefix"])
def test_ids_that_the_vocabulary_lacks_are_refused_by_search_too(model, name):
    with pytest.raises(ValueError, match=f"`{name}` must hold ids from 0 to 22"):
        model.search(**{"source": SOURCE, "strategy": Greedy(), name: np.full((3, 2), VOCAB)})


@pytest.mark.parametrize("shape", [(2, 4), (3, 0), (3,), (3, 2, 0)])
def test_a_target_that_does_not_fit_is_refused(model, shape):
    with pytest.raises(ValueError) as error:
        model.score(SOURCE, np.ones(shape, "int32"))
    assert f"shape={shape}" in str(error.value)
