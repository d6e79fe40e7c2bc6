"""What families say in the same words: values of config.json and the parts they stand for."""

from keras_transformer.checks import check_positive
from keras_transformer.layers.feed_forward import activation_of

# Theirs to ours; of several names for one function, the first is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def check_config(config, **expected):
    """Raises `ValueError` for a key of config.json whose value, or None for none, is not the expected one."""
    for key, value in expected.items():
        if config.get(key) not in (value, None):
            raise ValueError(
                f"`{key}` of config.json must be {value!r}: there is no part for more. "
                f"Received: {key}={config[key]!r}."
            )


def check_sizes(config, *keys):
    """The sizes at some keys of config.json, a list of int; `ValueError` for one that is not positive."""
    check_positive(**{key: config[key] for key in keys})
    return [config[key] for key in keys]


def activation(config, key):
    """Our name of the activation at a key of config.json."""
    if config[key] not in ACTIVATIONS:
        raise ValueError(
            f"`{key}` of config.json must be one of {sorted(ACTIVATIONS)}. Received: {key}={config[key]!r}."
        )
    return ACTIVATIONS[config[key]]


def check_parts(family, **parts):
    """Raises `ValueError` for a part that a family's models do not have.

    Args:
        family: Its `model_type`.
        **parts: For each part, what the model has and what it must be: a class, of which it must be and no subclass, or
            a value.
    """
    for name, (received, expected) in parts.items():
        if isinstance(expected, type):
            fits, rule = type(received) is expected, f"a `{expected.__name__}`"
        else:
            fits, rule = received == expected, repr(expected)
        if not fits:
            raise ValueError(f"`{name}` of a {family!r} model must be {rule}. Received: {name}={received!r}.")


def activation_name(family, feed_forward):
    """Their name of a feed-forward network's activation."""
    for theirs, ours in ACTIVATIONS.items():
        if feed_forward.activation is activation_of(ours):
            return theirs
    raise ValueError(
        f"`activation` of a {family!r} model must be one of {sorted(set(ACTIVATIONS.values()))}. "
        f"Received: activation={feed_forward.activation!r}."
    )


def with_token_ids(config, pad_id=None, bos_id=None, eos_id=None, *, start="bos_token_id", **kwargs):
    """Arguments of a model: what is given, and the ids that are not from config.json, `bos_id` from the key `start`.

    Without a token for padding, eos is: other than all the rest, it stands in no text. Without one to begin with, eos
    is, as texts follow one another in the training.
    """
    if eos_id is None:
        eos_id = config.get("eos_token_id")
        if isinstance(eos_id, list) and len(eos_id) == 1:
            eos_id = eos_id[0]
        if not isinstance(eos_id, int):
            raise ValueError(
                "`eos_token_id` of config.json must be one id: say which with `eos_id=`. "
                f"Received: eos_token_id={eos_id!r}."
            )
    if bos_id is None:
        bos_id = config.get(start)
    if pad_id is None:
        pad_id = config.get("pad_token_id")
        pad_id = None if pad_id == -1 else pad_id  # early Llamas' word for none
    bos_id, pad_id = (eos_id if token_id is None else token_id for token_id in (bos_id, pad_id))
    return {**kwargs, "pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}


def token_ids(model, start="bos_token_id"):
    """A model's ids, as config.json has them; `bos_id` at the key `start`."""
    return {
        "pad_token_id": None if model.pad_id == model.eos_id else model.pad_id,
        start: model.bos_id,
        "eos_token_id": model.eos_id,
    }


def labels_of(config):
    """The number of classes, and their names, a list of str, or None where they are but numbered.

    Raises:
        ValueError: If `id2label` does not number them from 0 on.
    """
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        return 2 if count is None else count, None  # theirs leave out what is so by default
    names = {str(key): label for key, label in names.items()}
    if names.keys() != {str(i) for i in range(len(names))}:
        raise ValueError(f"`id2label` of config.json must number its labels from 0 on. Received: {names}.")
    labels = [names[str(i)] for i in range(len(names))]
    return len(labels), None if labels == numbered_labels(len(labels)) else labels


def numbered_labels(count):
    """The names that classes without one have there."""
    return [f"LABEL_{i}" for i in range(count)]
