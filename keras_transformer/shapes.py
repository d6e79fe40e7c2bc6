"""Shapes of which a graph does not know every size."""

from keras import ops


def reshaped(x, shape):
    """Reshapes a tensor as `ops.reshape` does, to a constant shape where one size alone is a tensor.

    That size becomes -1, so nothing checks it: it is whatever the others leave. TensorFlow computes a shape with a
    tensor in it again in each call, by several operations.

    Args:
        x: Tensor.
        shape: Tuple of ints and int scalar tensors, of as many elements as `x` has.

    Returns:
        Tensor of this shape.
    """
    unknown = [i for i, size in enumerate(shape) if not isinstance(size, int)]
    known = [size for size in shape if isinstance(size, int)]
    if len(unknown) == 1 and min(known, default=1) > 0:
        shape = (*shape[: unknown[0]], -1, *shape[unknown[0] + 1 :])
    return ops.reshape(x, shape)
