"""Keys of config.json that several families share, read and written."""

import contextlib
from types import MappingProxyType

from keras_transformer.checks import check, check_labels, check_positive
from keras_transformer.layers.feed_forward import get_activation

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
OWN_VALUES = {"activation": ACTIVATIONS, "pooler_activation": ACTIVATIONS, "pooling": POOLINGS}
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"  # of `problem_type`
# Arguments that are sizes, which must be positive.
SIZES = (
    *("vocab_size", "d_model", "num_layers", "num_heads", "d_ff", "key_dim", "num_buckets", "max_distance"),
    *("num_positions", "max_length", "max_source_length", "num_segments", "channels", "num_mel_bins"),
)


def check_config(config, file="config.json", /, **expected):
    """Raises `ValueError` for a key of a file that has another value than the expected one, None or nothing."""
    for key, value in expected.items():
        if config.get(key) not in (value, None):
            raise ValueError(
                f"`{key}` of {file} must be {value!r}: the library has nothing else. "
                f"Received: {key}={config[key]!r:.200}."
            )


def check_divisible(arguments, rows):
    """Raises `ValueError` where the number of heads does not divide the width of a model.

    Args:
        arguments: The arguments that config.json describes, a dict with `d_model` and `num_heads`.
        rows: The table of the arguments.
    """
    width, num_heads = rows["d_model"][0], rows["num_heads"][0]
    sizes = {width: arguments["d_model"], num_heads: arguments["num_heads"]}
    check(sizes[width] % sizes[num_heads] == 0, f"`{width}` must be divisible by `{num_heads}`.", **sizes)


def _own_value(config, key, names):
    """Returns this library's name of the value at a key of config.json, from a dict of such names."""
    if config[key] not in names:
        raise ValueError(
            f"`{key}` of config.json must be one of {sorted(names)}. Received: {key}={config[key]!r:.200}."
        )
    return names[config[key]]


def with_defaults(rows, **defaults):
    """Returns a table of arguments in which some have other defaults.

    >>> with_defaults({"d_model": ("n_embd", 768), "d_ff": ("n_inner", None)}, d_model=4)
    {'d_model': ('n_embd', 4), 'd_ff': ('n_inner', None)}
    """
    return {**rows, **{argument: (rows[argument][0], default) for argument, default in defaults.items()}}


def read_rows(config, rows):
    """Returns the arguments that a config.json describes, a dict.

    Args:
        config: The config.json, a dict.
        rows: A table: for each argument its key of config.json, and transformers' value where the key is missing. An
            argument without a key, None, has this value in each model. Those of `OWN_VALUES` are translated.

    Raises:
        ValueError: If a size is not positive, or an activation or a pooling is unknown.

    >>> read_rows({"n_embd": 4}, {"d_model": ("n_embd", 768), "activation": (None, "gelu_new")})
    {'d_model': 4, 'activation': 'gelu_tanh'}
    """
    arguments = {}
    for argument, (key, default) in rows.items():
        value = default if key is None else config.get(key, default)
        is_size = argument.removeprefix("encoder_").removeprefix("decoder_") in SIZES
        if is_size and key is not None and (value, default) != (None, None):
            check_positive(**{key: value})
        if argument in OWN_VALUES:
            value = _own_value({key: value}, key, OWN_VALUES[argument])
        arguments[argument] = value
    return arguments


def written_rows(family, part, rows, places=MappingProxyType({})):
    """Returns the keys of config.json for the arguments of a model or a layer, a dict; it undoes `read_rows`.

    An argument that the part does not have is left out.

    Args:
        family: The `model_type`.
        part: The model or the layer.
        rows: The table of arguments.
        places: Where the part has an argument: a path such as "encoder.layers.0.feed_forward.d_ff", or a function of
            the part. An argument that is missing is an attribute of its own name.

    Raises:
        ValueError: If an activation or a pooling has no name in config.json.
    """
    config = {}
    for argument, (key, _) in rows.items():
        place = places.get(argument, argument)
        with contextlib.suppress(AttributeError):
            value = place(part) if callable(place) else value_at(part, place)
            if argument in OWN_VALUES:
                value = _their_value(family, argument, place, value)
            config[key] = value
    config.pop(None, None)
    return config


def value_at(part, path):
    """Returns the value at a path of attributes and of indices."""
    for name in path.split("."):
        part = part[int(name)] if name.isdigit() else getattr(part, name)
    return part


def _their_value(family, argument, place, value):
    """Returns Hugging Face's name of an activation or a pooling."""
    own = str if argument == "pooling" else get_activation
    names = [name for name, own_name in OWN_VALUES[argument].items() if own(own_name) == value]
    rule = f"`{place}` of a {family!r} model must be one of {sorted(set(OWN_VALUES[argument].values()))}."
    check(names, rule, **{place: value})
    return names[0]


def token_ids(arguments, pad_id=None, bos_id=None, eos_id=None, *, several=False, **kwargs):
    """Returns the ids of a model that writes, and the other arguments of its caller.

    Without an id for padding, the `pad_id` of a language model is `eos_id`: it is the only id that no text contains.
    Without an id to begin with, `bos_id` is `eos_id` too, because texts followed one another in the training.

    Args:
        arguments: The `pad_id`, `bos_id` and `eos_id` of config.json, a dict: ids or None. An end may have several.
        pad_id: The caller's id, or None.
        bos_id: The caller's id, or None.
        eos_id: The caller's id, or None.
        several: Whether the model is a language model and takes `stop_ids`. The first of several ids of an end is then
            its `eos_id`.
        **kwargs: The caller's other arguments.

    Returns:
        A dict of `kwargs`, `pad_id`, `bos_id`, `eos_id` and, where there are several ids of an end, `stop_ids`.

    Raises:
        ValueError: If config.json has no id of an end, or several for a model that stops at one; or if the model is an
            encoder-decoder, and it has no id for padding or that of the end.
    """
    ends = arguments["eos_id"] if isinstance(arguments["eos_id"], list) else [arguments["eos_id"]]
    if eos_id is None:
        eos_id = ends[0] if len(ends) == 1 or (ends and several) else None
        rule = "`eos_token_id` of config.json must be one id: say which with `eos_id=`."
        check(isinstance(eos_id, int), rule, eos_token_id=arguments["eos_id"])
    if several and len(ends) > 1:
        kwargs = {"stop_ids": [token_id for token_id in ends if token_id != eos_id], **kwargs}
    if bos_id is None:
        bos_id = arguments["bos_id"]
    if pad_id is None:
        # Early Llamas write -1 for none.
        pad_id = None if arguments["pad_id"] == -1 else arguments["pad_id"]
        rule = "`pad_token_id` of config.json must be one id: say which with `pad_id=`."
        check(pad_id is not None or several, rule, pad_token_id=arguments["pad_id"])
    rule = "`eos_token_id` must not be `pad_token_id`: it would be masked, and no output would learn to end."
    check(several or eos_id != pad_id, rule, eos_token_id=eos_id, pad_token_id=pad_id)
    bos_id, pad_id = (eos_id if token_id is None else token_id for token_id in (bos_id, pad_id))
    return {**kwargs, "pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}


# Where a model that writes has its ids, as `written_rows` takes it.
ID_PLACES = {
    "pad_id": lambda model: None if model.pad_id == model.eos_id else model.pad_id,
    "eos_id": lambda model: [model.eos_id, *model.stop_ids] if model.stop_ids else model.eos_id,
}


def labels_of(config, problem_types=()):
    """Returns the number of classes in config.json, and their names: a list of str, or None if they have only numbers.

    Args:
        config: The config.json, a dict.
        problem_types: Values that `problem_type` may have where there are several classes, with `SINGLE_LABEL`.

    Raises:
        ValueError: If `id2label` does not number the names from 0 on, if a name is not a str, or if `problem_type` has
            another value.
    """
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        # transformers does not write its default.
        count = 2 if count is None else count
        _check_problem_type(config, count, problem_types)
        return count, None
    names = {str(key): label for key, label in names.items()}
    if names.keys() != {str(i) for i in range(len(names))}:
        raise ValueError(
            f"`id2label` of config.json must number its labels from 0 on. Received: {names!r:.200}."
        )
    labels = [names[str(i)] for i in range(len(names))]
    check_labels(len(labels), id2label=labels)
    _check_problem_type(config, len(labels), problem_types)
    return len(labels), None if labels == _default_labels(len(labels)) else labels


def is_multi_label(config):
    """Whether config.json says that a text may have several of the classes at once."""
    return config.get("problem_type") == MULTI_LABEL


def _check_problem_type(config, count, allowed):
    """Raises `ValueError` where `problem_type` asks for another function of the scores than a head computes."""
    allowed = (SINGLE_LABEL, *allowed) if count > 1 else (SINGLE_LABEL, "regression")
    kind = config.get("problem_type")
    rule = f"`problem_type` of config.json must be one of {list(allowed)} with {count} labels."
    check(kind in (None, *allowed), rule, problem_type=kind)


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
