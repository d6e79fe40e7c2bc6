"""Vision transformers in and out: the same numbers and files as transformers on PyTorch."""

import json
import logging
import shutil
import warnings

import keras
import numpy as np
import pytest
from families import assert_same_weights, randomized
from safetensors.numpy import load_file, save_file

from keras_transformer import layers
from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    preprocessing_from_huggingface,
    to_huggingface,
)
from keras_transformer.models import VisionTransformer

WEIGHTS, TOLERANCE = "model.safetensors", 2e-4
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "image_size": [6, 10],
    "patch_size": [2, 5],
    "num_channels": 3,
    "id2label": {"0": "cat", "1": "dog", "2": "bird", "3": "fish", "4": "bee"},
    "label2id": {"cat": 0, "dog": 1, "bird": 2, "fish": 3, "bee": 4},
}
BARE = {key: value for key, value in VIT.items() if "2" not in key} | {"architectures": ["ViTModel"]}
CONFIGS = {
    "classes": VIT,
    "two-classes": {key: value for key, value in VIT.items() if "2" not in key},
    "square-grey-relu": {**VIT, "image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_act": "relu"},
    "states": BARE,
    "pooler": {**BARE, "layer_norm_eps": 1e-3},
    "pooler-gelu": {**BARE, "pooler_output_size": 7, "pooler_act": "gelu_new", "hidden_act": "gelu_new"},
}


def pools(case):
    return case.startswith("pooler")


def ours(case, seed=0, **kwargs):
    """Our model of a configuration, with random weights."""
    config = {**CONFIGS[case], "has_pooler": pools(case)}
    return randomized("vit", FAMILIES["vit"].make_model(config, **kwargs), seed)


def their_model(case, seed=0):
    """transformers' model of a configuration, with random weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (architecture,) = CONFIGS[case].get("architectures")
    arguments = {} if "Classification" in architecture else {"add_pooling_layer": pools(case)}
    config = transformers.ViTConfig(**CONFIGS[case])
    model = getattr(transformers, architecture)(config, **arguments)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            of_norm = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if of_norm else 0.0, 0.3)
    return model.eval()


def images(model, seed=0):
    return np.random.default_rng(seed).normal(size=(3, *model.image_size, model.channels)).astype("float32")


def outputs(model, seed=0):
    """What our model says of images, and its last states."""
    x = images(model, seed)
    return [keras.ops.convert_to_numpy(y) for y in (model(x), model.encode(keras.ops.convert_to_tensor(x)))]


def their_outputs(model, x):
    """The same of theirs: logits, pooled or states; then the states."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        found = model(torch.tensor(x.transpose(0, 3, 1, 2)), output_hidden_states=True)
        if hasattr(found, "logits"):
            states = model.vit(torch.tensor(x.transpose(0, 3, 1, 2))).last_hidden_state
            return [found.logits.numpy(), states.numpy()]
    states = found.last_hidden_state
    return [(states if found.pooler_output is None else found.pooler_output).numpy(), states.numpy()]


def difference(model, other, seed=0):
    found, expected = outputs(model, seed), their_outputs(other, images(model, seed))
    assert np.ptp(expected[1]) > 1
    return max(np.abs(f - e).max() for f, e in zip(found, expected, strict=True))


def quietly_loaded(case, folder, caplog):
    """What transformers loads, if it has nothing to say."""
    transformers = pytest.importorskip("transformers")
    (architecture,) = CONFIGS[case]["architectures"]
    arguments = {} if "Classification" in architecture else {"add_pooling_layer": pools(case)}
    logging.getLogger("transformers").propagate = True
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        model, found = getattr(transformers, architecture).from_pretrained(
            folder, output_loading_info=True, **arguments
        )
    assert not any(found.values()), found
    assert not caplog.records
    return model.eval()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", CONFIGS)
def test_logits_and_states_are_theirs(case, seed, tmp_path):
    other = their_model(case, seed)
    other.save_pretrained(tmp_path)
    model = from_huggingface(tmp_path)
    assert (model.pooler is not None) is pools(case)
    found = difference(model, other, seed)
    assert found <= TOLERANCE
    print(f"{case}: {found:.1e}")


@pytest.mark.parametrize("case", CONFIGS)
def test_what_comes_in_goes_out_unchanged(case, tmp_path, caplog):
    torch = pytest.importorskip("torch")
    other = their_model(case)
    other.save_pretrained(tmp_path / "theirs")
    labels = {key: CONFIGS[case][key] for key in ("id2label", "label2id") if key in CONFIGS[case]}
    to_huggingface(from_huggingface(tmp_path / "theirs"), tmp_path / "ours", 2000, labels)
    again = quietly_loaded(case, tmp_path / "ours", caplog)
    found, expected = again.state_dict(), other.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    saved, config = again.config.to_dict(), other.config.to_dict()
    differing = {key for key in saved if saved[key] != config.get(key)} - {"_name_or_path", "dtype"}
    assert differing <= {"architectures"}  # theirs have it from the first saving on


@pytest.mark.parametrize("case", CONFIGS)
def test_our_own_models_compute_the_same_there(case, tmp_path, caplog):
    model = ours(case)
    to_huggingface(model, tmp_path / "new")
    assert difference(model, quietly_loaded(case, tmp_path / "new", caplog)) <= TOLERANCE
    again = from_huggingface(tmp_path / "new")
    assert_same_weights(again, model)
    assert FAMILIES["vit"].make_config(again) == FAMILIES["vit"].make_config(model)
    for found, expected in zip(outputs(again), outputs(model), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_kernel_of_the_patches_is_turned_and_no_more(tmp_path):
    model = ours("classes")
    to_huggingface(model, tmp_path / "new")
    stored = load_file(tmp_path / "new" / WEIGHTS)["vit.embeddings.patch_embeddings.projection.weight"]
    kernel = keras.ops.convert_to_numpy(model.patches.projection.kernel)
    assert kernel.shape == (2, 5, 3, 12)
    np.testing.assert_array_equal(stored, kernel.transpose(3, 2, 0, 1))


def test_dropout_is_read_and_written(tmp_path):
    config = {**VIT, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.4}
    model = FAMILIES["vit"].make_model(config)
    layer = model.encoder.layers[1]
    assert (model.dropout, layer.self_attention_residual.dropout, layer.feed_forward_residual.dropout) == (
        0.2,
    ) * 3
    assert layer.self_attention.dropout == 0.4
    assert (
        FAMILIES["vit"].make_config(model).items()
        >= {k: v for k, v in config.items() if "2" not in k}.items()
    )


def test_a_model_of_plain_arguments_is_a_vit(tmp_path, caplog):
    encoder = layers.Encoder(2, 3, 17, dropout=0.0, activation="gelu", normalize_first=True)
    model = VisionTransformer((6, 10), (2, 5), 12, encoder, 5)
    to_huggingface(model, tmp_path / "new")
    other = quietly_loaded("classes", tmp_path / "new", caplog)
    assert other.config.id2label == {i: f"LABEL_{i}" for i in range(5)}
    (found, _), (expected, _) = outputs(model), their_outputs(other, images(model))
    assert np.abs(found - expected).max() <= TOLERANCE


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "vit"
    to_huggingface(ours("classes"), folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"qkv_bias": False}, "qkv_bias=False"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
        ({"num_attention_heads": 5}, "hidden_size=12, num_attention_heads=5"),
        ({"image_size": [6, 9]}, r"image_size=(6, 9), patch_size=(2, 5)"),
        ({"num_channels": 0}, "num_channels=0"),
        ({"id2label": {"0": "one"}}, "'classifier.weight' has shape (5, 12), not (1, 12)"),
        ({"architectures": ["ViTModel"]}, "'classifier.bias' is left over"),
    ],
)
def test_what_does_not_fit_is_named(written, changes, expected, tmp_path):
    folder = shutil.copytree(written, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError) as error:
        from_huggingface(folder)
    assert expected in str(error.value)


def test_a_missing_tensor_is_named(written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "copy")
    tensors = {name: array.copy() for name, array in load_file(folder / WEIGHTS).items()}
    del tensors["vit.embeddings.cls_token"]
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ValueError, match=r"'vit\.embeddings\.cls_token' is missing"):
        from_huggingface(folder)


def vit_like(**changes):
    """A model of ViT's parts, but for those given."""
    parts = {
        "attention": lambda: layers.MultiHeadAttention(3, 4),
        "feed_forward": lambda: layers.FeedForward(17, "gelu"),
        "normalize_first": True,
        **changes,
    }
    own = {key: parts.pop(key) for key in ("pooler", "num_classes") if key in parts}
    attention, feed_forward = parts.pop("attention"), parts.pop("feed_forward")
    encoder = [
        layers.EncoderLayer(attention=attention(), feed_forward=feed_forward(), dropout=0.0, **parts)
        for _ in range(2)
    ]
    return VisionTransformer((6, 10), (2, 5), 12, layers.Encoder(encoder), **own)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"normalize_first": False}, "normalize_first=False"),
        ({"sandwich_norm": True}, "sandwich_norm=True"),
        ({"feed_forward": lambda: layers.GatedFeedForward(17)}, "feed_forward=<GatedFeedForward"),
        ({"feed_forward": lambda: layers.FeedForward(17, use_bias=False)}, "feed_forward_bias=False"),
        ({"attention": lambda: layers.MultiHeadAttention(3, 4, use_bias=False)}, "attention_bias=False"),
        ({"attention": lambda: layers.MultiHeadAttention(3, 5)}, "key_dim=15"),
        (
            {"attention": lambda: layers.MultiHeadAttention(3, 4, num_key_value_heads=1)},
            "num_key_value_heads=1",
        ),
        ({"attention": lambda: layers.MultiHeadAttention(3, 4, sliding_window=2)}, "sliding_window=2"),
        ({"pooler": layers.FeedForward(7)}, "pooler=<FeedForward"),
        ({"pooler": keras.layers.Dense(7, "tanh"), "num_classes": 5}, "num_classes=5"),
        ({"pooler": keras.layers.Dense(7, "elu")}, "activation=<function elu"),
        ({"pooler": keras.layers.Dense(7, "tanh", use_bias=False)}, "pooler_bias=False"),
    ],
)
def test_parts_that_vit_does_not_have_are_named(changes, expected, tmp_path):
    to_huggingface(vit_like(), tmp_path / "fits")
    with pytest.raises(ValueError, match="must be made of the parts of one family") as error:
        to_huggingface(vit_like(**changes), tmp_path / "new")
    assert expected in str(error.value)


# Images


PROCESSORS = {
    "plain": {},
    "smaller": {
        "size": {"height": 6, "width": 5},
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
    },
    "bicubic": {"size": {"height": 9, "width": 8}, "resample": 3},
    "not-resized": {"do_resize": False},
    "not-normalised": {"do_resize": False, "do_normalize": False, "rescale_factor": 0.01},
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_images_are_prepared_as_theirs_are(case, tmp_path):
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
def test_preparations_without_a_part_are_refused(changes, expected, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(changes))
    with pytest.raises(ValueError) as error:
        preprocessing_from_huggingface(tmp_path)
    assert expected in str(error.value)
    with pytest.raises(ValueError, match="Cannot read"):
        preprocessing_from_huggingface(tmp_path / "none")
