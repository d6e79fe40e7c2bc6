"""Attention in blocks against the attention that holds all scores at once."""

import keras
import numpy as np
import pytest
from contracts import as_numpy
from keras import ops

from keras_transformer.layers import attention, blockwise, dot_product

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
        return whole, as_numpy(dot_product.dot_product_attention(query, key, value, mask, weights=False)[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "rows", "heads", "all"])
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
                context, _ = dot_product.dot_product_attention(*variables, mask, weights=False)
                loss = tf.reduce_sum(tf.sin(context) * tf.range(4.0))
            return tape.gradient(loss, variables)

        found.append([g.numpy() for g in gradients()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.tensorflow
def test_many_blocks_in_bfloat16_add_up_in_float32(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 256)
    rng = np.random.default_rng(4)
    values = [tf.cast(rng.normal(size=(1, 1, 256, 8)), "bfloat16") for _ in range(3)]
    found = []
    for long, dtype in ((10**9, "float32"), (0, "bfloat16")):
        monkeypatch.setattr(blockwise, "LONG", long)
        variables = [tf.Variable(tf.cast(x, dtype)) for x in values]
        with tf.GradientTape() as tape:
            context, _ = dot_product.dot_product_attention(*variables, weights=False)
            loss = tf.reduce_sum(tf.cast(context, "float32") ** 2)
        found.append([as_numpy(g) for g in tape.gradient(loss, variables)])
    for one, other in list(zip(*found, strict=True))[1:]:  # of keys and values: sums over all blocks
        assert np.linalg.norm(one - other) < 0.01 * np.linalg.norm(one)


def test_the_layer_takes_blocks_by_itself(monkeypatch):
    taken = []
    real = blockwise.blockwise_attention

    def watched(*arguments):
        taken.append(ops.shape(arguments[0]))
        return real(*arguments)

    monkeypatch.setattr(dot_product, "blockwise_attention", watched)
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


def test_gradients_on_any_backend_move_a_layer_the_same(monkeypatch):
    """`fit` through blocks ends with the weights of `fit` without: JAX differentiates its own way."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 9, 6)).astype("float32")
    weights = []
    for long in (10**9, 0):
        monkeypatch.setattr(blockwise, "LONG", long)
        monkeypatch.setattr(blockwise, "BLOCK_SIZE", 27)
        keras.utils.set_random_seed(1)
        source = keras.Input((9, 6))
        model = keras.Model(source, attention.MultiHeadAttention(2, 3)(source, source, use_causal_mask=True))
        model.compile("sgd", "mse")
        model.fit(x, x[:, ::-1], epochs=3, batch_size=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
