"""Attention in blocks against the attention that holds all scores at once."""

import itertools

import keras
import numpy as np
import pytest
from contracts import (
    STEP_IN_XLA,
    as_numpy,
)
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


def both(query, key, value, mask, monkeypatch):
    whole = as_numpy(dot_product.dot_product_attention(query, key, value, mask)[0])
    with monkeypatch.context() as patch:
        patch.setattr(blockwise, "LONG", 0)
        return whole, as_numpy(
            dot_product.dot_product_attention(query, key, value, mask, return_attention_scores=False)[0]
        )


KINDS = ["none", "causal", "padding", "rows", "heads", "all"]
# JAX compiles the loop anew in each case: there each kind has one shape, and each shape two kinds.
CASES = list(itertools.product(KINDS, SHAPES))
if keras.backend.backend() == "jax":
    CASES = list(zip(KINDS, SHAPES * 2, strict=True))


@pytest.mark.parametrize(("kind", "shape"), CASES)
@pytest.mark.sampled
def test_blocks_change_nothing(shape, kind, block_size, monkeypatch):
    whole, blocks = both(*inputs(shape), masks(shape, kind), monkeypatch)
    np.testing.assert_allclose(blocks, whole, atol=1e-6)


def test_scores_far_apart_stay_exact(block_size, monkeypatch):
    query, key, value = inputs(SHAPES[0])
    mask = masks(SHAPES[0], "padding")
    key = np.where(mask[..., 0, :, None], key, 1e8)  # what is hidden weighs nothing, however it scores
    whole, blocks = both(query * 100, key, value, mask, monkeypatch)
    np.testing.assert_allclose(blocks, whole, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "all"])
@pytest.mark.sampled
def test_gradients_are_the_same(kind, block_size, monkeypatch):
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


def test_the_layer_takes_blocks_by_itself(monkeypatch):
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


def of_distance(distances):
    """A bias of four heads that tells the sides apart; not a line, of which softmax sees no shift."""
    slopes = ops.reshape(ops.convert_to_tensor([0.3, -0.2, 0.1, 0.5], "float32"), (1, 4, 1, 1))
    return slopes * ops.sin(ops.cast(distances, "float32") * 0.7)


def in_blocks(monkeypatch, long, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(blockwise, "LONG", 0 if long else 10**9)
        return as_numpy(
            dot_product.dot_product_attention(*arguments, return_attention_scores=False, **options)[0]
        )


@pytest.fixture
def few_queries(monkeypatch):
    """Windows cut into blocks of as many queries as the window, however few."""
    monkeypatch.setattr(blockwise, "FEWEST_QUERIES", 1)


@pytest.mark.parametrize(
    ("shape", "kind", "window", "bias"),
    [
        ((2, 4, 13, 13), "causal", 3, None),
        ((2, 4, 13, 13), "all", 3, of_distance),
        ((2, 4, 13, 13), "rows", None, of_distance),
        ((2, 4, 13, 13), "none", 1, of_distance),
        ((1, 4, 10, 4), "padding", 2, of_distance),
        ((1, 4, 5, 11), "heads", 4, of_distance),
        ((1, 4, 5, 11), "padding", 20, None),
    ],
)
@pytest.mark.parametrize("size", [5, 60], ids=["tiny", "some"])
@pytest.mark.slow
def test_blocks_of_a_window_with_a_bias_change_nothing(
    shape, kind, window, bias, size, few_queries, monkeypatch
):
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", size)
    options = {"window": window, "bias": bias}
    whole, blocks = (
        in_blocks(monkeypatch, long, *inputs(shape), masks(shape, kind), **options) for long in (False, True)
    )
    np.testing.assert_allclose(blocks, whole, atol=2e-6)


def test_a_window_alone_is_a_local_mask(few_queries, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 60)
    shape = (2, 3, 13, 13)
    expected = as_numpy(dot_product.dot_product_attention(*inputs(shape), local_mask(13, 4))[0])
    for long in (False, True):
        found = in_blocks(monkeypatch, long, *inputs(shape), window=4)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_block_of_a_window_computes_what_is_in_it_alone():
    """Of 1000 keys a block of 128 queries has 128 + 2 * 9."""
    query, key, _ = (ops.zeros((1, 1, 1000, 4)) for _ in range(3))
    blocks = blockwise._Blocks(query, key, None, 10)
    assert (blocks.size, blocks.span, blocks.count) == (128, 146, 8)
    assert [int(blocks._first(block)) for block in (0, 1, 4, 7)] == [0, 119, 503, 854]


def test_grouped_queries_in_blocks_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 12)
    query, _, _ = inputs((2, 6, 7, 7))
    _, key, value = inputs((2, 2, 7, 7), seed=1)
    mask = masks((2, 6, 7, 7), "all")
    whole = as_numpy(dot_product.dot_product_attention(query, key, value, mask)[0])
    repeated = (np.repeat(x, 3, axis=1) for x in (key, value))
    np.testing.assert_allclose(
        as_numpy(dot_product.dot_product_attention(query, *repeated, mask)[0]), whole, atol=1e-6
    )
    np.testing.assert_allclose(in_blocks(monkeypatch, True, query, key, value, mask), whole, atol=1e-6)


def test_where_positions_are_given_a_window_and_a_bias_follow_them(monkeypatch):
    shape = (2, 4, 7, 7)
    positions = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]], "int32")
    options = {"window": 2, "bias": of_distance, "positions": positions, "key_positions": positions}
    distances = positions[:, None, None] - positions[:, None, :, None]
    expected = dot_product.dot_product_attention(
        *inputs(shape), np.abs(distances) < 2, bias=of_distance(distances)
    )
    for long in (False, True):
        found = in_blocks(monkeypatch, long, *inputs(shape), **options)
        np.testing.assert_allclose(found, as_numpy(expected[0]), atol=1e-6)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("positions", ["none", "alibi", "relative"])
@pytest.mark.slow
def test_fit_in_blocks_moves_the_bias_too(positions, window, few_queries, monkeypatch):
    """On any backend: the weights of `fit` through blocks are those of `fit` without."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 9, 6)).astype("float32")
    found = []
    for long in (10**9, 0):
        monkeypatch.setattr(blockwise, "LONG", long)
        monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
        keras.utils.set_random_seed(1)
        scheme = {"none": lambda: None, "alibi": ALiBi, "relative": lambda: RelativePositionBias(2, 8, 5)}[
            positions
        ]()
        source = keras.Input((9, 6))
        layer = attention.MultiHeadAttention(2, 3, positions=scheme, sliding_window=window)
        model = keras.Model(source, layer(source, source, use_causal_mask=True))
        model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=STEP_IN_XLA)
        model.fit(x, x[:, ::-1], epochs=3, batch_size=2, shuffle=False, verbose=0)
        found.append({weight.path: as_numpy(weight) for weight in model.weights})
    for one, other in zip(*(f.values() for f in found), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    tables = [value for path, value in found[1].items() if "embeddings" in path]
    assert len(tables) == (positions == "relative")


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
    expected = as_numpy(dot_product.dot_product_attention(*parts, mask)[0])
    signature = [tf.TensorSpec((None, 3, 9, 4))] * 3 + [tf.TensorSpec((None,) * 4, tf.bool)]

    @tf.function(input_signature=signature)
    def attend(*arguments):
        return dot_product.dot_product_attention(*arguments, return_attention_scores=False)[0]

    monkeypatch.setattr(blockwise, "LONG", 0)
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
    np.testing.assert_allclose(as_numpy(attend(*parts, mask)), expected, atol=1e-6)


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
