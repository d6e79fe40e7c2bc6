"""Exact attention in blocks: its memory grows with the length, and not with its square."""

from keras_transformer.execution import native, ops
from keras_transformer.masks import combine

# Scores that one block holds: 8 MiB in float32, which a large cache holds, and enough for a product to run at full
# speed.
BLOCK_SIZE = 2**21

# Number of scores of one row and head from which on blocks are faster.
LONG = 2**20

# Number of queries that a block may hold, however small its window: far fewer make products that are slow.
FEWEST_QUERIES = 128


def blockwise_attention(query, key, value, mask=None, bias=None, window=None):
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

    @ops.custom_gradient
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
        # Blocks of equal size leave the fewest empty places in the last one, which are multiplied too.
        self.count = -(-self.target_len // self.size)
        self.size = -(-self.target_len // self.count)
        if window is not None:
            self.span = min(self.source_len, self.size + 2 * (window - 1))
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

        @native.recomputed
        def attend(i):
            row, block = i // self.count, i % self.count
            scores, sees_any = self._scores(
                queries[row, block], self._near(keys, row, block, axis=2), row, block, *tables
            )
            context = ops.matmul(ops.cast(scores, values.dtype), self._near(values, row, block, axis=1))
            return ops.zero_unless(sees_any, context)

        context = ops.map(attend, ops.arange(self.rows * self.count, dtype="int32"))
        context = ops.reshape(context, (self.batch_size, self.heads, self.count * self.size, value.shape[-1]))
        return context[:, :, : self.target_len]

    def backward(self, query, key, value, context, upstream, *tables):
        """Computes the gradients of query, key and value, and of the table."""
        wide = ops.at_least_float32(query.dtype)
        dot = ops.sum(ops.cast(upstream, wide) * ops.cast(context, wide), axis=-1, keepdims=True)
        parts = self._cut(query), self._cut(upstream), self._cut(dot)
        keys, values = self._by_row(key), self._by_row(value)
        transposed_keys, transposed_values = (ops.transpose(x, (0, 2, 1)) for x in (keys, values))

        def of_row(row, block):
            q, up, dots = (part[row, block] for part in parts)
            scores, sees_any = self._scores(
                q, self._near(transposed_keys, row, block, axis=2), row, block, *tables
            )
            up = ops.zero_unless(sees_any, up)
            to_scores = ops.cast(ops.matmul(up, self._near(transposed_values, row, block, axis=2)), wide)
            to_bias = scores * (to_scores - dots)
            to_products = ops.cast(to_bias, q.dtype)
            scores = ops.cast(scores, up.dtype)
            return (
                ops.matmul(to_products, self._near(keys, row, block, axis=1)),
                ops.matmul(ops.transpose(to_products, (1, 0)), q),
                ops.matmul(ops.transpose(scores, (1, 0)), up),
                *(_sums_by_distance(to_bias) for _ in tables),
            )

        def of_block(block, to_query, to_key, to_value, *to_tables):
            rows = ops.arange(self.rows, dtype="int32")
            part, *others = ops.map(lambda row: of_row(row, block), rows)
            (to_query,) = ops.update_rows([to_query], [part[:, None]], block * self.size)
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
            lambda block, *_: block < self.count, of_block, (ops.cast(0, "int32"), to_query, *totals)
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
        return ops.masked_softmax(products, mask, bias), sees_any

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
        return ops.update_rows(
            [total], [ops.slice(total, (0, 0, first, 0), (-1, 1, length, dim)) + part], first
        )[0]

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
    """Copies the value of each distance, `(n,)`, into a matrix `(size, n - size)`: `values[j - i + size - 1]`."""
    # Rows one element shorter than the table shift by one each.
    width = values.shape[0] - 1
    rows = ops.reshape(ops.tile(values, (size,))[: size * width], (size, width))
    return rows[:, size - 1 :]


def _sums_by_distance(x):
    """The sums over `j - i + size - 1`, `(size + span,)` of `(size, span)`: the transpose of `_by_distance`."""
    size, span = x.shape
    rows = ops.reshape(ops.pad(x, ((0, 0), (size - 1, 0))), (-1,))
    return ops.sum(ops.reshape(ops.pad(rows, ((0, size),)), (size, size + span)), axis=0)
