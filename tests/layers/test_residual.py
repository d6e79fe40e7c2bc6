import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, check_layer_contract, normal, randomized
from keras_transformer.layers.norm import LayerNormalization, RMSNormalization
from reference import layer_norm, rms_norm, under, weights_of

from keras_transformer.layers.residual import Residual, SandwichResidual

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


@pytest.mark.parametrize("normalize_first", [False, True])
def test_another_norm_takes_the_norms_place(normalize_first):
    layer = built(normalize_first=normalize_first, norm=RMSNormalization(0.3, name="template"))
    assert list(weights_of(layer)) == ["norm/gamma"]
    own = under(weights_of(layer), "norm")
    found = layer.before(X) if normalize_first else layer(X, Y)
    assert_close(found, rms_norm(own, (X if normalize_first else X + Y).astype("float64"), 0.3))


def test_a_template_serves_many_and_stays_as_it_is():
    template = RMSNormalization()
    first, second = built(norm=template), built(norm=template)
    assert not template.built
    assert first.norm is not second.norm
    first.norm.gamma.assign(np.full(5, 3.0))
    assert np.all(as_numpy(second.norm.gamma) != 3.0)
    assert len(first.weights) == 1


def test_a_built_template_gives_no_weights():
    template = RMSNormalization(0.3)
    template.build((None, 5))
    template.gamma.assign(np.full(5, 7.0))
    layer = Residual(norm=template)
    layer.build(X.shape)
    assert_close(layer.norm.gamma, np.ones(5), 0.0)


@pytest.mark.parametrize("norm", ["rms", RMSNormalization, 0])
def test_a_norm_must_be_a_layer(norm):
    with pytest.raises(ValueError, match=r"must be a Keras layer. Received: template=.*(rms|RMSNorm|0)"):
        Residual(norm=norm)


@pytest.mark.parametrize("normalized", [None, RMSNormalization(0.3)])
def test_sandwich_norms_before_the_sublayer_and_what_comes_out_of_it(normalized):
    epsilon = {} if normalized else {"layer_norm_epsilon": 0.2}
    layer = built(SandwichResidual, norm=normalized, **epsilon)
    weights = weights_of(layer)

    def normed(name, x):
        reference, epsilon = (layer_norm, 0.2) if normalized is None else (rms_norm, 0.3)
        return reference(under(weights, name), x.astype("float64"), epsilon)

    assert {path.split("/")[0] for path in weights} == {"norm", "norm_after"}
    assert_close(layer.before(X), normed("norm", X))
    assert_close(layer(X, Y), X + normed("norm_after", Y))


def test_sandwich_dropout_comes_before_the_norm_and_in_training_alone():
    """After the norm, what is dropped is 0 and the rest makes up for it: the mean square is 1 again."""
    layer = SandwichResidual(0.5, norm=RMSNormalization(1e-12))
    ones = np.ones((2, 3, 512), "float32")
    assert_close(layer(0 * ones, ones), ones)
    dropped = as_numpy(layer(0 * ones, ones, training=True))
    assert np.any(dropped == 0)
    for row in dropped.reshape(6, 512):
        kept = row != 0
        np.testing.assert_allclose(row[kept], np.sqrt(512 / kept.sum()), rtol=1e-5)


def pair():
    return [X, Y]


MASK = np.array([[True, True, True], [True, False, False]])


@pytest.mark.parametrize("normalize_first", [False, True])
def test_another_norm_keeps_the_contract(normalize_first, tmp_path):
    def make(**kwargs):
        return Residual(0.0, normalize_first, norm=RMSNormalization(0.3), **kwargs)

    check_layer_contract(make, pair, tmp_path, mask=MASK)


@pytest.mark.parametrize("norm", [None, RMSNormalization(0.3)])
def test_sandwich_keeps_the_contract(norm, tmp_path):
    check_layer_contract(
        lambda **kwargs: SandwichResidual(0.0, norm=norm, **kwargs), pair, tmp_path, mask=MASK
    )


def test_configs_keep_every_argument():
    layer = Residual(0.3, True, norm=LayerNormalization(0.4))
    again = Residual.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.dropout, again.normalize_first) == (0.3, True)
    assert Residual.from_config(Residual(layer_norm_epsilon=0.2).get_config()).layer_norm_epsilon == 0.2
    assert (type(again.norm), again.norm.epsilon) == (LayerNormalization, 0.4)
    sandwich = SandwichResidual(0.3, 0.2)
    again = SandwichResidual.from_config(sandwich.get_config())
    assert again.get_config() == sandwich.get_config()
    assert (again.dropout, again.norm.epsilon, again.norm_after.epsilon) == (0.3, 0.2, 0.2)


def test_a_config_is_the_same_before_and_after_it_is_built():
    layer = Residual(norm=RMSNormalization())
    before = layer.get_config()
    layer.build(X.shape)
    assert layer.get_config() == before


def test_the_norms_compute_in_the_residuals_policy():
    layer = SandwichResidual(norm=RMSNormalization(dtype="float64"), dtype="mixed_bfloat16")
    assert {layer.norm.dtype_policy.name, layer.norm_after.dtype_policy.name} == {"mixed_bfloat16"}
    assert keras.backend.standardize_dtype(layer(X, Y).dtype) == "bfloat16"
