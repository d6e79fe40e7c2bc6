import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized
from reference import feed_forward, weights_of

from keras_transformer.layers import FeedForward


def built(*arguments, **keywords):
    layer = FeedForward(*arguments, **keywords)
    layer.build((None, None, 5))
    return randomized(layer)


@pytest.mark.parametrize(
    ("name", "function"),
    [("relu", lambda x: np.maximum(x, 0)), ("tanh", np.tanh), ("silu", lambda x: x / (1 + np.exp(-x)))],
)
def test_agrees_with_numpy(name, function):
    layer, x = built(11, name), normal(2, 3, 5)
    assert_close(layer(x), feed_forward(weights_of(layer), x, function))


def test_small_values_by_hand():
    """x = (1, -2): relu of (1 - 2, 1 + 2 + 1) is (0, 4); times (3, 5), plus 7, is 27."""
    layer = FeedForward(2)
    layer.build((None, None, 2))
    layer.set_weights(
        [np.array([[1, 1], [1, -1]]), np.array([0, 1]), np.array([[3, 0], [5, 1]]), np.array([7, 0])]
    )
    assert_close(layer(np.array([[[1.0, -2.0]]], "float32")), np.array([[[27.0, 4.0]]]))


def test_each_position_is_on_its_own():
    layer, x = built(11), normal(2, 7, 5)
    changed = x.copy()
    changed[:, 3] += 1
    difference = np.abs(as_numpy(layer(changed)) - as_numpy(layer(x))).max(axis=(0, 2))
    assert difference[3] > 0.01
    assert np.all(np.delete(difference, 3) <= 1e-6)


def test_dropout_acts_in_training_alone_and_on_the_inner_layer():
    x = normal(8, 16, 5)
    layer, plain = built(1, "relu", 0.5), built(1)
    layer.set_weights([np.zeros((5, 1)), np.ones(1), np.ones((1, 5)), np.zeros(5)])
    assert_close(layer(x), np.ones((8, 16, 5)))
    dropped = as_numpy(layer(x, training=True))
    # The one inner channel is either 0 or twice itself, and so is the whole output of a position.
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert np.all(dropped == dropped[..., :1])
    assert_close(plain(x, training=True), plain(x))


def test_both_kernels_are_drawn_apart():
    layer = FeedForward(5)
    layer.build((None, None, 5))
    inner, _, outer, _ = layer.get_weights()
    assert np.abs(inner - outer).max() > 0.01


def test_width_must_be_positive():
    with pytest.raises(ValueError, match=r"`d_ff` must be a positive integer. Received: d_ff=0\."):
        FeedForward(0)
