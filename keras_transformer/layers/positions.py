"""Positions: what tells the order of the tokens."""

import math

import keras
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.layers.parts import part


def positions_of(x, start_index=0):
    """Where the elements of `x`, `(batch, length, ...)`, stand: int32 `(length,)` from `start_index` on."""
    return ops.arange(ops.shape(x)[1], dtype="int32") + start_index


def positions_in_segments(segment_ids):
    """Where each token stands in its own text, int32 `(batch, length)`: how many of that text come before it.

    Args:
        segment_ids: int `(batch, length)`, the number of each token's text. Texts are contiguous: where the number
            changes, one begins, whether or not its number stood there before.
    """
    segment_ids = ops.convert_to_tensor(segment_ids)
    changes = ops.not_equal(segment_ids[:, 1:], segment_ids[:, :-1])
    begins = ops.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    slots = positions_of(segment_ids)
    # The first slots of a row's texts, in order: the n-th text's is the n-th. No `(length, length)` is made.
    first = ops.sort(ops.where(begins, slots, ops.shape(segment_ids)[1]), axis=1)
    return slots - ops.take_along_axis(first, ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1, axis=1)


def distances_between(positions, key_positions):
    """How far each key stands after each query, int32 `(batch or 1, 1, target_len, source_len)`.

    Args:
        positions: int32 `(target_len,)` or `(batch, target_len)`, where the queries stand.
        key_positions: int32 `(source_len,)` or `(batch, source_len)`, where the keys stand.
    """
    queries, keys = (
        x if len(x.shape) == 2 else x[None] for x in map(ops.convert_to_tensor, (positions, key_positions))
    )
    return (keys[:, None, :] - queries[:, :, None])[:, None]


class AttentionPositions(keras.layers.Layer):
    """What tells attention where its queries and keys stand, instead of their values: the base of all such schemes.

    `MultiHeadAttention(positions=...)` asks for both ways; a scheme has one of them.
    """

    def build(self, x_shape=None):
        self.built = True

    def check_heads(self, num_heads, key_dim):
        """Raises `ValueError` for heads that it cannot serve.

        Args:
            num_heads: Number of heads.
            key_dim: Size of a head's queries and keys.
        """

    def bias_of(self, num_heads):
        """`bias` as a function of distances alone, or None for a scheme that has none."""
        if type(self).bias is AttentionPositions.bias:
            return None
        return lambda distances: self.bias(distances, num_heads)

    def rotated(self, x, positions=None):
        """Queries or keys `(batch, num_heads, length, dim)`, turned to where they stand.

        Args:
            x: The queries or keys.
            positions: int `(length,)` or `(batch, length)`; from 0 on when None.
        """
        return x

    def bias(self, distances, num_heads):
        """What is added to the scores, float32 `(batch or 1, num_heads, target_len, source_len)`, or None.

        Args:
            distances: What `distances_between` gave.
            num_heads: Number of heads.
        """
        return None


def check_adds_positions(positions):
    """Raises `ValueError` for positions that belong to the attention, where a layer is wanted that adds them.

    Args:
        positions: What a model was handed as its `positions`: a layer, its description, or None.
    """
    positions = part(positions)
    if isinstance(positions, AttentionPositions):
        kind = type(positions).__name__
        raise ValueError(
            "`positions` of a model must add positions to its embeddings, as `LearnedPositions` do. "
            f"Received: positions={positions!r}, which belong to the attention: "
            f"`attention=MultiHeadAttention(..., positions={kind}(...))` of the encoder or decoder."
        )


def sinusoidal_positions(positions, d_model, max_wavelength=10000.0, interleaved=True):
    """`sin(p / w**(2i/d))` on channel `2i`, `cos(p / w**(2i/d))` on channel `2i + 1`, in float32.

    "Attention Is All You Need", section 3.5.

    Args:
        positions: int, of any shape.
        d_model: Number of channels; an odd one has one sine more than cosines.
        max_wavelength: `w`; wavelengths run from 2π to 2π times it.
        interleaved: False for the same channels in another order: all sines, then all cosines.

    Returns:
        float32 `(*positions.shape, d_model)`.
    """
    channels = range(d_model) if interleaved else [*range(0, d_model, 2), *range(1, d_model, 2)]
    channels = ops.convert_to_tensor(channels, "int32")
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
        interleaved: Whether sines and cosines alternate, as in the paper; False for all sines, then all cosines, as
            tensor2tensor and Marian have them: weights learned with one order are of no use with the other.

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

    def __init__(self, max_wavelength=10000.0, interleaved=True, **kwargs):
        super().__init__(**kwargs)
        if not max_wavelength > 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: max_wavelength={max_wavelength}.")
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.supports_masking = True

    def build(self, x_shape):
        self.built = True

    def call(self, x, start_index=0, positions=None):
        if positions is None:
            positions = positions_of(x, start_index)
        table = sinusoidal_positions(positions, x.shape[-1], self.max_wavelength, self.interleaved)
        return ops.cast(ops.cast(x, "float32") + table, self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "interleaved": self.interleaved,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositions(keras.layers.Layer):
    """Adds a learned vector for each position to `x` (Gehring et al., 2017, section 3.1; Devlin et al., 2019).

    Args:
        max_length: Number of positions.

    Call arguments: as `PositionalEncoding`.

    Returns:
        `(batch, length, d_model)`, `x` plus its positions. A position after the last takes the last one's vector: in
        a graph nothing can be refused. `generate` and `score` refuse what would go so far.

    Raises:
        ValueError: If `max_length` is not positive, or `x` is known to be longer.
    """

    def __init__(self, max_length, **kwargs):
        super().__init__(**kwargs)
        check_positive(max_length=max_length)
        self.max_length = max_length
        self.autocast = False  # the sum is rounded once
        self.supports_masking = True

    def build(self, x_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, x_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,  # the layer's own says nothing where no other layer calls it
        )
        self.built = True

    def call(self, x, start_index=0, positions=None):
        if positions is None and isinstance(x.shape[1], int) and x.shape[1] > self.max_length:
            raise ValueError(
                f"`x` must be at most max_length={self.max_length} long. Received: shape={tuple(x.shape)}."
            )
        if positions is None:
            positions = positions_of(x, start_index)
        vectors = ops.take(self.embeddings, ops.clip(positions, 0, self.max_length - 1), axis=0)
        return ops.cast(ops.cast(x, "float32") + ops.cast(vectors, "float32"), self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "max_length": self.max_length}
