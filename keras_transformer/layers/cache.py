"""Caches of attention keys and values: of one layer, and of all the hypotheses of a search."""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.backend import in_xla
from keras_transformer.masks import branch_mask, combine


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

        Written in place wherever the runtime can: by XLA's slice update where XLA runs, and else by a scatter,
        which changes the buffer itself when nothing else holds it (docs/decisions.md).

        Args:
            new: A `KVCache` of the new positions.
            index: First slot to write, an int or an int scalar tensor. One known late, and too large, is
                held back so that the new positions end with the last slot.

        Raises:
            ValueError: If the new positions are known to end past the last slot.
        """
        count, length = new.key.shape[2], self.key.shape[2]
        if None not in (count, length) and isinstance(index, int) and not 0 <= index <= length - count:
            raise ValueError(
                "`index` must leave room for the new positions in the cache. "
                f"Received: index={index}, {count} new positions, a cache of {length}."
            )
        if not isinstance(index, int):
            # As XLA does it; past the end a scatter would reach the next head's slots.
            index = ops.clip(index, 0, self.length - ops.shape(new.key)[2])
        return KVCache(*(written(old, n, index) for n, old in zip(new, self, strict=True)))

    def grown(self, length):
        """Returns a cache of `length` slots, the new ones zero."""
        return KVCache(*(_padded(part, length - self.length, axis=2) for part in self))


class Place(NamedTuple):
    """Where the new tokens of a step go.

    slot: The first slot to write, an int or an int scalar tensor.
    positions: int32 `(length,)` or `(batch, length)`, where they stand in their sequences.
    key_positions: int32 `(slots,)` or `(batch, slots)`, where the keys of all slots stand.
    mask: bool `(batch, 1, width, slots)`, what they may see, beside what a causal mask says; None for all.
    """

    slot: Any
    positions: Any
    key_positions: Any
    mask: Any


class TreeCache(NamedTuple):
    """The cache of all hypotheses of each row: a tree, whose nodes are written once and never move.

    A row's first slots, the trunk, hold the prompt but for its last token. Then each step adds one slot for each
    hypothesis. When hypotheses change places only `ancestors` moves: which slot of each step is on a
    hypothesis's branch. A mask makes of it what each may attend to (`masks.branch_mask`), so keys and values,
    many thousand times as large, stay where they are.

    layers: A `KVCache` for each layer, `(batch, num_heads, trunk + steps * width, dim)`.
    ancestors: int32 `(batch, width, steps)`.
    """

    layers: tuple
    ancestors: Any

    def at(self, index, length, starts=None):
        """Prepares a step: the cache that is to be written, and the `Place` of the new tokens in it.

        Before the cache first grows that is the trunk, which the prompt fills in one pass. Afterwards each
        hypothesis goes on by a token; by several at once only where there is one hypothesis a row.

        Args:
            index: Position of the first new token in the padded sequence, an int or an int scalar tensor.
            length: Number of new tokens of each hypothesis.
            starts: int32 `(batch,)`, where each row starts, when rows are padded on the left, or None.
        """
        positions = ops.arange(length, dtype="int32") + index
        mask, cache, slots = None, self, self.layers[0].length
        key_positions = ops.arange(slots, dtype="int32")
        in_trunk = isinstance(self.steps, int) and self.steps == 0
        branched = not in_trunk and self.width > 1
        trunk = slots - self.steps * self.width
        if branched:
            beyond = key_positions - trunk
            key_positions = ops.where(beyond < 0, key_positions, trunk + beyond // self.width)
        if starts is not None:
            mask = (key_positions >= starts[:, None])[:, None, None]
            positions, key_positions = (
                ops.maximum(x - starts[:, None], 0) for x in (positions, key_positions)
            )
        if not branched:
            return cache, Place(index, positions, key_positions, mask)
        step = index - trunk
        own = ops.arange(self.width, dtype="int32")[:, None]
        now = ops.equal(ops.arange(self.steps, dtype="int32"), step)
        cache = self._replace(ancestors=ops.where(now, own, self.ancestors))
        branches = branch_mask(cache.ancestors, step)
        if not (isinstance(trunk, int) and trunk == 0):
            shape = (ops.shape(branches)[0], 1, self.width, trunk)
            branches = ops.concatenate([ops.ones(shape, "bool"), branches], axis=-1)
        return cache, Place(trunk + step * self.width, positions, key_positions, combine(mask, branches))

    @property
    def steps(self):
        """For how many steps there is room."""
        return ops.shape(self.ancestors)[2]

    @property
    def width(self):
        """Number of hypotheses a row."""
        return self.ancestors.shape[1]

    def reordered(self, parents):
        """The cache after hypotheses changed places: each one's branch is its parent's, int32 `(batch, width)`."""
        return self._replace(ancestors=ops.take_along_axis(self.ancestors, parents[..., None], axis=1))

    def grown(self, steps):
        """The same with room for `steps` steps."""
        more = steps - self.steps
        layers = []
        for layer in self.layers:
            layers.append(layer.grown(layer.length + more * self.width))
        return TreeCache(tuple(layers), _padded(self.ancestors, more, axis=2))


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


def _padded(x, more, axis):
    shape = list(ops.shape(x))
    shape[axis] = more
    return ops.concatenate([x, ops.zeros(shape, x.dtype)], axis=axis)


def written(old, new, index):
    """`old`, `(batch, heads, length, dim)`, with `new` from slot `index` on, where there must be room for it."""
    new = ops.cast(new, old.dtype)
    return ops.slice_update(old, (0, 0, index, 0), new) if in_xla() else _scatter(old, new, index)


def _scatter(old, new, index):
    """Through a flat view, so that the rows to write are whole rows."""
    batch_size, heads, length, dim = ops.shape(old)
    count = ops.shape(new)[2]
    rows = ops.arange(batch_size * heads, dtype="int32")[:, None] * length
    slots = rows + (ops.arange(count, dtype="int32") + index)
    flat = ops.scatter_update(
        ops.reshape(old, (-1, dim)), ops.reshape(slots, (-1, 1)), ops.reshape(new, (-1, dim))
    )
    return ops.reshape(flat, (batch_size, heads, length, dim))
