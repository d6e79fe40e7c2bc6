"""Rotary positions in config.json, read and written."""

import math

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.known_keys import check_keys
from keras_transformer.layers import LinearScaling, Llama3Scaling, RotaryPositions, YarnScaling

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
    "yarn": (
        YarnScaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "original_max_length",
            "beta_fast": "fast",
            "beta_slow": "slow",
            "attention_factor": "attention_factor",
            "truncate": "truncate",
        },
    ),
}
YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "truncate": True}
KNOWN = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mscale", "mscale_all_dim")


def positions_from(config, rope=None):
    """Makes rotary positions from `rope_parameters`, or from `rope_scaling` and `rope_theta` of transformers 4.

    Args:
        config: The config.json, a dict.
        rope: The part of it that describes the positions; None to find it.
    """
    nested = rope is not None
    if rope is None:
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    rule = f"`rope_type` of config.json must be one of {['default', *SCALINGS]}."
    check(rope_type in ("default", *SCALINGS), rule, rope_type=rope_type)
    check_config({**config, **rope}, partial_rotary_factor=1.0, rope_interleaved=False)
    known = [key for _, arguments in SCALINGS.values() for key in arguments]
    check_keys(rope, (*KNOWN, *known), "the rope of config.json")
    scaling = None
    if rope_type != "default":
        # transformers has a default for these keys alone, and prefers the first one where it stands outside.
        rope = {"original_max_position_embeddings": config["max_position_embeddings"], **rope}
        outside = config.get("original_max_position_embeddings")
        if outside is not None and not nested:
            rope["original_max_position_embeddings"] = outside
        if rope_type == "yarn":
            rope = _with_yarn_defaults(rope, config["max_position_embeddings"])
        scaling_class, arguments = SCALINGS[rope_type]
        missing = [key for key in arguments if key not in rope]
        if missing:
            raise ValueError(
                f"`{missing[0]}` must be in the {rope_type!r} rope of config.json. Received: {rope!r:.200}."
            )
        scaling = scaling_class(**{argument: rope[key] for key, argument in arguments.items()})
    return RotaryPositions(rope.get("rope_theta", config.get("rope_theta", 10000.0)), scaling)


def _with_yarn_defaults(rope, max_length):
    """Returns the description of a YaRN with the values that transformers gives to missing keys."""
    rope = {**YARN_DEFAULTS, **{key: value for key, value in rope.items() if value is not None}}
    rope.setdefault("factor", max_length / rope["original_max_position_embeddings"])
    scales = [rope.get(key) for key in ("mscale", "mscale_all_dim")]
    if rope["attention_factor"] is None and all(scales):
        first, second = (
            1.0 if rope["factor"] <= 1 else 0.1 * m * math.log(rope["factor"]) + 1.0 for m in scales
        )
        rope["attention_factor"] = first / second
    return rope


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
        rule = f"`scaling` of a {family!r} model must be one of {[kind.__name__ for kind in scalings]}."
        check(type(scaling) in scalings, rule, scaling=scaling)
        rope_type, arguments = scalings[type(scaling)]
        values = {key: getattr(scaling, argument) for key, argument in arguments.items()}
        usual = YARN_DEFAULTS if rope_type == "yarn" else {}
        rope = {
            "rope_type": rope_type,
            **{key: value for key, value in values.items() if key not in usual or value != usual[key]},
        }
    return {**rope, "rope_theta": theta}


def keys_of_rope(family, positions, max_length):
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
