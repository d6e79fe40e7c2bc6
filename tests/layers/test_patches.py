import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    check_config,
    compilations,
    needs_half_precision,
    normal,
    randomized,
    refuses,
)
from keras import ops

from keras_transformer.execution import native
from keras_transformer.layers import PatchEmbedding, Patches


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


RANKS = {
    "a series": ((2, 12, 3), (4,), 2),
    "pictures": ((2, 9, 10, 3), (3, 4), (2, 3)),
    "a video": ((2, 6, 8, 8, 3), (2, 4, 4), (2, 2, 4)),
    "tubelets": ((2, 6, 8, 4, 3), (3, 4, 2), None),
}


@pytest.mark.parametrize("case", RANKS)
def test_patches_of_any_rank_overlap_as_a_convolution_says(case):
    shape, patch_size, strides = RANKS[case]
    layer, x = PatchEmbedding(patch_size, 5, strides=strides), ops.convert_to_tensor(normal(*shape))
    layer(x)
    randomized(layer)
    cells = ops.conv(x, layer.projection.kernel, layer.strides, "valid")
    assert_close(layer(x), ops.reshape(cells, (2, -1, 5)) + layer.projection.bias)
    assert tuple(layer(x).shape) == layer.compute_output_shape(shape)
    grid = Patches(patch_size, strides)
    assert_close(grid(x) @ ops.reshape(layer.projection.kernel, (-1, 5)), cells, 1e-4)
    assert tuple(grid(x).shape) == grid.compute_output_shape(shape)
    inputs = keras.Input((*[None] * (len(shape) - 2), 3))
    model = keras.Model(inputs, [layer(inputs), grid(inputs)])
    assert [each.shape[-1] for each in model.outputs] == [5, grid(x).shape[-1]]
    assert_close(model(x), [layer(x), grid(x)])


@pytest.mark.tensorflow
@pytest.mark.parametrize("case", RANKS)
@pytest.mark.parametrize("batch", [2, 4])
def test_sizes_of_a_graph_that_patches_do_not_cover_fail(case, batch):
    import tensorflow as tf

    shape, patch_size, strides = RANKS[case]
    layer = Patches(patch_size, strides)
    x = normal(batch, *shape[1:])
    graph = tf.function(layer, input_signature=[tf.TensorSpec((batch, None, *shape[2:]))])
    assert_close(graph(x), layer(x))
    open_graph = tf.function(layer, input_signature=[tf.TensorSpec((*[None] * (len(shape) - 1), 3))])
    assert_close(open_graph(x), layer(x))
    for wrong in (np.repeat(x, 2, axis=1)[:, : shape[1] + 1], x[:, :1]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes"):
            graph(wrong)
        refuses("`images` must have shape", layer, wrong)


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


@needs_half_precision
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
