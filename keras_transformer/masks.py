"""Attention masks: boolean, True = may attend, broadcastable to (batch, num_heads, target_len, source_len)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check, check_dense, check_positive, known_values
from keras_transformer.keras_internals import implicit_mask


def padding_mask(token_ids, pad_id=0):
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: int `(batch, source_len)`.
        pad_id: The id that fills the rows up.

    Returns:
        bool `(batch, 1, 1, source_len)`, True where a token is real.

    Raises:
        ValueError: If `token_ids` has another rank, or is ragged.

    >>> padding_mask([[5, 7, 0]]).shape
    TensorShape([1, 1, 1, 3])
    """
    check_dense(token_ids=token_ids)
    token_ids = ops.convert_to_tensor(token_ids)
    rule = "`token_ids` must have shape `(batch, source_len)`."
    check(len(token_ids.shape) == 2, rule, shape=tuple(token_ids.shape))
    return ops.expand_dims(ops.not_equal(token_ids, pad_id), (1, 2))


def lengths_of(token_ids, pad_id=0):
    """Counts the tokens of each row up to its last real one.

    Args:
        token_ids: int `(..., length)`, padded on the right.
        pad_id: The id that fills the rows up.

    Returns:
        int32 `(...)`.

    >>> lengths_of([[5, 7, 0], [0, 0, 0]]).numpy().tolist()
    [2, 0]
    """
    token_ids = ops.convert_to_tensor(token_ids)
    places = ops.arange(1, ops.shape(token_ids)[-1] + 1, dtype="int32")
    return ops.max(ops.where(ops.not_equal(token_ids, pad_id), places, 0), axis=-1)


def look_ahead_mask(length, source_len=None, start_index=0):
    """Lets each position see itself and what came before ("Attention Is All You Need", section 3.2.3).

    One rule for training, prefill and a single step: query `i` stands at position `start_index + i` and
    may attend to the keys at that position and before it.

        look_ahead_mask(3)            look_ahead_mask(1, source_len=4, start_index=2)
        1 0 0                         1 1 1 0
        1 1 0
        1 1 1

    Args:
        length: Number of queries, an int or an int scalar tensor.
        source_len: Number of keys; `length` when None.
        start_index: Position of the first query, an int or an int scalar tensor.

    Returns:
        bool `(1, 1, length, source_len)`.

    Raises:
        ValueError: If `length` is None, as in a functional model that takes any length.

    >>> look_ahead_mask(2)[0, 0].numpy().tolist()
    [[True, False], [True, True]]
    """
    queries, keys = _positions(length, source_len, start_index)
    return ops.expand_dims(keys <= queries, (0, 1))


def local_mask(length, window, source_len=None, start_index=0):
    """Lets each position see only the keys less than `window` positions away, on either side.

    Restricted self-attention ("Attention Is All You Need", section 4). Combine it with
    `look_ahead_mask` for a causal window.

    Args:
        length: Number of queries, an int or an int scalar tensor.
        window: Positive int; 1 is the position itself alone.
        source_len: Number of keys; `length` when None.
        start_index: Position of the first query, an int or an int scalar tensor.

    Returns:
        bool `(1, 1, length, source_len)`.

    Raises:
        ValueError: If `window` is not positive, or `length` is None, as in a functional model that takes any length.

    >>> local_mask(3, window=2)[0, 0, 0].numpy().tolist()
    [True, True, False]
    """
    check_positive(window=window)
    queries, keys = _positions(length, source_len, start_index)
    return ops.expand_dims(ops.abs(keys - queries) < window, (0, 1))


def _positions(length, source_len, start_index):
    """Returns the positions of the queries, int32 `(length, 1)`, and of the keys, int32 `(source_len,)`."""
    check(
        length is not None and not keras.backend.is_keras_tensor(length),
        "`length` must be an int or an int tensor. A functional model that takes any length does not know it yet: "
        "hide the future with `use_causal_mask=True` of `MultiHeadAttention` or with a `DecoderLayer`, or make the "
        "mask in a `keras.layers.Lambda`.",
        length=length,
    )
    queries = ops.arange(length, dtype="int32") + ops.cast(start_index, "int32")
    keys = ops.arange(length if source_len is None else source_len, dtype="int32")
    return ops.expand_dims(queries, 1), keys


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

    Raises:
        ValueError: If `segment_ids` has another rank, or is ragged.

    >>> segment_mask([[1, 1, 2]])[0, 0, 0].numpy().tolist()
    [True, True, False]
    """
    check_dense(segment_ids=segment_ids)
    segment_ids = ops.convert_to_tensor(segment_ids)
    rule = "`segment_ids` must have shape `(batch, length)`."
    check(len(segment_ids.shape) == 2, rule, shape=tuple(segment_ids.shape))
    return ops.equal(ops.expand_dims(segment_ids, (1, 3)), ops.expand_dims(segment_ids, (1, 2)))


def combine(*masks):
    """Allows what every given mask allows; a mask of None allows everything.

    Args:
        *masks: Masks that broadcast against each other, boolean or 0 and 1, or None.

    Returns:
        bool, their logical and; None when all are None.

    Raises:
        ValueError: If a mask is ragged; or, outside of a graph, if it has numbers other than 0 and 1.

    >>> combine(look_ahead_mask(2), None, local_mask(2, 1))[0, 0].numpy().tolist()
    [[True, False], [False, True]]
    """
    combined = None
    for mask in masks:
        if mask is not None:
            mask = _as_bool(mask, "masks", "a query may attend")
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
        ValueError: If the rank is none of these, the sizes do not fit `scores_shape`, or the mask is ragged; or,
            outside of a graph, if it has numbers other than 0 and 1: an additive mask (0 = may attend) would be read
            the other way round.
    """
    if mask is None:
        return None
    mask = _as_bool(mask, "attention_mask", "a query may attend")
    rank = len(mask.shape)
    check(
        rank in (2, 3, 4),
        "`attention_mask` must have shape `(target_len, source_len)`, `(batch, target_len, source_len)` or "
        "`(batch, num_heads, target_len, source_len)`.",
        shape=tuple(mask.shape),
    )
    if scores_shape is not None:
        batch, heads, *lengths = scores_shape
        _check_fits(
            "attention_mask", mask, {2: lengths, 3: [batch, *lengths], 4: [batch, heads, *lengths]}[rank]
        )
    return mask if rank == 4 else ops.expand_dims(mask, (0, 1) if rank == 2 else 1)


def _as_bool(mask, name, meaning):
    """Returns a mask as a bool tensor. Raises `ValueError` for numbers other than 0 and 1, where they are known."""
    check_dense(**{name: mask})
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    values = known_values(mask)
    if values is not None and not np.isin(values, (0, 1)).all():
        rule = f"`{name}` must be boolean or 0 and 1, 1 where {meaning}."
        check(False, rule, dtype=dtype, lowest=values.min().item(), highest=values.max().item())
    return mask > 0.5 if "float" in dtype else ops.cast(mask, "bool")


def _check_fits(name, mask, shape):
    """Raises `ValueError` for a mask that does not broadcast to a shape. A size that is not known yet fits."""
    fits = all(None in (own, size) or own in (1, size) for own, size in zip(mask.shape, shape, strict=True))
    rule = f"`{name}` must fit the inputs, so its shape must be {tuple(shape)}, or 1 in place of a size."
    check(fits, rule, shape=tuple(mask.shape))


def as_token_mask(mask, name="padding_mask", shape=None):
    """Gives a mask of tokens rank 2.

    Args:
        mask: `(batch, length)`, or `(batch, 1, 1, length)` as `padding_mask` gives it, boolean or ints 0 and 1; or
            None.
        name: Name of the argument, for errors.
        shape: `(batch, length)` of the tokens; None to compare nothing with it.

    Returns:
        bool `(batch, length)`, or None.

    Raises:
        ValueError: If the rank is another, the sizes do not fit `shape`, or the mask is ragged or of floats; or,
            outside of a graph, if it has ints other than 0 and 1: an additive mask (0 = may attend) would be read the
            other way round.
    """
    if mask is None:
        return None
    check_dense(**{name: mask})
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    check("float" not in dtype, f"`{name}` must be boolean, True where a token is real.", dtype=dtype)
    mask = _as_bool(mask, name, "a token is real")
    rank = 2 if shape is None else len(shape)
    if rank == 2 and len(mask.shape) == 4 and tuple(mask.shape[1:3]) == (1, 1):
        mask = mask[:, 0, 0]
    rule = f"`{name}` must have shape `(batch, length)` or `(batch, 1, 1, length)`."
    check(len(mask.shape) == rank, rule, shape=tuple(mask.shape))
    if shape is not None:
        _check_fits(name, mask, shape)
    return mask


def own_or_implicit_mask(mask, x, name="padding_mask"):
    """Returns the mask of the tokens of `x`, bool `(batch, length)`: the given one, else Keras's implicit one.

    Args:
        mask: bool `(batch, length)` or `(batch, 1, 1, length)`, or None.
        x: `(batch, length, ...)`.
        name: Name of the argument, for errors.

    Raises:
        ValueError: If the mask does not fit `x`, is ragged or of floats; or, outside of a graph, if it has ints other
            than 0 and 1.

    >>> own_or_implicit_mask(padding_mask([[5, 7, 0]]), np.zeros((1, 3, 8))).numpy().tolist()
    [[True, True, False]]
    """
    return implicit_mask(x) if mask is None else as_token_mask(mask, name, x.shape[:-1])
