"""A property of all families: a changed option of any part of a model is refused, or it comes back.

The options are those that the configuration of a model has, and all others that the constructors of its parts take.
"""

import copy
import inspect
import re

import keras
import numpy as np
import pytest
from families import CONFIGS, inputs_of, own_outputs, randomized

from keras_transformer import layers
from keras_transformer.huggingface import FAMILIES

ONE_LAYER = {"n_layer": 1, "num_hidden_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "num_layers": 1}
# A model of each kind.
MODELS = (
    "gpt2", "gemma2", "smollm3-windows", "olmo2", "marian", "bart", "t5", "bert-masked",
    "electra-ForSequenceClassification",
)  # fmt: skip
MODELS += ("mpnet-Model", "modernbert-biases", "vit-classes", "vit-pooler", "whisper")
SHARES = 8
SKIPPED = re.compile("name|dtype|trainable|seed|.*(initializer|regularizer|constraint)")
ROTARY = layers.RotaryPositions(500.0)
# Another value of each option that is neither a number nor a bool; of several, the first one that fits is taken.
OTHERS = {
    "positions": (layers.LearnedPositions(30), layers.PositionalEncoding(), ROTARY, layers.ALiBi(), None),
    "segments": (layers.SegmentEmbedding(5), None),
    "scaling": (layers.LinearScaling(3.0),),
    "norm": ("rms", "layer", "layer_without_bias", layers.RMSNormalization(), None),
    **dict.fromkeys(("activation", "output_activation"), ("elu", "relu")),
    "query_key_norm": ("rms", "layer"),
    "pooling": ("mean", "first"),
    **dict.fromkeys(("scale", "embedding_scale", "output_scale"), (0.3,)),
    **dict.fromkeys(("soft_cap", "logit_soft_cap"), (2.0,)),
    "output_bias": (True, False),
    **dict.fromkeys(("num_key_value_heads", "num_decoder_layers", "sliding_window"), (1, 2)),
    **dict.fromkeys(("key_dim", "value_dim", "embedding_dim", "width", "output_shape"), (6, 5)),
    **dict.fromkeys(("pad_id", "cls_id", "sep_id"), (7,)),
    "stop_ids": ([7],),
    **dict.fromkeys(("pooler", "head"), (None,)),
    # They describe layers that the configuration has, or several models.
    **dict.fromkeys(("attention", "cross_attention", "feed_forward", "num_heads", "d_ff"), ()),
    **dict.fromkeys(("num_layers", "num_classes", "target_vocab_size", "attention_axes"), ()),
    **dict.fromkeys(("encoder", "decoder", "axis", "quantization_config", "labels", "frozen"), ()),
    **dict.fromkeys(("args", "checkpoint_files"), ()),
    **dict.fromkeys(("embeddings", "source", "target", "tokens", "output", "input_dim", "output_dim"), ()),
    **dict.fromkeys(("flash_attention", "attention_dropout", "activation_dropout"), ()),
    "image_size": ([12, 10],),
    "kernel_sizes": ([5, 3],),
    "strides": ([2, 2],),
    "padding": ("causal",),
    "patch_size": ([3, 5],),
}


def parameters_of(part):
    """Returns the parameters of the constructors of a part and of the layers that it makes, with their defaults."""
    cls = type(keras.saving.deserialize_keras_object(part))
    bases = [*cls.__mro__, *getattr(cls, "layer_class", object).__mro__]
    found = {}
    for base in bases:
        if "__init__" in vars(base) and base.__module__.startswith(
            ("keras_transformer", "keras.src.layers.attention")
        ):
            for name, parameter in inspect.signature(base.__init__).parameters.items():
                if parameter.default is not parameter.empty:
                    found.setdefault(name, parameter.default)
    return found


def is_part(value):
    return isinstance(value, dict) and "class_name" in value


def options_of(config, path=()):
    """Yields the path and the value of each option in a configuration."""
    if isinstance(config, list):
        for i, each in enumerate(config):
            yield from options_of(each, (*path, i))
    elif is_part(config):
        for name, value in {**parameters_of(config), **config["config"]}.items():
            if not SKIPPED.fullmatch(name):
                yield (*path, "config", name), value
                yield from options_of(value, (*path, "config", name))


def others_of(name, value):
    """Returns the values that an option may have instead."""
    if name not in OTHERS and isinstance(value, bool):
        return [not value]
    if name not in OTHERS and isinstance(value, int | float):
        return [value + 1 if isinstance(value, int) else 2 * value + 0.1]
    others = [
        keras.saving.serialize_keras_object(each) if hasattr(each, "get_config") else each
        for each in OTHERS[name]
    ]
    return [other for other in others if other != value]


def without_shapes(config):
    """Returns a configuration whose parts are built when they are used. Only its own says what a source reads."""
    if isinstance(config, list):
        return [without_shapes(each) for each in config]
    if not isinstance(config, dict):
        return config
    kept = config.get("class_name") == "ConvolutionalSubsampling"
    return {name: without_shapes(each) for name, each in config.items() if kept or name != "build_config"}


def with_option(config, path, value):
    """Returns the model of a configuration in which one option has another value; None where there is no such model."""
    config = copy.deepcopy(config)
    *way, last = path
    place = config
    for name in way:
        place = place[name]
    place[last] = value
    try:
        return keras.saving.deserialize_keras_object(config)
    except (TypeError, ValueError):
        return None


def check_refused_or_back(family, model, path):
    """A model is refused, or the model of its config.json computes the same with the same tensors."""
    try:
        config = family.make_config(model)
    except ValueError as error:
        assert "Received: " in str(error), path
        return
    again = family.make_again(config, model)
    randomized(family.model_type, model)
    for tensor, other in zip(family.make_tensors(model), family.make_tensors(again), strict=True):
        for weight, value in zip(other.weights, other.to_weights(tensor.value()), strict=True):
            weight.assign(value)
    for name in ("pad_id", "bos_id", "eos_id", "stop_ids", "cls_id", "sep_id"):
        assert getattr(again, name, None) == getattr(model, name, None), path
    inputs, _, _ = inputs_of(model)
    for found, expected in zip(own_outputs(again, inputs), own_outputs(model, inputs), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=str(path))


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.sampled
def test_a_changed_option_is_refused_or_comes_back(case, share):
    given = CONFIGS[case]
    family = FAMILIES[given["model_type"]]
    few = {
        key: value
        for key, value in ONE_LAYER.items()
        if key in given and not given.keys() & {"layer_types", "no_rope_layers"}
    }
    model = family.make_model({**given, **few}, **({} if given.get("has_pooler", True) else {"pooler": None}))
    config = without_shapes(keras.saving.serialize_keras_object(model))
    for path, value in list(options_of(config))[share::SHARES]:
        made = (with_option(config, path, other) for other in others_of(path[-1], value))
        changed = next((each for each in made if each is not None), None)
        if changed is not None:
            check_refused_or_back(family, changed, path)


def test_the_options_of_all_parts_are_changed():
    model = FAMILIES["gpt2"].make_model({**CONFIGS["gpt2"], **ONE_LAYER})
    layer = ("config", "decoder", "config", "num_layers", 0)
    attention = (*layer, "config", "attention", "config")
    expected = {
        ("config", "output"),
        ("config", "embeddings", "config", "positions", "config", "offset"),
        (*layer, "config", "sandwich_norm"),
        (*attention, "soft_cap"),
        (*attention, "use_gate"),
    }
    assert expected <= dict(options_of(keras.saving.serialize_keras_object(model))).keys()
