"""Rotary positions, and how they are stretched over longer texts."""

import dataclasses
import math

import keras
from keras import ops

from keras_transformer.checks import check_positive, check_range
from keras_transformer.layers.parts import described, part
from keras_transformer.layers.positions import AttentionPositions


@dataclasses.dataclass(frozen=True)
class Scaling:
    """How rates, in radians a position, are changed for texts longer than those of the training: the base of all."""

    def scaled(self, rates):
        """The rates, a list of float, as this scheme changes them."""
        raise NotImplementedError

    def get_config(self):
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class LinearScaling(Scaling):
    """Positions closer together: each rate divided by a factor.

    Chen et al., 2023, "Extending Context Window of Large Language Models via Positional Interpolation", equation 4.

    Args:
        factor: How many times as long the texts may be.
    """

    factor: float

    def __post_init__(self):
        check_range(0, above=True, factor=self.factor)

    def scaled(self, rates):
        return [rate / self.factor for rate in rates]


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Long waves stretched by a factor, short ones left alone, those between stretched by a share of it.

    That of Llama 3.1's published code; Peng et al., 2023, "YaRN", section 3.2, has the idea. A wave that fits less than
    `low_frequency_factor` times into `original_max_length` is long, one that fits more than `high_frequency_factor`
    times is short.

    Args:
        factor: How many times as long the texts may be.
        low_frequency_factor: Bound of the long waves.
        high_frequency_factor: Bound of the short ones.
        original_max_length: Longest text of the training, in tokens.
    """

    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_length: int = 8192

    def __post_init__(self):
        check_range(0, above=True, factor=self.factor, low_frequency_factor=self.low_frequency_factor)
        check_positive(original_max_length=self.original_max_length)
        if not self.high_frequency_factor > self.low_frequency_factor:
            raise ValueError(
                "`high_frequency_factor` must be greater than `low_frequency_factor`. Received: "
                f"high_frequency_factor={self.high_frequency_factor}, "
                f"low_frequency_factor={self.low_frequency_factor}."
            )

    def scaled(self, rates):
        low, high = self.low_frequency_factor, self.high_frequency_factor

        def scaled(rate):
            waves = self.original_max_length * rate / (2 * math.pi)
            kept = min(max((waves - low) / (high - low), 0.0), 1.0)
            return kept * rate + (1 - kept) * rate / self.factor

        return [scaled(rate) for rate in rates]


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryPositions(AttentionPositions):
    """Turns queries and keys by angles that grow with their positions: scores then know distances alone.

    Su et al., 2021, "RoFormer", section 3.2. Channel `i` and channel `i + dim / 2` are turned together, by
    `p / w**(2i/dim)` at position `p`; the paper pairs neighbours, which is the same but for the order of channels.

    Args:
        max_wavelength: `w`; wavelengths run from 2π to 2π times it.
        scaling: `LinearScaling` or `Llama3Scaling`, or None.

    Call arguments:
        x: `(..., length, dim)`, queries or keys; `dim` is even.
        positions: int `(length,)`, or `(batch, length)` for `x` of rank 4; from 0 on when None.

    Returns:
        As `x`.

    Raises:
        ValueError: If `max_wavelength` is not positive, or `dim` is odd.
    """

    def __init__(self, max_wavelength=10000.0, scaling=None, **kwargs):
        super().__init__(**kwargs)
        check_range(0, above=True, max_wavelength=max_wavelength)
        self.max_wavelength = max_wavelength
        self.scaling = part(scaling)
        self.supports_masking = True

    def check_heads(self, num_heads, key_dim):
        if key_dim % 2:
            raise ValueError(f"`key_dim` must be even for `RotaryPositions`. Received: key_dim={key_dim}.")

    def call(self, x, positions=None):
        return self.rotated(x, positions)

    def rotated(self, x, positions=None):
        dim = x.shape[-1]
        if dim % 2:
            raise ValueError(f"`x` must have an even number of channels. Received: shape={tuple(x.shape)}.")
        rates = [self.max_wavelength ** (-2 * i / dim) for i in range(dim // 2)]
        rates = rates if self.scaling is None else self.scaling.scaled(rates)
        if positions is None:
            positions = ops.arange(ops.shape(x)[-2], dtype="int32")
        positions = ops.convert_to_tensor(positions)
        if len(positions.shape) == 2:
            positions = positions[:, None]
        angles = ops.cast(positions, "float32")[..., None] * ops.convert_to_tensor(rates, "float32")
        cos, sin = ops.cos(angles), ops.sin(angles)
        first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
        turned = ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return ops.cast(turned, x.dtype)

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "scaling": described(self.scaling),
        }
