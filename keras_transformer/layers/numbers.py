"""The values that decide what a layer computes, by their paths."""

import re
from typing import NamedTuple

import keras

from keras_transformer.layers.base import Configured

# Options that change no output of a trained model. On inputs of rank 3 attention is always over the second axis.
WITHOUT_NUMBERS = re.compile(
    "name|dtype|trainable|seed|labels|attention_axes|flash_attention|num_separators|starts_with_cls|lora_.*"
    "|stochastic_depth|.*(dropout|initializer|regularizer|constraint)"
)


class SameAs(NamedTuple):
    """The value at the path of a layer that was met before, at another path."""

    path: str

    def __repr__(self):
        return f"the layer at `{self.path}`"


def numbers(part):
    """Returns the values that decide what a layer, a model or another object computes.

    Two parts of equal numbers give the same outputs for the same inputs and weights, but for dropout.

    Args:
        part: A layer, an object with a configuration, a value, or a list or dict of them. Its layers are built: only
            then are all sizes known, and a layer with weights that is used in several places is told from several.

    Returns:
        A dict from a path, such as "layers.0.self_attention.scale", to a value. The path of a layer or of an object
        has its class, or a `SameAs` where the same layer was met before.

    >>> from keras_transformer.layers import RotaryPositions
    >>> numbers({"positions": RotaryPositions(500.0)})["positions.max_wavelength"]
    500.0
    """
    return dict(_pairs(part, "", {}))


def first_difference(received, expected):
    """Compares two results of `numbers`.

    Returns:
        The first path at which they differ, and both values there; None where they are equal.
    """
    paths = (path for path in {**expected, **received} if received.get(path) != expected.get(path))
    path = next(paths, None)
    return path and (path, received.get(path), expected.get(path))


def _pairs(part, path, seen):
    """Yields a path and a value for each option of a part. `seen` has the layers that were met, and their paths."""
    if isinstance(part, keras.layers.Layer) and part.weights:
        if id(part) in seen:
            yield path, SameAs(seen[id(part)])
            return
        seen[id(part)] = path
    if isinstance(part, (list, tuple)):
        part = dict(enumerate(part))
    elif hasattr(part, "get_config"):
        yield path, type(part)
        part = part.numbers() if isinstance(part, Configured) else part.get_config()
    if not isinstance(part, dict):
        yield path, part
        return
    for name, value in part.items():
        if not WITHOUT_NUMBERS.fullmatch(str(name)):
            # A built norm has a list of axes.
            value = [value] if name == "axis" and isinstance(value, int) else value
            yield from _pairs(value, f"{path}.{name}" if path else str(name), seen)
