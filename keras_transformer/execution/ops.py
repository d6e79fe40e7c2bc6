"""`keras.ops`, with faster versions of a few functions that have the same names and the same meaning.

Any other name is that of `keras.ops`. `split` takes sizes, where Keras takes indices. `matmul` takes `transpose_y` as
well; `minimum` and `maximum` of a tensor of ints and an int are ints; `mean`, `sin`, `cos` and `tanh` of float64 are
float64 on JAX too. Additions are `of_shape`, `masked_softmax`, `zero_unless`, `update_rows`, `custom_gradient`,
`written_gradient`, `take_by_row` and `at_least_float32`.
"""

import keras
from keras import ops
from keras.ops import *  # noqa: F403 (this module stands in for it; `min`, `all` and such are Keras's below)

from keras_transformer.execution import native

# Largest number of rows for which TensorFlow's usual product and softmax take longer to start than to compute.
FEW_ROWS = 4

# The score of a masked key: far below any other, yet finite, so a row with no allowed key stays free of NaN.
HIDDEN = -1e30

# The bound of other scores: finite, because `tf.debugging.enable_check_numerics` would report infinity.
HIGHEST = 3e38

# Size of a kernel from which on a single row is multiplied in halves outside XLA.
SPLIT_ROW_FROM = 2**21


def at_least_float32(dtype):
    """Returns the dtype that softmax, norms, positions and losses compute in: "float64" for float64, else "float32".

    `keras.backend.result_type` makes float32 of float64 on JAX and PyTorch.
    """
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


copy = native.copy
split = native.split
mean, sin, cos, tanh = native.mean, native.sin, native.cos, native.tanh


def minimum(x, y):
    """The smaller of two values, element by element. An int takes the dtype of the tensor.

    Keras on JAX would return floats for an int32 tensor and an int after `keras.config.set_floatx("bfloat16")`.
    """
    return ops.minimum(*_of_one_dtype(x, y))


def maximum(x, y):
    """The larger of two values, element by element. An int takes the dtype of the tensor, as in `minimum`."""
    return ops.maximum(*_of_one_dtype(x, y))


def _of_one_dtype(x, y):
    """Makes a tensor of an int that stands beside a tensor of ints."""
    if isinstance(y, int) and "int" in str(getattr(x, "dtype", "")):
        y = ops.cast(y, x.dtype)
    return x, y


def shape(x):
    """Returns the sizes of a tensor, a tuple of ints and int scalar tensors: those that `of_shape` gave it."""
    given = given_shape(x)
    if given is None:
        return ops.shape(x)
    sizes = [size if known is None else known for size, known in zip(given, x.shape, strict=True)]
    return tuple(ops.shape(x)[i] if size is None else size for i, size in enumerate(sizes))


def given_shape(x):
    """Returns the sizes that `of_shape` gave a tensor, or None."""
    return getattr(x, "given_shape", None)


def of_shape(x, shape):
    """Tells a tensor of a graph its sizes, and returns it.

    The graph computes a size of its own from each tensor. Where many tensors have the same size, as the caches of all
    layers of a step, what depends on it is computed once.

    Args:
        x: Tensor.
        shape: Its sizes, a tuple of ints, int scalar tensors, and None where the graph computes one; or None, where it
            computes all.
    """
    if shape is not None and isinstance(x, native.Traced) and native.is_of_open_graph(x):
        x.given_shape = shape
    return x


def reshape(x, shape):
    """Reshapes a tensor, to a constant shape where one size alone is a tensor.

    That size becomes -1, so nothing checks it: it is whatever the others leave. TensorFlow computes a shape with a
    tensor in it again in each call, by several operations.

    Args:
        x: Tensor.
        shape: Tuple of ints and int scalar tensors, of as many elements as `x` has.

    Returns:
        Tensor of this shape.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    unknown = [i for i, size in enumerate(shape) if not isinstance(size, int)]
    not_positive = [size for size in shape if isinstance(size, int) and size < 1]
    if len(unknown) == 1 and not not_positive:
        shape = (*shape[: unknown[0]], -1, *shape[unknown[0] + 1 :])
    return x if _has_shape(x, shape) else ops.reshape(x, shape)


def _has_shape(x, shape):
    """Returns whether a tensor has a shape already, as far as a graph knows: -1 fits one size."""
    if not ops.is_tensor(x) or isinstance(x, keras.Variable) or getattr(x.shape, "rank", 0) is None:
        return False
    if [size for size in shape if not isinstance(size, int)] or shape.count(-1) > 1:
        return False
    sizes = tuple(x.shape)
    return len(sizes) == len(shape) and not [
        size for size, own in zip(shape, sizes, strict=True) if size not in (-1, own)
    ]


def take_by_row(nest, indices):
    """Takes `x[row, indices[row]]` for each row, from each tensor of a nest.

    Args:
        nest: Tensors `(batch, n, ...)`, all with the same `n`.
        indices: int32 `(batch, m)`, each at least 0 and below `n`.

    Returns:
        The nest with tensors `(batch, m, ...)`.
    """
    n = ops.shape(keras.tree.flatten(nest)[0])[1]
    batch_size, m = ops.shape(indices)
    flat = reshape(indices + ops.arange(batch_size, dtype="int32")[:, None] * n, (-1,))

    def taken(x):
        rest = ops.shape(x)[2:]
        rows = ops.take(reshape(x, (-1, *rest)), flat, axis=0)
        return reshape(rows, (batch_size, m, *rest))

    return keras.tree.map_structure(taken, nest)


def transpose(x, axes):
    """Transposes a tensor. Where only axes of size 1 change places, nothing moves."""
    if list(axes) == sorted(axes):
        return x
    moving = [axis for axis in axes if x.shape[axis] != 1]
    if moving == sorted(moving):
        if [x.shape[axis] for axis in moving].count(None) < 2:
            shape = ops.shape(x)
            return reshape(x, tuple(shape[axis] for axis in axes))
        # A reshape would need a computed shape, and tf2onnx joins such a reshape wrongly to one before it.
        ones = [axis for axis in range(len(axes)) if axis not in moving]
        return ops.expand_dims(ops.squeeze(x, ones), [axes.index(axis) for axis in ones])
    return native.transpose(x, axes) if native.without_gradient() else ops.transpose(x, axes)


def matmul(x, y, transpose_y=False):
    """Multiplies matrices, fast for a few rows too.

    A single row by a kernel, as in decoding one sentence, takes as long as reading the kernel. A product reads it in
    one thread. A batch of two halves, which are then added, is read in several: under XLA, and else from a few
    megabytes on (benchmarks/tried.md).

    Args:
        x: `(..., rows, n)`.
        y: `(..., n, m)`; with `transpose_y` `(..., m, n)`.
        transpose_y: Whether to exchange the last two axes of `y` first.

    Returns:
        `(..., rows, m)`.
    """
    rank = len(y.shape)
    if _is_traced() and isinstance(x.shape[-2], int) and x.shape[-2] <= FEW_ROWS:
        if rank > 2:
            return native.product_of_few_rows(x, y, transpose_y)
        if tuple(x.shape[:-1]) == (1,) and not transpose_y and _is_split(*y.shape):
            n, m = y.shape
            halves = ops.reshape(x, (2, 1, n // 2)), ops.reshape(y, (2, n // 2, m))
            first, second = ops.unstack(native.product_of_few_rows(*halves))
            return first + second
    if transpose_y:
        y = ops.transpose(y, (*range(rank - 2), rank - 1, rank - 2))
    return ops.matmul(x, y)


def _is_split(n, m):
    """Returns whether a row times a kernel `(n, m)` is computed as two halves."""
    known = n is not None and m is not None
    return known and n % 2 == 0 and (n * m >= SPLIT_ROW_FROM or native.in_xla())


def softmax(x, axis=-1):
    """Softmax. TensorFlow's takes ten times as long for the few rows of a decoding step."""
    if isinstance(x.shape[-2], int) and x.shape[-2] <= FEW_ROWS:
        return ops.exp(ops.log_softmax(x, axis=axis))
    return ops.softmax(x, axis=axis)


def masked_softmax(scores, mask=None, bias=None):
    """Softmax over the last axis that is 0 where the mask is False, however high the scores, infinity included.

    A row that is False throughout gives equal weights to all keys. The gradient passes the mask unchanged: the
    softmax's own gradient is 0 where the softmax is 0.

    Args:
        scores: `(..., target_len, source_len)`.
        mask: bool, broadcastable to the scores, or None.
        bias: Tensor that is added to the scores first, or None.

    Returns:
        float32, or float64 for float64 scores, of the shape of the scores.
    """
    scores = ops.cast(scores, at_least_float32(scores.dtype))
    scores = scores if bias is None else scores + ops.cast(bias, scores.dtype)
    if mask is not None:
        highest = ops.cast(ops.where(mask, HIGHEST, HIDDEN), scores.dtype)
        scores = custom_gradient(lambda x: (ops.minimum(x, highest), lambda upstream: upstream))(scores)
    return softmax(scores)


def zero_unless(condition, x):
    """Replaces `x` by zeros where the condition is False; None is True everywhere."""
    return x if condition is None else ops.where(condition, x, 0.0)


def update_rows(old, new, index, in_place=False):
    """Writes into the same rows of several tensors.

    Args:
        old: Tensors `(batch, heads, length, dim)`, which differ in `dim` alone.
        new: For each a tensor `(batch, heads, new length, dim)`.
        index: The first row to write, an int or an int scalar tensor. All rows to write must exist.
        in_place: Whether to change the tensors themselves, which `copy` made and nothing else reads.

    Returns:
        The list of the tensors after writing.
    """
    pairs = [(tensor, ops.cast(rows, tensor.dtype)) for tensor, rows in zip(old, new, strict=True)]
    if _is_traced() and native.in_xla():
        return [ops.slice_update(tensor, (0, 0, index, 0), rows) for tensor, rows in pairs]
    # Through a flat view, in which the numbers to write are whole rows.
    write_rows = native.write_in_place if in_place else ops.scatter_update
    batch_size, heads, length = shape(old[0])[:3]
    one = new[0].shape[2] == 1
    later = index if one else ops.arange(ops.shape(new[0])[2], dtype="int32") + index
    starts = ops.expand_dims(ops.arange(batch_size * heads, dtype="int32"), 1) * length
    slots = ops.reshape(starts + later, (-1, 1))
    results = []
    for tensor, rows in pairs:
        dim = ops.shape(tensor)[3]
        flat = write_rows(ops.reshape(tensor, (-1, dim)), slots, ops.reshape(rows, (-1, dim)))
        size = batch_size, heads, length, dim
        results.append(of_shape(reshape(flat, size), size))
    return results


def custom_gradient(function):
    """Returns a function with its written-out gradient, where the backend gains by it and somebody may take one.

    Args:
        function: Function of tensors to a value and a gradient function.
    """
    if native.GAINS_BY_WRITTEN_GRADIENTS and not native.without_gradient():
        return ops.custom_gradient(function)
    return lambda *tensors: function(*tensors)[0]


def written_gradient(function):
    """Returns a function with its written-out gradient on every backend, where a derived one needs more memory.

    Args:
        function: Function of one tensor to a value and a function of the value's gradient to the tensor's.
    """

    @ops.custom_gradient
    def differentiable(x):
        value, gradient = function(x)
        return value, lambda *args, upstream=None: gradient(args[0] if upstream is None else upstream)

    return differentiable


def _is_traced():
    """Returns whether a graph is being made, which may have faster operations."""
    return not native.executing_eagerly()
