"""Batches of token ids: their checks, their padding, their probabilities."""

import keras

from keras_transformer.checks import check
from keras_transformer.execution import ops
from keras_transformer.masks import lengths_of


def log_probs_of(target, logits, pad_id):
    """Returns the log probability of each token, 0 for padding, and which tokens are real: `(batch, target_len)`
    each."""
    log_probs = ops.take_along_axis(ops.log_softmax(logits, axis=-1), target[..., None], axis=-1)[..., 0]
    real = ops.arange(ops.shape(target)[1], dtype="int32") < lengths_of(target, pad_id)[:, None]
    return ops.where(real, log_probs, 0.0), real


def left_padded(tokens, lengths, pad_id):
    """Moves each row's tokens, int32 `(batch, length)`, to its right end; returns them and the slots where they
    start."""
    length = ops.shape(tokens)[1]
    starts = length - lengths
    places = ops.arange(length, dtype="int32") - starts[:, None]
    moved = ops.take_along_axis(tokens, ops.maximum(places, 0), axis=1)
    return ops.where(places >= 0, moved, pad_id), starts


def matrix_of_ids(x, name, shape, vocab_size):
    """Returns `x` as int32 of rank 2.

    Raises:
        ValueError: If it is not an array, has another rank or an empty axis, or `ids_of` raises.
    """
    ragged = getattr(x, "ragged_rank", 0) or hasattr(x, "flat_values")
    check(
        not ragged,
        f"`{name}` must be dense, not ragged, and padded on the right: `x.to_tensor()`.",
        **{name: x},
    )
    try:
        array = ops.convert_to_tensor(x)
    except (ValueError, TypeError):  # None, or rows of different lengths
        array = None
    rule = f"`{name}` must be an array of ids `{shape}`, rows filled up on the right with `pad_id`."
    check(array is not None, rule, **{name: x})
    rule = f"`{name}` must have shape `{shape}`, without an empty axis."
    check(len(array.shape) == 2 and 0 not in array.shape, rule, shape=tuple(array.shape))
    return ids_of(array, name, vocab_size)


def ids_of(x, name, vocab_size):
    """Returns `x`, which has no empty axis, as int32.

    Raises:
        ValueError: If it does not hold ints, holds an id outside the vocabulary, or is a tensor of a graph, which has
            no values yet.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    check("int" in dtype, f"`{name}` must hold ids, ints.", dtype=dtype)
    try:
        values = ops.convert_to_numpy(x)
    except (AttributeError, NotImplementedError, TypeError, ValueError):  # as the backend tells it
        values = None
    rule = f"`{name}` must have values: `generate` and `score` do not run inside a graph. Use `model.search` there."
    check(values is not None, rule, **{name: x})
    lowest, highest = int(values.min()), int(values.max())
    rule = f"`{name}` must hold ids from 0 to {vocab_size - 1}."
    check(lowest >= 0 and highest < vocab_size, rule, lowest=lowest, highest=highest)
    return ops.cast(x, "int32")
