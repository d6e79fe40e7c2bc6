"""What several families share: keys of config.json, and checks of a model's layers."""

import itertools

import keras

from keras_transformer.checks import check_labels, check_positive
from keras_transformer.layers import FeedForward, LayerNormalization, MultiHeadAttention, Residual
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.sublayers import to_config

# Hugging Face's names of activations, and this library's. Of several names for one function, the first is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
POOLINGS = {"cls": "first", "mean": "mean"}
OWN_VALUES = {"activation": ACTIVATIONS, "pooling": POOLINGS}
# Arguments that are sizes, which must be positive.
SIZES = (
    *(
        "vocab_size",
        "source_vocab_size",
        "d_model",
        "num_layers",
        "num_heads",
        "d_ff",
        "key_dim",
        "num_buckets",
        "max_distance",
    ),
    *("positions", "num_segments", "channels"),
)

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


def check_config(config, file="config.json", /, **expected):
    """Raises `ValueError` for a key of a file that has another value than the expected one, None or nothing."""
    for key, value in expected.items():
        if config.get(key) not in (value, None):
            raise ValueError(
                f"`{key}` of {file} must be {value!r}: the library has nothing else. "
                f"Received: {key}={config[key]!r:.200}."
            )


def check_divisible(config, width, num_heads):
    """Raises `ValueError` where the number of heads does not divide the width of a model.

    Args:
        config: The config.json, a dict.
        width: Key of the width.
        num_heads: Key of the number of heads.
    """
    if config[width] % config[num_heads]:
        raise ValueError(
            f"`{width}` must be divisible by `{num_heads}`. "
            f"Received: {width}={config[width]}, {num_heads}={config[num_heads]}."
        )


def activation_from(config, key):
    """Returns this library's name of the activation at a key of config.json."""
    return _own_value(config, key, ACTIVATIONS)


def _own_value(config, key, names):
    """Returns this library's name of the value at a key of config.json, from a dict of such names."""
    if config[key] not in names:
        raise ValueError(
            f"`{key}` of config.json must be one of {sorted(names)}. Received: {key}={config[key]!r}."
        )
    return names[config[key]]


def keys_and_defaults(**rows):
    """Splits a table of arguments: for each of them its key of config.json and transformers' value where it is missing.

    Returns:
        A dict of the key of each argument, and a dict of the value of each key.

    >>> keys_and_defaults(d_model=("n_embd", 768))
    ({'d_model': 'n_embd'}, {'n_embd': 768})
    """
    return {name: key for name, (key, _) in rows.items()}, dict(rows.values())


def arguments_from(config, keys):
    """Returns the arguments of a layer from config.json, a dict.

    Args:
        config: The config.json, a dict.
        keys: A dict of the key of each argument. The values of "activation" and "pooling" are translated.

    Raises:
        ValueError: If a size is not positive, or an activation or a pooling is unknown.
    """
    check_positive(**{key: config[key] for name, key in keys.items() if name in SIZES})
    return {
        name: _own_value(config, key, OWN_VALUES[name]) if name in OWN_VALUES else config[key]
        for name, key in keys.items()
    }


def keys_of(family, layer, keys):
    """Returns the keys of config.json for the arguments of a layer, a dict; it undoes `arguments_from`."""
    found = {key: getattr(layer, name) for name, key in keys.items()}
    if "activation" in keys:
        found[keys["activation"]] = activation_name(family, layer)
    if "pooling" in keys:
        found[keys["pooling"]] = {own: name for name, own in POOLINGS.items()}[layer.pooling]
    return found


def activation_name(family, layer):
    """Returns Hugging Face's name of a layer's activation.

    Raises:
        ValueError: If it has none in this library's table.
    """
    for name, own_name in ACTIVATIONS.items():
        if layer.activation is get_activation(own_name):
            return name
    raise ValueError(
        f"`activation` of a {family!r} model must be one of {sorted(set(ACTIVATIONS.values()))}. "
        f"Received: activation={layer.activation!r}."
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
            raise ValueError(f"`{name}` of a {family!r} model must be {rule}. Received: {name}={received!r}.")


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
                        f"All layers of a {family!r} model must be alike. Received: {name}={value!r} in "
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


def add_token_ids(
    config, pad_id=None, bos_id=None, eos_id=None, *, bos_key="bos_token_id", several=False, **kwargs
):
    """Adds to a model's arguments the ids that the caller did not give, from config.json.

    Without an id for padding, `pad_id` is `eos_id`: it is the only id that no text contains. Without an id to begin
    with, `bos_id` is `eos_id` too, because texts followed one another in the training.

    Args:
        config: The config.json, a dict.
        pad_id: The caller's id, or None.
        bos_id: The caller's id, or None.
        eos_id: The caller's id, or None.
        bos_key: Key of `bos_id` in config.json.
        several: Whether the model takes `stop_ids`. The first of several ids of an end is then its `eos_id`.
        **kwargs: The other arguments of the model.

    Returns:
        A dict of `kwargs`, `pad_id`, `bos_id`, `eos_id` and, where there are several ids of an end, `stop_ids`.

    Raises:
        ValueError: If config.json has no id of an end, or several for a model that stops at one.
    """
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if eos_id is None:
        eos_id = ends[0] if len(ends) == 1 or (ends and several) else None
        if not isinstance(eos_id, int):
            raise ValueError(
                "`eos_token_id` of config.json must be one id: say which with `eos_id=`. "
                f"Received: eos_token_id={config.get('eos_token_id')!r}."
            )
    if several and len(ends) > 1:
        kwargs = {"stop_ids": [token_id for token_id in ends if token_id != eos_id], **kwargs}
    if bos_id is None:
        bos_id = config.get(bos_key)
    if pad_id is None:
        pad_id = config.get("pad_token_id")
        pad_id = None if pad_id == -1 else pad_id  # early Llamas write -1 for none
    bos_id, pad_id = (eos_id if token_id is None else token_id for token_id in (bos_id, pad_id))
    return {**kwargs, "pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}


def token_id_keys(model, bos_key="bos_token_id"):
    """Returns the keys of config.json for a model's ids, with `bos_id` at `bos_key`."""
    return {
        "pad_token_id": None if model.pad_id == model.eos_id else model.pad_id,
        bos_key: model.bos_id,
        "eos_token_id": [model.eos_id, *model.stop_ids] if model.stop_ids else model.eos_id,
    }


def labels_of(config):
    """Returns the number of classes in config.json, and their names: a list of str, or None if they have only numbers.

    Raises:
        ValueError: If `id2label` does not number the names from 0 on, if a name is no str, or if a text may have
            several of the classes at once.
    """
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        count = 2 if count is None else count  # transformers' default, which it does not write
        _check_problem_type(config, count)
        return count, None
    names = {str(key): label for key, label in names.items()}
    if names.keys() != {str(i) for i in range(len(names))}:
        raise ValueError(f"`id2label` of config.json must number its labels from 0 on. Received: {names}.")
    labels = [names[str(i)] for i in range(len(names))]
    check_labels(len(labels), id2label=labels)
    _check_problem_type(config, len(labels))
    return len(labels), None if labels == _default_labels(len(labels)) else labels


def _check_problem_type(config, count):
    """Raises `ValueError` where a text may have several classes at once: this library computes a softmax over them."""
    allowed = (None, "single_label_classification", *(("regression",) if count == 1 else ()))
    if config.get("problem_type") not in allowed:
        raise ValueError(
            "`problem_type` of config.json must be 'single_label_classification', or 'regression' with one label. "
            f"Received: problem_type={config['problem_type']!r}, with {count} labels."
        )


def _default_labels(count):
    """Returns the names that transformers gives to classes without a name."""
    return [f"LABEL_{i}" for i in range(count)]


def label_keys(count, labels=None):
    """Returns the keys of config.json for classes, which get numbers where they have no names."""
    labels = labels or _default_labels(count)
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
