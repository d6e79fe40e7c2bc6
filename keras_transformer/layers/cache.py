"""The fixed-size cache of attention keys and values."""

from typing import Any, NamedTuple

from keras import ops


class KVCache(NamedTuple):
    """Keys and values of one attention layer, one slot a position.

    key: `(batch, num_heads, length, key_dim)`.
    value: `(batch, num_heads, length, value_dim)`.
    """

    key: Any
    value: Any

    @property
    def length(self):
        """Number of slots."""
        return ops.shape(self.key)[2]

    def write(self, new, index):
        """Returns a cache with `new` at the slots from `index` on.

        Written by selection: of the ways that need no XLA op it was the fastest
        (docs/decisions.md), and it is the same graph under XLA.

        Args:
            new: A `KVCache` of the new positions.
            index: First slot to write, an int or an int scalar tensor. What would lie past the last slot of a
                cache of unknown length is not written.

        Raises:
            ValueError: If the new positions are known to end past the last slot.
        """
        count, length = new.key.shape[2], self.key.shape[2]
        if None not in (count, length) and isinstance(index, int) and not 0 <= index <= length - count:
            raise ValueError(
                "`index` must leave room for the new positions in the cache. "
                f"Received: index={index}, {count} new positions, a cache of {length}."
            )
        slots = ops.arange(self.length, dtype="int32")[None, None, :, None] - index
        return KVCache(*(_select(slots, n, old) for n, old in zip(new, self, strict=True)))


def empty_cache(batch_size, num_heads, length, key_dim, value_dim, dtype):
    """A cache of zeros with `length` slots."""
    return KVCache(
        ops.zeros((batch_size, num_heads, length, key_dim), dtype),
        ops.zeros((batch_size, num_heads, length, value_dim), dtype),
    )


def check_no_index(index):
    """Raises `ValueError` for an `index` that is given without a cache, where it would mean nothing."""
    if not (isinstance(index, int) and index == 0):
        raise ValueError(f"`index` needs a `cache`. Received: index={index}, cache=None.")


def _select(slots, new, old):
    """`old`, with `new[..., slot, :]` wherever `slots` names one of its positions."""
    new = ops.cast(new, old.dtype)
    if new.shape[2] == 1:  # a single step: broadcast, no gather
        return ops.where(ops.equal(slots, 0), new, old)
    count = ops.shape(new)[2]
    inside = ops.logical_and(slots >= 0, slots < count)
    aligned = ops.take(new, ops.clip(slots[0, 0, :, 0], 0, count - 1), axis=2)
    return ops.where(inside, aligned, old)
