"""Positions as a bias of the attention scores, by distance."""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.layers.positions import AttentionPositions


@keras.saving.register_keras_serializable("keras_transformer")
class ALiBi(AttentionPositions):
    """The farther a key, the lower its score: `-slope * distance`, with a slope for each head.

    Press et al., 2022, "Train Short, Test Long: Attention with Linear Biases", section 3. For `n` heads, a power of
    two, the slopes are `2**(-8/n)` and its powers; for another number those of the power below it, then every other
    one of the power above it. Distances count on both sides; a causal mask leaves the past.
    """

    def bias(self, distances, num_heads):
        slopes = ops.convert_to_tensor(_slopes(num_heads), "float32")[:, None, None]
        return -slopes * ops.cast(ops.abs(distances), "float32")


def _slopes(num_heads):
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return slopes + between


@keras.saving.register_keras_serializable("keras_transformer")
class RelativePositionBias(AttentionPositions):
    """A learned bias for each head and bucket of distances; layers may share one.

    Raffel et al., 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section
    2.1. Half the buckets are for single distances, the other half for ranges that grow up to `max_distance`.

    Args:
        num_heads: Number of heads.
        num_buckets: Number of buckets; even.
        max_distance: From here on, all distances share the last bucket.
        bidirectional: Whether a key's side counts, half of the buckets for each; else those after their query count as
            distance 0, for causal attention.

    Raises:
        ValueError: If a size is not positive, or leaves no bucket for a range.
    """

    def __init__(self, num_heads, num_buckets=32, max_distance=128, bidirectional=True, **kwargs):
        super().__init__(**kwargs)
        check_positive(num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        single = num_buckets // (4 if bidirectional else 2)
        if num_buckets % 2 or single < 1 or max_distance <= single:
            raise ValueError(
                f"`max_distance` must be greater than the {single} single distances, `num_buckets` even. "
                f"Received: max_distance={max_distance}, num_buckets={num_buckets}."
            )
        self.autocast = False  # biases are added in float32
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def build(self, x_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def check_heads(self, num_heads, key_dim):
        if num_heads != self.num_heads:
            raise ValueError(
                f"`positions` must have a bias for each head. Received: {self.num_heads} for num_heads={num_heads}."
            )

    def bias(self, distances, num_heads):
        self.check_heads(num_heads, None)
        by_head = ops.take(ops.cast(self.embeddings, "float32"), self.buckets(distances), axis=0)
        return ops.transpose(by_head[:, 0], (0, 3, 1, 2))

    def buckets(self, distances):
        """The bucket of each distance, int32 of the same shape."""
        side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        table = ops.convert_to_tensor(_buckets(side, self.max_distance), "int32")
        far = ops.abs(distances) if self.bidirectional else ops.maximum(-distances, 0)
        found = ops.take(table, ops.minimum(far, self.max_distance), axis=0)
        return found + side * ops.cast(distances > 0, "int32") if self.bidirectional else found

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
        }


def _buckets(count, max_distance):
    """The bucket of each distance from 0 to `max_distance`."""
    single = count // 2
    far = np.arange(single, max_distance + 1, dtype="float32")
    # In float32, as checkpoints were trained with: at the bounds a rounding decides.
    share = np.log(far / np.float32(single)) / np.float32(math.log(max_distance / single))
    ranges = single + (share * np.float32(count - single)).astype("int32")
    return [*range(single), *np.minimum(ranges, count - 1).tolist()]
