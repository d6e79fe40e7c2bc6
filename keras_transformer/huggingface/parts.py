"""The parts of models: checks that a family has them, and stacks of plain layers, made and described."""

import itertools

import keras

from keras_transformer.huggingface.configs import activation_name
from keras_transformer.layers import FeedForward, LayerNormalization, MultiHeadAttention, Residual
from keras_transformer.layers.base import to_config

# Options of layers that change no number of a trained model.
WITHOUT_NUMBERS = (
    "name",
    "dtype",
    "trainable",
    "attention_axes",  # of inputs of rank 3 it is always the second
    "kernel_initializer",
    "bias_initializer",
    "beta_initializer",
    "gamma_initializer",
    "dropout",
    "seed",
    "labels",
)


def check_parts(family, **parts):
    """Raises `ValueError` for a part that the models of a family do not have.

    Args:
        family: The `model_type`.
        **parts: For each part a pair: what the model has, and what it must be. A class means an object of just that
            class, since a subclass may compute something else; anything else means an equal value.
    """
    for name, (received, expected) in parts.items():
        if isinstance(expected, type):
            fits, rule = type(received) is expected, f"a `{expected.__name__}`"
        else:
            fits, rule = received == expected, repr(expected)
        if not fits:
            raise ValueError(
                f"`{name}` of a {family!r} model must be {rule}. Received: {name}={received!r:.200}."
            )


def check_made(family, name, part, made):
    """Raises `ValueError` for a part of a model that is not the one that the model's config.json makes.

    Args:
        family: The `model_type`.
        name: Name of the part.
        part: A layer, or None.
        made: The layer, unbuilt, that is made from the config.json; or None.
    """
    options, expected = (dict(_options_of(to_config(each), name)) for each in (part, made))
    changed = [each for each in sorted({**options, **expected}) if options.get(each) != expected.get(each)]
    changed = changed[:1] if name in changed else changed  # layers of two classes have other options too
    if changed:
        rule, received = (
            ", ".join(f"{option}={found.get(option)!r:.100}" for option in changed)
            for found in (expected, options)
        )
        raise ValueError(f"`{name}` of a {family!r} model must have {rule}. Received: {received}.")


def _options_of(config, path):
    """Returns the options in a layer's configuration that decide its numbers: pairs of a path and a value."""
    pairs = []
    if isinstance(config, dict) and "class_name" in config:
        pairs, config = [(path, config["class_name"])], config["config"]
    if isinstance(config, list):
        config = dict(enumerate(config))
    if not isinstance(config, dict):
        return [*pairs, (path, config)]
    for key, value in config.items():
        if key == "axis":  # a built norm has a list of axes of `(batch, length, d_model)`
            value = [axis % 3 for axis in (value if isinstance(value, list) else [value])]
        if key not in WITHOUT_NUMBERS:
            pairs += _options_of(value, f"{path}.{key}")
    return pairs


def check_layers(
    family,
    stack,
    feed_forward=FeedForward,
    norm=LayerNormalization,
    *,
    normalize_first,
    sandwich_norm=False,
    free=(),
):
    """Checks the layers of an encoder or a decoder, which must all be alike.

    Args:
        family: The `model_type`.
        stack: An `Encoder` or a `Decoder`.
        feed_forward: Class of the feed-forward networks.
        norm: Class of the norms.
        normalize_first: Where the norms must be: True for pre-norm.
        sandwich_norm: Whether there must be norms after the sublayers too.
        free: Names of options in which the layers may differ.

    Returns:
        The self-attention, the feed-forward network and the residual connection of the first layer.

    Raises:
        ValueError: If a layer has another part, or differs from the first one.
    """
    first = {}
    for layer in stack.layers:
        check_parts(family, layer=(layer, stack.layer_class), feed_forward=(layer.feed_forward, feed_forward))
        attentions = [layer.self_attention]
        residuals = [layer.self_attention_residual, layer.feed_forward_residual]
        if getattr(layer, "cross_attention_residual", None) is not None:
            attentions.append(layer.cross_attention)
            residuals.append(layer.cross_attention_residual)
        for attention, residual in itertools.product(attentions, residuals):
            check_parts(family, attention=(attention, MultiHeadAttention), residual=(residual, Residual))
            check_parts(family, norm=(residual.norm, norm))
            check_made(family, "norm", residual.norm, norm(epsilon=residual.norm.epsilon))
            check_parts(
                family,
                normalize_first=(residual.normalize_first, normalize_first),
                sandwich_norm=(residual.sandwich_norm, sandwich_norm),
            )
            for name, value in _options(attention, layer.feed_forward, residual).items():
                if value != first.setdefault(name, value) and name not in free:
                    raise ValueError(
                        f"All layers of a {family!r} model must be alike. Received: {name}={value!r:.200} in "
                        f"{layer.name!r}, {first[name]!r} in the first layer."
                    )
    layer = stack.layers[0]
    return layer.self_attention, layer.feed_forward, layer.self_attention_residual


def attention_options(attention, d_model=None):
    """Returns the options of a `MultiHeadAttention` that decide what it computes, a dict, with defaults filled in.

    Args:
        attention: The layer.
        d_model: Width of its output where it has no `output_shape`.
    """
    names = ("num_heads", "key_dim", "value_dim", "use_bias", "dropout", "use_gate")
    # Keras's layer has no public attribute for some. The subclass's own configuration refuses shared positions.
    config = keras.layers.MultiHeadAttention.get_config(attention)
    return {
        **{name: config[name] for name in (*names, "sliding_window")},
        "output_shape": config["output_shape"] or (d_model,),
        "num_key_value_heads": attention.num_key_value_heads,
        "query_key_norm": attention.query_key_norm,
        "norm_epsilon": attention.norm_epsilon if attention.query_key_norm else None,
        "output_bias": config["use_bias"] if attention.output_bias is None else attention.output_bias,
        "scale": round(attention.key_dim**-0.5 if attention.scale is None else attention.scale, 9),
        "soft_cap": attention.soft_cap,
    }


def _options(attention, feed_forward, residual):
    """Returns all options of a layer's parts, by name."""
    positions = attention.positions
    config = {} if positions is None else positions.get_config()
    return {
        **{f"attention.{name}": value for name, value in attention_options(attention).items()},
        "attention.positions": (
            type(positions).__name__,
            {name: value for name, value in config.items() if name not in ("name", "dtype", "trainable")},
        ),
        "feed_forward.d_ff": feed_forward.d_ff,
        "feed_forward.activation": feed_forward.activation,
        "feed_forward.dropout": feed_forward.dropout,
        "feed_forward.use_bias": feed_forward.use_bias,
        "residual.dropout": residual.dropout,
        "residual.epsilon": residual.norm.epsilon,
    }


def stack_words(family, stack, d_model, *, normalize_first, unscaled=False, positions=None):
    """Returns the arguments of an `Encoder` or `Decoder` of the layers of "Attention Is All You Need", a dict.

    Args:
        family: The `model_type`.
        stack: The `Encoder` or `Decoder`.
        d_model: Width of the model.
        normalize_first: Where the norms must be: True for pre-norm.
        unscaled: Whether attention may have a scale of 1 too.
        positions: The class of positions that act inside attention, or None.

    Raises:
        ValueError: If the layers are not alike, or have something that is none of these arguments.
    """
    attention, feed_forward, residual = check_layers(family, stack, normalize_first=normalize_first)
    options = attention_options(attention, d_model)
    usual = {
        "value_dim": attention.key_dim,
        "num_key_value_heads": attention.num_heads,
        "scale": 1.0 if unscaled and attention.scale == 1.0 else round(attention.key_dim**-0.5, 9),
        "output_bias": options["use_bias"],
        "output_shape": (d_model,),
        "use_gate": False,
        **dict.fromkeys(("sliding_window", "query_key_norm", "soft_cap")),
    }
    check_parts(family, **{name: (options[name], value) for name, value in usual.items()})
    check_parts(
        family,
        key_dim=(attention.key_dim * attention.num_heads, d_model),
        attention_positions=(attention.positions, positions),
        attention_bias=(attention.use_bias, True),
        feed_forward_bias=(feed_forward.use_bias, True),
    )
    return {
        "num_layers": stack.num_layers,
        "num_heads": attention.num_heads,
        "d_ff": feed_forward.d_ff,
        "activation": activation_name(family, feed_forward),
        "dropout": residual.dropout,
        "attention_dropout": attention.dropout,
        "activation_dropout": feed_forward.dropout,
        "layer_norm_epsilon": residual.norm.epsilon,
    }


def layers_from(layer_class, words, d_model, dtype, options, **more):
    """Makes the layers that `stack_words` describes, with more options of their attention.

    Args:
        layer_class: `EncoderLayer` or `DecoderLayer`.
        words: The arguments of an `Encoder` or `Decoder`, a dict.
        d_model: Width of the model.
        dtype: The dtype of all parts.
        options: More arguments of each `MultiHeadAttention`, a dict.
        **more: More arguments of each layer.
    """
    words, dtypes = dict(words), {"dtype": dtype}
    num_layers, num_heads, dropout = (words.pop(n) for n in ("num_layers", "num_heads", "attention_dropout"))
    options = {"dropout": dropout, "name": "self_attention", **dtypes, **options}
    return [
        layer_class(
            attention=MultiHeadAttention(num_heads, d_model // num_heads, **options),
            name=f"layer_{i}",
            **{**words, **dtypes, **more},
        )
        for i in range(num_layers)
    ]
