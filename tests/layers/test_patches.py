import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, check_config, compilations, needs_bfloat16, normal, randomized
from keras import ops

from keras_transformer.execution import native
from keras_transformer.layers import PatchEmbedding


def embedding(patch_size=(2, 3), d_model=5, **kwargs):
    layer = PatchEmbedding(patch_size, d_model, **kwargs)
    layer.build((None, 4, 9, 2))
    return randomized(layer)


def test_patches_come_row_by_row_by_hand():
    """A matrix that hands through the upper left and the lower right pixel of each 2x2 patch."""
    layer = PatchEmbedding(2, 2)
    layer.build((None, 2, 4, 1))
    kernel = np.zeros((2, 2, 1, 2), "float32")
    kernel[0, 0, 0, 0] = kernel[1, 1, 0, 1] = 1.0
    layer.projection.kernel.assign(kernel)
    layer.projection.bias.assign([0.0, 10.0])
    image = np.arange(8.0, dtype="float32").reshape(1, 2, 4, 1)
    assert_close(layer(image), np.array([[[0.0, 15.0], [2.0, 17.0]]]))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("patch_size", [2, (2, 3), (4, 1)])
def test_it_is_a_convolution_of_that_stride(patch_size, channels):
    layer, images = PatchEmbedding(patch_size, 5), normal(2, 8, 6, channels)
    layer(images)
    randomized(layer)
    height, width = layer.patch_size
    convolved = ops.conv(ops.convert_to_tensor(images), layer.projection.kernel, (height, width), "valid")
    expected = ops.reshape(convolved, (2, -1, 5)) + layer.projection.bias
    assert_close(layer(images), expected)
    assert layer(images).shape == (2, (8 // height) * (6 // width), 5)


def test_files_and_graphs(tmp_path):
    layer, images = embedding(), normal(2, 4, 9, 2)
    check_config(layer)
    inputs = keras.Input((4, 9, 2))
    outputs = layer(inputs)
    assert outputs.shape == (None, 6, 5)
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(images), layer(images), 1e-6)
    for jit_compile in compilations():
        assert_close(
            native.compiled(layer, layer, jit_compile)(ops.convert_to_tensor(images)), layer(images), 1e-5
        )


@needs_bfloat16
def test_mixed_precision_stays_near():
    layer, images = embedding(), normal(2, 4, 9, 2)
    mixed = embedding(dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(mixed(images).dtype) == "bfloat16"
    assert_close(mixed(images), layer(images), 0.06)


def test_whole_numbers_are_pixels_too():
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 9, 2)).astype("uint8")
    layer = embedding()
    assert_close(layer(images), as_numpy(layer(images.astype("float32"))), 1e-5)


@pytest.mark.parametrize("shape", [(1, 5, 9, 2), (1, 4, 8, 2), (1, 4, 9)])
def test_images_that_are_no_whole_number_of_patches_are_refused(shape):
    with pytest.raises(ValueError, match=r"multiples of patch_size=\(2, 3\)") as error:
        embedding()(np.ones(shape, "float32"))
    assert f"shape={shape}" in str(error.value)
