"""Caches of attention keys and values.

Two words have one meaning throughout the library:

- A *slot* is a place in a cache. New keys and values are written into the slots from `index` on.
- A *position* is where a token stands in its sequence. It is what position schemes and windows count.

They are the same number for one sequence that starts at slot 0. They differ where a row starts with padding, and where
the hypotheses of a search share one cache: then each hypothesis has a slot of its own for the same position.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.backend import copied, in_xla, write_in_place
from keras_transformer.masks import combine
from keras_transformer.shapes import reshaped


class KVCache(NamedTuple):
    """Keys and values of one attention layer, one slot for each token.

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
        """Returns a cache with `new` in the slots from `index` on.

        Args:
            new: `KVCache` of the new tokens.
            index: First slot to write, an int or an int scalar tensor. An index in a graph that is too large is
                held back, so that the new tokens end with the last slot.

        Raises:
            ValueError: If the new tokens are known to end past the last slot.
        """
        count, length = new.key.shape[2], self.key.shape[2]
        known = known_int(index)
        if None not in (count, length, known) and not 0 <= known <= length - count:
            raise ValueError(
                "`index` must leave room for the new tokens in the cache. "
                f"Received: index={known}, {count} new tokens, a cache of {length} slots."
            )
        # XLA holds an index back too. Past the end a scatter would reach the next head's slots.
        last = self.length - ops.shape(new.key)[2]
        index = known if known is not None else ops.clip(ops.cast(index, "int32"), 0, last)
        return self.written(new, index)

    def written(self, new, index):
        """Computes `write` at a checked index."""
        return KVCache(*written(self, new, index))

    def grown(self, length):
        """Returns a cache of `length` slots, the new ones filled with zeros."""
        more = length - self.length
        return KVCache(_padded(self.key, more, axis=2), _padded(self.value, more, axis=2))


class SearchCache(KVCache):
    """A `KVCache` that only one search holds: writing changes it in place, where a copy would be most of the work.

    So `write` invalidates the cache that it was called on. docs/decisions.md has the measurement.
    """

    __slots__ = ()

    @classmethod
    def of(cls, cache):
        """Copies a `KVCache`."""
        return cls(*map(copied, cache))

    def written(self, new, index):
        return SearchCache(*written(self, new, index, write_in_place))


class Place(NamedTuple):
    """Where the new tokens of a step go.

    slot: The first slot to write, an int or an int scalar tensor.
    positions: int32 `(length,)` or `(batch, length)`, positions of the new tokens.
    key_positions: int32 `(slots,)` or `(batch, slots)`, positions of the keys of all slots.
    mask: bool `(batch, 1, width, slots)`, the slots that the new tokens may see, beside the causal mask; None for all.
    """

    slot: Any
    positions: Any
    key_positions: Any
    mask: Any


class TreeCache(NamedTuple):
    """The cache of all hypotheses of each row: a tree, whose nodes are written once and never move.

    A row's first slots, the trunk, hold the prompt but for its last token. Then each step adds one slot for each
    hypothesis. When hypotheses change places only `ancestors` changes: it names the slot of each step that is on a
    hypothesis's branch. `branch_mask` turns it into a mask, so keys and values, many thousand times as large, stay
    where they are.

    Attributes:
        layers: A `KVCache` for each layer, `(batch, num_heads, trunk + steps * width, dim)`. `grown` makes each a
            `SearchCache`.
        ancestors: int32 `(batch, width, steps)`.
    """

    layers: tuple
    ancestors: Any

    def at(self, index, length, starts=None):
        """Prepares a step.

        Before the cache first grows, the step is the prompt, which fills the trunk in one pass. Afterwards each
        hypothesis goes on by one token; by several at once only where there is one hypothesis a row.

        Args:
            index: Position of the first new token in the padded sequence, an int or an int scalar tensor.
            length: Number of new tokens of each hypothesis.
            starts: int32 `(batch,)`, the slot where each row starts, when rows are padded on the left, or None.

        Returns:
            The cache to write into, and the `Place` of the new tokens in it.
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
        """Number of steps that there is room for."""
        return ops.shape(self.ancestors)[2]

    @property
    def width(self):
        """Number of hypotheses of a row."""
        return self.ancestors.shape[1]

    def reordered(self, parents):
        """Returns the cache after hypotheses changed places: each takes the branch of its parent, int32
        `(batch, width)`."""
        return self._replace(ancestors=ops.take_along_axis(self.ancestors, parents[..., None], axis=1))

    def grown(self, steps):
        """Returns the cache with room for `steps` steps."""
        more = steps - self.steps
        length = self.layers[0].length + more * self.width
        layers = [SearchCache.of(layer.grown(length)) for layer in self.layers]
        return TreeCache(tuple(layers), _padded(self.ancestors, more, axis=2))


def branch_mask(ancestors, step):
    """Lets each hypothesis of a search see its own branch of the tree that all of its row share.

    Each step has one slot for each hypothesis, and `ancestors` names the one on a hypothesis's branch. Two hypotheses,
    three steps, the second hypothesis split off from the first after step 0:

        ancestors        slots of step 0, 1, 2
        0 0 0            1 0  1 0  1 0
        0 1 1            1 0  0 1  0 1

    Args:
        ancestors: int32 `(batch, width, steps)`.
        step: The current step, an int or an int scalar tensor; later steps are hidden.

    Returns:
        bool `(batch, 1, width, steps * width)`.

    >>> branch_mask(np.array([[[0, 0], [0, 1]]]), 1)[0, 0].numpy().astype(int).tolist()
    [[1, 0, 1, 0], [1, 0, 0, 1]]
    """
    batch_size, width, steps = ops.shape(ancestors)
    on_branch = ops.equal(ops.convert_to_tensor(ancestors)[..., None], ops.arange(width, dtype="int32"))
    past = ops.less_equal(ops.arange(steps, dtype="int32"), step)[:, None]
    return reshaped(ops.logical_and(on_branch, past), (batch_size, 1, width, steps * width))


def empty_cache(batch_size, num_heads, length, key_dim, value_dim, dtype):
    """Returns a `KVCache` of zeros with `length` slots."""
    return KVCache(
        ops.zeros((batch_size, num_heads, length, key_dim), dtype),
        ops.zeros((batch_size, num_heads, length, value_dim), dtype),
    )


def known_int(index):
    """Returns an index as an int; None where it is a tensor of a graph, whose value is not known yet."""
    try:
        return int(index)
    except TypeError:
        return None


def written(old, new, index, write_rows=ops.scatter_update):
    """Writes into the same slots of several tensors.

    Args:
        old: Tensors `(batch, heads, length, dim)`, which differ in `dim` alone.
        new: For each a tensor `(batch, heads, new length, dim)`.
        index: The first slot to write, an int or an int scalar tensor. All slots to write must exist.
        write_rows: Function such as `keras.ops.scatter_update`. XLA writes a slice instead.

    Returns:
        The list of the tensors after writing.
    """
    pairs = [(tensor, ops.cast(rows, tensor.dtype)) for tensor, rows in zip(old, new, strict=True)]
    if in_xla():
        return [ops.slice_update(tensor, (0, 0, index, 0), rows) for tensor, rows in pairs]
    # Through a flat view, in which the numbers to write are whole rows.
    batch_size, heads, length = ops.shape(old[0])[:3]
    one = new[0].shape[2] == 1
    later = index if one else ops.arange(ops.shape(new[0])[2], dtype="int32") + index
    slots = ops.reshape(ops.arange(batch_size * heads, dtype="int32")[:, None] * length + later, (-1, 1))
    results = []
    for tensor, rows in pairs:
        dim = ops.shape(tensor)[3]
        flat = write_rows(ops.reshape(tensor, (-1, dim)), slots, ops.reshape(rows, (-1, dim)))
        results.append(reshaped(flat, (batch_size, heads, length, dim)))
    return results


def _padded(x, more, axis):
    """Appends `more` zeros along an axis."""
    shape = list(ops.shape(x))
    shape[axis] = more
    return ops.concatenate([x, ops.zeros(shape, x.dtype)], axis=axis)
