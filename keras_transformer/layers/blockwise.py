"""Attention over long sequences, in blocks: its memory grows with the length, not with its square."""

from keras import ops

from keras_transformer.backend import custom_gradient
from keras_transformer.layers.cache import written
from keras_transformer.masks import masked_scores

# Scores held at once: 8 MiB in float32, which a large cache holds, and enough for a product to run at full speed.
BLOCK_SIZE = 2**21

# From here on, in scores of a row and head, blocks pay.
LONG = 2**20


def is_long(target_len, source_len):
    """Whether blocks pay for these lengths; not where they are known late."""
    known = isinstance(target_len, int) and isinstance(source_len, int)
    return known and target_len * source_len >= LONG


def blockwise_attention(query, key, value, mask):
    """As `dot_product_attention` without dropout, exact, in blocks of queries of one row and head at a time.

    Nothing of the size `target_len * source_len` is kept for the gradient: it computes each block's weights anew (Rabe
    and Staats, 2021, "Self-attention does not need O(n^2) memory", section 3). A block holds all the keys of its
    queries, so that its weights are a plain softmax.

    Both lengths are known, as `is_long` asks.

    Args:
        query: `(batch, num_heads, target_len, key_dim)`, scaled.
        key: `(batch, num_heads, source_len, key_dim)`.
        value: `(batch, num_heads, source_len, value_dim)`.
        mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.

    Returns:
        `(batch, num_heads, target_len, value_dim)`.
    """
    blocks = _Blocks(query, key, mask)

    @custom_gradient
    def attention(query, key, value):
        context = blocks.forward(query, key, value)

        def gradient(upstream):
            return blocks.backward(query, key, value, context, upstream)

        return context, gradient

    return attention(query, key, value)


class _Blocks:
    """How an attention is cut: `count` blocks of `size` queries for each row and head."""

    def __init__(self, query, key, mask):
        self.batch_size, self.heads, self.target_len, _ = ops.shape(query)
        self.source_len = ops.shape(key)[2]
        self.mask = None if mask is None else ops.convert_to_tensor(mask)
        self.size = min(self.target_len, max(BLOCK_SIZE // self.source_len, 1))
        self.count = -(-self.target_len // self.size)
        self.rows = self.batch_size * self.heads

    def forward(self, query, key, value):
        """The context."""
        queries, values = self._cut(query), self._by_row(value)
        keys = self._by_row(ops.transpose(key, (0, 1, 3, 2)))

        def attend(i):
            row, block = i // self.count, i % self.count
            weights = self._weights(queries[row, block], keys[row], row, block)
            return ops.matmul(ops.cast(weights, values.dtype), values[row])

        context = ops.map(attend, ops.arange(self.rows * self.count, dtype="int32"))
        context = ops.reshape(context, (self.batch_size, self.heads, -1, value.shape[-1]))
        return context[:, :, : self.target_len]

    def backward(self, query, key, value, context, upstream):
        """The gradients of query, key and value."""
        dot = ops.sum(ops.cast(upstream, "float32") * ops.cast(context, "float32"), axis=-1, keepdims=True)
        parts = self._cut(query), self._cut(upstream), self._cut(dot)
        keys, values = self._by_row(key), self._by_row(value)
        transposed_keys, transposed_values = (ops.transpose(x, (0, 2, 1)) for x in (keys, values))

        def of_row(row, block):
            q, up, dots = (part[row, block] for part in parts)
            weights = self._weights(q, transposed_keys[row], row, block)
            to_weights = ops.cast(ops.matmul(up, transposed_values[row]), "float32")
            to_scores = ops.cast(weights * (to_weights - dots), q.dtype)
            weights = ops.cast(weights, up.dtype)
            return (
                ops.matmul(to_scores, keys[row]),
                ops.matmul(ops.transpose(to_scores), q),
                ops.matmul(ops.transpose(weights), up),
            )

        def of_block(block, to_query, to_key, to_value):
            rows = ops.arange(self.rows, dtype="int32")
            parts = ops.map(lambda row: of_row(row, block), rows)
            to_query = written(to_query, parts[0][:, None], block * self.size)
            to_key, to_value = (
                total + ops.cast(part, "float32")
                for total, part in zip((to_key, to_value), parts[1:], strict=True)
            )
            return block + 1, to_query, to_key, to_value

        to_query = ops.zeros((self.rows, 1, self.count * self.size, query.shape[-1]), query.dtype)
        _, to_query, to_key, to_value = ops.while_loop(
            lambda block, *_: block < self.count,
            of_block,
            (ops.cast(0, "int32"), to_query, *(ops.zeros(ops.shape(x), "float32") for x in (keys, values))),
        )
        to_query = ops.reshape(to_query, (self.batch_size, self.heads, -1, query.shape[-1]))
        return (
            to_query[:, :, : self.target_len],
            ops.reshape(ops.cast(to_key, key.dtype), ops.shape(key)),
            ops.reshape(ops.cast(to_value, value.dtype), ops.shape(value)),
        )

    def _weights(self, query, transposed_key, row, block):
        """The attention weights of a block, float32 `(size, source_len)`."""
        scores = ops.cast(ops.matmul(query, transposed_key), "float32")
        part = self.mask
        if part is not None:
            part = part[0 if part.shape[0] == 1 else row // self.heads]
            part = part[0 if part.shape[0] == 1 else row % self.heads]
            if part.shape[0] != 1:
                at = ops.arange(self.size, dtype="int32") + block * self.size
                part = ops.take(part, ops.minimum(at, self.target_len - 1), axis=0)
        return ops.softmax(masked_scores(scores, part), axis=-1)

    def _by_row(self, x):
        return ops.reshape(x, (self.rows, *ops.shape(x)[2:]))

    def _cut(self, x):
        """`(batch, heads, target_len, dim)` to `(rows, count, size, dim)`, filled up with zeros."""
        more = self.count * self.size - self.target_len
        if more:
            x = ops.concatenate([x, ops.zeros((*ops.shape(x)[:2], more, x.shape[-1]), x.dtype)], axis=2)
        return ops.reshape(x, (self.rows, self.count, self.size, x.shape[-1]))
