"""Attention masks: boolean, True = may attend, broadcastable to (batch, num_heads, target_len, source_len)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.keras_internals import implicit_mask


def padding_mask(token_ids, pad_id=0):
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: int `(batch, source_len)`.
        pad_id: The id that fills the rows up.

    Returns:
        bool `(batch, 1, 1, source_len)`, True where a token is real.

    Raises:
        ValueError: If `token_ids` has another rank.

    >>> padding_mask([[5, 7, 0]]).shape
    TensorShape([1, 1, 1, 3])
    """
    token_ids = ops.convert_to_tensor(token_ids)
    if len(token_ids.shape) != 2:
        raise ValueError(
            f"`token_ids` must have shape `(batch, source_len)`. Received: shape={tuple(token_ids.shape)}."
        )
    return ops.not_equal(token_ids, pad_id)[:, None, None, :]


def look_ahead_mask(length, source_len=None, start_index=0):
    """Lets each position see itself and what came before ("Attention Is All You Need", section 3.2.3).

    One rule for training, prefill and a single step: query `i` stands at position `start_index + i` and
    may attend to the keys at that position and before it.

        look_ahead_mask(3)            look_ahead_mask(1, source_len=4, start_index=2)
        1 0 0                         1 1 1 0
        1 1 0
        1 1 1

    Args:
        length: Number of queries.
        source_len: Number of keys; `length` when None.
        start_index: Position of the first query, an int or an int scalar tensor.

    Returns:
        bool `(1, 1, length, source_len)`.

    >>> look_ahead_mask(2)[0, 0].numpy().tolist()
    [[True, False], [True, True]]
    """
    queries = ops.arange(length, dtype="int32") + ops.cast(start_index, "int32")
    keys = ops.arange(length if source_len is None else source_len, dtype="int32")
    return (keys <= queries[:, None])[None, None]


def local_mask(length, window, source_len=None, start_index=0):
    """Lets each position see only the keys less than `window` positions away, on either side.

    Restricted self-attention ("Attention Is All You Need", section 4). Combine it with
    `look_ahead_mask` for a causal window.

    Args:
        length: Number of queries.
        window: Positive int; 1 is the position itself alone.
        source_len: Number of keys; `length` when None.
        start_index: Position of the first query, an int or an int scalar tensor.

    Returns:
        bool `(1, 1, length, source_len)`.

    Raises:
        ValueError: If `window` is not positive.

    >>> local_mask(3, window=2)[0, 0, 0].numpy().tolist()
    [True, True, False]
    """
    check_positive(window=window)
    queries = ops.arange(length, dtype="int32") + ops.cast(start_index, "int32")
    keys = ops.arange(length if source_len is None else source_len, dtype="int32")
    return (ops.abs(keys - queries[:, None]) < window)[None, None]


def segment_mask(segment_ids):
    """Lets each token of a row that holds several texts see those of its own text.

    The segment ids `1 1 2 0` give the mask::

        segment_ids      mask
        1 1 2 0          1 1 0 0
                         1 1 0 0
                         0 0 1 0
                         0 0 0 1

    Args:
        segment_ids: int `(batch, length)`, the number of each token's text.

    Returns:
        bool `(batch, 1, length, length)`.

    >>> segment_mask([[1, 1, 2]])[0, 0, 0].numpy().tolist()
    [True, True, False]
    """
    segment_ids = ops.convert_to_tensor(segment_ids)
    return ops.equal(segment_ids[:, None, :, None], segment_ids[:, None, None, :])


def combine(*masks):
    """Allows what every given mask allows; a mask of None allows everything.

    Args:
        *masks: bool masks that broadcast against each other, or None.

    Returns:
        Their logical and, or None when all are None.

    >>> combine(look_ahead_mask(2), None, local_mask(2, 1))[0, 0].numpy().tolist()
    [[True, False], [False, True]]
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def as_attention_mask(mask, scores_shape=None):
    """Gives an `attention_mask` the rank of attention scores, with Keras's meaning of each rank.

    Args:
        mask: `(target_len, source_len)`, `(batch, target_len, source_len)` or
            `(batch, num_heads, target_len, source_len)`, boolean or 0 and 1; or None.
        scores_shape: Shape of the attention scores, `(batch, num_heads, target_len, source_len)`; None to compare
            nothing with it.

    Returns:
        bool of rank 4, or None.

    Raises:
        ValueError: If the rank is none of these, or the sizes do not fit `scores_shape`; or, outside of a graph, if
            there are floats other than 0 and 1: an additive mask (0 = may attend) would be read the other way round.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if "float" in keras.backend.standardize_dtype(mask.dtype):
        values = _known_values(mask)
        if values is not None and not np.isin(values, (0, 1)).all():
            raise ValueError(
                "`attention_mask` must be boolean or 0 and 1, 1 where a query may attend. "
                f"Received: floats from {values.min()} to {values.max()}."
            )
        mask = mask > 0.5
    mask = ops.cast(mask, "bool")
    rank = len(mask.shape)
    if rank not in (2, 3, 4):
        raise ValueError(
            "`attention_mask` must have shape `(target_len, source_len)`, `(batch, target_len, source_len)` or "
            f"`(batch, num_heads, target_len, source_len)`. Received: shape={tuple(mask.shape)}."
        )
    if scores_shape is not None:
        batch, heads, *lengths = scores_shape
        _check_fits(
            "attention_mask", mask, {2: lengths, 3: [batch, *lengths], 4: [batch, heads, *lengths]}[rank]
        )
    if rank == 2:
        return mask[None, None]
    return mask[:, None] if rank == 3 else mask


def _known_values(x):
    """Returns a tensor as a NumPy array; None where it is a tensor of a graph, whose values are not known yet."""
    try:
        return np.asarray(x, dtype="float64")
    except (TypeError, NotImplementedError, ValueError):
        return None


def _check_fits(name, mask, shape):
    """Raises `ValueError` for a mask that does not broadcast to a shape. A size that is not known yet fits."""
    for own, size in zip(mask.shape, shape, strict=True):
        if None not in (own, size) and own not in (1, size):
            raise ValueError(
                f"`{name}` must fit the inputs, so its shape must be {tuple(shape)}, or 1 in place of a size. "
                f"Received: shape={tuple(mask.shape)}."
            )


def as_token_mask(mask, name="padding_mask", shape=None):
    """Gives a mask of tokens rank 2.

    Args:
        mask: bool `(batch, length)`, or `(batch, 1, 1, length)` as `padding_mask` gives it, or None.
        name: Name of the argument, for errors.
        shape: `(batch, length)` of the tokens; None to compare nothing with it.

    Returns:
        bool `(batch, length)`, or None.

    Raises:
        ValueError: If the rank is another, or the sizes do not fit `shape`; or the mask is of floats: an additive mask
            (0 = may attend) would be read the other way round.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise ValueError(f"`{name}` must be boolean, True where a token is real. Received: dtype={dtype}.")
    if len(mask.shape) == 4 and tuple(mask.shape[1:3]) == (1, 1):
        mask = mask[:, 0, 0]
    elif len(mask.shape) != 2:
        raise ValueError(
            f"`{name}` must have shape `(batch, length)` or `(batch, 1, 1, length)`. "
            f"Received: shape={tuple(mask.shape)}."
        )
    if shape is not None:
        _check_fits(name, mask, shape)
    return ops.cast(mask, "bool")


def own_or_implicit_mask(mask, x, name="padding_mask"):
    """Returns the mask of the tokens of `x`, bool `(batch, length)`: the given one, else Keras's implicit one.

    Args:
        mask: bool `(batch, length)` or `(batch, 1, 1, length)`, or None.
        x: `(batch, length, ...)`.
        name: Name of the argument, for errors.

    Raises:
        ValueError: If the mask does not fit `x`, or is of floats.

    >>> own_or_implicit_mask(padding_mask([[5, 7, 0]]), np.zeros((1, 3, 8))).numpy().tolist()
    [[True, True, False]]
    """
    return implicit_mask(x) if mask is None else as_token_mask(mask, name, x.shape[:2])
