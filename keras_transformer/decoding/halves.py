"""The halves of a large batch, searched side by side."""

import keras
from keras import ops

from keras_transformer.backend import runs_forward_only, side_by_side


def in_two_halves(search, rows, results, least):
    """Searches the halves of a large batch at the same time, where TensorFlow runs a graph outside XLA.

    A second core speeds an int8 product of a few rows up only little. Two searches of half the rows use two cores.

    Args:
        search: Takes a nest like `rows` with some of the rows, and returns a named tuple of tensors `(rows, ...)`.
        rows: A nest of tensors `(batch, ...)` and None; the first is a tensor.
        results: A named tuple like that of `search`: the shape without the batch, and the dtype, of each tensor.
        least: The smallest batch that is halved.

    Returns:
        What `search` returns for all rows.
    """
    leaves = keras.tree.flatten(rows)
    given = [x for x in leaves if x is not None]
    known = given[0].shape[0]
    if not runs_forward_only() or (isinstance(known, int) and known < least):
        return search(rows)
    batch = ops.shape(given[0])[0]
    halves = 2 if isinstance(batch, int) else ops.where(batch < least, 1, 2)
    size = -(-batch // halves)
    # The last row of an odd batch is searched twice.
    members = ops.minimum(ops.arange(halves * size, dtype="int32"), batch - 1)

    def search_half(parts):
        left = iter(parts)
        half = [x if x is None else next(left) for x in leaves]
        return tuple(search(keras.tree.pack_sequence_as(rows, half)))

    cut = [ops.take(x, members, axis=0) for x in given]
    cut = [ops.reshape(x, (halves, size, *ops.shape(x)[1:])) for x in cut]
    shapes = [((size if isinstance(size, int) else None, *shape), dtype) for shape, dtype in results]
    found = side_by_side(search_half, cut, shapes)
    return type(results)(*(ops.reshape(x, (-1, *ops.shape(x)[2:]))[:batch] for x in found))
