"""Position schemes that act inside attention: rotary positions, ALiBi, T5's relative biases."""

import dataclasses
import math

import keras
import numpy as np

from keras_transformer.checks import check, check_dense, check_positive, check_range
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.fields import Fields
from keras_transformer.layers.base import Configured, check_part


class AttentionPositions(Configured, keras.layers.Layer):
    """Base class of position schemes that act inside attention. Override `rotate` (rotary) or `bias` (ALiBi, T5).

    `MultiHeadAttention(positions=...)` takes one. Layers may share one.

    Attributes:
        over_grid: Whether it knows the order of several attended axes.
    """

    over_grid = False

    def build(self, x_shape=None):
        """Creates the weights; they depend on no shape."""

    def check_heads(self, num_heads, key_dim):
        """Raises `ValueError` for heads that the scheme cannot serve.

        Args:
            num_heads: Number of heads.
            key_dim: Size of a head's queries and keys.
        """

    def check_lengths(self, target_len, source_len):
        """Raises `ValueError` for a number of queries and keys that the scheme cannot serve; None is not known."""

    def rotate(self, x, positions=None):
        """Changes queries or keys by their positions.

        Args:
            x: `(batch, num_heads, length, dim)`.
            positions: int `(length,)` or `(batch, length)`; counted from 0 when None.

        Returns:
            Tensor of the shape of `x`.
        """
        return x

    def bias(self, distances, num_heads):
        """Computes what is added to the attention scores before the softmax.

        Args:
            distances: int32 `(batch or 1, 1, target_len, source_len)`, how far each key stands after each query.
            num_heads: Number of heads.

        Returns:
            float32 `(batch or 1, num_heads, target_len, source_len)`.
        """
        raise NotImplementedError

    def bias_function(self, num_heads):
        """Returns `bias` as a function of the distances alone, or None for a scheme without one."""
        if type(self).bias is AttentionPositions.bias:
            return None
        return lambda distances: self.bias(distances, num_heads)


def check_added(positions, owner):
    """Returns the `positions` that a layer of class `owner` was given to add to its output, or None.

    Raises:
        ValueError: If they are no layer, or act inside attention.
    """
    kind = type(positions).__name__
    check(
        not isinstance(positions, AttentionPositions),
        f"`positions` of `{owner}` must be a layer that adds positions to its output, such as `LearnedPositions`. "
        f"`{kind}` acts inside attention: pass it as `attention=MultiHeadAttention(..., positions={kind}(...))` to "
        "the layers of the encoder or decoder.",
        positions=positions,
    )
    return check_part(positions, "positions")


@keras.saving.register_keras_serializable("keras_transformer")
class ALiBi(AttentionPositions):
    """Lowers a score with the distance of its key: `-slope * distance`, with a slope for each head.

    Press et al., 2022, "Train Short, Test Long: Attention with Linear Biases", section 3. For `n` heads, a power of
    two, the slopes are `2**(-8/n)` and its powers. Another number takes those of the power below it, then every other
    one of the power above it. Distances count on both sides; a causal mask leaves the past.

    >>> ALiBi().bias(np.array([[[[0, 2]]]]), num_heads=8)[0, 0].numpy().tolist()
    [[-0.0, -1.0]]
    """

    def bias(self, distances, num_heads):
        dtype = at_least_float32(self.compute_dtype)
        slopes = ops.convert_to_tensor([[[slope]] for slope in _slopes(num_heads)], dtype)
        return -slopes * ops.cast(ops.abs(distances), dtype)


def _slopes(num_heads):
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]


@keras.saving.register_keras_serializable("keras_transformer")
class RelativePositionBias(AttentionPositions):
    """A learned bias for each head and bucket of distances; layers may share one.

    Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section
    2.1. Half the buckets are for single distances, the other half for ranges that grow up to `max_distance`.

    Args:
        num_heads: Number of heads.
        num_buckets: Number of buckets; even.
        max_distance: All distances from here on share the last bucket.
        bidirectional: Whether keys before and after their query have buckets of their own, half of the buckets each. If
            False, keys after their query count as distance 0: for causal attention.

    Raises:
        ValueError: If a size is not positive, or leaves no bucket for a range.

    >>> positions = RelativePositionBias(num_heads=2)
    >>> positions.build()
    >>> positions.bias(np.zeros((1, 1, 3, 4), "int32"), num_heads=2).shape
    TensorShape([1, 2, 3, 4])
    """

    def __init__(self, num_heads, num_buckets=32, max_distance=128, bidirectional=True, **kwargs):
        super().__init__(**kwargs)
        single = num_buckets // (4 if bidirectional else 2)
        check(
            num_buckets % 2 == 0 and 1 <= single < max_distance,
            f"`max_distance` must be greater than the {single} single distances, `num_buckets` even.",
            max_distance=max_distance,
            num_buckets=num_buckets,
        )
        # Biases are added in float32.
        self.autocast = False
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def build(self, x_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
        )

    def check_heads(self, num_heads, key_dim):
        rule = "`positions` must have a bias for each head."
        check(num_heads == self.num_heads, rule, num_heads=num_heads, biases=self.num_heads)

    def bias(self, distances, num_heads):
        self.check_heads(num_heads, None)
        dtype = at_least_float32(self.compute_dtype)
        by_head = ops.take(ops.cast(self.embeddings, dtype), self.buckets(distances), axis=0)
        return ops.transpose(by_head[:, 0], (0, 3, 1, 2))

    def buckets(self, distances):
        """Returns the bucket of each distance, int32 of the same shape."""
        side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        table = ops.convert_to_tensor(_buckets(side, self.max_distance), "int32")
        far = ops.abs(distances) if self.bidirectional else ops.maximum(-distances, 0)
        buckets = ops.take(table, ops.minimum(far, self.max_distance), axis=0)
        return buckets + side * ops.cast(distances > 0, "int32") if self.bidirectional else buckets


def _buckets(count, max_distance):
    """Returns the bucket of each distance from 0 to `max_distance`."""
    single = count // 2
    far = np.arange(single, max_distance + 1, dtype="float32")
    # In float32, as checkpoints were trained with: at the bounds a rounding decides.
    share = np.log(far / np.float32(single)) / np.float32(math.log(max_distance / single))
    ranges = single + (share * np.float32(count - single)).astype("int32")
    return [*range(single), *np.minimum(ranges, count - 1).tolist()]


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryPositions(AttentionPositions):
    """Rotates queries and keys by angles that grow with their positions, so that scores depend on distances alone.

    Su et al., 2021, "RoFormer", section 3.2. Channel `i` and channel `i + dim / 2` are rotated together, by
    `p / w**(2i/dim)` at position `p`. The paper pairs neighbours, which differs in the order of the channels alone.

    Args:
        max_wavelength: `w`; wavelengths run from 2π to 2π times it.
        scaling: `LinearScaling`, `Llama3Scaling` or `YarnScaling`, or None.

    Call arguments:
        x: `(batch, ..., length, dim)`, queries or keys; `dim` is even.
        positions: int `(length,)` or `(batch, length)`; counted from 0 when None.

    Returns:
        Tensor of the shape and dtype of `x`.

    Raises:
        ValueError: If `max_wavelength` is not positive, or `dim` is odd.

    >>> RotaryPositions()(np.ones((1, 2, 3, 4), "float32")).shape
    TensorShape([1, 2, 3, 4])
    """

    def __init__(self, max_wavelength=10000.0, scaling=None, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.scaling = check_part(scaling, "scaling", Scaling)
        self.supports_masking = True

    def check_heads(self, num_heads, key_dim):
        check(key_dim % 2 == 0, "`key_dim` must be even for `RotaryPositions`.", key_dim=key_dim)

    def call(self, x, positions=None):
        return self.rotate(x, positions)

    def rotate(self, x, positions=None):
        dim = x.shape[-1]
        check_dense(x=x)
        check(dim % 2 == 0, "`x` must have an even number of channels.", shape=tuple(x.shape))
        rates = [self.max_wavelength ** (-2 * i / dim) for i in range(dim // 2)]
        rates = rates if self.scaling is None else self.scaling.scaled(rates)
        if positions is None:
            positions = ops.arange(ops.shape(x)[-2], dtype="int32")
        positions = ops.convert_to_tensor(positions)
        if len(positions.shape) == 2 and len(x.shape) > 3:
            positions = ops.expand_dims(positions, tuple(range(1, len(x.shape) - 2)))
        dtype = at_least_float32(x.dtype)
        angles = ops.expand_dims(ops.cast(positions, dtype), -1) * ops.convert_to_tensor(rates, dtype)
        cos, sin = ops.cos(angles), ops.sin(angles)
        if self.scaling is not None and self.scaling.magnitude != 1.0:
            cos, sin = cos * self.scaling.magnitude, sin * self.scaling.magnitude
        first, second = ops.split(ops.cast(x, dtype), 2, axis=-1)
        rotated = ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return ops.cast(rotated, x.dtype)

    def compute_output_shape(self, x_shape):
        return x_shape


@dataclasses.dataclass(frozen=True)
class Scaling(Fields):
    """Base class of the changes that let rotary positions reach further than the texts of the training."""

    @property
    def magnitude(self):
        """The factor of the rotated queries and keys, a float."""
        return 1.0

    def scaled(self, rates):
        """Changes the rates, a list of float, in radians a position."""
        raise NotImplementedError


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class LinearScaling(Scaling):
    """Moves positions closer together: divides each rate by a factor.

    Chen et al., 2023, "Extending Context Window of Large Language Models via Positional Interpolation", equation 4.

    Args:
        factor: How many times as long the texts may be.

    Raises:
        ValueError: If `factor` is not positive.

    >>> LinearScaling(2.0).scaled([1.0, 0.5])
    [0.5, 0.25]
    """

    factor: float

    def __post_init__(self):
        check_range(0, above=True, factor=self.factor)

    def scaled(self, rates):
        return [rate / self.factor for rate in rates]


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Stretches long waves by a factor, leaves short ones, and stretches those between by a share of it.

    The scaling of Llama 3.1's published code; the idea is from Peng et al., 2023, "YaRN", section 3.2. A wave is long
    if it fits less than `low_frequency_factor` times into `original_max_length`, and short if it fits more than
    `high_frequency_factor` times.

    Args:
        factor: How many times as long the texts may be.
        low_frequency_factor: Bound of the long waves.
        high_frequency_factor: Bound of the short waves.
        original_max_length: Longest text of the training, in tokens.

    Raises:
        ValueError: If a number is not positive, or the bounds are in the wrong order.

    >>> Llama3Scaling().scaled([1.0])
    [1.0]
    """

    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_length: int = 8192

    def __post_init__(self):
        check_range(0, above=True, factor=self.factor, low_frequency_factor=self.low_frequency_factor)
        check_positive(original_max_length=self.original_max_length)
        check(
            self.high_frequency_factor > self.low_frequency_factor,
            "`high_frequency_factor` must be greater than `low_frequency_factor`.",
            high_frequency_factor=self.high_frequency_factor,
            low_frequency_factor=self.low_frequency_factor,
        )

    def scaled(self, rates):
        low, high = self.low_frequency_factor, self.high_frequency_factor

        def scaled(rate):
            waves = self.original_max_length * rate / (2 * math.pi)
            kept = min(max((waves - low) / (high - low), 0.0), 1.0)
            return kept * rate + (1 - kept) * rate / self.factor

        return [scaled(rate) for rate in rates]


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class YarnScaling(Scaling):
    """Stretches long waves by a factor, leaves short ones, and makes scores larger.

    Peng et al., 2024, "YaRN: Efficient Context Window Extension of Large Language Models", section 3, with the bounds
    of the published code: between a wave that fits `fast` times into `original_max_length` and one that fits `slow`
    times, the share of the stretched rate grows evenly from channel to channel.

    Args:
        factor: How many times as long the texts may be.
        original_max_length: Longest text of the training, in tokens.
        fast: Bound of the short waves.
        slow: Bound of the long waves.
        attention_factor: Factor of the rotated queries and keys; `0.1 ln(factor) + 1` when None, and 1 where `factor`
            is at most 1.
        truncate: Whether the bounds are moved outwards to whole channels.

    Raises:
        ValueError: If a number is not positive, or `fast` is not above `slow`.

    >>> YarnScaling(4.0, 32768).scaled([1.0, 0.001])
    [1.0, 0.000625]
    """

    factor: float = 4.0
    original_max_length: int = 4096
    fast: float = 32.0
    slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self):
        check_range(0, above=True, factor=self.factor, fast=self.fast, slow=self.slow)
        check(self.fast > self.slow, "`fast` must be above `slow`.", fast=self.fast, slow=self.slow)
        check_positive(original_max_length=self.original_max_length)
        if self.attention_factor is not None:
            check_range(0, above=True, attention_factor=self.attention_factor)

    @property
    def magnitude(self):
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1 else 0.1 * math.log(self.factor) + 1.0

    def scaled(self, rates):
        if len(rates) == 1:  # the shortest wave
            return list(rates)

        def channel(waves):
            return math.log(self.original_max_length / (waves * 2 * math.pi)) / -math.log(rates[1])

        low, high = channel(self.fast), channel(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(rates) - 1)
        width = high - low or 0.001

        def scaled(i, rate):
            stretched = min(max((i - low) / width, 0.0), 1.0)
            return stretched * rate / self.factor + (1 - stretched) * rate

        return [scaled(i, rate) for i, rate in enumerate(rates)]
