"""Dropout from bytes: how much it drops, what it leaves, and that its random state is kept."""

import keras
import numpy as np
import pytest
from contracts import as_numpy

from keras_transformer.layers import Dropout, StochasticDepth


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.001])
def test_share_scale_and_mean(rate):
    found = as_numpy(Dropout(rate, seed=1)(np.ones((100, 1000), "float32"), training=True))
    levels = max(1, round(rate * 256))
    assert set(np.unique(found)) == {0.0, np.float32(256 / (256 - levels))}
    share = (found == 0).mean()
    assert abs(share - levels / 256) < 5 * np.sqrt(share / found.size)
    assert found.mean() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5, 7), (0, 3)])
def test_any_shape(shape):
    found = as_numpy(Dropout(0.5, seed=2)(np.ones(shape, "float32"), training=True))
    assert found.shape == shape and set(np.unique(found)) <= {0.0, 2.0}


def test_neighbours_are_independent():
    """No pattern by the place of a byte in its word, nor between calls."""
    layer = Dropout(0.5, seed=3)
    first, second = (as_numpy(layer(np.ones((4096, 8), "float32"), training=True)) > 0 for _ in range(2))
    together = np.concatenate([first, second], axis=1).astype("float64")
    correlation = np.corrcoef(together.T) - np.eye(16)
    assert np.abs(correlation).max() < 0.08
    assert np.abs(together.mean(axis=0) - 0.5).max() < 0.05


def test_nothing_is_dropped_outside_training_or_at_rate_zero_and_all_at_one():
    x = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(as_numpy(Dropout(0.5)(x)), x)
    np.testing.assert_array_equal(as_numpy(Dropout(0.0)(x, training=True)), x)
    np.testing.assert_array_equal(as_numpy(Dropout(1.0)(x, training=True)), 0 * x)


def test_noise_shape_drops_whole_rows():
    found = as_numpy(Dropout(0.5, noise_shape=(None, 1), seed=4)(np.ones((64, 9), "float32"), training=True))
    assert (found == found[:, :1]).all() and 0 < (found == 0).mean() < 1


def test_dtype_is_the_inputs():
    found = Dropout(0.3, dtype="bfloat16")(np.ones((4, 4)), training=True)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"


def test_a_saved_model_draws_the_numbers_that_come_next(tmp_path):
    x = np.ones((8, 16), "float32")
    model = keras.Sequential([keras.Input((16,)), Dropout(0.5, seed=5)])
    model(x, training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for _ in range(2):
        np.testing.assert_array_equal(as_numpy(loaded(x, training=True)), as_numpy(model(x, training=True)))


def test_a_rate_near_one_keeps_the_expected_value():
    x = np.ones((400, 400), "float32")
    assert abs(float(as_numpy(Dropout(0.999, seed=1)(x, training=True)).mean()) - 1.0) < 0.2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stochastic_depth_drops_whole_rows_and_keeps_the_mean(dtype):
    """230 of 256 rows stay. Bfloat16 has no 256 / 230, and a factor that it rounds is off by 0.3 percent."""
    layer, x = StochasticDepth(0.1, seed=1, dtype=dtype), np.random.default_rng(1).uniform(1, 2, (4096, 3, 5))
    assert layer(x).dtype == layer(x, training=True).dtype and layer.from_config(layer.get_config()).seed == 1
    given = as_numpy(layer(x)).astype("float64")
    found = as_numpy(layer(x, training=True)).astype("float64")
    kept = found[:, 0, 0] != 0
    assert (found[~kept] == 0).all() and abs(kept.mean() - 230 / 256) < 0.03
    assert found[kept].mean() / given[kept].mean() == pytest.approx(256 / 230, rel=2e-4)


@pytest.mark.tensorflow
def test_stochastic_depth_is_the_same_under_xla():
    import tensorflow as tf

    layers, x = [StochasticDepth(0.5, seed=7) for _ in range(2)], np.ones((64, 2, 3), "float32")
    compiled = tf.function(lambda x: layers[0](x, training=True), jit_compile=True)
    np.testing.assert_array_equal(as_numpy(compiled(x)), as_numpy(layers[1](x, training=True)))
