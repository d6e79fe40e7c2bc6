"""Pre-norm layers with gated feed-forward networks and rotary positions, some of them with a window.

`layer_types` of config.json names their kinds.
"""

from keras_transformer.checks import check, check_positive
from keras_transformer.huggingface.families.rotary import keys_of_rope, positions_from, rope_of
from keras_transformer.layers import GatedFeedForward, MultiHeadAttention, RotaryPositions

SLIDING, FULL = "sliding_attention", "full_attention"  # transformers' kinds of layers


def kinds_from(config, default):
    """Returns the kind of each layer, a list of str.

    Args:
        config: The config.json, a dict.
        default: `default(config)` gives the kinds where config.json has no `layer_types`.

    Raises:
        ValueError: If `layer_types` has another kind, or not one kind for each layer.
    """
    num_layers = config["num_hidden_layers"]
    check_positive(num_hidden_layers=num_layers)
    kinds = config.get("layer_types") or default(config)
    rule = (
        f"`layer_types` of config.json must be {SLIDING!r} or {FULL!r} for each of its {num_layers} layers."
    )
    check(len(kinds) == num_layers and {*kinds} <= {SLIDING, FULL}, rule, layer_types=kinds)
    return kinds


def attentions_of(layers):
    """Returns the self-attention of each layer, a list; None for a layer without a `MultiHeadAttention`."""
    attentions = [getattr(layer, "self_attention", None) for layer in layers]
    return [each if isinstance(each, MultiHeadAttention) else None for each in attentions]


def windows_of(layers):
    """Returns the window of each layer, a list of int or None."""
    return [attention and attention.numbers()["sliding_window"] for attention in attentions_of(layers)]


def window_of(layers):
    """Returns the first window of some layers, an int; None where they have none."""
    return next((window for window in windows_of(layers) if window is not None), None)


def kinds_of(layers):
    """Returns the kind of each layer, a list of str; it undoes `kinds_from`."""
    return [FULL if window is None else SLIDING for window in windows_of(layers)]


def ropes_of(layers):
    """Returns the `RotaryPositions` of each layer, a list; None for a layer without."""
    positions = [attention and attention.positions for attention in attentions_of(layers)]
    return [each if isinstance(each, RotaryPositions) else None for each in positions]


def gated_layers(
    layer_class, windows, positions, attention, feed_forward, first_norm=True, dtype=None, **options
):
    """Makes pre-norm layers with gated feed-forward networks.

    Args:
        layer_class: `EncoderLayer` or `DecoderLayer`.
        windows: The window of each layer, a list of int or None.
        positions: The `RotaryPositions` of each layer, a list; None for a layer without.
        attention: The other arguments of each `MultiHeadAttention`, a dict.
        feed_forward: The arguments of each `GatedFeedForward`, a dict.
        first_norm: Whether attention has a norm in the first layer too.
        dtype: The dtype of all parts.
        **options: The other arguments of each layer.
    """
    return [
        layer_class(
            attention=MultiHeadAttention(
                **attention, sliding_window=window, positions=rope, dtype=dtype, name="self_attention"
            ),
            feed_forward=GatedFeedForward(**feed_forward, dtype=dtype, name="feed_forward"),
            normalize_first=True,
            dtype=dtype,
            name=f"layer_{i}",
            attention_norm=first_norm or i > 0,
            **options,
        )
        for i, (window, rope) in enumerate(zip(windows, positions, strict=True))
    ]


def windows_from(kinds, window):
    """Returns the window of each layer of these kinds, a list of int or None; `window` is that of `SLIDING`."""
    return [window if kind == SLIDING else None for kind in kinds]


def ropes_from(config, kinds, thetas=None):
    """Makes the `RotaryPositions` of each layer of these kinds, a list.

    Args:
        config: The config.json, a dict.
        kinds: The kind of each layer, a list of str.
        thetas: As `rope_of_kind` takes them; None for one wavelength.
    """
    return [rope_of_kind(config, kind, thetas) if thetas else positions_from(config) for kind in kinds]


def rope_of_kind(config, kind, theta_keys):
    """Makes the positions of a layer: each kind has a wavelength of its own, and `FULL` perhaps a scaling.

    Where config.json has both `rope_parameters` and `rope_scaling`, the keys of the latter replace those of the former,
    as in transformers.

    Args:
        config: The config.json, a dict.
        kind: `SLIDING` or `FULL`.
        theta_keys: For each kind its key of the wavelength in transformers 4, and the wavelength where there is none.
    """
    key, theta = theta_keys[kind]
    given = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") if kind == FULL else None
    rope = {"rope_theta": config.get(key, theta), **(given.get(kind) or {}), **(scaling or {})}
    return positions_from(config, rope)


def rope_keys(family, layers, max_length, theta_keys=None):
    """Returns the keys of config.json for the rotary positions of layers: those of transformers 5 and 4.

    They are those of the first layer that has some, or of the first one of each kind.

    Args:
        family: The `model_type`.
        layers: The layers, a list.
        max_length: `max_position_embeddings` where the scaling does not say it.
        theta_keys: As `rope_of_kind` takes them; None for one wavelength.
    """
    pairs = [pair for pair in zip(kinds_of(layers), ropes_of(layers), strict=True) if pair[1] is not None]
    if theta_keys is None:
        return keys_of_rope(family, pairs[0][1] if pairs else RotaryPositions(), max_length)
    ropes = {kind: {"rope_type": "default", "rope_theta": theta} for kind, (_, theta) in theta_keys.items()}
    ropes |= {kind: rope_of(family, rope) for kind, rope in reversed(pairs)}
    return {
        "max_position_embeddings": max_length,
        "rope_parameters": ropes,
        **{key: ropes[kind]["rope_theta"] for kind, (key, _) in theta_keys.items()},
    }
