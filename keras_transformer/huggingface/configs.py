"""What families say in the same words: values of config.json and the parts they stand for."""

from keras_transformer.checks import check_labels, check_positive
from keras_transformer.layers import FeedForward, LayerNormalization, MultiHeadAttention, Residual
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


def head_size(config, width, num_heads):
    """The size of a head of models whose width is that of all heads.

    Args:
        config: What config.json says.
        width: Key of the width.
        num_heads: Key of the number of heads.

    Raises:
        ValueError: If the number does not divide the width.
    """
    if config[width] % config[num_heads]:
        raise ValueError(
            f"`{width}` must be divisible by `{num_heads}`. "
            f"Received: {width}={config[width]}, {num_heads}={config[num_heads]}."
        )
    return config[width] // config[num_heads]


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


def layer_parts(family, stack, *, feed_forward=FeedForward, norm=LayerNormalization, normalize_first):
    """What the layers of an encoder or a decoder are made of: attention, feed-forward network and residual connection.

    Args:
        family: The `model_type`.
        stack: An `Encoder` or a `Decoder`.
        feed_forward: Class that the network must be of.
        norm: Class that the residual connection's norm must be of.
        normalize_first: Where it must be.

    Raises:
        ValueError: If a part is another.
    """
    layer = stack.layers[0]
    parts = layer.self_attention, layer.feed_forward, layer.self_attention_residual
    check_parts(
        family,
        attention=(parts[0], MultiHeadAttention),
        feed_forward=(parts[1], feed_forward),
        residual=(parts[2], Residual),
    )
    check_parts(
        family,
        norm=(parts[2].norm, norm),
        normalize_first=(parts[2].normalize_first, normalize_first),
    )
    return parts


def check_plain_attention(family, attention, d_model=None, *, unscaled=False):
    """Raises `ValueError` for attention that is not "Attention Is All You Need"'s, section 3.2.2.

    Args:
        family: The `model_type`.
        attention: A `MultiHeadAttention`.
        d_model: Width of the model, which all heads share, each with keys of its own, biases and no positions; None for
            a family that has keys for these.
        unscaled: Whether a scale of 1 may stand for the usual one.
    """
    plain = attention.key_dim**-0.5
    scale = plain if attention.scale is None else attention.scale
    check_parts(
        family,
        value_dim=(attention.value_dim, attention.key_dim),
        sliding_window=(attention.sliding_window, None),
        query_key_norm=(attention.query_norm, None),
        scale=(scale, 1.0 if unscaled and scale == 1.0 else plain),
    )
    if d_model is not None:
        check_parts(
            family,
            num_key_value_heads=(attention.num_key_value_heads, attention.num_heads),
            key_dim=(attention.key_dim * attention.num_heads, d_model),
            attention_positions=(attention.positions, None),
            attention_bias=(attention.use_bias, True),
        )


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
        ValueError: If `id2label` does not number them from 0 on, one is no str, or they do not exclude one another.
    """
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        count = 2 if count is None else count  # theirs leave out what is so by default
        _check_problem(config, count)
        return count, None
    names = {str(key): label for key, label in names.items()}
    if names.keys() != {str(i) for i in range(len(names))}:
        raise ValueError(f"`id2label` of config.json must number its labels from 0 on. Received: {names}.")
    labels = [names[str(i)] for i in range(len(names))]
    check_labels(len(labels), id2label=labels)
    _check_problem(config, len(labels))
    return len(labels), None if labels == numbered_labels(len(labels)) else labels


def _check_problem(config, count):
    """Raises `ValueError` where classes do not exclude one another: theirs have a loss for that, ours a softmax."""
    known = ("regression",) if count == 1 else ()
    if config.get("problem_type") not in (None, "single_label_classification", *known):
        raise ValueError(
            "`problem_type` of config.json must be 'single_label_classification', or 'regression' with one label. "
            f"Received: problem_type={config['problem_type']!r}, with {count} labels."
        )


def numbered_labels(count):
    """The names that classes without one have there."""
    return [f"LABEL_{i}" for i in range(count)]


def described_labels(count, labels=None):
    """What config.json says of classes; numbered where they have no names."""
    labels = labels or numbered_labels(count)
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
