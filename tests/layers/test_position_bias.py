"""Biases of attention by distance, beside tables worked by hand."""

import math

import numpy as np
import pytest
from contracts import as_numpy, normal, refuses
from keras import ops

from keras_transformer.layers import ALiBi, RelativePositionBias
from keras_transformer.layers.dot_product import distances_between


def test_alibi_of_four_heads_by_hand():
    """Slopes 1/4, 1/16, 1/64, 1/256; a query at 2 and keys at 0 to 3."""
    distances = distances_between(np.array([2], "int32"), np.arange(4, dtype="int32"))
    expected = -np.outer([1 / 4, 1 / 16, 1 / 64, 1 / 256], [2, 1, 0, 1])
    np.testing.assert_allclose(as_numpy(ALiBi().bias(distances, 4))[0, :, 0], expected)


def test_alibi_of_six_heads_takes_four_slopes_and_every_other_of_eight():
    distances = distances_between(np.array([1], "int32"), np.array([0], "int32"))
    slopes = -as_numpy(ALiBi().bias(distances, 6))[0, :, 0, 0]
    np.testing.assert_allclose(slopes, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


@pytest.mark.parametrize(
    ("bidirectional", "expected"),
    [
        # 16 buckets a side: 8 single distances, then 8 + floor(8 log(d / 8) / log(16)), at most 15.
        (
            True,
            {
                0: 0,
                -1: 1,
                -7: 7,
                -8: 8,
                -11: 8,
                -12: 9,
                -16: 10,
                -90: 14,
                -91: 15,
                -500: 15,
                1: 17,
                8: 24,
                128: 31,
            },
        ),
        # 32 buckets: 16 single distances, then 16 + floor(16 log(d / 16) / log(8)), at most 31; what follows is at 0.
        (False, {5: 0, 0: 0, -15: 15, -16: 16, -32: 21, -64: 26, -112: 30, -113: 31, -128: 31, -999: 31}),
    ],
)
def test_buckets_by_hand(bidirectional, expected):
    layer = RelativePositionBias(3, 32, 128, bidirectional=bidirectional)
    found = as_numpy(layer.buckets(np.array(list(expected), "int32")))
    assert dict(zip(expected, found.tolist(), strict=True)) == expected


def test_each_head_has_the_bias_of_its_bucket():
    layer = RelativePositionBias(3, 8, 20)
    layer.build()
    table = normal(8, 3)
    layer.set_weights([table])
    queries, keys = np.array([[4, 5], [0, 9]], "int32"), np.arange(7, dtype="int32")
    found = as_numpy(layer.bias(distances_between(queries, keys), 3))
    assert found.shape == (2, 3, 2, 7)
    for row, head, i, j in np.ndindex(found.shape):
        distance = int(keys[j] - queries[row, i])
        far, side = abs(distance), 4 * (distance > 0)
        bucket = far if far < 2 else min(3, 2 + math.floor(2 * math.log(far / 2) / math.log(10)))
        np.testing.assert_allclose(found[row, head, i, j], table[side + bucket, head], rtol=1e-6)


@pytest.mark.tensorflow  # JAX computes in float32 unless it is told otherwise at its start
def test_a_float64_policy_gives_float64_biases():
    distances = np.array([[[[0, 1, 7]]]])
    alibi = ops.convert_to_numpy(ALiBi(dtype="float64").bias(distances, num_heads=6))
    np.testing.assert_allclose(alibi[0, 1, 0], [0, -(2.0**-4), -7 * 2.0**-4], rtol=1e-15)
    layer = RelativePositionBias(3, 8, 20, dtype="float64")
    layer.build()
    assert ops.convert_to_numpy(layer.bias(distances, 3)).dtype == "float64"


def test_a_bias_for_other_heads_is_refused():
    layer = RelativePositionBias(2)
    layer.build()
    refuses("Received: num_heads=3, biases=2", layer.bias, np.zeros((1, 1, 2, 2), "int32"), 3)
