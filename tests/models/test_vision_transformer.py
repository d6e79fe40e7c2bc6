"""The vision model: images of one size in, classes, pooled states or all states out."""

import keras
import numpy as np
import pytest
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    compilations,
    config_of,
    needs_bfloat16,
    normal,
    policy,
    randomized,
)
from keras import ops

from keras_transformer import layers
from keras_transformer.execution.compiled import compiled
from keras_transformer.models import VisionTransformer

SIZE, PATCH, CHANNELS, D_MODEL, HEADS, CLASSES = (6, 10), (2, 5), 3, 12, 3, 7
PATCHES = 3 * 2


def encoder(**arguments):
    return layers.Encoder(
        2, HEADS, 17, **{"dropout": 0.0, "activation": "gelu", "normalize_first": True, **arguments}
    )


def small(num_classes=CLASSES, seed=0, scale=0.4, image_size=SIZE, **arguments):
    stack = arguments.pop("encoder", None) or encoder()
    return randomized(
        VisionTransformer(image_size, PATCH, D_MODEL, stack, num_classes, **arguments), seed, scale
    )


def images(batch=2, channels=CHANNELS, size=SIZE, seed=0):
    return normal(batch, *size, channels, seed=seed)


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


def test_states_and_classes_agree_with_the_paper():
    model, x = small(), images()
    states = by_parts(model, x)
    assert states.shape == (2, 1 + PATCHES, D_MODEL)
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


def test_rows_do_not_know_each_other():
    model, x = small(), images(3)
    assert_close(model(x[1:2]), as_numpy(model(x))[1:2])


def test_grey_images_of_other_sizes():
    model = small(image_size=(4, 20), channels=1)
    x = images(channels=1, size=(4, 20))
    assert model(x).shape == (2, CLASSES)
    with pytest.raises(ValueError, match=r"shape `\(batch, 4, 20, 1\)`. Received: shape=\(2, 4, 20, 3\)"):
        model(images(size=(4, 20)))


@pytest.mark.parametrize("shape", [(2, 10, 6, 3), (2, 6, 10), (2, 6, 5, 3), (6, 10, 3)])
def test_images_of_another_size_are_named(shape):
    with pytest.raises(ValueError, match=r"`images` must have shape `\(batch, 6, 10, 3\)`") as error:
        small()(np.ones(shape, "float32"))
    assert f"shape={shape}" in str(error.value)


def test_attention_scores_come_on_request():
    logits, scores = small()(images(), return_attention_scores=True)
    assert_close(logits, small()(images()), 0.0)
    assert [weights.shape for weights in scores] == [(2, HEADS, 1 + PATCHES, 1 + PATCHES)] * 2
    np.testing.assert_allclose(as_numpy(scores[1]).sum(-1), 1, atol=1e-5)


def test_compiled_is_eager():
    model, x = small(), ops.convert_to_tensor(images())
    for jit_compile in compilations():
        assert_close(compiled(model, model, jit_compile)(x), model(x))


def test_symbolic_shapes_are_the_real_ones():
    inputs = keras.Input((*SIZE, CHANNELS))
    for model, shape in (
        (small(), (None, CLASSES)),
        (small(None), (None, 1 + PATCHES, D_MODEL)),
    ):
        around = keras.Model(inputs, model(inputs))
        assert around.output_shape == shape
        assert_close(around(images()), model(images()), 1e-6)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
@needs_bfloat16
def test_half_precision_stays_within_its_rounding(dtype):
    with policy(dtype):  # of the encoder too, which is used as it is
        model = small(scale=0.2)
    logits = model(images())
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert_close(logits, small(scale=0.2)(images()), 0.1)
    states = model.encode(ops.convert_to_tensor(images()))
    assert keras.backend.standardize_dtype(states.dtype) == "bfloat16"


def test_whole_numbers_are_pixels_too():
    x = np.random.default_rng(0).integers(0, 256, (2, *SIZE, CHANNELS)).astype("uint8")
    assert_close(small()(x), small()(x.astype("float32")), 1e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {
            "num_classes": None,
            "pooler": keras.layers.Dense(5, "tanh"),
            "dropout": 0.3,
            "channels": 1,
            "name": "mine",
        },
    ],
    ids=["plain", "all"],
)
def test_saved_model_gives_the_same(arguments, tmp_path):
    model = small(**arguments)
    x = images(channels=model.channels)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert config_of(again) == config_of(model)
    assert VisionTransformer.from_config(model.get_config()).get_config() == model.get_config()
    assert_close(again(x), model(x), 1e-6)
    assert (again.dropout, again.drop.rate, again.name) == (model.dropout, model.dropout, model.name)


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
    model = VisionTransformer(SIZE, PATCH, D_MODEL, encoder(dropout=0.1), PATCHES, channels=1, dropout=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=STEP_IN_XLA)
    history = model.fit(x, labels, epochs=24, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.3 < 1.0 < history["loss"][0]
    assert history["accuracy"][-1] > 0.9


def test_dropout_acts_in_training_alone():
    plain, dropping = small(), small(dropout=0.5)
    assert_close(dropping(images()), plain(images()), 0.0)
    assert np.abs(as_numpy(dropping(images(), training=True)) - as_numpy(plain(images()))).max() > 0.01


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
