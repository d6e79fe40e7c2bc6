"""Caches of attention keys and values.

Two words have one meaning throughout the library:

- A *slot* is a place in a cache. New keys and values are written into the slots from `index` on.
- A *position* is where a token stands in its sequence. It is what position schemes and windows count.

They are the same number for one sequence that starts at slot 0. They differ where a row starts with padding, and where
the hypotheses of a search share one cache: then each hypothesis has a slot of its own for the same position.
"""

import dataclasses
import itertools
import numbers
from typing import Any, NamedTuple

import keras

from keras_transformer.checks import check
from keras_transformer.execution import ops
from keras_transformer.masks import combine


def check_slot(index):
    """Raises `ValueError` unless `index` is an int or an int scalar tensor."""
    is_int = isinstance(index, numbers.Integral) or "int" in str(getattr(index, "dtype", ""))
    rule = "`index` must be an int or an int scalar tensor."
    shape = getattr(index, "shape", ())
    check(is_int and getattr(shape, "rank", len(tuple(shape or ()))) in (None, 0), rule, index=index)


class KVCache(NamedTuple):
    """Keys and values of one attention layer, one slot for each token.

    With grouped queries `num_heads` is the number of heads of the keys.

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
            index: First slot to write, an int or an int scalar tensor. In a graph an index that is too large is
                clipped: the new tokens then fill the last slots.

        Raises:
            ValueError: If `index` is not an integer, the new tokens are known to end past the last slot, or they differ
                from the cache in batch, heads or sizes.
        """
        check_slot(index)
        for slots, tokens in zip(self, new, strict=True):
            pairs = [(slots.shape[axis], tokens.shape[axis]) for axis in (0, 1, 3)]
            check(
                all(None in pair or pair[0] == pair[1] for pair in pairs),
                "`cache` must have the batch, the heads and the sizes of the new keys and values.",
                cache_shape=tuple(slots.shape),
                new_shape=tuple(tokens.shape),
            )
        count, length = new.key.shape[2], self.key.shape[2]
        known = known_int(index)
        if known is None:
            # XLA clips an index too. Past the end a scatter would reach the slots of the next head.
            last = self.length - ops.shape(new.key)[2]
            return self.write_slots(new, ops.clip(ops.cast(index, "int32"), 0, last))
        if None not in (count, length) and not 0 <= known <= length - count:
            rule = f"`index` must leave room for {count} new tokens in the cache."
            check(False, rule, index=known, slots=length)
        return self.write_slots(new, known)

    def write_slots(self, new, index):
        """Computes `write` at a checked index."""
        return KVCache(*ops.update_rows(self, new, index))

    def grown(self, length):
        """Returns a cache of `length` slots, the new ones filled with zeros."""
        more = length - self.length
        return KVCache(_padded(self.key, more, axis=2), _padded(self.value, more, axis=2))


class SearchCache(KVCache):
    """A `KVCache` that only one search holds: writing changes it in place, where a copy would be most of the work.

    So `write` invalidates the cache that it was called on. benchmarks/tried.md has the measurement.
    """

    __slots__ = ()

    @classmethod
    def of(cls, cache):
        """Copies a `KVCache`."""
        return cls(*map(ops.copy, cache))

    def write_slots(self, new, index):
        return SearchCache(*ops.update_rows(self, new, index, in_place=True))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where new tokens go in a cache, where they stand in their sequence, and what they may see.

    Attributes:
        slot: Slot of the first new token, an int or an int scalar tensor; without a cache 0.
        positions: int `(length,)` or `(batch, length)`, positions of the new tokens; their slots when None.
        key_positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys. When None: with a cache the
            slots, else `positions`.
        mask: bool, of rank 2 to 4 and broadcastable to `(batch, num_heads, length, source_len)`: which keys the new
            tokens may see, in addition to the causal mask; all when None. With a cache `source_len` is its length.
        real: bool `(batch, length)`, True where a new token is real, for feed-forward networks that ask for it; it
            hides nothing. None where a padding mask says it, or nobody asks.

    Raises:
        ValueError: If `slot` is not an int scalar, or a value is a symbolic tensor: Keras does not look for its inputs
            in such an object. In a functional model make the place inside a layer's `call`.

    >>> Place(3).positions is None
    True
    """

    slot: Any = 0
    positions: Any = None
    key_positions: Any = None
    mask: Any = None
    real: Any = None

    def __post_init__(self):
        check_slot(self.slot)
        for name, value in vars(self).items():
            rule = f"`{name}` of a `Place` must not be symbolic. Make the place inside the `call` of a layer."
            check(not isinstance(value, keras.KerasTensor), rule, **{name: value})

    @classmethod
    def of(cls, index, real=None):
        """Returns the place that an argument `index` gives: a `Place`, a slot, or None for the start.

        `real` holds where the place does not say which tokens are real.
        """
        place = index if isinstance(index, Place) else cls(0 if index is None else index)
        return place if real is None or place.real is not None else dataclasses.replace(place, real=real)

    @property
    def is_start(self):
        """Whether the tokens stand where they would without a place: from slot 0 on, seeing all keys."""
        return known_int(self.slot) == 0 and self.positions is self.key_positions is self.mask is None


START = Place()


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
        mask, cache, (batch_size, _, slots) = None, self, ops.shape(self.layers[0].key)[:3]
        for x in itertools.chain(*self.layers):
            # The batch and the slots of one layer are those of all.
            ops.of_shape(x, (batch_size, x.shape[1], slots, x.shape[3]))
        key_positions = ops.arange(slots, dtype="int32")
        in_trunk = isinstance(self.steps, int) and self.steps == 0
        branched = not in_trunk and self.width > 1
        trunk = slots - self.steps * self.width
        if branched:
            beyond = key_positions - trunk
            key_positions = ops.where(beyond < 0, key_positions, trunk + beyond // self.width)
        if starts is not None:
            mask = ops.expand_dims(key_positions >= starts[:, None], (1, 2))
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
        return self._replace(ancestors=ops.take_by_row(self.ancestors, parents))

    def grown(self, steps):
        """Returns a copy of the cache with room for `steps` steps."""
        cache = self.grown_further(steps)
        return cache._replace(layers=tuple(map(SearchCache.of, cache.layers)))

    def grown_further(self, steps):
        """Computes `grown` without a copy, once for a cache that `grown` made and that nobody else reads or grows.

        A copy is an operation with a side effect: a loop in which a cache grows would have to end before the next part
        of a batch may begin. Without one TensorFlow may give two equal results the same memory.
        """
        more = steps - self.steps
        length = self.layers[0].length + more * self.width
        layers = [SearchCache(*layer.grown(length)) for layer in self.layers]
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
    return ops.reshape(ops.logical_and(on_branch, past), (batch_size, 1, width, steps * width))


def empty_cache(batch_size, num_heads, length, key_dim, value_dim, dtype):
    """Returns a `KVCache` of zeros with `length` slots."""
    return KVCache(
        ops.zeros((batch_size, num_heads, length, key_dim), dtype),
        ops.zeros((batch_size, num_heads, length, value_dim), dtype),
    )


def cache_for(attention, batch_size, length):
    """Returns an empty cache for `length` tokens of a `MultiHeadAttention`.

    Raises:
        ValueError: If the size of its heads is not known yet.
    """
    rule = "Build the layer, or give its attention a `key_dim`, before `empty_cache`."
    check(attention.key_dim is not None, rule, key_dim=None)
    heads, dims = attention.num_key_value_heads, (attention.key_dim, attention.value_dim)
    return empty_cache(batch_size, heads, length, *dims, attention.compute_dtype)


def of_each_layer(caches, num_layers, name):
    """Returns `caches`, a tuple with a `KVCache` for each layer; raises `ValueError` for anything else."""
    is_tuple = isinstance(caches, (tuple, list)) and not isinstance(caches, KVCache)
    length = len(caches) if is_tuple else None
    rule = f"`{name}` must be a tuple with a `KVCache` for each layer."
    check(length == num_layers, rule, type=type(caches).__name__, length=length, num_layers=num_layers)
    return caches


def known_int(index):
    """Returns an index as an int; None where it is a tensor of a graph, whose value is not known yet."""
    try:
        return int(index)
    except TypeError:
        return None


def _padded(x, more, axis):
    """Appends `more` zeros along an axis."""
    shape = list(ops.shape(x))
    shape[axis] = more
    return ops.concatenate([x, ops.zeros(shape, x.dtype)], axis=axis)
