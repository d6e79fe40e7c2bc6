"""The Vision Transformer: Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words".

transformers takes images `(batch, channels, height, width)`, this library `(batch, height, width, channels)`. Only the
kernel of the patches differs by that: its axes are in another order.
"""

import re

import keras

from keras_transformer.checks import check_positive
from keras_transformer.huggingface.configs import (
    check_config,
    check_divisible,
    label_keys,
    labels_of,
    read_rows,
)
from keras_transformer.huggingface.families.encoders import ROWS, STACK, STACK_PLACES
from keras_transformer.huggingface.families.family import Family
from keras_transformer.huggingface.known_keys import ENCODER
from keras_transformer.huggingface.tensors import LayerNames, Tensor, dense, layer_tensors, norm
from keras_transformer.layers import Encoder
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models import VisionTransformer

POOLER = "pooler.dense"
HEAD, HEADLESS = "ViTForImageClassification", "ViTModel"
LAYER = LayerNames(
    (*(f"attention.attention.{part}" for part in ("query", "key", "value")), "attention.output.dense"),
    ("layernorm_before", "layernorm_after"),
    ("intermediate.dense",),
    "output.dense",
)
VIT_ROWS = {
    **{name: ROWS[name] for name in ("d_model", *STACK)},
    "dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
    "image_size": ("image_size", 224),
    "patch_size": ("patch_size", 16),
    "channels": ("num_channels", 3),
    "pooler_size": ("pooler_output_size", None),
    "pooler_activation": ("pooler_act", "tanh"),
}
VIT_PLACES = {
    **STACK_PLACES,
    "image_size": lambda model: _size(model.image_size),
    "patch_size": lambda model: _size(model.patch_size),
    "pooler_size": "pooler.units",
    "pooler_activation": "pooler.activation",
}


class VitFamily(Family):
    """The Vision Transformer."""

    def arguments_of_tensors(self, config, names):
        """Returns `{"pooler": None}` where no tensor is the pooler's."""
        return {} if any(f"{POOLER}.weight" in name for name in names) else {"pooler": None}

    def make_model(self, config, **kwargs):
        """Makes the model that a config.json describes."""
        arguments, dtype = read_rows(config, self.rows), kwargs.get("dtype")
        check_config(config, qkv_bias=True)
        check_divisible(arguments, self.rows)
        encoder = Encoder(
            **{name: arguments[name] for name in STACK}, normalize_first=True, dtype=dtype, name="encoder"
        )
        classifies, pooler = config.get("architectures") == [HEAD], None
        if not classifies:
            units = arguments["d_model"] if arguments["pooler_size"] is None else arguments["pooler_size"]
            check_positive(pooler_output_size=units)
            activation = get_activation(arguments["pooler_activation"])
            pooler = keras.layers.Dense(units, activation, dtype=dtype, name="pooler")
        return VisionTransformer(
            **{
                name: arguments[name]
                for name in ("image_size", "patch_size", "d_model", "channels", "dropout")
            },
            encoder=encoder,
            num_classes=labels_of(config)[0] if classifies else None,
            **{"pooler": pooler, **kwargs},
        )

    def other_keys(self, model):
        """Returns the keys of config.json for a model's classes."""
        if model.num_classes is None:
            return {"architectures": [HEADLESS]}
        return {"architectures": [HEAD], **label_keys(model.num_classes)}

    def make_again(self, config, model):
        """Makes a model from the config.json of another one, which does not say whether there is a pooler."""
        return self.make_model(config, **({"pooler": None} if model.pooler is None else {}))

    def make_tensors(self, model):
        """Describes the tensors, under the names that all versions of transformers read."""
        prefix = "" if model.num_classes is None else self.prefix
        embeddings, kernel = f"{prefix}embeddings", model.patches.projection.kernel
        height, width, channels, d_model = kernel.shape
        yield Tensor(f"{embeddings}.cls_token", (1, 1, d_model), (model.class_token.vector,), (0, 1, 2))
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
    rows=VIT_ROWS,
    places=VIT_PLACES,
    # A model knows only the number of its classes.
    guessed_keys=("id2label", "label2id"),
    matrices=("pooler", "head"),
    more_keys=ENCODER,
)
