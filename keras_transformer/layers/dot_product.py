"""Scaled dot-product attention: all scores at once, or in blocks where the sequences are long."""

import math

from keras_transformer.checks import check
from keras_transformer.execution import blocks, ops
from keras_transformer.layers.cache import KVCache
from keras_transformer.masks import combine


def dot_product_attention(
    query,
    key,
    value,
    mask=None,
    *,
    query_mask=None,
    dropout=None,
    return_attention_scores=True,
    bias=None,
    scale=None,
    soft_cap=None,
    window=None,
    positions=None,
    key_positions=None,
):
    """`softmax(scale * q kᵀ + bias) v`, with a float32 softmax.

    "Attention Is All You Need", section 3.2.1, equation 1. A query that may attend to nothing gets zeros.

    It works in blocks, whose memory grows with the length and not with its square, where all of this holds:
    - both lengths are known, and their product is at least 2**20,
    - the attention scores are not returned, and there is no dropout,
    - there is no bias, or `bias` is a function and no positions are given; and no `soft_cap`,
    - the batch is not known to be empty.
    Then only the keys inside a window are multiplied, too.

    Args:
        query: `(batch, num_heads, target_len, key_dim)`.
        key: `(batch, num_key_value_heads, source_len, key_dim)`. With fewer heads than the query's, each serves as
            many heads of the query, one after another (Ainslie et al., 2023, "GQA", section 2.2).
        value: `(batch, num_key_value_heads, source_len, value_dim)`.
        mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.
        query_mask: bool `(batch, target_len)`: a masked query gives zeros; or None.
        dropout: Function of the attention scores, or None.
        return_attention_scores: Whether the attention scores are needed.
        bias: float32 tensor that is added before the softmax, broadcastable to the scores; a function that computes it
            from distances, int32 `(batch or 1, 1, target_len, source_len)`; or None.
        scale: Factor of the products; `1 / sqrt(key_dim)` when None.
        soft_cap: Bound of the products, by `soft_cap * tanh(product / soft_cap)`; none when None.
        window: A query sees the keys less than so many positions before and after it; all when None.
        positions: int `(target_len,)` or `(batch, target_len)`, positions of the queries for `bias` and `window`;
            counted from 0 when None.
        key_positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys; counted from 0 when None.

    Returns:
        The context `(batch, num_heads, target_len, value_dim)`, and the attention scores, float32
        `(batch, num_heads, target_len, source_len)`, before dropout; None if they are not needed.
    """
    query = query * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    counted = positions is None and key_positions is None
    in_blocks = dropout is None and soft_cap is None and not return_attention_scores
    in_blocks = (
        in_blocks and (bias is None or (callable(bias) and counted)) and _are_long(query.shape, key.shape)
    )
    if (window is not None or callable(bias)) and not (in_blocks and counted):
        distances = distances_between(
            ops.arange(ops.shape(query)[2], dtype="int32") if positions is None else positions,
            ops.arange(ops.shape(key)[2], dtype="int32") if key_positions is None else key_positions,
        )
        if window is not None:
            mask, window = combine(mask, ops.abs(distances) < window), None
        bias = bias(distances) if callable(bias) else bias
    sees_any = None if query_mask is None else ops.expand_dims(query_mask, (1, 3))
    if mask is not None and window is None:
        sees_any = combine(sees_any, ops.any(mask, axis=-1, keepdims=True))
    if in_blocks:
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (ops.repeat(x, shared, axis=1) for x in (key, value))
        query, key, value = _of_one_batch(query, key, value)
        context = blocks.blockwise_attention(query, key, value, mask, bias, window)
        return ops.zero_unless(sees_any, context), None
    scores = _product_by_heads(query, key, transpose_y=True)
    if soft_cap is not None:
        scores = ops.cast(scores, ops.at_least_float32(scores.dtype))
        scores = soft_cap * ops.tanh(scores / soft_cap)
    scores = ops.masked_softmax(scores, mask, bias)
    kept = scores if dropout is None else dropout(scores)
    context = ops.zero_unless(sees_any, _product_by_heads(ops.cast(kept, value.dtype), value))
    return context, ops.zero_unless(sees_any, scores) if return_attention_scores else None


def _are_long(query_shape, key_shape):
    """Whether blocks are faster: the lengths are known, and long, and the batch is not known to be empty."""
    lengths = query_shape[2], key_shape[2]
    # JAX has symbols for open sizes.
    known = all(isinstance(length, int) for length in lengths)
    return known and math.prod(lengths) >= blocks.LONG and query_shape[0] != 0


def _of_one_batch(query, key, value):
    """Repeats one row of queries for all memories, or one memory for all queries, where the number is known to be 1."""
    rows = query.shape[0], key.shape[0]
    if rows[0] == rows[1] or 1 not in rows:
        return query, key, value
    batch_size = ops.shape(key if rows[0] == 1 else query)[0]
    return [ops.repeat(x, batch_size, axis=0) if x.shape[0] == 1 else x for x in (query, key, value)]


def distances_between(positions, key_positions):
    """Subtracts the position of each query from the position of each key.

    Args:
        positions: int32 `(target_len,)` or `(batch, target_len)`, positions of the queries.
        key_positions: int32 `(source_len,)` or `(batch, source_len)`, positions of the keys.

    Returns:
        int32 `(batch or 1, 1, target_len, source_len)`, positive where a key comes after a query.
    """
    queries, keys = (
        x if len(x.shape) == 2 else ops.expand_dims(x, 0)
        for x in (ops.cast(each, "int32") for each in (positions, key_positions))
    )
    return ops.expand_dims(keys, (1, 2)) - ops.expand_dims(queries, (1, 3))


def _product_by_heads(x, y, transpose_y=False):
    """Multiplies `x` `(batch, num_heads, target_len, n)` by `y` `(batch, num_key_value_heads, n, m)`.

    The heads of `x` that share a head of `y` become further rows of it. With `transpose_y` the last two axes of `y` are
    exchanged first.
    """
    groups, shape = y.shape[1], ops.shape(x)
    if groups == x.shape[1]:
        return ops.matmul(x, y, transpose_y)
    x = ops.reshape(x, (shape[0], groups, shape[1] // groups * shape[2], shape[3]))
    product = ops.matmul(x, y, transpose_y)
    return ops.reshape(product, (*shape[:3], ops.shape(product)[3]))


def without_masked_tokens(query, value, key, query_mask, value_mask, key_mask):
    """Replaces masked tokens by zeros: 0 times NaN would be NaN. The results that count stay the same.

    Args:
        query: `(batch, target_len, features)`.
        value: `(batch, source_len, features)`, or a `KVCache`, which stays as it is.
        key: `(batch, source_len, features)`; or None.
        query_mask: bool `(batch, target_len)`, True where a token is real; or None.
        value_mask: bool `(batch, source_len)`, or None.
        key_mask: bool `(batch, source_len)`, or None.

    Returns:
        The query, the value and the key.
    """
    same = query is value and query_mask is value_mask

    def real(x, *masks):
        mask = combine(*masks)
        return x if mask is None or isinstance(x, KVCache) else ops.zero_unless(ops.expand_dims(mask, -1), x)

    keys = None if key is None or key is value else real(key, value_mask, key_mask)
    value = real(value, value_mask, key_mask if keys is None else None)
    return value if same and key_mask is None else real(query, query_mask), value, keys


def joint_batch_size(query_shape, value_shape):
    """Returns the batch size of the output: one of the two may be 1, and is repeated."""
    sizes = {query_shape[0], value_shape[0]} - {1}
    known = [size for size in sizes if isinstance(size, int)]
    rule = "`query` and `value` must have as many rows as one another, or one of them 1."
    check(len(known) < 2, rule, query_rows=query_shape[0], value_rows=value_shape[0])
    return sizes.pop() if len(sizes) == 1 else query_shape[0]
