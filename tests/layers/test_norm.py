"""Norms: Keras's or NumPy's results, and derived gradients, on any leading shape."""

import warnings

import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    gradient_of,
    in_one_piece,
    normal,
    randomized,
)
from keras import ops
from reference import rms_norm, weights_of

from keras_transformer.layers.residual import (
    LayerNormalization,
    RMSNormalization,
    ZeroCenteredRMSNormalization,
)

FEATURES = 24


def pair(rank, dtype="float32"):
    """Keras's layer and ours with the same weights, none of them at its initial value, for inputs of a rank."""
    rng = np.random.default_rng(0)
    weights = [rng.uniform(0.5, 1.5, FEATURES), rng.uniform(-1, 1, FEATURES)]
    layers = [
        kind(epsilon=1e-6, dtype=dtype) for kind in (keras.layers.LayerNormalization, LayerNormalization)
    ]
    for layer in layers:
        layer.build((None,) * (rank - 1) + (FEATURES,))
        layer.set_weights(weights)
    return layers


@pytest.mark.parametrize("shape", [(2, 3), (7,), (2, 1, 4), (0, 5), (1, 1)])
def test_values_are_kerass(shape):
    x = np.random.default_rng(1).normal(3.0, 2.0, (*shape, FEATURES)).astype("float32")
    expected, found = (as_numpy(in_one_piece(layer)(ops.convert_to_tensor(x))) for layer in pair(x.ndim))
    assert found.shape == x.shape
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_layer_built_for_one_rank_normalises_the_last_axis_of_any_rank():
    x = np.random.default_rng(4).normal(3.0, 2.0, (2, 5, FEATURES)).astype("float32")
    _, built_for_rows = pair(2)
    _, built_for_rank_3 = pair(3)
    assert built_for_rows.get_config()["axis"] == [-1]
    assert_close(built_for_rows(x), as_numpy(built_for_rank_3(x)))
    assert_close(built_for_rank_3(x[0]), as_numpy(built_for_rank_3(x))[0])


def test_gradients_are_kerass():
    rng = np.random.default_rng(2)
    x = rng.normal(1.0, 2.0, (4, 5, FEATURES)).astype("float32")
    upstream = rng.normal(size=x.shape).astype("float32")
    gamma, beta = (rng.normal(size=FEATURES).astype("float32") for _ in range(2))
    for of in range(3):

        def loss(varied, layer, of=of):
            values = [x, gamma, beta]
            values[of] = varied
            mapping = list(
                zip((layer.gamma, layer.beta), map(ops.convert_to_tensor, values[1:]), strict=True)
            )
            with keras.StatelessScope(state_mapping=mapping):
                return ops.sum(layer.call(values[0]) * upstream)

        expected, found = (
            gradient_of(lambda v, layer=layer: loss(v, layer), (x, gamma, beta)[of]) for layer in pair(x.ndim)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_normalised_in_float32():
    x = ops.cast(np.random.default_rng(3).normal(300.0, 1.0, (8, FEATURES)), "bfloat16")
    keras_layer, ours = pair(2, "mixed_bfloat16")
    found = ours(x)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    np.testing.assert_allclose(as_numpy(found), as_numpy(keras_layer(x)), atol=0.02)


def rms(*shape, **arguments):
    """The layer for inputs of a shape, with other weights than at first, and inputs whose mean is not 0."""
    layer = RMSNormalization(**arguments)
    layer.build(shape)
    return randomized(layer), 2.0 + normal(*shape)


@pytest.mark.parametrize("shape", [(2, 3, 5), (7, 5), (2, 3, 4, 5), (0, 3, 5), (1, 1)])
def test_rms_agrees_with_numpy(shape):
    layer, x = rms(*shape)
    assert_close(layer(x), rms_norm(weights_of(layer), x.astype("float64")))


def test_rms_small_values_by_hand():
    """The mean square of (3, 4, 0, 0) is 25 / 4, its root 2.5; nothing is subtracted."""
    layer = RMSNormalization(epsilon=0.0)
    layer.build((None, 4))
    layer.set_weights([np.array([1, 1, 7, -1])])
    x = np.array([[3, 4, 0, 0], [1, 1, 1, 1], [-2, 2, 2, 2]], "float32")
    assert_close(layer(x), np.array([[1.2, 1.6, 0, 0], [1, 1, 7, -1], [-1, 1, 7, -1]]))


def test_rms_epsilon_counts_where_values_are_small():
    layer, x = rms(2, 3, 5, epsilon=0.5)
    assert_close(layer(0.1 * x), rms_norm(weights_of(layer), 0.1 * x.astype("float64"), 0.5))
    assert_close(layer(0 * x), 0 * x)


def test_rms_gradients_are_the_derived_ones():
    layer, x = rms(2, 3, 5, epsilon=0.1)
    upstream, scale = normal(*x.shape, seed=1), as_numpy(layer.scale).astype("float32")

    def written_out(x, scale):
        with keras.StatelessScope(state_mapping=[(layer.scale, ops.convert_to_tensor(scale))]):
            return ops.sum(layer.call(ops.convert_to_tensor(x)) * upstream)

    def derived(x, scale):
        squares = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return ops.sum(x / ops.sqrt(squares + 0.1) * scale * upstream)

    for of_x in (True, False):
        found, expected = (
            gradient_of(
                (lambda v, f=f: f(v, scale)) if of_x else (lambda v, f=f: f(x, v)), x if of_x else scale
            )
            for f in (written_out, derived)
        )
        assert_close(found, expected)


def test_rms_of_bfloat16_is_taken_in_float32():
    """Each square of 300 is rounded off by more than 100 in bfloat16."""
    layer, _ = rms(8, FEATURES, dtype="mixed_bfloat16")
    x = ops.cast(300.0 + normal(8, FEATURES), "bfloat16")
    found = layer(x)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    scale = as_numpy(ops.cast(ops.cast(layer.scale, "bfloat16"), "float32"))
    expected = rms_norm({"scale": scale}, as_numpy(x))
    np.testing.assert_allclose(as_numpy(found), expected, rtol=2**-8, atol=1e-6)


KERAS_NORMS = pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LayerNormalization, keras.layers.LayerNormalization),
        (RMSNormalization, keras.layers.RMSNormalization),
    ],
)


@KERAS_NORMS
@pytest.mark.parametrize("arguments", [(1,), ((1, 2),), (-1, 0.5), (2, 0.5)])
def test_axes_and_epsilon_are_given_in_kerass_order(ours, theirs, arguments):
    if ours is RMSNormalization and arguments == (1,):
        pytest.skip("Keras's layer multiplies the last axis by the factors of another")
    x = normal(2, 3, 5)
    one, other = ours(*arguments), theirs(*(arguments if len(arguments) > 1 else (*arguments, 1e-6)))
    for layer in (one, other):
        layer.build(x.shape)
    one.set_weights(randomized(other).get_weights())
    assert_close(one(x), other(x), 2e-6)


@pytest.mark.parametrize("layer_class", [RMSNormalization, ZeroCenteredRMSNormalization])
def test_factors_multiply_the_axis_that_is_normalised(layer_class):
    x = normal(2, 3, 5)
    inner, last = layer_class(axis=1), layer_class()
    inner.build(x.shape)
    last.build((2, 5, 3))
    last.set_weights(randomized(inner).get_weights())
    assert_close(inner(x), np.swapaxes(as_numpy(last(np.swapaxes(x, 1, 2))), 1, 2), 2e-6)


def test_axes_count_from_the_end_too():
    x = normal(2, 3, 5)
    inner, mixed = RMSNormalization(axis=(1, 2)), RMSNormalization(axis=(1, -1))
    for layer in (inner, mixed):
        layer.build(x.shape)
    randomized(inner)
    mixed.set_weights([np.transpose(as_numpy(inner.scale))])
    assert_close(mixed(x), inner(x), 1e-6)


@pytest.mark.parametrize(
    "arguments", [{"center": False}, {"scale": False}, {"center": False, "scale": False}]
)
def test_a_norm_without_shift_or_factor_is_kerass(arguments):
    x = normal(2, 3, 5)
    ours, theirs = LayerNormalization(**arguments), keras.layers.LayerNormalization(epsilon=1e-6, **arguments)
    for layer in (ours, theirs):
        layer.build(x.shape)
    assert len(ours.weights) == 2 - len(arguments)
    ours.set_weights(randomized(theirs).get_weights())
    assert_close(ours(x), theirs(x), 2e-6)
    assert LayerNormalization.from_config(ours.get_config()).get_config() == ours.get_config()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layer_class", [LayerNormalization, RMSNormalization])
def test_a_float64_policy_computes_in_float64(layer_class):
    layer, x = layer_class(dtype="float64"), np.random.default_rng(0).normal(size=(3, 5))
    layer.build(x.shape)
    centred = x - x.mean(axis=-1, keepdims=True) if layer_class is LayerNormalization else x
    expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-13, atol=1e-13)


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
