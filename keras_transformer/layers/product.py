"""The product that all layers are made of."""

import math

from keras import ops

from keras_transformer.backend import in_xla


def product(x, kernel, dtype):
    """`x` times a kernel over all of `x`'s axes but the first two, as one rank-2 product.

    As a batch of products it trains at three quarters of the speed. A single row, as decoding one sentence has
    it, is a matter of reading the kernel: XLA does that with one thread where the product stands alone, and
    with all where it is a batch of two halves, whose sum it then takes (docs/decisions.md).

    Args:
        x: `(batch, length, ...)`.
        kernel: A matrix of any rank: `x`'s other axes, then the result's.
        dtype: What to compute in.

    Returns:
        `(batch, length, ...)`.
    """
    inner = kernel.shape[: len(x.shape) - 2]
    outer = tuple(kernel.shape[len(inner) :])
    k, n = math.prod(inner), math.prod(outer)
    batch, length = ops.shape(x)[:2]
    flat = ops.cast(ops.reshape(x, (-1, k)), dtype)
    matrix = ops.cast(ops.reshape(kernel, (k, n)), dtype)
    if in_xla() and flat.shape[0] == 1 and k % 2 == 0:
        halves = ops.matmul(ops.reshape(flat, (2, 1, k // 2)), ops.reshape(matrix, (2, k // 2, n)))
        flat = halves[0] + halves[1]
    else:
        flat = ops.matmul(flat, matrix)
    return ops.reshape(flat, (batch, length, *outer))
