"""The vision model: images of one size in, classes, pooled states or all states out."""

import keras
import numpy as np
import pytest
from cases import CHANNELS, PATCH, PATCHES, SIZE, images
from cases import KINDS as CLASSES
from cases import vision as small
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
)

from keras_transformer import layers
from keras_transformer.models import VisionTransformer


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
    token = np.broadcast_to(as_numpy(model.class_token), rows[0].shape)
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


def test_without_classes_it_gives_states_or_what_the_pooler_makes_of_the_first():
    plain, x = small(None), images()
    assert_close(plain(x), by_parts(plain, x))
    pooled = small(None, pooler=keras.layers.Dense(5, "tanh"))
    token = by_parts(pooled, x)[:, 0]
    kernel, bias = (as_numpy(weight) for weight in (pooled.pooler.kernel, pooled.pooler.bias))
    assert_close(pooled(x), np.tanh(token @ kernel + bias))
    both = small(pooler=keras.layers.Dense(5, "tanh"))
    assert both.head.kernel.shape == (5, CLASSES)
    assert both(x).shape == (2, CLASSES)


@pytest.mark.slow
def test_every_pixel_counts():
    model, x = small(), images(1)
    expected = as_numpy(model(x))
    for place in np.ndindex(*SIZE, CHANNELS):
        changed = x.copy()
        changed[(0, *place)] += 1.0
        assert np.abs(as_numpy(model(changed)) - expected).max() > 1e-5, place


def test_grey_images_of_other_sizes():
    model = small(image_size=(4, 20), channels=1)
    x = images(channels=1, size=(4, 20))
    assert model(x).shape == (2, CLASSES)
    with pytest.raises(ValueError, match=r"shape `\(batch, 4, 20, 1\)`. Received: shape=\(2, 4, 20, 3\)"):
        model(images(size=(4, 20)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 10, 6, 3), (2, 6, 10), (2, 6, 5, 3), (6, 10, 3)])
def test_images_of_another_size_are_named(shape):
    with pytest.raises(ValueError, match=r"`images` must have shape `\(batch, 6, 10, 3\)`") as error:
        small()(np.ones(shape, "float32"))
    assert f"shape={shape}" in str(error.value)


@pytest.mark.slow
def test_whole_numbers_are_pixels_too():
    x = np.random.default_rng(0).integers(0, 256, (2, *SIZE, CHANNELS)).astype("uint8")
    assert_close(small()(x), small()(x.astype("float32")), 1e-4)


@pytest.mark.slow
def test_fit_learns_where_the_light_is():
    """A bright patch among six: the class says which."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, PATCHES, 256)
    x = rng.normal(size=(256, *SIZE, 1), scale=0.1).astype("float32")
    for image, label in zip(x, labels, strict=True):
        top, left = PATCH[0] * (label // 2), PATCH[1] * (label % 2)
        image[top : top + PATCH[0], left : left + PATCH[1]] += 1.0
    keras.utils.set_random_seed(1)
    stack = layers.Encoder(2, 3, 17, dropout=0.1, activation="gelu", normalize_first=True)
    model = VisionTransformer(SIZE, PATCH, 12, stack, PATCHES, channels=1, dropout=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=STEP_IN_XLA)
    history = model.fit(x, labels, epochs=24, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.3 < 1.0 < history["loss"][0]
    assert history["accuracy"][-1] > 0.9


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"image_size": (6, 9)}, r"image_size=\(6, 9\), patch_size=\(2, 5\)"),
        ({"image_size": 0}, "image_size=0"),
        ({"num_classes": 0}, "num_classes=0"),
        ({"channels": 0}, "channels=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"encoder": layers.FeedForward(5)}, "`encoder` must be .*`Encoder`"),
        ({"encoder": layers.Decoder(1, 2, 5)}, "Received: encoder=<Decoder"),
    ],
)
def test_wrong_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        small(**arguments)


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
