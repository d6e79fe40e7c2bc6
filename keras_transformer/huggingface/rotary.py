"""Rotary positions in config.json, read and written."""

from keras_transformer.huggingface.configs import check_config
from keras_transformer.layers import LinearScaling, Llama3Scaling, RotaryPositions

# For each `rope_type` the class of the scaling, and its arguments by their keys in config.json.
SCALINGS = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            "original_max_position_embeddings": "original_max_length",
        },
    ),
}


def positions_from(config, rope=None):
    """Makes rotary positions from `rope_parameters`, or from `rope_scaling` and `rope_theta` of transformers 4.

    Args:
        config: The config.json, a dict.
        rope: The part of it that describes the positions; None to find it.
    """
    if rope is None:
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", *SCALINGS):
        raise ValueError(
            f"`rope_type` of config.json must be one of {['default', *SCALINGS]}. Received: rope_type={rope_type!r}."
        )
    check_config({**config, **rope}, partial_rotary_factor=1.0)
    scaling = None
    if rope_type != "default":
        # transformers has a default for this one key of Llama 3's scaling alone.
        rope = {"original_max_position_embeddings": config["max_position_embeddings"], **rope}
        scaling_class, arguments = SCALINGS[rope_type]
        missing = [key for key in arguments if key not in rope]
        if missing:
            raise ValueError(
                f"`{missing[0]}` must be in the {rope_type!r} rope of config.json. Received: {rope}."
            )
        scaling = scaling_class(**{argument: rope[key] for key, argument in arguments.items()})
    return RotaryPositions(rope.get("rope_theta", config.get("rope_theta", 10000.0)), scaling)


def rope_of(family, positions):
    """Describes rotary positions as transformers 5 does.

    Args:
        family: The `model_type`.
        positions: `RotaryPositions`.

    Returns:
        A dict with `rope_type`, `rope_theta` and the scaling's numbers.
    """
    theta, scaling = float(positions.max_wavelength), positions.scaling
    rope = {"rope_type": "default"}
    if scaling is not None:
        scalings = {scaling_class: (kind, arguments) for kind, (scaling_class, arguments) in SCALINGS.items()}
        if type(scaling) not in scalings:
            raise ValueError(
                f"`scaling` of a {family!r} model must be one of {[kind.__name__ for kind in scalings]}. "
                f"Received: scaling={scaling!r}."
            )
        rope_type, arguments = scalings[type(scaling)]
        rope = {
            "rope_type": rope_type,
            **{key: getattr(scaling, argument) for key, argument in arguments.items()},
        }
    return {**rope, "rope_theta": theta}


def rope_keys(family, positions, max_length):
    """Returns the keys of config.json for rotary positions: those of transformers 5, and those of transformers 4.

    Args:
        family: The `model_type`.
        positions: `RotaryPositions`.
        max_length: `max_position_embeddings` where the scaling says nothing of it.
    """
    rope, scaling = rope_of(family, positions), positions.scaling
    if scaling is not None:
        max_length = int(scaling.factor * rope.get("original_max_position_embeddings", max_length))
    return {
        "max_position_embeddings": max_length,
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if scaling is None else {k: v for k, v in rope.items() if k != "rope_theta"},
    }
