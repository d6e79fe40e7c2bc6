"""Positions in rows that hold several texts."""

import numpy as np
import pytest
from contracts import as_numpy, compilations
from keras import ops

from keras_transformer.execution import native
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models.language_model import positions_in_segments


def test_positions_begin_again_with_each_text():
    found = as_numpy(positions_in_segments(np.array([[1, 1, 1, 2, 3, 3, 0, 0], [7] * 8], "int32")))
    assert found.tolist() == [[0, 1, 2, 0, 0, 1, 0, 1], list(range(8))]


def test_positions_in_many_contiguous_texts():
    rng = np.random.default_rng(0)
    begins = rng.random((5, 97)) < 0.2
    begins[:, 0] = True
    segment_ids = np.cumsum(begins, axis=1).astype("int32")
    expected = [[int((row[:i] == row[i]).sum()) for i in range(97)] for row in segment_ids]
    assert as_numpy(positions_in_segments(segment_ids)).tolist() == expected
    for jit_compile in compilations():
        function = native.compiled(positions_in_segments, PositionalEncoding(), jit_compile)
        assert as_numpy(function(ops.convert_to_tensor(segment_ids))).tolist() == expected


@pytest.mark.tensorflow
def test_positions_in_segments_need_no_square():
    import tensorflow as tf

    function = tf.function(positions_in_segments, input_signature=[tf.TensorSpec((2, 8192), tf.int32)])
    graph = function.get_concrete_function().graph
    sizes = [t.shape.num_elements() or 0 for op in graph.get_operations() for t in op.outputs]
    assert max(sizes) == 2 * 8192
    several = tf.function(positions_in_segments, input_signature=[tf.TensorSpec((None, None), tf.int32)])
    assert several(tf.constant([[4, 4, 1, 1, 1]])).numpy().tolist() == [[0, 1, 0, 1, 2]]
