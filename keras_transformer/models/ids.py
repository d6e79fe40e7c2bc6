"""Batches of token ids: their checks, their lengths, their padding."""

import keras
from keras import ops

from keras_transformer.checks import check


def lengths_of(token_ids, pad_id):
    """Returns the length of each row up to its last token that is not padding: int32 `(batch,)`."""
    places = ops.arange(1, ops.shape(token_ids)[-1] + 1, dtype="int32")
    return ops.max(ops.where(ops.not_equal(token_ids, pad_id), places, 0), axis=-1)


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


def matrix_of_ids(x, name, shape):
    """Returns `x` as int32 of rank 2.

    Raises:
        ValueError: If it is not an array, does not hold ints, has another rank, or has an empty axis.
    """
    ragged = getattr(x, "ragged_rank", 0) or hasattr(x, "flat_values")
    check(not ragged, f"`{name}` must be dense, padded on the right: `x.to_tensor()`.", **{name: x})
    try:
        ids = ops.convert_to_tensor(x)
    except (ValueError, TypeError):  # None, or rows of different lengths
        ids = None
    rule = f"`{name}` must be an array of ids `{shape}`, rows filled up on the right with `pad_id`."
    check(ids is not None, rule, **{name: x})
    ids = as_ids(ids, name)
    rule = f"`{name}` must have shape `{shape}`, without an empty axis."
    check(len(ids.shape) == 2 and 0 not in ids.shape, rule, shape=tuple(ids.shape))
    return ids


def as_ids(x, name):
    """Returns `x` as int32. Raises `ValueError` unless it holds ints."""
    x = ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    check("int" in dtype, f"`{name}` must hold ids, ints.", dtype=dtype)
    return ops.cast(x, "int32")


def check_all_ids(name, ids, vocab_size):
    """Raises `ValueError` for an id that is outside the vocabulary."""
    lowest, highest = int(ops.min(ids)), int(ops.max(ids))
    rule = f"`{name}` must hold ids from 0 to {vocab_size - 1}."
    check(lowest >= 0 and highest < vocab_size, rule, lowest=lowest, highest=highest)
