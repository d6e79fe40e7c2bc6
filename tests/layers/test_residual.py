import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized, refuses
from reference import layer_norm, rms_norm, under, weights_of

from keras_transformer.layers import LayerNormalization, Residual

X, Y = normal(2, 3, 5), normal(2, 3, 5, seed=1)


def built(layer_class=Residual, **arguments):
    layer = layer_class(**arguments)
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


@pytest.mark.parametrize(
    "options", [{"normalize_first": True}, {"normalize_first": True, "sandwich_norm": True}, {}]
)
def test_stochastic_depth_leaves_a_row_its_skip_alone(options):
    plain, layer = built(dropout=0.0, **options), built(dropout=0.0, **options, stochastic_depth=0.5)
    layer.set_weights(plain.get_weights())
    x, y = normal(40, 3, 5), normal(40, 3, 5, seed=1)
    assert_close(layer(x, y), plain(x, y), 0.0)
    # Without a norm of the sublayer's output a kept row has it twice.
    kept = x + 2 * (as_numpy(plain(x, y)) - x) if options else as_numpy(plain(x, 2 * y))
    dropped = x if options else as_numpy(plain(x, 0 * y))
    found = as_numpy(layer(x, y, training=True))
    is_kept = np.isclose(found, kept, atol=1e-4).all(axis=(1, 2))
    assert 0 < is_kept.sum() < 40
    assert_close(found, np.where(is_kept[:, None, None], kept, dropped), 1e-4)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_the_norm_may_be_of_root_mean_squares(normalize_first):
    layer = built(normalize_first=normalize_first, norm="rms", layer_norm_epsilon=0.3)
    assert list(weights_of(layer)) == ["norm/scale"]
    own = under(weights_of(layer), "norm")
    found = layer.before(X) if normalize_first else layer(X, Y)
    assert_close(found, rms_norm(own, (X if normalize_first else X + Y).astype("float64"), 0.3))


def test_the_norm_may_have_no_bias_or_be_absent():
    layer = built(normalize_first=True, norm="layer_without_bias", layer_norm_epsilon=0.3)
    weights = weights_of(layer)
    assert list(weights) == ["norm/gamma"]
    scale = weights["norm/gamma"]
    assert_close(layer.before(X), layer_norm({"gamma": scale, "beta": 0 * scale}, X.astype("float64"), 0.3))
    layer = built(normalize_first=True, norm=None)
    assert layer.weights == []
    assert_close(layer.before(X), X, 0)
    assert_close(layer(X, Y), X + Y)
    for arguments, named in (({}, "needs `normalize_first=True`"), ({"sandwich_norm": True}, "needs a norm")):
        refuses(named, Residual, norm=None, normalize_first=bool(arguments), **arguments)


def test_an_overridden_make_norm_makes_every_norm():
    class UnitNormed(Residual):
        def make_norm(self, name):
            return keras.layers.UnitNormalization(name=name)

    layer = built(UnitNormed, normalize_first=True, sandwich_norm=True)
    assert layer.weights == []
    lengths = np.linalg.norm(as_numpy(layer.before(X)), axis=-1)
    np.testing.assert_allclose(lengths, np.ones((2, 3)), rtol=1e-5)
    added = as_numpy(layer(X, Y)) - X
    np.testing.assert_allclose(np.linalg.norm(added, axis=-1), np.ones((2, 3)), rtol=1e-4)


def sandwich(dropout=0.0, **arguments):
    return Residual(dropout, normalize_first=True, sandwich_norm=True, **arguments)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_sandwich_norms_input_and_output_of_the_sublayer(norm):
    layer = built(sandwich, norm=norm, layer_norm_epsilon=0.2)
    weights = weights_of(layer)

    def normed(name, x):
        reference = {"layer": layer_norm, "rms": rms_norm}[norm]
        return reference(under(weights, name), x.astype("float64"), 0.2)

    assert {path.split("/")[0] for path in weights} == {"norm", "norm_after"}
    assert_close(layer.before(X), normed("norm", X))
    assert_close(layer(X, Y), X + normed("norm_after", Y))


def test_without_a_norm_of_the_input_the_output_alone_is_normalised():
    layer = built(sandwich, input_norm=False, layer_norm_epsilon=0.2)
    assert {path.split("/")[0] for path in weights_of(layer)} == {"norm_after"}
    assert_close(layer.before(X), X, 0)
    after = layer_norm(under(weights_of(layer), "norm_after"), Y.astype("float64"), 0.2)
    assert_close(layer(X, Y), X + after)


def test_sandwich_dropout_comes_before_the_norm_and_in_training_alone():
    """After the norm, what is dropped is 0 and the rest makes up for it: the mean square is 1 again."""
    layer = sandwich(0.5, norm="rms", layer_norm_epsilon=1e-12)
    ones = np.ones((2, 3, 512), "float32")
    assert_close(layer(0 * ones, ones), ones)
    dropped = as_numpy(layer(0 * ones, ones, training=True))
    assert np.any(dropped == 0)
    for row in dropped.reshape(6, 512):
        kept = row != 0
        np.testing.assert_allclose(row[kept], np.sqrt(512 / kept.sum()), rtol=1e-5)


def test_the_norms_compute_in_the_residuals_policy():
    layer = sandwich(norm="rms", dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(X, Y).dtype) == "bfloat16"
    assert {layer.norm.dtype_policy.name, layer.norm_after.dtype_policy.name} == {"mixed_bfloat16"}


class Soft(Residual):
    """Its norms have an option that the constructor sets after `super().__init__`."""

    def __init__(self, *args, epsilon, **kwargs):
        super().__init__(*args, **kwargs)
        self.epsilon = epsilon

    def make_norm(self, name):
        return LayerNormalization(epsilon=self.epsilon, name=name)


def test_make_norm_reads_attributes_of_the_subclass():
    layer = Soft(normalize_first=True, epsilon=0.5)
    layer(X, layer.before(X))
    assert layer.norm.epsilon == 0.5
