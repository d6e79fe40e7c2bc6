"""Parts of a batch, computed side by side."""

import keras

from keras_transformer.execution import native, ops
from keras_transformer.execution.inference import inference, is_user_defined
from keras_transformer.execution.int8 import has_int8_weights
from keras_transformer.keras_internals import sublayers

# Largest number of tokens in a part of a batch of an int8 encoder, unless the part is one row. A batch of fewer than
# half as many tokens stays whole. docs/decisions.md has the measurement.
PART = 512

# Number of hypotheses from which on an int8 model searches the halves of a batch side by side.
LARGE_BATCH = 32


def encode_rows(encoder, x, masks, training=None):
    """Calls an encoder, in which no row sees another; in int8 on parts of a large batch side by side.

    Args:
        encoder: A layer, called as `encoder(x, training=training, **masks)`.
        x: `(batch, length, features)`.
        masks: A dict of masks, bool `(batch, length)` each.
        training: False or None: the encoder does not drop.

    Returns:
        `(batch, length, features)`.
    """
    batch, length = ops.shape(x)[:2]
    one_row = isinstance(batch, int) and batch < 2
    if one_row or not _encodes_parts(encoder):
        return encoder(x, training=training, **masks)
    half, tokens = -(-batch // 2), batch * length
    if isinstance(tokens, int):
        size = batch if 2 * tokens < PART else max(1, min(PART // length, half))
    else:
        size = ops.maximum(1, ops.minimum(PART // ops.maximum(length, 1), half))
        size = ops.where(2 * tokens < PART, batch, size)
    with inference(encoder, join=False):
        results = [(x.shape[1:], encoder.compute_dtype)]

        def encode(rows):
            x, masks = rows
            return (encoder(x, training=training, **masks),)

        return in_parts(encode, (x, masks), results, size)[0]


def _encodes_parts(encoder):
    """Returns whether parts of a batch are computed side by side: in int8, by layers that see no other row."""
    if not (native.makes_inference_graph() and has_int8_weights(encoder)):
        return False
    # A user's layer may look at the whole batch, and layers of another precision return another dtype.
    layers = encoder, *sublayers(encoder)
    return len({layer.compute_dtype for layer in layers}) == 1 and not any(map(is_user_defined, layers))


def search_rows(search, model, rows, width, results):
    """Searches rows of a batch, of which none sees another; an int8 model the halves of a large batch side by side.

    Args:
        search: Takes a nest like `rows` with some of the rows, and returns a tuple of tensors `(rows, ...)`.
        model: The model that searches.
        rows: A nest of tensors `(batch, ...)`, and of numbers, scalar tensors and None, which are those of every row.
            The first is a tensor `(batch, ...)`.
        width: Number of hypotheses of each row.
        results: For each tensor of the tuple its shape without the batch, and its dtype.

    Returns:
        What `search` returns for all rows.
    """
    # Products of floats gain nothing from two halves.
    if not (has_int8_weights(model) and native.makes_inference_graph()):
        return search(rows)
    batch = ops.shape(keras.tree.flatten(rows)[0])[0]
    half, least = -(-batch // 2), max(2, LARGE_BATCH // width)
    small = batch < least
    size = (batch if small else half) if isinstance(batch, int) else ops.where(small, batch, half)
    return in_parts(search, rows, results, size)


def in_parts(function, rows, results, size):
    """Applies a function to parts of a batch, two at a time, in a graph for inference.

    A second core hardly speeds up an operation on a few rows. Two parts use two cores, and what an operation writes
    stays in the core's cache for the next one.

    Args:
        function: Takes a nest like `rows` with some of the rows, and returns a tuple of tensors `(rows, ...)`.
        rows: A nest of tensors `(batch, ...)`, and of numbers, scalar tensors and None, which are those of every row.
            The first is a tensor `(batch, ...)`.
        results: For each tensor of the tuple its shape without the batch, and its dtype.
        size: Rows of a part, at most those of the batch, an int or an int scalar tensor.

    Returns:
        What `function` returns for all rows.
    """
    leaves = keras.tree.flatten(rows)
    given = [x for x in leaves if _is_cut(x)]
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
            function(keras.tree.pack_sequence_as(rows, [next(left) if _is_cut(x) else x for x in leaves]))
        )

    cut = [ops.take(x, members, axis=0) for x in given]
    cut = [ops.reshape(x, (parts, size, *ops.shape(x)[1:])) for x in cut]
    known = size if isinstance(size, int) else None
    found = native.side_by_side(apply, cut, [((known, *shape), dtype) for shape, dtype in results])
    every = [ops.reshape(x, (parts * size, *ops.shape(x)[2:])) for x in found]
    return tuple(ops.reshape(x[:batch], (batch, *ops.shape(x)[1:])) for x in every)


def _is_cut(x):
    """Returns whether a leaf of a nest has an axis of rows."""
    return len(getattr(x, "shape", ())) > 0
