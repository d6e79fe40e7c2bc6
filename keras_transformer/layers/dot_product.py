"""Scaled dot-product attention."""

import math

from keras import ops

from keras_transformer.layers.blockwise import blockwise_attention, is_long
from keras_transformer.masks import masked_scores


def dot_product_attention(query, key, value, mask=None, dropout=None, weights=True, *, bias=None, scale=None):
    """`softmax(scale * q kᵀ + bias) v`, with a float32 softmax.

    "Attention Is All You Need", section 3.2.1, equation 1. A query that may attend to nothing gets zeros. Where the
    sequences are long, and nobody needs the weights, they are never all there at once (`blockwise_attention`).

    Args:
        query: `(batch, num_heads, target_len, key_dim)`.
        key: `(batch, num_key_value_heads, source_len, key_dim)`. Fewer heads than the query's each serve as many of
            its heads, one after another (Ainslie et al., 2023, "GQA", section 2.2).
        value: `(batch, num_key_value_heads, source_len, value_dim)`.
        mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.
        dropout: A function of the attention weights, or None.
        weights: Whether the attention weights are needed.
        bias: float32, added to the scores, broadcastable to their shape, or None.
        scale: What the scores are multiplied by; `1 / sqrt(key_dim)` when None.

    Returns:
        The context `(batch, num_heads, target_len, value_dim)` and the attention weights, float32
        `(batch, num_heads, target_len, source_len)`, before dropout; they may be None where they are not needed.
    """
    query = query * ops.cast(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale, query.dtype)
    sees_any = None if mask is None else ops.any(mask, axis=-1, keepdims=True)
    if dropout is None and bias is None and not weights and is_long(query.shape[2], key.shape[2]):
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (ops.repeat(x, shared, axis=1) for x in (key, value))
        return _where_any(sees_any, blockwise_attention(query, key, value, mask)), None
    scores = ops.cast(_by_shared_heads(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
    scores = scores if bias is None else scores + bias
    shares = ops.softmax(masked_scores(scores, mask), axis=-1)
    kept = shares if dropout is None else dropout(shares)
    context = _by_shared_heads(ops.cast(kept, value.dtype), value)
    return _where_any(sees_any, context), _where_any(sees_any, shares) if weights else None


def _by_shared_heads(x, y):
    """`x` `(batch, num_heads, target_len, n)` times `y` `(batch, num_key_value_heads, n, m)`: the heads of `x` that
    share one of `y` are its further rows."""
    batch_size, heads, length, n = ops.shape(x)
    groups = y.shape[1]
    if groups == heads:
        return ops.matmul(x, y)
    product = ops.matmul(ops.reshape(x, (batch_size, groups, heads // groups * length, n)), y)
    return ops.reshape(product, (batch_size, heads, length, ops.shape(y)[3]))


def _where_any(sees_any, x):
    """Zeros for the queries that may attend to nothing."""
    return x if sees_any is None else ops.where(sees_any, x, ops.zeros_like(x))
