"""The vision model: images of one size in, classes, pooled states or all states out."""

import keras
import numpy as np
import pytest
from cases import CHANNELS, PATCH, PATCHES, SIZE, images
from cases import KINDS as CLASSES
from cases import vision as small
from contracts import as_numpy, assert_close, refuses

from keras_transformer import layers


def by_parts(model, x):
    """The states, from the paper: patch after patch, a class token before them, positions, the stack."""
    kernel, bias = (
        as_numpy(weight) for weight in (model.patches.projection.kernel, model.patches.projection.bias)
    )
    (height, width), rows = PATCH, []
    for top in range(0, SIZE[0], height):
        for left in range(0, SIZE[1], width):
            patch = x[:, top : top + height, left : left + width]
            rows.append(np.tensordot(patch, kernel, axes=3) + bias)
    token = np.broadcast_to(as_numpy(model.class_token.vector), rows[0].shape)
    states = np.stack([token, *rows], axis=1) + as_numpy(model.positions.embeddings)
    return as_numpy(model.encoder(states.astype("float32")))


@pytest.mark.slow
def test_states_and_classes_agree_with_the_paper():
    model, x = small(), images()
    states = by_parts(model, x)
    assert states.shape == (2, 1 + PATCHES, 12)
    assert_close(model.encode(x), states)
    kernel, bias = (as_numpy(weight) for weight in (model.head.kernel, model.head.bias))
    assert_close(model(x), states[:, 0] @ kernel + bias)
    assert model(x).shape == (2, CLASSES)


def test_output_without_classes_is_states_or_the_pooled_vector():
    plain, x = small(None), images()
    assert_close(plain(x), by_parts(plain, x))
    pooled = small(None, pooler=keras.layers.Dense(5, "tanh"))
    token = by_parts(pooled, x)[:, 0]
    kernel, bias = (as_numpy(weight) for weight in (pooled.pooler.kernel, pooled.pooler.bias))
    assert_close(pooled(x), np.tanh(token @ kernel + bias))
    both = small(pooler=keras.layers.Dense(5, "tanh"))
    assert both.head.kernel.shape == (5, CLASSES)
    assert both(x).shape == (2, CLASSES)


@pytest.mark.parametrize("kind", ["mean", "attention", "first"])
def test_a_pooling_reads_the_states_of_all_patches(kind):
    model, x = small(pooler=layers.Pooling(kind)), images()
    states = model.encode(x)
    assert states.shape[1] == PATCHES + (kind == "first")
    assert (model.class_token is None) is (kind != "first")
    pooled = as_numpy(layers.Pooling(kind)(states)) if kind == "mean" else as_numpy(model.pooler(states))
    kernel, bias = (as_numpy(weight) for weight in (model.head.kernel, model.head.bias))
    assert_close(model(x), pooled @ kernel + bias)
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert_close(again(x), model(x), 0)
    plain = small(None, pooler=layers.Pooling(kind))
    assert plain(x).shape == (2, 12)


def test_overlapping_patches_are_a_layer_that_is_handed_in():
    patches = layers.PatchEmbedding(PATCH, 12, strides=PATCH)
    model = small(patch_size=patches)
    assert model.patches is patches and model.patch_size == PATCH
    model.set_weights(small().get_weights())
    assert_close(model(images()), small()(images()))
    overlapping = small(patch_size=layers.PatchEmbedding((4, 4), 12, strides=2))
    assert overlapping.grid == (2, 4) and overlapping.encode(images()).shape == (2, 9, 12)
    again = type(model).from_config(overlapping.get_config())
    again.set_weights(overlapping.get_weights())
    assert_close(again(images()), overlapping(images()), 0)


def test_positions_are_interpolated_for_larger_images():
    model = small()
    larger = model.with_image_size((12, 20))
    table = as_numpy(model.positions.embeddings)
    grid = as_numpy(layers.resized_grid(table[1:].reshape(3, 2, 12), (6, 4))).reshape(24, 12)
    assert_close(larger.positions.embeddings, np.concatenate([table[:1], grid]))
    assert larger(images(size=(12, 20))).shape == (2, CLASSES)
    same = model.with_image_size(SIZE)
    assert_close(same(images()), model(images()), 0)


def test_grey_images_of_other_sizes():
    model = small(image_size=(4, 20), channels=1)
    x = images(channels=1, size=(4, 20))
    assert model(x).shape == (2, CLASSES)
    refuses(r"shape `\(batch, 4, 20, 1\)`. Received: shape=\(2, 4, 20, 3\)", model, images(size=(4, 20)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 10, 6, 3), (2, 6, 10)])
def test_images_of_another_size_are_named(shape):
    with pytest.raises(ValueError, match=r"`images` must have shape `\(batch, 6, 10, 3\)`") as error:
        small()(np.ones(shape, "float32"))
    assert f"shape={shape}" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"image_size": (6, 9)}, r"image_size=\(6, 9\), patch_size=\(2, 5\)"),
        ({"image_size": 0}, "image_size=0"),
        ({"encoder": layers.FeedForward(5)}, "`encoder` must be .*`Encoder`"),
        ({"encoder": layers.Decoder(1, 2, 5)}, "Received: encoder=<Decoder"),
    ],
)
def test_wrong_arguments_are_named(arguments, named):
    refuses(named, small, **arguments)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_an_export_takes_images_as_they_are(tmp_path):
    import tensorflow as tf

    model, prepare = small(), layers.ImagePreprocessing(SIZE, 0.5, 0.5)
    inputs = keras.Input((None, None, CHANNELS), dtype="uint8")
    keras.Model(inputs, model(prepare(inputs))).export(tmp_path / "export", verbose=False)
    served = tf.saved_model.load(tmp_path / "export")
    for height, width in ((9, 7), (6, 10), (3, 20)):
        x = np.random.default_rng(height).integers(0, 256, (2, height, width, CHANNELS)).astype("uint8")
        assert_close(served.serve(x), model(prepare(x)), 1e-5)
