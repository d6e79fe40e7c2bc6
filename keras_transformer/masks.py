"""Attention masks: boolean, True = may attend, broadcastable to (batch, num_heads, target_len, source_len)."""

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # no public name; JAX's tracers keep theirs in a table

from keras_transformer.backend import custom_gradient
from keras_transformer.checks import check_positive

# Far below any score, yet finite: a row with no allowed key stays free of NaN, forward and backward.
HIDDEN = -1e30


def padding_mask(token_ids, pad_id=0):
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: int `(batch, source_len)`.
        pad_id: The id that fills the rows up.

    Returns:
        bool `(batch, 1, 1, source_len)`, True where a token is real.

    >>> padding_mask([[5, 7, 0]]).shape
    TensorShape([1, 1, 1, 3])
    """
    return broadcastable(ops.not_equal(ops.convert_to_tensor(token_ids), pad_id))


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
    """
    return ops.less_equal(_distances(length, source_len, start_index), 0)


def masked_scores(scores, mask):
    """Attention scores whose softmax is 0 where the mask is False, however high they were, infinity included.

    In a row that is False throughout they become all alike. The gradient goes through as it is: a softmax's is 0
    where the softmax is.

    Args:
        scores: float32 `(..., target_len, source_len)`, for a softmax.
        mask: bool, broadcastable to the scores, or None.

    Returns:
        float32, of the shape of the scores.
    """
    if mask is None:
        return scores
    highest = ops.where(mask, float("inf"), HIDDEN)

    return custom_gradient(lambda scores: (ops.minimum(scores, highest), lambda upstream: upstream))(scores)


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
    """
    check_positive(window=window)
    return ops.less(ops.abs(_distances(length, source_len, start_index)), window)


def branch_mask(ancestors, step):
    """Lets each hypothesis of a search see its own branch of the tree that all share.

    Each step has one slot a hypothesis, and `ancestors` says which of them is on a hypothesis's branch. Two
    hypotheses, three steps, the second hypothesis born of the first after step 0:

        ancestors        slots of step 0, 1, 2
        0 0 0            1 0  1 0  1 0
        0 1 1            1 0  0 1  0 1

    Args:
        ancestors: int32 `(batch, width, steps)`.
        step: The current step, an int or an int scalar tensor; what comes after it is hidden.

    Returns:
        bool `(batch, 1, width, steps * width)`.
    """
    batch_size, width, steps = ops.shape(ancestors)
    mine = ops.equal(ancestors[..., None], ops.arange(width, dtype="int32"))
    past = ops.less_equal(ops.arange(steps, dtype="int32"), step)[:, None]
    return ops.reshape(ops.logical_and(mine, past), (batch_size, 1, width, steps * width))


def segment_mask(segment_ids):
    """Lets each token of a row that holds several texts see those of its own text.

        segment_ids      mask
        1 1 2 0          1 1 0 0
                         1 1 0 0
                         0 0 1 0
                         0 0 0 1

    Args:
        segment_ids: int `(batch, length)`, the number of each token's text.

    Returns:
        bool `(batch, 1, length, length)`.
    """
    segment_ids = ops.convert_to_tensor(segment_ids)
    return ops.equal(segment_ids[:, None, :, None], segment_ids[:, None, None, :])


def _distances(length, source_len, start_index):
    """How far each key stands after each query, int32 `(1, 1, length, source_len)`."""
    queries = ops.arange(length, dtype="int32") + start_index
    keys = ops.arange(length if source_len is None else source_len, dtype="int32")
    return keys[None, None, None, :] - queries[None, None, :, None]


def broadcastable(mask):
    """Gives a mask the rank of attention scores.

    Args:
        mask: bool `(batch, source_len)`, `(batch, target_len, source_len)`, of rank 4 already, or None.

    Returns:
        The same mask with rank 4, or None.

    Raises:
        ValueError: If the rank is none of these, or the mask is of floats.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if keras.backend.is_float_dtype(mask.dtype):
        # An additive mask (0 = may attend) would be read the other way round.
        raise ValueError(
            "A mask must be boolean, True = may attend. "
            f"Received: dtype={keras.backend.standardize_dtype(mask.dtype)}."
        )
    mask = ops.cast(mask, "bool")
    rank = len(mask.shape)
    if rank == 2:
        return mask[:, None, None, :]
    if rank == 3:
        return mask[:, None, :, :]
    if rank == 4:
        return mask
    raise ValueError(
        "A mask must have shape `(batch, source_len)`, `(batch, target_len, source_len)` or "
        f"`(batch, num_heads, target_len, source_len)`. Received: shape={tuple(mask.shape)}."
    )


def combine(*masks):
    """Allows what every given mask allows; None stands for "no restriction".

    Args:
        *masks: bool masks that broadcast against each other, or None.

    Returns:
        Their logical and, or None when all are None.
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def implicit_mask(x):
    """Reads the mask that Keras keeps on a tensor (`mask_zero=True`), without changing it.

    Args:
        x: Any tensor.

    Returns:
        bool `(batch, length)`, or None where Keras keeps none.
    """
    return get_keras_mask(x)
