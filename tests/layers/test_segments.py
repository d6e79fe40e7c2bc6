import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized
from keras import ops

from keras_transformer.layers import LearnedPositions, SegmentEmbedding

X = normal(2, 3, 5)


def built(**arguments):
    layer = SegmentEmbedding(2, **arguments)
    layer.build((None, None, 5))
    return randomized(layer)


def test_each_token_gets_the_vector_of_its_segment():
    layer, segments = built(), np.array([[0, 0, 1], [1, 0, 0]], "int32")
    assert_close(layer(X, segments), X + as_numpy(layer.embeddings)[segments])


def test_segments_are_the_first_by_default():
    layer = built()
    assert_close(layer(X), layer(X, np.zeros((2, 3), "int32")), 0)
    assert_close(layer(X), X + as_numpy(layer.embeddings)[0])


def test_a_segment_after_the_last_takes_the_last_ones_vector():
    layer = built()
    assert_close(layer(X, np.full((2, 3), 7, "int32")), layer(X, np.ones((2, 3), "int32")), 0)
    assert_close(layer(X, np.full((2, 3), -1, "int32")), layer(X, np.zeros((2, 3), "int32")), 0)


@pytest.mark.parametrize("layer", [SegmentEmbedding, LearnedPositions])
def test_the_sum_is_rounded_once(layer):
    layer, x = layer(64, dtype="mixed_bfloat16"), ops.cast(normal(1, 64, 5), "bfloat16")
    layer.build((None, None, 5))
    randomized(layer)
    ids = {"segment_ids": np.arange(64)[None]} if isinstance(layer, SegmentEmbedding) else {}
    found = layer(x, **ids)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    exact = as_numpy(x) + as_numpy(layer.embeddings)
    np.testing.assert_allclose(as_numpy(found), exact, rtol=2**-8, atol=1e-6)
