"""Norms: small values by hand, then Keras's and NumPy's results and gradients, on any leading shape."""

import warnings

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, gradient_of, in_one_piece, normal, randomized
from keras import ops
from reference import layer_norm, rms_norm, weights_of

from keras_transformer.layers.residual import (
    LayerNormalization,
    RMSNormalization,
    ZeroCenteredRMSNormalization,
)

FEATURES = 24
KERAS = {LayerNormalization: keras.layers.LayerNormalization, RMSNormalization: keras.layers.RMSNormalization}
REFERENCES = {LayerNormalization: layer_norm, RMSNormalization: rms_norm}
EACH = pytest.mark.parametrize("layer_class", KERAS)


def built(layer_class, *shape, **arguments):
    """The layer for inputs of a shape, with other weights than at first, and inputs whose mean is not 0."""
    layer = layer_class(**arguments)
    layer.build(shape)
    return randomized(layer), 2.0 + normal(*shape)


def twin_of(layer, *shape, **arguments):
    """Keras's layer with the same weights."""
    twin = KERAS[type(layer)](**{"epsilon": 1e-6, **arguments})
    twin.build(shape)
    twin.set_weights(layer.get_weights())
    return twin


def test_rms_small_values_by_hand():
    """The mean square of (3, 4, 0, 0) is 25 / 4, its root 2.5; nothing is subtracted."""
    layer = RMSNormalization(epsilon=0.0)
    layer.build((None, 4))
    layer.set_weights([np.array([1, 1, 7, -1])])
    x = np.array([[3, 4, 0, 0], [1, 1, 1, 1], [-2, 2, 2, 2]], "float32")
    assert_close(layer(x), np.array([[1.2, 1.6, 0, 0], [1, 1, 7, -1], [-1, 1, 7, -1]]))


@pytest.mark.parametrize("shape", [(2, 3, 5), (7, 5), (2, 3, 4, 5), (0, 3, 5), (1, 3)])
@EACH
def test_values_are_those_of_numpy_and_keras(layer_class, shape):
    layer, x = built(layer_class, *shape)
    found = in_one_piece(layer)(ops.convert_to_tensor(x))
    assert_close(found, REFERENCES[layer_class](weights_of(layer), x.astype("float64")))
    assert_close(found, in_one_piece(twin_of(layer, *shape))(ops.convert_to_tensor(x)))


@EACH
def test_epsilon_counts_where_values_are_small(layer_class):
    layer, x = built(layer_class, 2, 3, 5, epsilon=0.5)
    expected = REFERENCES[layer_class](weights_of(layer), 0.1 * x.astype("float64"), 0.5)
    assert_close(layer(0.1 * x), expected)


@EACH
def test_gradients_agree_with_keras(layer_class):
    ours, x = built(layer_class, 4, 5, FEATURES, epsilon=0.1)
    theirs, upstream = twin_of(ours, *x.shape, epsilon=0.1), normal(*x.shape, seed=1)
    for n in range(-1, len(ours.weights)):  # of the inputs, then of each weight

        def loss(given, layer, n=n):
            changed = [] if n < 0 else [(layer.weights[n], ops.convert_to_tensor(given))]
            with keras.StatelessScope(state_mapping=changed):
                return ops.sum(layer.call(ops.convert_to_tensor(given if n < 0 else x)) * upstream)

        at = x if n < 0 else as_numpy(ours.weights[n]).astype("float32")
        found, expected = (gradient_of(lambda v, layer=layer: loss(v, layer), at) for layer in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@EACH
def test_bfloat16_is_normalised_in_float32(layer_class):
    """The variance of 300 and the square of 300 are rounded off by more than 100 in bfloat16."""
    layer, _ = built(layer_class, 8, FEATURES, dtype="mixed_bfloat16")
    x = ops.cast(300.0 + normal(8, FEATURES), "bfloat16")
    found = layer(x)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    rounded = {name: as_numpy(ops.cast(value, "bfloat16")) for name, value in weights_of(layer).items()}
    expected = REFERENCES[layer_class](rounded, as_numpy(x))
    np.testing.assert_allclose(as_numpy(found), expected, rtol=2**-7, atol=0.02)


@pytest.mark.usefixtures("float64")
@EACH
def test_a_float64_policy_computes_in_float64(layer_class):
    layer, x = layer_class(dtype="float64"), np.random.default_rng(0).normal(size=(3, 5))
    layer.build(x.shape)
    centred = x - x.mean(axis=-1, keepdims=True) if layer_class is LayerNormalization else x
    expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-13, atol=1e-13)


# Axes and options, as Keras has them


def test_a_layer_built_for_one_rank_normalises_the_last_axis_of_any_rank():
    (rows, x), (any_rank, _) = (
        built(LayerNormalization, *shape) for shape in ((5, FEATURES), (2, 5, FEATURES))
    )
    assert rows.get_config()["axis"] == [-1]
    grid = normal(2, 5, FEATURES)
    assert_close(rows(grid), any_rank(grid))
    assert_close(any_rank(x), rows(x))


@pytest.mark.parametrize("arguments", [(1,), ((1, 2),), (-1, 0.5), (2, 0.5)])
@EACH
def test_axes_and_epsilon_have_the_order_of_keras(layer_class, arguments):
    if layer_class is RMSNormalization and arguments == (1,):
        pytest.skip("Keras's layer multiplies the last axis by the factors of another")
    x = normal(2, 3, 5)
    other = KERAS[layer_class](*(arguments if len(arguments) > 1 else (*arguments, 1e-6)))
    one = layer_class(*arguments)
    for layer in (one, other):
        layer.build(x.shape)
    one.set_weights(randomized(other).get_weights())
    assert_close(one(x), other(x), 2e-6)


@pytest.mark.parametrize("layer_class", [RMSNormalization, ZeroCenteredRMSNormalization])
def test_factors_multiply_the_axis_that_is_normalised(layer_class):
    inner, x = built(layer_class, 2, 3, 5, axis=1)
    last = layer_class()
    last.build((2, 5, 3))
    last.set_weights(inner.get_weights())
    assert_close(inner(x), np.swapaxes(as_numpy(last(np.swapaxes(x, 1, 2))), 1, 2), 2e-6)


def test_axes_count_from_the_end_too():
    (inner, x), (mixed, _) = (built(RMSNormalization, 2, 3, 5, axis=axis) for axis in ((1, 2), (1, -1)))
    mixed.set_weights([np.transpose(as_numpy(inner.scale))])
    assert_close(mixed(x), inner(x), 1e-6)


@pytest.mark.parametrize(
    "arguments", [{"center": False}, {"scale": False}, {"center": False, "scale": False}]
)
def test_norm_without_shift_or_factor_agrees_with_keras(arguments):
    layer, x = built(LayerNormalization, 2, 3, 5, **arguments)
    assert len(layer.weights) == 2 - len(arguments)
    assert_close(layer(x), twin_of(layer, *x.shape, **arguments)(x), 2e-6)


def test_rms_scaling_is_that_of_keras():
    """Keras deprecates the argument, and still computes with it."""
    if not hasattr(keras.layers.LayerNormalization(), "rms_scaling"):
        pytest.skip("This Keras has no `rms_scaling`.")
    x = normal(2, 3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = LayerNormalization(rms_scaling=True, epsilon=1e-3)
        plain = keras.layers.LayerNormalization(rms_scaling=True, epsilon=1e-3)
        assert_close(own(x), plain(x))
