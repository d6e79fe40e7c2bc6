"""Attention over some axes of inputs of a higher rank, as attention over the one axis of inputs of rank 3."""

import math

from keras_transformer.checks import check
from keras_transformer.execution import ops


class FoldedAxes:
    """Folds inputs `(batch, *axes, features)` to `(rows, length, features)`, and results back.

    The attended axes become one, the length. The batch and the other axes become the rows.

    Args:
        query: `(batch, *axes, features)`.
        value: A tensor of the same rank, which differs from `query` on attended axes and in the features alone.
        attended: The attended axes, ints from 1 on; the length counts them in this order.
    """

    def __init__(self, query, value, attended):
        rank = len(query.shape)
        self.attended = attended
        self.free = tuple(axis for axis in range(rank - 1) if axis not in attended)
        same = len(value.shape) == rank and all(
            None in (query.shape[axis], value.shape[axis]) or query.shape[axis] == value.shape[axis]
            for axis in self.free
        )
        check(
            same,
            f"`query` and `value` must agree on all axes but the attended ones, {attended}, and the last.",
            query_shape=tuple(query.shape),
            value_shape=tuple(value.shape),
        )
        self.rows = self._sizes(query, self.free)
        self.lengths = self._sizes(query, attended)
        self.source_lengths = self._sizes(value, attended)

    def _sizes(self, x, axes):
        shape = ops.shape(x)
        return tuple(shape[axis] for axis in axes)

    def fold(self, x):
        """Folds a tensor `(batch, *axes, ...)`; None stays None."""
        if x is None:
            return None
        axes = (*self.free, *self.attended)
        rest = tuple(range(len(axes), len(x.shape)))
        x = ops.transpose(x, (*axes, *rest))
        shape = ops.shape(x)
        lengths = shape[len(self.free) : len(axes)]
        return ops.reshape(x, (math.prod(self.rows), math.prod(lengths), *shape[len(axes) :]))

    def fold_token_mask(self, mask, name, x):
        """Folds a mask of the tokens of `x`, bool `(batch, *axes)`; None stays None."""
        if mask is None:
            return None
        mask = ops.convert_to_tensor(mask)
        pairs = zip(mask.shape, x.shape[:-1], strict=False)
        fits = len(mask.shape) == len(x.shape) - 1 and all(
            None in pair or len({*pair}) == 1 for pair in pairs
        )
        rule = f"`{name}` must have the shape of its input without the features, {tuple(x.shape[:-1])}."
        check(fits, rule, shape=tuple(mask.shape))
        return self.fold(mask)

    def fold_attention_mask(self, mask):
        """Folds a mask to `(rows or 1, num_heads or 1, target_len, source_len)`; None stays None.

        Args:
            mask: `(*lengths, *source_lengths)`, with some of the axes `(batch, *free axes, num_heads)` before them,
                from the batch on.
        """
        if mask is None:
            return None
        mask = ops.convert_to_tensor(mask)
        count, free = 2 * len(self.attended), len(self.free)
        before = len(mask.shape) - count
        check(
            0 <= before <= free + 1,
            f"`attention_mask` must have the {count // 2} attended axes of the queries and those of the keys, after "
            "none or some of (batch, other axes, num_heads).",
            shape=tuple(mask.shape),
        )
        mask = ops.expand_dims(mask, tuple(range(before, free + 1)))
        heads, ends = ops.shape(mask)[free], (*self.lengths, *self.source_lengths)
        rows = self.rows if before else (1,) * free
        mask = ops.broadcast_to(mask, (*rows, heads, *ends))
        ends = math.prod(self.lengths), math.prod(self.source_lengths)
        return ops.reshape(mask, (math.prod(rows), heads, *ends))

    def unfold(self, x):
        """Gives an output `(rows, length, ...)` the axes of the query."""
        axes, rest = (*self.free, *self.attended), ops.shape(x)[2:]
        x = ops.reshape(x, (*self.rows, *self.lengths, *rest))
        places = sorted(range(len(axes)), key=axes.__getitem__)
        return ops.transpose(x, (*places, *range(len(axes), len(axes) + len(rest))))

    def unfold_scores(self, scores):
        """Gives attention scores `(rows, num_heads, length, source_len)` Keras's axes: those of the rows, heads, the
        attended axes of the queries, those of the keys. None stays None."""
        if scores is None:
            return None
        return ops.reshape(scores, (*self.rows, ops.shape(scores)[1], *self.lengths, *self.source_lengths))


def attended_axes(axes, rank):
    """Returns the axes to attend over, counted from the first.

    Args:
        axes: `attention_axes` as given; None for all between the batch and the features.
        rank: Rank of the query.

    Raises:
        ValueError: If an axis is the batch or the features, does not exist, or is there twice.
    """
    given = axes or range(1, rank - 1)
    attended = tuple(axis % rank for axis in given if -rank < axis < rank)
    rule = "`attention_axes` must be different axes between the batch and the features."
    check(len({*attended} - {0, rank - 1}) == len(given), rule, attention_axes=axes, rank=rank)
    return attended


def check_lengths(value_shape, key_shape):
    """Raises `ValueError` unless values and keys agree on each axis between the first and the last."""
    pairs = list(zip(value_shape[1:-1], key_shape[1:-1], strict=False))
    check(
        len(value_shape) == len(key_shape) and all(None in pair or pair[0] == pair[1] for pair in pairs),
        "All dimensions of `value` and `key`, except the last one, must be equal.",
        value_shape=tuple(value_shape),
        key_shape=tuple(key_shape),
    )
