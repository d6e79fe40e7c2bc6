"""The Vision Transformer: Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words".

transformers takes images `(batch, channels, height, width)`, this library `(batch, height, width, channels)`. Only the
kernel of the patches differs by that: its axes are in another order.
"""

import keras

from keras_transformer.checks import check_positive
from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    check_config,
    check_divisible,
    check_layers,
    check_parts,
    check_plain_attention,
    label_keys,
    labels_of,
    sizes_of,
)
from keras_transformer.huggingface.family import Family
from keras_transformer.huggingface.tensors import Tensor, attention_projections, dense, norm
from keras_transformer.layers import Encoder
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models import VisionTransformer

PREFIX = "vit."
POOLER = "pooler.dense"
DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "pooler_output_size": None,
    "pooler_act": "tanh",
    "architectures": None,
    "id2label": None,
    "num_labels": None,
    "has_pooler": False,
}


def complete_config(config, tensor_names):
    """Adds the key `has_pooler`: only the names of the tensors tell whether there is a pooler."""
    return {**config, "has_pooler": any(f"{POOLER}.weight" in name for name in tensor_names)}


def make_model(config, **kwargs):
    """Makes the model that a config.json with the key `has_pooler` describes; without the key there is no pooler."""
    config = {**DEFAULTS, **config}
    check_config(config, qkv_bias=True)
    d_model, d_ff, num_layers, num_heads, channels = sizes_of(
        config,
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_channels",
    )
    check_divisible(config, "hidden_size", "num_attention_heads")
    dropout, dtype = config["hidden_dropout_prob"], kwargs.get("dtype")
    encoder = Encoder(
        num_layers,
        num_heads,
        d_ff,
        dropout,
        activation_from(config, "hidden_act"),
        normalize_first=True,
        layer_norm_epsilon=config["layer_norm_eps"],
        attention_dropout=config["attention_probs_dropout_prob"],
        dtype=dtype,
        name="encoder",
    )
    return VisionTransformer(
        config["image_size"],
        config["patch_size"],
        d_model,
        encoder,
        _num_classes(config),
        channels=channels,
        dropout=dropout,
        pooler=_pooler(config, dtype) if config["has_pooler"] else None,
        **kwargs,
    )


def _pooler(config, dtype):
    units = config["pooler_output_size"] or config["hidden_size"]
    check_positive(pooler_output_size=units)
    activation = get_activation(activation_from(config, "pooler_act"))
    return keras.layers.Dense(units, activation, dtype=dtype, name="pooler")


def _num_classes(config):
    """Returns the number of classes, or None for a model without a head."""
    if config["architectures"] != ["ViTForImageClassification"]:
        return None
    return labels_of(config)[0]


def make_config(model):
    """Makes the config.json of a model."""
    check_parts("vit", model=(model, VisionTransformer))
    check_parts("vit", encoder=(model.encoder, Encoder))
    attention, feed_forward, residual = check_layers("vit", model.encoder, normalize_first=True)
    check_plain_attention("vit", attention, model.d_model)
    check_parts("vit", feed_forward_bias=(feed_forward.use_bias, True))
    return {
        "model_type": "vit",
        **_head_keys(model),
        "hidden_size": model.d_model,
        "num_hidden_layers": model.encoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "intermediate_size": feed_forward.d_ff,
        "hidden_act": activation_name("vit", feed_forward),
        "hidden_dropout_prob": residual.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "layer_norm_eps": residual.norm.epsilon,
        "image_size": _size(model.image_size),
        "patch_size": _size(model.patch_size),
        "num_channels": model.channels,
    }


def _head_keys(model):
    """Returns the keys of config.json for a model's pooler and classes. It cannot have both."""
    if model.pooler is not None:
        check_parts(
            "vit",
            pooler=(model.pooler, keras.layers.Dense),
            num_classes=(model.num_classes, None),
        )
        check_parts("vit", pooler_bias=(model.pooler.use_bias, True))
        return {
            "architectures": ["ViTModel"],
            "pooler_output_size": model.pooler.units,
            "pooler_act": activation_name("vit", model.pooler),
        }
    if model.num_classes is None:
        return {"architectures": ["ViTModel"]}
    return {"architectures": ["ViTForImageClassification"], **label_keys(model.num_classes)}


def _size(height_and_width):
    """Returns one int for a square, else a list of height and width."""
    height, width = height_and_width
    return height if height == width else [height, width]


def make_tensors(model):
    """Describes the tensors, under the names that all versions of transformers read."""
    prefix = "" if model.num_classes is None else PREFIX
    embeddings, kernel = f"{prefix}embeddings", model.patches.projection.kernel
    height, width, channels, d_model = kernel.shape
    yield Tensor(f"{embeddings}.cls_token", (1, 1, d_model), (model.class_token,), (0, 1, 2))
    length = model.positions.max_length
    positions = (model.positions.embeddings,)
    yield Tensor(f"{embeddings}.position_embeddings", (1, length, d_model), positions, (0, 1, 2))
    projection = f"{embeddings}.patch_embeddings.projection"
    shape = (d_model, channels, height, width)
    yield Tensor(f"{projection}.weight", shape, (kernel,), (2, 3, 1, 0))
    yield Tensor(f"{projection}.bias", (d_model,), (model.patches.projection.bias,), (0,))
    for i, layer in enumerate(model.encoder.layers):
        name = f"{prefix}encoder.layer.{i}"
        names = [f"{name}.attention.attention.{part}" for part in ("query", "key", "value")]
        yield from norm(f"{name}.layernorm_before", layer.self_attention_residual.norm)
        yield from attention_projections(layer.self_attention, *names, f"{name}.attention.output.dense")
        yield from norm(f"{name}.layernorm_after", layer.feed_forward_residual.norm)
        yield from dense(f"{name}.intermediate.dense", layer.feed_forward.inner)
        yield from dense(f"{name}.output.dense", layer.feed_forward.outer)
    yield from norm(f"{prefix}layernorm", model.encoder.norm)
    if model.pooler is not None:
        yield from dense(POOLER, model.pooler)
    if model.head is not None:
        yield from dense("classifier", model.head)


FAMILY = Family(
    "vit",
    make_model,
    make_config,
    make_tensors,
    prefix=PREFIX,
    guessed_keys=("id2label", "label2id"),  # a model knows only the number of its classes
    complete_config=complete_config,
    matrices=("pooler", "head"),
)
