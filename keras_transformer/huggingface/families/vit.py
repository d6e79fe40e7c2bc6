"""The Vision Transformer: Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words".

transformers takes images `(batch, channels, height, width)`, this library `(batch, height, width, channels)`. Only the
kernel of the patches differs by that: its axes are in another order.
"""

import re

import keras

from keras_transformer.checks import check_positive
from keras_transformer.huggingface.configs import (
    activation_from,
    activation_name,
    arguments_from,
    check_config,
    check_divisible,
    label_keys,
    labels_of,
)
from keras_transformer.huggingface.families.encoder_words import DEFAULTS, KEYS, STACK
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.known_keys import ENCODER
from keras_transformer.huggingface.parts import check_parts, stack_words
from keras_transformer.huggingface.tensors import LayerNames, Tensor, dense, layer_tensors, norm
from keras_transformer.layers import Encoder
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models import VisionTransformer

POOLER = "pooler.dense"
HEAD, HEADLESS = "ViTForImageClassification", "ViTModel"
# Keys of config.json for the arguments of the model and of its encoder.
MODEL = {"d_model": "hidden_size", "channels": "num_channels", "dropout": "hidden_dropout_prob"}
STACK = {word: KEYS[word] for word in STACK}
LAYER = LayerNames(
    (*(f"attention.attention.{part}" for part in ("query", "key", "value")), "attention.output.dense"),
    ("layernorm_before", "layernorm_after"),
    ("intermediate.dense",),
    "output.dense",
)
DEFAULTS = {
    **DEFAULTS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "pooler_output_size": None,
    "pooler_act": "tanh",
    "architectures": None,
    "id2label": None,
    "num_labels": None,
}


class VitFamily(Family):
    """The Vision Transformer."""

    def arguments_of_tensors(self, config, names):
        """Returns `{"pooler": None}` where no tensor is the pooler's."""
        return {} if any(f"{POOLER}.weight" in name for name in names) else {"pooler": None}

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        config, dtype = {**self.defaults, **config}, kwargs.get("dtype")
        check_config(config, qkv_bias=True)
        words = arguments_from(config, STACK)
        check_divisible(config, "hidden_size", "num_attention_heads")
        classifies = config["architectures"] == [HEAD]
        return VisionTransformer(
            config["image_size"],
            config["patch_size"],
            encoder=Encoder(**words, normalize_first=True, dtype=dtype, name="encoder"),
            num_classes=labels_of(config)[0] if classifies else None,
            **arguments_from(config, MODEL),
            **{"pooler": None if classifies else _pooler(config, dtype), **kwargs},
        )

    def make_config(self, model):
        """Makes the config.json of a model."""
        family = self.model_type
        check_parts(family, encoder=(model.encoder, Encoder))
        words = stack_words(family, model.encoder, model.d_model, normalize_first=True)
        return {
            "model_type": family,
            **_head_keys(family, model),
            "hidden_size": model.d_model,
            **{key: words[word] for word, key in STACK.items()},
            "image_size": _size(model.image_size),
            "patch_size": _size(model.patch_size),
            "num_channels": model.channels,
        }

    def make_tensors(self, model):
        """Describes the tensors, under the names that all versions of transformers read."""
        prefix = "" if model.num_classes is None else self.prefix
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
            yield from layer_tensors(f"{prefix}encoder.layer.{i}.", layer, LAYER)
        yield from norm(f"{prefix}layernorm", model.encoder.norm)
        if model.pooler is not None:
            yield from dense(POOLER, model.pooler)
        if model.head is not None:
            yield from dense("classifier", model.head)


def _pooler(config, dtype):
    units = config["pooler_output_size"] or config["hidden_size"]
    check_positive(pooler_output_size=units)
    activation = get_activation(activation_from(config, "pooler_act"))
    return keras.layers.Dense(units, activation, dtype=dtype, name="pooler")


def _head_keys(family, model):
    """Returns the keys of config.json for a model's pooler and classes. It cannot have both."""
    if model.num_classes is not None and model.pooler is None:
        return {"architectures": [HEAD], **label_keys(model.num_classes)}
    if model.pooler is None:
        return {"architectures": [HEADLESS]}
    check_parts(family, pooler=(model.pooler, keras.layers.Dense), num_classes=(model.num_classes, None))
    check_parts(family, pooler_bias=(model.pooler.use_bias, True))
    return {
        "architectures": [HEADLESS],
        "pooler_output_size": model.pooler.units,
        "pooler_act": activation_name(family, model.pooler),
    }


def _size(height_and_width):
    """Returns one int for a square, else a list of height and width."""
    height, width = height_and_width
    return height if height == width else [height, width]


FAMILY = VitFamily(
    "vit",
    (HEADLESS, HEAD),
    model_classes=(VisionTransformer,),
    prefix="vit.",
    # Of a classifier, which does not read it.
    ignored=(re.compile(r"^vit\.pooler\.dense\.(weight|bias)$"),),
    defaults=DEFAULTS,
    guessed_keys=("id2label", "label2id"),  # a model knows only the number of its classes
    matrices=("pooler", "head"),
    more_keys=ENCODER,
)
