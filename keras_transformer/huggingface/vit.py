"""The Vision Transformer: Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words".

Theirs takes images `(batch, channels, height, width)`, ours `(batch, height, width, channels)`: the kernel of the
patches is turned, and nothing else knows of it.
"""

import keras

from keras_transformer.checks import check_positive
from keras_transformer.huggingface.configs import (
    activation,
    activation_name,
    check_config,
    check_parts,
    check_plain_attention,
    check_sizes,
    described_labels,
    head_size,
    labels_of,
    layer_parts,
)
from keras_transformer.huggingface.tensors import Tensor, norm, plain, projections
from keras_transformer.layers import (
    Encoder,
    FeedForward,
    MultiHeadAttention,
    Residual,
)
from keras_transformer.layers.feed_forward import activation_of
from keras_transformer.models import VisionTransformer

PREFIX = "vit."
BUFFERS = ()
FREE = ("id2label", "label2id")  # a model knows the number of its classes
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
}


def completed(config, names):
    """The configuration with what only the stored tensors say: whether there is a pooler."""
    return {**config, "pooler": any(f"{POOLER}.weight" in name for name in names)}


def model(config, pooler=None, **kwargs):
    """The model that a configuration describes; `pooler` says whether it has one, or the configuration's key that
    `completed` adds."""
    pooler = config.get("pooler", False) if pooler is None else pooler
    config = {**DEFAULTS, **config}
    check_config(config, qkv_bias=True)
    d_model, d_ff, num_layers, num_heads, channels = check_sizes(
        config,
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_channels",
    )
    key_dim = head_size(config, "hidden_size", "num_attention_heads")
    attention = MultiHeadAttention(num_heads, key_dim, dropout=config["attention_probs_dropout_prob"])
    dropout = config["hidden_dropout_prob"]
    residual = Residual(dropout, normalize_first=True, layer_norm_epsilon=config["layer_norm_eps"])
    feed_forward = FeedForward(d_ff, activation(config, "hidden_act"))
    if pooler:
        units = config["pooler_output_size"] or d_model
        check_positive(pooler_output_size=units)
        pooler = keras.layers.Dense(units, activation_of(activation(config, "pooler_act")))
    return VisionTransformer(
        config["image_size"],
        config["patch_size"],
        d_model,
        Encoder(num_layers, attention=attention, feed_forward=feed_forward, residual=residual),
        _num_classes(config),
        channels=channels,
        dropout=dropout,
        pooler=pooler or None,
        **kwargs,
    )


def _num_classes(config):
    """The number of classes, or None for a model without a head."""
    if config["architectures"] != ["ViTForImageClassification"]:
        return None
    return labels_of(config)[0]


def config(model):
    """The configuration that describes a model."""
    check_parts("vit", model=(model, VisionTransformer))
    check_parts("vit", encoder=(model.encoder, Encoder))
    attention, feed_forward, residual = layer_parts("vit", model.encoder, normalize_first=True)
    check_plain_attention("vit", attention, model.d_model)
    check_parts("vit", feed_forward_bias=(feed_forward.use_bias, True))
    heads = {"architectures": ["ViTModel"]}
    if model.pooler is not None:
        check_parts("vit", pooler=(model.pooler, keras.layers.Dense), num_classes=(model.num_classes, None))
        heads |= {
            "pooler_output_size": model.pooler.units,
            "pooler_act": activation_name("vit", model.pooler),
        }
    if model.num_classes is not None:
        heads = {
            "architectures": ["ViTForImageClassification"],
            **described_labels(model.num_classes),
        }
    return {
        "model_type": "vit",
        **heads,
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


def _size(height_and_width):
    """One int for a square."""
    height, width = height_and_width
    return height if height == width else [height, width]


def tensors(model):
    """The tensors of its checkpoints, under the names that all versions of transformers read."""
    prefix = "" if model.num_classes is None else PREFIX
    embeddings, patches = f"{prefix}embeddings", model.patches
    height, width, channels, d_model = patches.kernel.shape
    yield Tensor(f"{embeddings}.cls_token", (1, 1, d_model), (model.class_token,), (0, 1, 2))
    length = model.positions.max_length
    positions = (model.positions.embeddings,)
    yield Tensor(f"{embeddings}.position_embeddings", (1, length, d_model), positions, (0, 1, 2))
    projection = f"{embeddings}.patch_embeddings.projection"
    shape = (d_model, channels, height, width)
    yield Tensor(f"{projection}.weight", shape, (patches.kernel,), (2, 3, 1, 0))
    yield Tensor(f"{projection}.bias", (d_model,), (patches.bias,), (0,))
    for i, layer in enumerate(model.encoder.layers):
        name = f"{prefix}encoder.layer.{i}"
        yield from norm(f"{name}.layernorm_before", layer.self_attention_residual.norm)
        own = [f"{name}.attention.attention.{part}" for part in ("query", "key", "value")]
        yield from projections(layer.self_attention, *own, f"{name}.attention.output.dense")
        yield from norm(f"{name}.layernorm_after", layer.feed_forward_residual.norm)
        for part, own in (("intermediate", layer.feed_forward.inner), ("output", layer.feed_forward.outer)):
            yield from plain(f"{name}.{part}.dense", own)
    yield from norm(f"{prefix}layernorm", model.encoder.norm)
    for name, own in ((POOLER, model.pooler), ("classifier", model.head)):
        if own is not None:
            yield from plain(name, own)
