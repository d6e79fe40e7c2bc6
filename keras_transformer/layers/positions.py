"""Positions: what tells the order of the tokens."""

import math

import keras
from keras import ops


def sinusoidal_positions(positions, d_model, max_wavelength=10000.0):
    """`sin(p / w**(2i/d))` on channel `2i`, `cos(p / w**(2i/d))` on channel `2i + 1`, in float32.

    "Attention Is All You Need", section 3.5.

    Args:
        positions: int, of any shape.
        d_model: Number of channels; an odd one has one sine more than cosines.
        max_wavelength: `w`; wavelengths run from 2π to 2π times it.

    Returns:
        float32 `(*positions.shape, d_model)`.
    """
    channels = ops.arange(d_model, dtype="int32")
    even = ops.cast(channels - channels % 2, "float32")
    rates = ops.exp(even * (-math.log(max_wavelength) / d_model))
    angles = ops.cast(positions, "float32")[..., None] * rates
    return ops.where(channels % 2 == 0, ops.sin(angles), ops.cos(angles))


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEncoding(keras.layers.Layer):
    """Adds sinusoidal positions to `x` ("Attention Is All You Need", section 3.5).

    Computed for the positions at hand, in float32 under any policy: there is no table and no longest length.

    Args:
        max_wavelength: The longest wavelength divided by 2π.

    Call arguments:
        x: `(batch, length, d_model)`.
        start_index: Position of the first element, an int or an int scalar tensor.
        positions: int `(length,)` or `(batch, length)`, the position of each element; counted from `start_index`
            when None.

    Returns:
        `(batch, length, d_model)`, `x` plus its positions.

    >>> PositionalEncoding()(ops.zeros((1, 2, 4))).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, max_wavelength=10000.0, **kwargs):
        super().__init__(**kwargs)
        if not max_wavelength > 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: max_wavelength={max_wavelength}.")
        self.max_wavelength = max_wavelength
        self.supports_masking = True

    def build(self, x_shape):
        self.built = True

    def call(self, x, start_index=0, positions=None):
        if positions is None:
            positions = ops.arange(ops.shape(x)[1], dtype="int32") + start_index
        table = sinusoidal_positions(positions, x.shape[-1], self.max_wavelength)
        return ops.cast(ops.cast(x, "float32") + table, self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
