import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, compilations, refuses
from keras import ops

from keras_transformer.execution import native
from keras_transformer.layers import ImagePreprocessing


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


def test_values_by_hand():
    layer = ImagePreprocessing(mean=(0.5, 0.0, 1.0), deviation=(0.5, 2.0, 1.0))
    found = layer(np.array([[[[0, 255, 51]]]], "uint8"))
    assert_close(found, np.array([[[[-1.0, 0.5, -0.8]]]]))
    assert_close(ImagePreprocessing()(np.full((1, 1, 1, 1), 255)), np.ones((1, 1, 1, 1)))


def test_halving_takes_the_mean_of_a_shade_over_all_that_a_pixel_covers():
    """A triangle twice as wide over rows 0, 0, 8, 8: weights 3, 3, 1 of 7 and their mirror."""
    image = np.repeat([0.0, 0.0, 8.0, 8.0], 4).reshape(1, 4, 4, 1).astype("float32")
    found = as_numpy(ImagePreprocessing(2, scale=1.0)(image))
    np.testing.assert_allclose(found[0, :, 0, 0], [8 / 7, 48 / 7], rtol=1e-5)
    np.testing.assert_allclose(found[0, :, 1, 0], found[0, :, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("size", [None, 6, (5, 3)])
def test_files_precision_and_graphs(size, dtype, tmp_path):
    layer = ImagePreprocessing(size, (0.1, 0.2, 0.3), 0.5, dtype=dtype)
    images = pixels(2, 8, 7, 3)
    expected = layer(images)
    assert keras.backend.standardize_dtype(expected.dtype) == "float32"
    assert_close(expected, ImagePreprocessing(size, (0.1, 0.2, 0.3), 0.5)(images), 0.0)
    inputs = keras.Input((8, 7, 3), dtype="uint8")
    outputs = layer(inputs)
    assert outputs.shape[1:] == expected.shape[1:]
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(images), expected, 1e-6)
    for jit_compile in compilations():
        assert_close(
            native.compiled(layer, layer, jit_compile)(ops.convert_to_tensor(images)), expected, 1e-5
        )


@pytest.mark.tensorflow  # JAX knows every size when it compiles
def test_sizes_that_are_known_late_are_resized():
    import tensorflow as tf

    layer = ImagePreprocessing((5, 3))
    function = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, 3), tf.uint8)])
    for size in ((8, 7), (2, 9)):
        images = pixels(2, *size, 3)
        assert_close(function(images), layer(images))


def test_whole_numbers_do_not_leave_their_range():
    """A cubic goes beyond a sharp edge; a float may, a shade may not."""
    edge = np.repeat([[0, 255]], 4, axis=1).reshape(1, 1, 8, 1)
    floats, shades = (
        as_numpy(ImagePreprocessing((1, 12), scale=1.0, interpolation="bicubic")(edge.astype(dtype)))
        for dtype in ("float32", "uint8")
    )
    assert floats.min() < -1 and floats.max() > 256
    np.testing.assert_allclose(shades, np.clip(floats, 0, 255), atol=1e-4)


@pytest.mark.parametrize("name", ["mean", "deviation"])
def test_as_many_numbers_as_channels(name):
    layer = ImagePreprocessing(**{name: (0.1, 0.2, 0.3)})
    refuses(rf"`{name}` must be .* 1 channels. Received: {name}=\(0.1, 0.2, 0.3\)", layer, pixels(2, 4, 4, 1))


def test_images_of_16_bits_keep_their_shades_when_resized():
    image = np.full((1, 4, 4, 3), 30000, "uint16")
    plain, resized = (ImagePreprocessing(size, scale=1 / 65535)(image) for size in (None, 2))
    np.testing.assert_allclose(as_numpy(resized)[0, 0, 0], as_numpy(plain)[0, 0, 0], rtol=1e-5)
