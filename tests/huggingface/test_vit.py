"""Vision transformers: the kernel of the patches, dropout, and the preparation of images."""

import json

import keras
import numpy as np
import pytest
from families import CONFIGS, VIT, WEIGHTS, own_model
from safetensors.numpy import load_file

from keras_transformer.huggingface import FAMILIES, preprocessing_from_huggingface, to_huggingface


def test_kernel_of_the_patches_is_transposed(tmp_path):
    model = own_model(CONFIGS["vit-classes"])
    to_huggingface(model, tmp_path / "new")
    stored = load_file(tmp_path / "new" / WEIGHTS)["vit.embeddings.patch_embeddings.projection.weight"]
    kernel = keras.ops.convert_to_numpy(model.patches.projection.kernel)
    assert kernel.shape == (2, 5, 3, 12)
    np.testing.assert_array_equal(stored, kernel.transpose(3, 2, 0, 1))


def test_dropout_is_read_and_written():
    config = {**VIT, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.4}
    model = FAMILIES["vit"].make_model(config)
    layer = model.encoder.layers[1]
    residuals = (layer.self_attention_residual, layer.feed_forward_residual)
    assert [part.dropout for part in (model, *residuals, layer.self_attention)] == [0.2, 0.2, 0.2, 0.4]
    expected = {key: value for key, value in config.items() if key not in ("id2label", "has_pooler")}
    assert FAMILIES["vit"].make_config(model).items() >= expected.items()


PROCESSORS = {
    "plain": {},
    "smaller": {
        "size": {"height": 6, "width": 5}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]
    },
    "bicubic": {"size": {"height": 9, "width": 8}, "resample": 3},
    "not-resized": {"do_resize": False},
    "not-normalised": {"do_resize": False, "do_normalize": False, "rescale_factor": 0.01},
}  # fmt: skip


@pytest.mark.parametrize("case", PROCESSORS)
def test_images_are_prepared_as_in_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    processor = transformers.ViTImageProcessorPil(**PROCESSORS[case])
    processor.save_pretrained(tmp_path)
    layer = preprocessing_from_huggingface(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (2, 13, 11, 3)).astype("uint8")
    expected = processor(list(images), return_tensors="np", input_data_format="channels_last")["pixel_values"]
    found = keras.ops.convert_to_numpy(layer(images)).transpose(0, 3, 1, 2)
    assert found.shape == expected.shape
    resized = layer.size is not None
    shade = layer.scale / min(layer.deviation)
    assert np.abs(found - expected).max() <= (1.01 * shade if resized else 1e-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"do_center_crop": True}, "do_center_crop=True"),
        ({"size": {"shortest_edge": 224}}, "size={'shortest_edge': 224}"),
        ({"resample": 5}, "resample=5"),
        ({"image_std": [0.5, 0.0, 0.5]}, "deviation=0.0"),
    ],
)
def test_other_preparations_are_refused(changes, expected, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(changes))
    with pytest.raises(ValueError) as error:
        preprocessing_from_huggingface(tmp_path)
    assert expected in str(error.value)
    with pytest.raises(ValueError, match="Cannot read"):
        preprocessing_from_huggingface(tmp_path / "none")
