"""Low-rank adapters in a Keras model of the user's own."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import EncoderLayer
from keras_transformer.training import add_adapters


@pytest.mark.slow
def test_adapters_are_all_that_is_trained_and_begin_without_effect():
    inputs = keras.Input((None, 3))
    x = EncoderLayer(2, 5)(keras.layers.Dense(4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(7)(keras.layers.LayerNormalization()(x)))
    rows = np.random.default_rng(0).normal(size=(2, 11, 3))
    before, frozen = keras.ops.convert_to_numpy(model(rows)), [weight.path for weight in model.weights]
    add_adapters(model, 2)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(rows)), before, atol=1e-6)
    trained = [weight.path for weight in model.trainable_weights]
    assert len(trained) == 2 * 8 and not set(trained) & set(frozen)


@pytest.mark.parametrize(
    ("model", "rank", "rule"),
    [
        (keras.Sequential([keras.layers.Dense(3)]), 2, "must be built"),
        (keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), 0, "rank"),
    ],
)
def test_models_and_ranks_without_adapters_are_refused(model, rank, rule):
    with pytest.raises(ValueError, match=rule):
        add_adapters(model, rank)
