"""Reshaping where a graph does not know every size."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.execution.ops import reshape as reshaped

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_one_unknown_size_becomes_a_constant(rows):
    @tf.function(input_signature=[tf.TensorSpec((None, 2, 3))])
    def function(x):
        return reshaped(x, (ops.shape(x)[0], 1, 6))

    graph = function.get_concrete_function().graph
    (reshape,) = (node for node in graph.get_operations() if node.type == "Reshape")
    assert reshape.inputs[1].op.type == "Const"
    x = np.arange(rows * 6, dtype="float32").reshape((rows, 2, 3))
    assert function(x).numpy().tolist() == x.reshape((rows, 1, 6)).tolist()


@pytest.mark.parametrize("shape", [(None, None, 2), (None, 0, 2)])
def test_sizes_that_no_constant_can_express_are_computed(shape):
    """Beside another unknown size, or beside 0, a -1 would be ambiguous."""

    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def function(x):
        return reshaped(x, ops.shape(x))

    sizes = [3 if size is None else size for size in shape]
    x = np.arange(np.prod(sizes), dtype="float32").reshape(sizes)
    assert function(x).numpy().tolist() == x.tolist()
