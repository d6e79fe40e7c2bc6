"""Scaled dot-product attention."""

import math

from keras import ops

from keras_transformer.layers.blockwise import blockwise_attention, is_long, where_any
from keras_transformer.layers.positions import distances_between
from keras_transformer.masks import combine, masked_scores


def dot_product_attention(
    query,
    key,
    value,
    mask=None,
    dropout=None,
    weights=True,
    *,
    bias=None,
    scale=None,
    window=None,
    positions=None,
    key_positions=None,
):
    """`softmax(scale * q kᵀ + bias) v`, with a float32 softmax.

    "Attention Is All You Need", section 3.2.1, equation 1. A query that may attend to nothing gets zeros. Where the
    sequences are long, and nobody needs the weights, they are never all there at once (`blockwise_attention`), and of a
    window only what is in it is computed. Not with dropout, nor with a bias that is a tensor, which is as large as they
    are; nor where `positions` are given for a bias.

    Args:
        query: `(batch, num_heads, target_len, key_dim)`.
        key: `(batch, num_key_value_heads, source_len, key_dim)`. Fewer heads than the query's each serve as many of
            its heads, one after another (Ainslie et al., 2023, "GQA", section 2.2).
        value: `(batch, num_key_value_heads, source_len, value_dim)`.
        mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.
        dropout: A function of the attention weights, or None.
        weights: Whether the attention weights are needed.
        bias: float32, added to the scores, broadcastable to their shape; a function of distances, int32
            `(batch or 1, 1, target_len, source_len)`, that gives it; or None.
        scale: What the scores are multiplied by; `1 / sqrt(key_dim)` when None.
        window: A query sees the keys less than so many positions before and after it; all when None.
        positions: int `(target_len,)` or `(batch, target_len)`, where the queries stand, for `bias` and `window`; from
            0 on when None.
        key_positions: int `(source_len,)` or `(batch, source_len)`, likewise for the keys.

    Returns:
        The context `(batch, num_heads, target_len, value_dim)` and the attention weights, float32
        `(batch, num_heads, target_len, source_len)`, before dropout; they may be None where they are not needed.
    """
    query = query * ops.cast(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale, query.dtype)
    in_slots = positions is None and key_positions is None  # then blocks can tell the distances themselves
    in_blocks = dropout is None and not weights and is_long(query.shape[2], key.shape[2])
    in_blocks = in_blocks and (bias is None or (callable(bias) and in_slots))
    if (window is not None or callable(bias)) and not (in_blocks and in_slots):
        distances = distances_between(
            ops.arange(ops.shape(query)[2], dtype="int32") if positions is None else positions,
            ops.arange(ops.shape(key)[2], dtype="int32") if key_positions is None else key_positions,
        )
        if window is not None:
            mask, window = combine(mask, ops.abs(distances) < window), None
        bias = bias(distances) if callable(bias) else bias
    sees_any = None if mask is None or window is not None else ops.any(mask, axis=-1, keepdims=True)
    if in_blocks:
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (ops.repeat(x, shared, axis=1) for x in (key, value))
        return where_any(sees_any, blockwise_attention(query, key, value, mask, bias, window)), None
    scores = ops.cast(_by_shared_heads(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
    scores = scores if bias is None else scores + bias
    shares = ops.softmax(masked_scores(scores, mask), axis=-1)
    kept = shares if dropout is None else dropout(shares)
    context = _by_shared_heads(ops.cast(kept, value.dtype), value)
    return where_any(sees_any, context), where_any(sees_any, shares) if weights else None


def _by_shared_heads(x, y):
    """`x` `(batch, num_heads, target_len, n)` times `y` `(batch, num_key_value_heads, n, m)`: the heads of `x` that
    share one of `y` are its further rows."""
    groups = y.shape[1]
    if groups == x.shape[1]:
        return ops.matmul(x, y)
    batch_size, heads, length, n = ops.shape(x)
    product = ops.matmul(ops.reshape(x, (batch_size, groups, heads // groups * length, n)), y)
    return ops.reshape(product, (batch_size, heads, length, ops.shape(y)[3]))
