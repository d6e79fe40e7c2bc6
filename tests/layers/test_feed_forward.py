import json
import math

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized, refuses
from reference import feed_forward, gated_feed_forward, weights_of

from keras_transformer.layers import LayerNormalization, MultiHeadAttention, PositionalEncoding
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward, gelu_tanh

EACH_CLASS = pytest.mark.parametrize("layer_class", [FeedForward, GatedFeedForward])


def built(*arguments, layer_class=FeedForward, **keywords):
    layer = layer_class(*arguments, **keywords)
    layer.build((None, None, 5))
    return randomized(layer)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    ("layer_class", "reference"), [(FeedForward, feed_forward), (GatedFeedForward, gated_feed_forward)]
)
def test_agrees_with_numpy(layer_class, reference, name, use_bias):
    layer, x = built(11, name, layer_class=layer_class, use_bias=use_bias), normal(2, 3, 5)
    assert_close(layer(x), reference(weights_of(layer), x.astype("float64"), ACTIVATIONS[name]), 3e-6)
    kernels = 2 if layer_class is FeedForward else 3
    assert len(layer.weights) == kernels * (1 + use_bias)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu_tanh", gelu_tanh, "gelu", "silu"])
@EACH_CLASS
def test_an_activation_survives_as_json(layer_class, activation):
    layer = built(11, activation, layer_class=layer_class)
    again = layer_class.from_config(json.loads(json.dumps(layer.get_config())))
    again.build((None, None, 5))
    again.set_weights(layer.get_weights())
    x = normal(2, 3, 5)
    assert_close(again(x), layer(x), 0.0)
    assert again.activation is (gelu_tanh if "tanh" in str(activation) else keras.activations.get(activation))


@EACH_CLASS
def test_an_activation_after_the_second_product(layer_class):
    layer, plain = (
        built(7, "gelu", output_activation="relu", layer_class=layer_class),
        built(7, "gelu", layer_class=layer_class),
    )
    x = normal(2, 3, 5)
    assert_close(layer(x), np.maximum(as_numpy(plain(x)), 0))
    assert (as_numpy(plain(x)) < 0).any()
    again = layer_class.from_config(json.loads(json.dumps(layer.get_config())))
    assert again.output_activation is layer.output_activation


def test_small_values_by_hand():
    """x = (1, -2): relu of (1 - 2, 1 + 2 + 1) is (0, 4); times (3, 5), plus 7, is 27."""
    layer = FeedForward(2)
    layer.build((None, None, 2))
    layer.set_weights(
        [np.array([[1, 1], [1, -1]]), np.array([0, 1]), np.array([[3, 0], [5, 1]]), np.array([7, 0])]
    )
    assert_close(layer(np.array([[[1.0, -2.0]]], "float32")), np.array([[[27.0, 4.0]]]))


@EACH_CLASS
def test_dropout_acts_in_training_alone_and_on_the_inner_values(layer_class):
    x, options = normal(8, 16, 5), {"layer_class": layer_class, "use_bias": True}
    layer, plain = built(1, "relu", 0.5, **options), built(1, **options)
    inner = [np.zeros((5, 1)), np.ones(1)] * (1 if layer_class is FeedForward else 2)
    layer.set_weights([*inner, np.ones((1, 5)), np.zeros(5)])
    assert_close(layer(x), np.ones((8, 16, 5)))
    dropped = as_numpy(layer(x, training=True))
    # The one inner channel is either 0 or twice itself, and so is the whole output of a position.
    assert set(np.unique(dropped)) == {0.0, 2.0}  # dropped twice, some were 4
    assert np.all(dropped == dropped[..., :1])
    assert_close(plain(x, training=True), plain(x))


def test_gated_small_values_by_hand():
    """x = (2, -1): the gate, relu of (3, -3), times (2, 9) is (6, 0); times (5, 7), that is (30, 42)."""
    layer = GatedFeedForward(2, "relu")
    layer.build((None, None, 2))
    assert list(weights_of(layer)) == ["gate/kernel", "inner/kernel", "outer/kernel"]
    gate, inner, outer = [[1, 3], [-1, 9]], [[1, 4], [0, -1]], [[5, 7], [1, 1]]
    layer.set_weights([np.array(kernel) for kernel in (gate, inner, outer)])
    assert_close(layer(np.array([[[2.0, -1.0]]], "float32")), np.array([[[30.0, 42.0]]]))


def test_a_sequential_model_takes_vectors():
    model = keras.Sequential([keras.Input((16,)), FeedForward(32), keras.layers.Dense(1)])
    assert model(normal(3, 16)).shape == (3, 1)
    assert len(model.weights) == 6


@pytest.mark.tensorflow
def test_ragged_tensors_are_refused_by_name():
    import tensorflow as tf

    ragged = tf.ragged.constant([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]], ragged_rank=1)
    for layer in (FeedForward(3), MultiHeadAttention(2, 3), PositionalEncoding(), LayerNormalization()):
        inputs = [ragged] * (1 + isinstance(layer, MultiHeadAttention))
        refuses(r"must be a dense tensor(.|\n)*Received: \w+\.shape", layer, *inputs)
