"""The model that a run goes on training, and the options of the recipe that must agree with it."""

import keras

from keras_transformer.checks import check
from keras_transformer.execution.inference import has_int8_weights
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.models import T5, Transformer
from keras_transformer.runs.recipe import RATES
from keras_transformer.training.adapters import copy_merged


def continued(model, options, dtype):
    """Returns a copy of a model to go on training, with its weights.

    Args:
        model: A built `EncoderDecoder`.
        options: The options of a recipe that were given, a dict from a field's name to its value.
        dtype: Name of the policy of the copy.

    Returns:
        An `EncoderDecoder` of the same class. Its frozen layers are frozen, too.

    Raises:
        ValueError: If the model has another value of an option, or int8 weights. The rates of dropout may differ for a
            model whose constructor takes them: all for a `Transformer`, `dropout` for a `T5`.
    """
    check(
        not has_int8_weights(model), "`init_from` must have weights of floats, not of int8.", model=model.name
    )
    rates = {}
    for name, value in options.items():
        there = values_of(model, name)
        given = get_activation(value) if name == "activation" else value
        if there == {given}:
            continue
        if name in RATES and (
            isinstance(model, Transformer) or (isinstance(model, T5) and name == "dropout")
        ):
            rates[name] = value
            continue
        known = sorted({getattr(each, "__name__", each) for each in there}, key=str)
        rule = f"`{name}` must be that of `init_from`, or be left out."
        check(False, rule, **{name: value, "init_from": known[0] if len(known) == 1 else known})
    return copy_of(model, dtype, **rates)


def values_of(model, name):
    """Returns the values that the layers of a model have for a field of a recipe, a set; it is empty for none."""
    stacks = model.encoder, model.decoder
    layers = [layer for stack in stacks for layer in getattr(stack, "layers", ())]
    places = {
        "num_layers": [(stack, "num_layers") for stack in stacks],
        "d_model": [(model, "d_model")],
        "dropout": [(model, "dropout"), *((layer, "dropout") for layer in layers)],
        "attention_dropout": _parts(layers, "self_attention", "dropout"),
        "activation_dropout": _parts(layers, "feed_forward", "dropout"),
        "num_heads": _parts(layers, "self_attention", "num_heads"),
        "d_ff": _parts(layers, "feed_forward", "d_ff"),
        "activation": _parts(layers, "feed_forward", "activation"),
        "normalize_first": [(layer, "normalize_first") for layer in layers],
        "norm": [(layer, "norm") for layer in layers],
    }
    return {getattr(part, attribute) for part, attribute in places[name] if hasattr(part, attribute)}


def _parts(layers, part, attribute):
    return [(getattr(layer, part, None), attribute) for layer in layers]


def copy_of(model, dtype, **arguments):
    """Returns a copy of a model, with its weights, that computes with another policy. Adapters are merged into it.

    Args:
        model: A built model of this library.
        dtype: Name of the policy.
        **arguments: Arguments of the constructor that replace those of the model.
    """
    policy = keras.dtype_policies.serialize(keras.dtype_policies.get(dtype))
    copy = type(model).from_config({**_with_policy(model.get_config(), policy), **arguments})
    copy_merged(model, copy)
    return copy


def _with_policy(config, policy):
    """Returns a configuration in which each policy is replaced."""
    if isinstance(config, list):
        return [_with_policy(each, policy) for each in config]
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == policy["class_name"]:
        return policy
    return {name: _with_policy(value, policy) for name, value in config.items()}
