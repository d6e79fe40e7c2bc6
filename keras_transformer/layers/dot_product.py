"""Scaled dot-product attention: all scores at once, or in blocks where the sequences are long."""

import math

from keras import ops

from keras_transformer.backend import at_least_float32, custom_gradient, product_of_few_rows, recomputed
from keras_transformer.layers.cache import written
from keras_transformer.masks import combine
from keras_transformer.shapes import reshaped

# Far below any score, yet finite: a row with no allowed key stays free of NaN, forward and backward.
HIDDEN = -1e30

# Scores that one block holds: 8 MiB in float32, which a large cache holds, and enough for a product to run at full
# speed.
BLOCK_SIZE = 2**21

# Number of scores of one row and head from which on blocks are faster.
LONG = 2**20

# Least number of queries of a block in a window: with fewer its products are too small to be fast.
FEWEST_QUERIES = 128

# Largest number of queries for which TensorFlow's usual product and softmax take longer to start than to compute.
FEW_ROWS = 4


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
    in_blocks = (
        dropout is None
        and soft_cap is None
        and not return_attention_scores
        and isinstance(query.shape[2], int)
        and isinstance(key.shape[2], int)
        and query.shape[2] * key.shape[2] >= LONG
        and query.shape[0] != 0
        and (bias is None or (callable(bias) and counted))
    )
    if (window is not None or callable(bias)) and not (in_blocks and counted):
        distances = distances_between(
            ops.arange(ops.shape(query)[2], dtype="int32") if positions is None else positions,
            ops.arange(ops.shape(key)[2], dtype="int32") if key_positions is None else key_positions,
        )
        if window is not None:
            mask, window = combine(mask, ops.abs(distances) < window), None
        bias = bias(distances) if callable(bias) else bias
    sees_any = None if query_mask is None else query_mask[:, None, :, None]
    if mask is not None and window is None:
        sees_any = combine(sees_any, ops.any(mask, axis=-1, keepdims=True))
    if in_blocks:
        shared = query.shape[1] // key.shape[1]
        if shared > 1:
            key, value = (ops.repeat(x, shared, axis=1) for x in (key, value))
        return zero_unless(sees_any, _blockwise_attention(query, key, value, mask, bias, window)), None
    scores = _product_by_heads(query, key, transpose=True)
    if soft_cap is not None:
        scores = ops.cast(scores, at_least_float32(scores.dtype))
        scores = soft_cap * ops.tanh(scores / soft_cap)
    scores = masked_softmax(scores, mask, bias)
    kept = scores if dropout is None else dropout(scores)
    context = zero_unless(sees_any, _product_by_heads(ops.cast(kept, value.dtype), value))
    return context, zero_unless(sees_any, scores) if return_attention_scores else None


def masked_softmax(scores, mask, bias=None, axis=-1):
    """Softmax that is 0 where the mask is False, however high the scores, infinity included.

    In a row that is False throughout, the result is the same for all. The gradient passes the mask unchanged: the
    softmax's own gradient is 0 where the softmax is 0.

    Args:
        scores: `(..., target_len, source_len)`.
        mask: bool, broadcastable to the scores, or None.
        bias: Tensor that is added to the scores first, or None.
        axis: Axis of the source, or axes.

    Returns:
        float32, or float64 for float64 scores, of the shape of the scores.
    """
    dtype = at_least_float32(scores.dtype)
    scores = ops.cast(scores, dtype)
    scores = scores if bias is None else scores + ops.cast(bias, dtype)
    if mask is not None:
        highest = ops.cast(ops.where(mask, float("inf"), HIDDEN), dtype)
        scores = custom_gradient(lambda x: (ops.minimum(x, highest), lambda upstream: upstream))(scores)
    if isinstance(axis, tuple):
        # TensorFlow's softmax knows no rank above 5.
        return ops.exp(scores - ops.logsumexp(scores, axis=axis, keepdims=True))
    if isinstance(scores.shape[-2], int) and scores.shape[-2] <= FEW_ROWS:
        # TensorFlow's softmax takes ten times as long for the few scores of a decoding step.
        return ops.exp(ops.log_softmax(scores, axis=axis))
    return ops.softmax(scores, axis=axis)


def distances_between(positions, key_positions):
    """Subtracts the position of each query from the position of each key.

    Args:
        positions: int32 `(target_len,)` or `(batch, target_len)`, positions of the queries.
        key_positions: int32 `(source_len,)` or `(batch, source_len)`, positions of the keys.

    Returns:
        int32 `(batch or 1, 1, target_len, source_len)`, positive where a key comes after a query.
    """
    queries, keys = (
        x if len(x.shape) == 2 else x[None]
        for x in (ops.cast(each, "int32") for each in (positions, key_positions))
    )
    return (keys[:, None, :] - queries[:, :, None])[:, None]


def _product_by_heads(x, y, transpose=False):
    """Multiplies `x` `(batch, num_heads, target_len, n)` by `y` `(batch, num_key_value_heads, n, m)`.

    The heads of `x` that share a head of `y` become further rows of it. With `transpose` the last two axes of `y` are
    exchanged first.
    """
    groups = y.shape[1]
    shape = ops.shape(x)
    if groups != x.shape[1]:
        x = reshaped(x, (shape[0], groups, shape[1] // groups * shape[2], shape[3]))
    if isinstance(x.shape[2], int) and x.shape[2] <= FEW_ROWS:
        product = product_of_few_rows(x, y, transpose)
    else:
        product = ops.matmul(x, ops.transpose(y, (0, 1, 3, 2)) if transpose else y)
    return product if groups == shape[1] else reshaped(product, (*shape[:3], ops.shape(product)[3]))


def zero_unless(condition, x):
    """Replaces `x` by zeros where the condition is False; None is True everywhere."""
    return x if condition is None else ops.where(condition, x, 0.0)


def _blockwise_attention(query, key, value, mask, bias=None, window=None):
    """`softmax(q kᵀ + bias) v`, exact, in blocks of queries of one row and head at a time.

    Nothing of the size `target_len * source_len` is kept for the gradient, which computes each block's scores again
    (Rabe and Staats, 2021, "Self-attention does not need O(n^2) memory", section 3). A block holds all the keys of its
    queries, so its scores are a plain softmax. In a window these are as many as the window and the block have
    places ("Attention Is All You Need", section 4: time in proportion to length times window).

    Args:
        query: `(batch, num_heads, target_len, key_dim)`, scaled; `target_len` is known.
        key: `(batch, num_heads, source_len, key_dim)`; `source_len` is known.
        value: `(batch, num_heads, source_len, value_dim)`.
        mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.
        bias: Function of distances, int32 `(1, 1, 1, n)`, to the bias at each, float32 `(1, num_heads, 1, n)`; or None.
        window: A query sees the keys less than so many places before and after it; all when None.

    Returns:
        `(batch, num_heads, target_len, value_dim)`. A query that may attend to nothing gets zeros where there is a
        window, else the mean of the values.
    """
    blocks = _Blocks(query, key, mask, window)
    tables = () if bias is None else (blocks.table(bias),)

    @custom_gradient
    def attention(query, key, value, *tables):
        context = blocks.forward(query, key, value, *tables)

        def gradient(upstream):
            return blocks.backward(query, key, value, context, upstream, *tables)

        return context, gradient

    return attention(query, key, value, *tables)


class _Blocks:
    """Cuts an attention into `count` blocks of `size` queries for each row and head, each with `span` keys."""

    def __init__(self, query, key, mask, window):
        self.batch_size, self.heads, self.target_len, _ = ops.shape(query)
        self.source_len = ops.shape(key)[2]
        self.window = window
        self.size = max(BLOCK_SIZE // self.source_len, 1)
        self.span = self.source_len
        if window is not None:
            self.size = min(self.size, max(window, FEWEST_QUERIES))
        self.size = min(self.size, self.target_len)
        if window is not None:
            self.span = min(self.source_len, self.size + 2 * (window - 1))
        self.count = -(-self.target_len // self.size)
        self.rows = self.batch_size * self.heads
        self.mask = self._expanded(mask)

    def _expanded(self, mask):
        """Gives a mask full size on each axis whose size is known late, where it may turn out to be 1."""
        if mask is None:
            return None
        mask = ops.convert_to_tensor(mask)
        full = (self.batch_size, self.heads, self.target_len, self.source_len)
        shape = [1 if size == 1 else wanted for size, wanted in zip(mask.shape, full, strict=True)]
        return mask if None not in mask.shape else ops.broadcast_to(mask, shape)

    def forward(self, query, key, value, *tables):
        """Computes the context."""
        queries, values = self._cut(query), self._by_row(value)
        keys = self._by_row(ops.transpose(key, (0, 1, 3, 2)))

        @recomputed
        def attend(i):
            row, block = i // self.count, i % self.count
            scores, sees_any = self._scores(
                queries[row, block], self._near(keys, row, block, axis=2), row, block, *tables
            )
            context = ops.matmul(ops.cast(scores, values.dtype), self._near(values, row, block, axis=1))
            return zero_unless(sees_any, context)

        context = ops.map(attend, ops.arange(self.rows * self.count, dtype="int32"))
        context = ops.reshape(context, (self.batch_size, self.heads, self.count * self.size, value.shape[-1]))
        return context[:, :, : self.target_len]

    def backward(self, query, key, value, context, upstream, *tables):
        """Computes the gradients of query, key and value, and of the table."""
        wide = at_least_float32(query.dtype)
        dot = ops.sum(ops.cast(upstream, wide) * ops.cast(context, wide), axis=-1, keepdims=True)
        parts = self._cut(query), self._cut(upstream), self._cut(dot)
        keys, values = self._by_row(key), self._by_row(value)
        transposed_keys, transposed_values = (ops.transpose(x, (0, 2, 1)) for x in (keys, values))

        def of_row(row, block):
            q, up, dots = (part[row, block] for part in parts)
            scores, sees_any = self._scores(
                q, self._near(transposed_keys, row, block, axis=2), row, block, *tables
            )
            up = zero_unless(sees_any, up)
            to_scores = ops.cast(ops.matmul(up, self._near(transposed_values, row, block, axis=2)), wide)
            to_bias = scores * (to_scores - dots)
            to_products = ops.cast(to_bias, q.dtype)
            scores = ops.cast(scores, up.dtype)
            return (
                ops.matmul(to_products, self._near(keys, row, block, axis=1)),
                ops.matmul(ops.transpose(to_products), q),
                ops.matmul(ops.transpose(scores), up),
                *(_sums_by_distance(to_bias) for _ in tables),
            )

        def of_block(block, to_query, to_key, to_value, *to_tables):
            rows = ops.arange(self.rows, dtype="int32")
            part, *others = ops.map(lambda row: of_row(row, block), rows)
            (to_query,) = written([to_query], [part[:, None]], block * self.size)
            totals = [
                self._added(total, ops.cast(part, wide)[:, None], self._first(block))
                for total, part in zip((to_key, to_value), others[:2], strict=True)
            ]
            for total, part in zip(to_tables, others[2:], strict=True):
                by_head = ops.sum(
                    ops.reshape(part, (self.batch_size, self.heads, self.size + self.span)), axis=0
                )
                totals.append(self._added(total, by_head[:, None, :, None], self._nearest(block)))
            return block + 1, to_query, *totals

        to_query = ops.zeros((self.rows, 1, self.count * self.size, query.shape[-1]), query.dtype)
        totals = [ops.zeros((self.rows, 1, *ops.shape(x)[1:]), wide) for x in (keys, values)]
        totals += [ops.zeros((self.heads, 1, ops.shape(table)[1], 1), wide) for table in tables]
        _, to_query, *totals = ops.while_loop(
            lambda block, *_: block < self.count,
            of_block,
            (ops.cast(0, "int32"), to_query, *totals),
        )
        to_query = ops.reshape(
            to_query, (self.batch_size, self.heads, self.count * self.size, query.shape[-1])
        )
        return (
            to_query[:, :, : self.target_len],
            *(
                ops.reshape(ops.cast(total, x.dtype), ops.shape(x))
                for total, x in zip(totals, (key, value, *tables), strict=True)
            ),
        )

    def table(self, bias):
        """Computes the bias of every distance between a query, the last block's padding included, and a key.

        Returns:
            float32 `(heads, n)`.
        """
        distances = ops.arange(1 - self.count * self.size, self.source_len + 1, dtype="int32")
        return ops.reshape(bias(distances[None, None, None]), (self.heads, -1))

    def _scores(self, query, transposed_key, row, block, *tables):
        """The attention scores of a block, float32 `(size, span)`, and which queries of a window see any key."""
        products = ops.matmul(query, transposed_key)
        bias = None
        for table in tables:
            start = (row % self.heads, self._nearest(block))
            bias = _by_distance(ops.slice(table, start, (1, self.size + self.span))[0], self.size)
        mask = self.mask
        queries = ops.arange(self.size, dtype="int32") + block * self.size
        if mask is not None:
            mask = mask[0 if mask.shape[0] == 1 else row // self.heads]
            mask = mask[0 if mask.shape[0] == 1 else row % self.heads]
            if mask.shape[0] != 1:
                mask = ops.take(mask, ops.minimum(queries, self.target_len - 1), axis=0)
            if mask.shape[1] != 1 and self.window is not None:
                mask = ops.slice(mask, (0, self._first(block)), (mask.shape[0], self.span))
        sees_any = None
        if self.window is not None:
            keys = ops.arange(self.span, dtype="int32") + self._first(block)
            mask = combine(mask, ops.abs(keys - queries[:, None]) < self.window)
            sees_any = ops.any(mask, axis=-1, keepdims=True)
        return masked_softmax(products, mask, bias), sees_any

    def _first(self, block):
        """The first key of a block."""
        if self.window is None:
            return 0
        return ops.minimum(ops.maximum(block * self.size - self.window + 1, 0), self.source_len - self.span)

    def _nearest(self, block):
        """The index, in the table, of the distance between a block's first key and its last query."""
        return self._first(block) + (self.count - 1 - block) * self.size

    def _near(self, x, row, block, axis):
        """The keys or values, `(rows, ...)`, of one row that a block may see."""
        if self.window is None:
            return x[row]
        start, shape = [row, 0, 0], [1, *x.shape[1:]]
        start[axis], shape[axis] = self._first(block), self.span
        return ops.slice(x, start, shape)[0]

    def _added(self, total, part, first):
        """Adds a part to `total`, `(rows, 1, length, dim)`, from slot `first` on."""
        length, dim = part.shape[2:]
        if length == total.shape[2]:
            return total + part
        return written([total], [ops.slice(total, (0, 0, first, 0), (-1, 1, length, dim)) + part], first)[0]

    def _by_row(self, x):
        """`(batch, heads, length, dim)` to `(rows, length, dim)`."""
        return ops.reshape(x, (self.rows, *ops.shape(x)[2:]))

    def _cut(self, x):
        """`(batch, heads, target_len, dim)` to `(rows, count, size, dim)`, filled up with zeros."""
        more = self.count * self.size - self.target_len
        if more:
            x = ops.concatenate([x, ops.zeros((*ops.shape(x)[:2], more, x.shape[-1]), x.dtype)], axis=2)
        return ops.reshape(x, (self.rows, self.count, self.size, x.shape[-1]))


def _by_distance(values, size):
    """`values[j - i + size - 1]` at row i and column j: `(size, n - size)` of `(n,)`."""
    width = values.shape[0] - 1  # a row of as many as there are but one starts one further
    rows = ops.reshape(ops.tile(values, (size,))[: size * width], (size, width))
    return rows[:, size - 1 :]


def _sums_by_distance(x):
    """The sums over `j - i + size - 1`, `(size + span,)` of `(size, span)`: the transpose of `_by_distance`."""
    size, span = x.shape
    rows = ops.reshape(ops.pad(x, ((0, 0), (size - 1, 0))), (-1,))
    return ops.sum(ops.reshape(ops.pad(rows, ((0, size),)), (size, size + span)), axis=0)
