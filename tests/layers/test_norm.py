"""Layer normalisation: Keras's results and gradients, on any leading shape."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, gradient_of
from keras import ops

from keras_transformer.layers import LayerNormalization

FEATURES = 24


def pair(dtype="float32"):
    """Keras's layer and ours with the same weights, none of them at its initial value."""
    rng = np.random.default_rng(0)
    weights = [rng.uniform(0.5, 1.5, FEATURES), rng.uniform(-1, 1, FEATURES)]
    layers = [
        kind(epsilon=1e-6, dtype=dtype) for kind in (keras.layers.LayerNormalization, LayerNormalization)
    ]
    for layer in layers:
        layer.build((None, FEATURES))
        layer.set_weights(weights)
    return layers


@pytest.mark.parametrize("shape", [(2, 3), (7,), (2, 1, 4), (0, 5), (1, 1)])
def test_values_are_kerass(shape):
    x = np.random.default_rng(1).normal(3.0, 2.0, (*shape, FEATURES)).astype("float32")
    keras_layer, ours = pair()
    assert as_numpy(ours(x)).shape == x.shape
    np.testing.assert_allclose(as_numpy(ours(x)), as_numpy(keras_layer(x)), atol=2e-6)


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
            gradient_of(lambda v, layer=layer: loss(v, layer), (x, gamma, beta)[of]) for layer in pair()
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_normalised_in_float32():
    x = ops.cast(np.random.default_rng(3).normal(300.0, 1.0, (8, FEATURES)), "bfloat16")
    keras_layer, ours = pair("mixed_bfloat16")
    found = ours(x)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    np.testing.assert_allclose(as_numpy(found), as_numpy(keras_layer(x)), atol=0.02)


def test_config():
    layer = LayerNormalization(epsilon=0.5, name="mine", dtype="mixed_bfloat16")
    again = LayerNormalization.from_config(layer.get_config())
    assert (again.epsilon, again.name, again.dtype_policy.name) == (0.5, "mine", "mixed_bfloat16")
