import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized
from reference import layer_norm, under, weights_of

from keras_transformer.layers import Residual

X, Y = normal(2, 3, 5), normal(2, 3, 5, seed=1)


def built(**arguments):
    layer = Residual(**arguments)
    layer.build(X.shape)
    return randomized(layer)


def norm(layer, x, epsilon=1e-6):
    return layer_norm(under(weights_of(layer), "norm"), x.astype("float64"), epsilon)


def test_post_norm_normalises_the_sum():
    layer = built()
    assert_close(layer.before(X), X, 0.0)
    assert_close(layer(X, Y), norm(layer, X + Y))


def test_pre_norm_normalises_the_input_of_the_sublayer():
    layer = built(normalize_first=True)
    assert_close(layer.before(X), norm(layer, X))
    assert_close(layer(X, Y), X + Y)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_epsilon_counts_where_there_is_little_variance(normalize_first):
    layer = built(normalize_first=normalize_first, layer_norm_epsilon=0.5)
    small = 0.1 * X
    found = layer.before(small) if normalize_first else layer(small, 0 * Y)
    assert_close(found, norm(layer, small, epsilon=0.5))


def test_dropout_drops_the_sublayer_and_never_the_skip():
    layer = built(dropout=0.5, normalize_first=True)
    assert_close(layer(X, Y), X + Y)
    added = as_numpy(layer(X, Y, training=True)) - X
    dropped = np.isclose(added, 0, atol=1e-6)
    assert 0 < dropped.sum() < dropped.size
    np.testing.assert_allclose(added[~dropped], 2 * Y[~dropped], rtol=1e-4, atol=1e-6)
