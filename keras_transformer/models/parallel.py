"""Parts of a batch, computed side by side."""

import keras
from keras import ops

from keras_transformer.backend import side_by_side


def in_parts(function, rows, results, parts):
    """Applies a function to parts of a batch, two at a time, in a graph that `runs_forward_only`.

    A second core speeds an operation on a few rows up only little. Two parts use two cores, and what an operation
    writes stays in the core's cache for the next one.

    Args:
        function: Takes a nest like `rows` with some of the rows, and returns a tuple of tensors `(rows, ...)`.
        rows: A nest of tensors `(batch, ...)` and None; the first is a tensor.
        results: For each tensor of the tuple its shape without the batch, and its dtype.
        parts: Number of parts, from 1 to the size of the batch, an int or an int scalar tensor.

    Returns:
        What `function` returns for all rows.
    """
    if isinstance(parts, int) and parts == 1:
        return function(rows)
    leaves = keras.tree.flatten(rows)
    given = [x for x in leaves if x is not None]
    batch = ops.shape(given[0])[0]
    size = -(-batch // parts)
    # The last row fills the last parts up.
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
    return tuple(ops.reshape(x, (-1, *ops.shape(x)[2:]))[:batch] for x in found)
