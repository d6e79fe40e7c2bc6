"""Attention in blocks against the attention that holds all scores at once."""

import itertools

import keras
import numpy as np
import pytest
from contracts import as_numpy, gradient_of, normal, randomized
from keras import ops

from keras_transformer.execution import blocks as blockwise
from keras_transformer.layers import (
    ALiBi,
    LayerNormalization,
    RelativePositionBias,
    RotaryPositions,
    attention,
    dot_product,
)
from keras_transformer.masks import local_mask

SHAPES = [(2, 3, 7, 7), (1, 2, 10, 4), (2, 1, 5, 11)]


def inputs(shape, dim=4, seed=0):
    batch, heads, target, source = shape
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(batch, heads, n, dim)).astype("float32") for n in (target, source, source)]


def masks(shape, kind):
    batch, heads, target, source = shape
    rng = np.random.default_rng(1)
    if kind == "none":
        return None
    if kind == "causal":
        return np.tri(target, source, dtype=bool)[None, None]
    full = {
        "padding": (batch, 1, 1, source),
        "rows": (batch, 1, target, source),
        "heads": (1, heads, 1, source),
        "all": shape,
    }
    mask = rng.uniform(size=full[kind]) < 0.6
    if kind in ("rows", "all"):
        mask[0, 0, 1] = False  # a query that may attend to nothing
    return mask


@pytest.fixture(params=[1, 12, 10**6], ids=["tiny", "some", "one"])
def block_size(request, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", request.param)


def whole(*arguments, **options):
    """Attention that holds all scores, as it must where they are asked for."""
    return as_numpy(dot_product.dot_product_attention(*arguments, **options)[0])


def of_distance(distances):
    """A bias of four heads that tells the sides apart; not a line, of which softmax sees no shift."""
    slopes = ops.reshape(ops.convert_to_tensor([0.3, -0.2, 0.1, 0.5], "float32"), (1, 4, 1, 1))
    return slopes * ops.sin(ops.cast(distances, "float32") * 0.7)


def in_blocks(monkeypatch, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(blockwise, "LONG", 0)
        found, scores = dot_product.dot_product_attention(
            *arguments, return_attention_scores=False, **options
        )
    assert scores is None
    return as_numpy(found)


@pytest.fixture
def few_queries(monkeypatch):
    """Windows cut into blocks of as many queries as the window, however few."""
    monkeypatch.setattr(blockwise, "FEWEST_QUERIES", 1)


KINDS = ["none", "causal", "padding", "rows", "heads", "all"]
PLAIN = list(itertools.product(KINDS, SHAPES))
# A window and a bias, of distances on both sides.
WINDOWS = [
    ("causal", (2, 4, 13, 13), 3, None),
    ("all", (2, 4, 13, 13), 3, of_distance),
    ("rows", (2, 4, 13, 13), None, of_distance),
    ("none", (2, 4, 13, 13), 1, of_distance),
    ("padding", (1, 4, 10, 4), 2, of_distance),
    ("heads", (1, 4, 5, 11), 4, of_distance),
    ("padding", (1, 4, 5, 11), 20, None),
]
# JAX compiles the loop anew in each case: there each kind has one shape, and each shape two kinds.
if keras.backend.backend() == "jax":
    PLAIN = list(zip(KINDS, SHAPES * 2, strict=True))
CASES = [*((*case, None, None) for case in PLAIN), *WINDOWS]


@pytest.mark.parametrize(("kind", "shape", "window", "bias"), CASES)
@pytest.mark.sampled
def test_blocks_change_nothing(shape, kind, window, bias, block_size, few_queries, monkeypatch):
    arguments, options = (*inputs(shape), masks(shape, kind)), {"window": window, "bias": bias}
    found = in_blocks(monkeypatch, *arguments, **options)
    np.testing.assert_allclose(found, whole(*arguments, **options), atol=2e-6)


def test_scores_far_apart_stay_exact(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 12)
    query, key, value = inputs(SHAPES[0])
    mask = masks(SHAPES[0], "padding")
    key = np.where(mask[..., 0, :, None], key, 1e8)  # what is hidden weighs nothing, however it scores
    arguments = (query * 100, key, value, mask)
    np.testing.assert_allclose(in_blocks(monkeypatch, *arguments), whole(*arguments), atol=1e-5)


POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]], "int32")
DISTANCES = POSITIONS[:, None, None] - POSITIONS[:, None, :, None]
OF_POSITIONS = {"window": 2, "bias": of_distance, "positions": POSITIONS, "key_positions": POSITIONS}


@pytest.mark.parametrize(("options", "mask", "bias", "groups"), [
    ({"window": 4}, local_mask(7, 4), None, 1),
    (OF_POSITIONS, np.abs(DISTANCES) < 2, of_distance(DISTANCES), 1),
    ({}, None, None, 2),
], ids=["window", "positions", "grouped"])  # fmt: skip
def test_options_are_a_mask_a_bias_and_repeated_keys(options, mask, bias, groups, few_queries, monkeypatch):
    """A window hides what is far, a bias is added, and several heads of queries share a head of keys."""
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 12)
    query, _, _ = inputs((2, 4, 7, 7))
    _, key, value = inputs((2, 4 // groups, 7, 7), seed=1)
    repeated = (np.repeat(x, groups, axis=1) for x in (key, value))
    expected = whole(query, *repeated, mask, bias=bias)
    np.testing.assert_allclose(whole(query, key, value, **options), expected, atol=1e-6)
    np.testing.assert_allclose(in_blocks(monkeypatch, query, key, value, **options), expected, atol=1e-6)


SCHEMES = {"none": lambda: None, "alibi": ALiBi, "relative": lambda: RelativePositionBias(2, 8, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_of_inputs_and_weights_are_the_same(scheme, window, few_queries, monkeypatch):
    """On any backend: of the inputs, a projection and the table of biases."""
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
    x = normal(2, 7, 6)
    layer = attention.MultiHeadAttention(2, 3, positions=SCHEMES[scheme](), sliding_window=window)
    layer.build(x.shape, x.shape)
    randomized(layer)
    assert len(layer.weights) == 8 + (scheme == "relative")
    for weight in (None, layer.query_dense.kernel, *layer.weights[8:]):

        def total(given, weight=weight):
            changed = [] if weight is None else [(weight, ops.convert_to_tensor(given) * 1.0)]
            with keras.StatelessScope(state_mapping=changed):
                source = given if weight is None else x
                return ops.sum(ops.sin(layer(source, source, use_causal_mask=True)))

        found = []
        for long in (10**9, 0):
            monkeypatch.setattr(blockwise, "LONG", long)
            found.append(gradient_of(total, x if weight is None else as_numpy(weight).astype("float32")))
        assert np.abs(found[0]).max() > 1e-3
        np.testing.assert_allclose(found[1], found[0], atol=1e-4)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["causal", "all"])
def test_gradients_in_a_graph_are_the_same(kind, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 12)
    import tensorflow as tf

    shape = SHAPES[0]
    mask = masks(shape, kind)
    found = []
    for long in (10**9, 0):
        monkeypatch.setattr(blockwise, "LONG", long)
        variables = [tf.Variable(x) for x in inputs(shape)]

        @tf.function
        def gradients(variables=variables):
            with tf.GradientTape() as tape:
                context, _ = dot_product.dot_product_attention(
                    *variables, mask, return_attention_scores=False
                )
                loss = tf.reduce_sum(tf.sin(context) * tf.range(4.0))
            return tape.gradient(loss, variables)

        found.append([g.numpy() for g in gradients()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_many_blocks_in_bfloat16_add_up_in_float32(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 2048)  # a block for each query
    rng = np.random.default_rng(4)
    values = [tf.cast(rng.normal(size=(1, 1, 2048, 8)), "bfloat16") for _ in range(3)]
    found = []
    for long, dtype in ((10**9, "float32"), (0, "bfloat16")):
        monkeypatch.setattr(blockwise, "LONG", long)
        variables = [tf.Variable(tf.cast(x, dtype)) for x in values]

        @tf.function(autograph=False)
        def gradients(variables=variables):
            with tf.GradientTape() as tape:
                context, _ = dot_product.dot_product_attention(*variables, return_attention_scores=False)
                loss = tf.reduce_sum(tf.cast(context, "float32") ** 2)
            return tape.gradient(loss, variables)

        found.append([as_numpy(g) for g in gradients()])
    for one, other in list(zip(*found, strict=True))[1:]:  # of keys and values: sums over all blocks
        # The products in bfloat16 are off by 2 %. Sums in bfloat16 would be off by 10 % and 30 %.
        assert np.linalg.norm(one - other) < 0.04 * np.linalg.norm(one)


def test_layer_takes_blocks_for_long_rows_unless_asked_for_scores(monkeypatch):
    taken = []
    real = blockwise.blockwise_attention

    def watched(*arguments):
        taken.append(ops.shape(arguments[0]))
        return real(*arguments)

    monkeypatch.setattr(blockwise, "blockwise_attention", watched)
    layer = attention.MultiHeadAttention(2, 4)
    layer(np.zeros((1, 16, 8), "float32"), np.zeros((1, 16, 8), "float32"))
    assert taken == []
    monkeypatch.setattr(blockwise, "LONG", 16 * 16)
    x = np.random.default_rng(2).normal(size=(1, 16, 8)).astype("float32")
    output = layer(x, x)
    assert len(taken) == 1
    again, scores = layer(x, x, return_attention_scores=True)  # asked for all weights, it must hold them
    assert len(taken) == 1 and scores.shape == (1, 2, 16, 16)
    np.testing.assert_allclose(as_numpy(output), as_numpy(again), atol=1e-6)


def test_a_block_of_a_window_holds_its_own_keys_alone():
    """Of 1000 keys a block of 125 queries has 125 + 2 * 9."""
    query, key, _ = (ops.zeros((1, 1, 1000, 4)) for _ in range(3))
    blocks = blockwise._Blocks(query, key, None, 10)
    assert (blocks.size, blocks.span, blocks.count) == (125, 143, 8)
    assert [int(blocks._first(block)) for block in (0, 1, 4, 7)] == [0, 116, 491, 857]


def test_the_last_block_is_nearly_as_full_as_the_others():
    """Whisper's encoder has 1,500 queries: 1,398 of them fit into a block, so the second would be empty but for 102."""
    query, key, _ = (ops.zeros((1, 1, 1500, 4)) for _ in range(3))
    blocks = blockwise._Blocks(query, key, None, None)
    assert (blocks.size, blocks.count) == (750, 2)


def test_rotary_positions_need_no_distances(monkeypatch):
    def never(*arguments):
        raise AssertionError("distances for positions without a bias")

    monkeypatch.setattr(dot_product, "distances_between", never)
    x = np.ones((1, 5, 8), "float32")
    attention.MultiHeadAttention(2, 4, positions=RotaryPositions())(x, x)
    with pytest.raises(AssertionError, match="distances"):
        attention.MultiHeadAttention(2, 4, positions=ALiBi())(x, x)


@pytest.mark.slow
@pytest.mark.tensorflow  # JAX knows every size when it compiles
@pytest.mark.parametrize("shape", [(1, 1, 1, 9), (2, 1, 9, 1), (2, 3, 9, 9)])
def test_an_axis_of_a_mask_that_turns_out_to_be_1_broadcasts(shape, monkeypatch):
    import tensorflow as tf

    mask = np.random.default_rng(1).uniform(size=shape) < 0.6
    parts = inputs((2, 3, 9, 9))
    expected = whole(*parts, mask)
    signature = [tf.TensorSpec((None, 3, 9, 4))] * 3 + [tf.TensorSpec((None,) * 4, tf.bool)]

    @tf.function(input_signature=signature)
    def attend(*arguments):
        return dot_product.dot_product_attention(*arguments, return_attention_scores=False)[0]

    monkeypatch.setattr(blockwise, "LONG", 0)
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
    np.testing.assert_allclose(as_numpy(attend(*parts, mask)), expected, atol=1e-6)


@pytest.mark.parametrize("rows", [(1, 3), (3, 1)], ids=["learned queries", "one memory"])
def test_one_row_of_queries_or_of_keys_is_repeated(rows, monkeypatch):
    query, key, value = (
        x[:n] for x, n in zip(inputs((3, 2, 5, 7)), (rows[0], rows[1], rows[1]), strict=True)
    )
    mask = masks((3, 2, 5, 7), "padding")
    found = in_blocks(monkeypatch, query, key, value, mask)
    np.testing.assert_allclose(found, whole(query, key, value, mask), atol=1e-6)


def test_an_empty_batch_of_long_rows_is_an_empty_batch():
    layer = attention.MultiHeadAttention(2, 4)
    x = np.zeros((0, 1024, 8), "float32")
    assert layer(x, x).shape == (0, 1024, 8)


@pytest.mark.tensorflow
def test_float64_in_blocks_stays_float64(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
    x = np.random.default_rng(3).normal(size=(2, 9, 6))
    layer = attention.MultiHeadAttention(2, 3, positions=ALiBi(), dtype="float64")
    found = []
    for long in (10**9, 0):
        monkeypatch.setattr(blockwise, "LONG", long)
        variable = tf.Variable(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(layer(variable, variable, use_causal_mask=True)))
        found.append((loss, tape.gradient(loss, variable)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="forward differentiation is JAX's")
@pytest.mark.parametrize("long", [10**9, 0], ids=["whole", "blocks"])
def test_forward_differentiation_is_a_difference_of_values(long, monkeypatch):
    import jax

    monkeypatch.setattr(blockwise, "LONG", long)
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
    norm, layer = LayerNormalization(), attention.MultiHeadAttention(2, 3)
    x, direction = (np.random.default_rng(i).normal(size=(2, 9, 6)).astype("float32") for i in (3, 4))
    layer(norm(x), norm(x))

    def value(x):
        h = norm(x)
        return layer(h, h, use_causal_mask=True)

    step = 1e-2
    expected = (as_numpy(value(x + step * direction)) - as_numpy(value(x - step * direction))) / (2 * step)
    _, found = jax.jvp(value, (x,), (direction,))
    # The difference is off by the square of the step times a third derivative of order 10.
    np.testing.assert_allclose(as_numpy(found), expected, atol=5e-3 * np.abs(expected).max())
