"""Attention over long sequences, in blocks: its memory grows with the length, not with its square."""

from keras import ops

from keras_transformer.backend import custom_gradient
from keras_transformer.layers.cache import written
from keras_transformer.masks import combine, masked_scores

# Scores held at once: 8 MiB in float32, which a large cache holds, and enough for a product to run at full speed.
BLOCK_SIZE = 2**21

# From here on, in scores of a row and head, blocks pay.
LONG = 2**20

# Queries of a block in a window, at least: fewer leave a product too small.
FEWEST_QUERIES = 128


def is_long(target_len, source_len):
    """Whether blocks pay for these lengths; not where they are known late."""
    known = isinstance(target_len, int) and isinstance(source_len, int)
    return known and target_len * source_len >= LONG


def blockwise_attention(query, key, value, mask, bias=None, window=None):
    """As `dot_product_attention` without dropout, exact, in blocks of queries of one row and head at a time.

    Nothing of the size `target_len * source_len` is kept for the gradient: it computes each block's weights anew (Rabe
    and Staats, 2021, "Self-attention does not need O(n^2) memory", section 3). A block holds all the keys of its
    queries, so that its weights are a plain softmax. In a window these are as many as the window and the block have
    places ("Attention Is All You Need", section 4: time in proportion to length times window).

    Both lengths are known, as `is_long` asks.

    Args:
        query: `(batch, num_heads, target_len, key_dim)`, scaled.
        key: `(batch, num_heads, source_len, key_dim)`.
        value: `(batch, num_heads, source_len, value_dim)`.
        mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.
        bias: A function of distances, int32 `(1, 1, 1, n)`, to what is added to the scores at each, float32
            `(1, num_heads, 1, n)`; or None.
        window: A query sees the keys less than so many places before and after it; all when None.

    Returns:
        `(batch, num_heads, target_len, value_dim)`. A query that may attend to nothing gets zeros where there is a
        window, anything where there is none.
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


def where_any(sees_any, x):
    """Zeros for the queries that may attend to nothing."""
    return x if sees_any is None else ops.where(sees_any, x, ops.zeros_like(x))


class _Blocks:
    """How an attention is cut: `count` blocks of `size` queries for each row and head, each of `span` keys."""

    def __init__(self, query, key, mask, window):
        self.batch_size, self.heads, self.target_len, _ = ops.shape(query)
        self.source_len = ops.shape(key)[2]
        self.mask = None if mask is None else ops.convert_to_tensor(mask)
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

    def forward(self, query, key, value, *tables):
        """The context."""
        queries, values = self._cut(query), self._by_row(value)
        keys = self._by_row(ops.transpose(key, (0, 1, 3, 2)))

        def attend(i):
            row, block = i // self.count, i % self.count
            weights, sees_any = self._weights(
                queries[row, block], self._near(keys, row, block, axis=2), row, block, *tables
            )
            return where_any(
                sees_any,
                ops.matmul(ops.cast(weights, values.dtype), self._near(values, row, block, axis=1)),
            )

        context = ops.map(attend, ops.arange(self.rows * self.count, dtype="int32"))
        context = ops.reshape(context, (self.batch_size, self.heads, -1, value.shape[-1]))
        return context[:, :, : self.target_len]

    def backward(self, query, key, value, context, upstream, *tables):
        """The gradients of query, key and value, and of the table."""
        dot = ops.sum(ops.cast(upstream, "float32") * ops.cast(context, "float32"), axis=-1, keepdims=True)
        parts = self._cut(query), self._cut(upstream), self._cut(dot)
        keys, values = self._by_row(key), self._by_row(value)
        transposed_keys, transposed_values = (ops.transpose(x, (0, 2, 1)) for x in (keys, values))

        def of_row(row, block):
            q, up, dots = (part[row, block] for part in parts)
            weights, sees_any = self._weights(
                q, self._near(transposed_keys, row, block, axis=2), row, block, *tables
            )
            up = where_any(sees_any, up)
            to_weights = ops.cast(
                ops.matmul(up, self._near(transposed_values, row, block, axis=2)), "float32"
            )
            to_bias = weights * (to_weights - dots)
            to_scores = ops.cast(to_bias, q.dtype)
            weights = ops.cast(weights, up.dtype)
            return (
                ops.matmul(to_scores, self._near(keys, row, block, axis=1)),
                ops.matmul(ops.transpose(to_scores), q),
                ops.matmul(ops.transpose(weights), up),
                *(_sums_by_distance(to_bias) for _ in tables),
            )

        def of_block(block, to_query, to_key, to_value, *to_tables):
            rows = ops.arange(self.rows, dtype="int32")
            part, *others = ops.map(lambda row: of_row(row, block), rows)
            to_query = written(to_query, part[:, None], block * self.size)
            totals = [
                self._added(total, ops.cast(part, "float32")[:, None], self._first(block))
                for total, part in zip((to_key, to_value), others[:2], strict=True)
            ]
            for total, part in zip(to_tables, others[2:], strict=True):
                by_head = ops.sum(
                    ops.reshape(part, (self.batch_size, self.heads, self.size + self.span)), axis=0
                )
                totals.append(self._added(total, by_head[:, None, :, None], self._nearest(block)))
            return block + 1, to_query, *totals

        to_query = ops.zeros((self.rows, 1, self.count * self.size, query.shape[-1]), query.dtype)
        totals = [ops.zeros((self.rows, 1, *ops.shape(x)[1:]), "float32") for x in (keys, values)]
        totals += [ops.zeros((self.heads, 1, ops.shape(table)[1], 1), "float32") for table in tables]
        _, to_query, *totals = ops.while_loop(
            lambda block, *_: block < self.count,
            of_block,
            (ops.cast(0, "int32"), to_query, *totals),
        )
        to_query = ops.reshape(to_query, (self.batch_size, self.heads, -1, query.shape[-1]))
        return (
            to_query[:, :, : self.target_len],
            *(
                ops.reshape(ops.cast(total, x.dtype), ops.shape(x))
                for total, x in zip(totals, (key, value, *tables), strict=True)
            ),
        )

    def table(self, bias):
        """The bias at every distance from a query, the last block's filled up, to a key: float32 `(heads, n)`."""
        distances = ops.arange(1 - self.count * self.size, self.source_len + 1, dtype="int32")
        return ops.reshape(bias(distances[None, None, None]), (self.heads, -1))

    def _weights(self, query, transposed_key, row, block, *tables):
        """The attention weights of a block, float32 `(size, span)`, and which queries of a window see any key."""
        scores = ops.cast(ops.matmul(query, transposed_key), "float32")
        for table in tables:
            at = (row % self.heads, self._nearest(block))
            scores = scores + _by_distance(ops.slice(table, at, (1, self.size + self.span))[0], self.size)
        part = self.mask
        queries = ops.arange(self.size, dtype="int32") + block * self.size
        if part is not None:
            part = part[0 if part.shape[0] == 1 else row // self.heads]
            part = part[0 if part.shape[0] == 1 else row % self.heads]
            if part.shape[0] != 1:
                part = ops.take(part, ops.minimum(queries, self.target_len - 1), axis=0)
            if part.shape[1] != 1 and self.window is not None:
                part = ops.slice(part, (0, self._first(block)), (part.shape[0], self.span))
        sees_any = None
        if self.window is not None:
            keys = ops.arange(self.span, dtype="int32") + self._first(block)
            part = combine(part, ops.abs(keys - queries[:, None]) < self.window)
            sees_any = ops.any(part, axis=-1, keepdims=True)
        return ops.softmax(masked_scores(scores, part), axis=-1), sees_any

    def _first(self, block):
        """The first key of a block."""
        if self.window is None:
            return 0
        return ops.minimum(ops.maximum(block * self.size - self.window + 1, 0), self.source_len - self.span)

    def _nearest(self, block):
        """Where the table has the distance of a block's first key from its last query."""
        return self._first(block) + (self.count - 1 - block) * self.size

    def _near(self, x, row, block, axis):
        """A row of keys or values, `(rows, ...)`: what a block may see of it."""
        if self.window is None:
            return x[row]
        start, shape = [row, 0, 0], [1, *x.shape[1:]]
        start[axis], shape[axis] = self._first(block), self.span
        return ops.slice(x, start, shape)[0]

    def _added(self, total, part, first):
        """`total`, `(rows, 1, length, dim)`, plus a part of it from slot `first` on."""
        length, dim = part.shape[2:]
        if length == total.shape[2]:
            return total + part
        return written(total, ops.slice(total, (0, 0, first, 0), (-1, 1, length, dim)) + part, first)

    def _by_row(self, x):
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
    """Its other way: the sums over `j - i + size - 1`, `(size + span,)` of `(size, span)`."""
    size, span = x.shape
    rows = ops.reshape(ops.pad(x, ((0, 0), (size - 1, 0))), (-1,))
    return ops.sum(ops.reshape(ops.pad(rows, ((0, size),)), (size, size + span)), axis=0)
