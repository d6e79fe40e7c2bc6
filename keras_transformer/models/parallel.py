"""Parts of a batch, computed side by side."""

import keras
from keras import ops

from keras_transformer.backend import side_by_side


def in_parts(function, rows, results, size):
    """Applies a function to parts of a batch, two at a time, in a graph that `runs_forward_only`.

    A second core hardly speeds up an operation on a few rows. Two parts use two cores, and what an operation writes
    stays in the core's cache for the next one.

    Args:
        function: Takes a nest like `rows` with some of the rows, and returns a tuple of tensors `(rows, ...)`.
        rows: A nest of tensors `(batch, ...)` and None; the first is a tensor.
        results: For each tensor of the tuple its shape without the batch, and its dtype.
        size: Rows of a part, at most those of the batch, an int or an int scalar tensor.

    Returns:
        What `function` returns for all rows.
    """
    leaves = keras.tree.flatten(rows)
    given = [x for x in leaves if x is not None]
    batch = ops.shape(given[0])[0]
    size = max(size, 1) if isinstance(size, int) else ops.maximum(size, 1)
    parts = -(-batch // size)
    if isinstance(parts, int) and parts <= 1:
        return function(rows)
    # The last row fills the last part up.
    members = ops.minimum(ops.arange(parts * size, dtype="int32"), batch - 1)

    def apply(part):
        left = iter(part)
        return tuple(
            function(keras.tree.pack_sequence_as(rows, [x if x is None else next(left) for x in leaves]))
        )

    cut = [ops.take(x, members, axis=0) for x in given]
    cut = [ops.reshape(x, (parts, size, *ops.shape(x)[1:])) for x in cut]
    known = size if isinstance(size, int) else None
    found = side_by_side(apply, cut, [((known, *shape), dtype) for shape, dtype in results])
    every = [ops.reshape(x, (parts * size, *ops.shape(x)[2:])) for x in found]
    return tuple(ops.reshape(x[:batch], (batch, *ops.shape(x)[1:])) for x in every)
