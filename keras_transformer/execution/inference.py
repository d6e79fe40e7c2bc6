"""Computations of many steps and calls: weights are read and functions compiled once, caches grow, batches are cut."""

import contextlib
import contextvars
import functools
import operator
import threading
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.execution import native, ops
from keras_transformer.execution.int8 import OneProduct, kernel_product
from keras_transformer.keras_internals import sublayers

# `held()` gives what `inference` computed of the weights: a mapping from a layer to the `Operands` of its product.
_HELD = contextvars.ContextVar("held", default=MappingProxyType({}))
held = _HELD.get

# Largest number of tokens in a part of a batch of an int8 encoder, unless the part is one row. A batch of fewer than
# half as many tokens stays whole. benchmarks/tried.md has the measurement.
PART = 512

# Number of hypotheses from which on an int8 model searches the halves of a batch side by side.
LARGE_BATCH = 32

# The state has room for this many steps first, then for twice as many each time. Attention reads all slots of a cache,
# used or not.
FIRST_STEPS = 64

# A step of a search costs about as much time as reading this many tokens of a prompt, and another group is worth its
# graph only where it saves this many positions of padding.
POSITIONS_OF_A_STEP = 8
LEAST_PADDING = 4096

# Number of compiled functions that a model keeps.
KEPT_FUNCTIONS = 32


class Operands(NamedTuple):
    """The weights of a product, in the form that the product reads.

    kernel: `(k, n)`, floats or int8; `(n, k)` where `transposed`.
    scale: float32 `(n,)`, the factor that each column of an int8 kernel was multiplied with; None for floats.
    bias: `(n,)`, or None.
    transposed: Whether the axes of the kernel are exchanged.
    multiply: Function that multiplies rows by the int8 kernel, without a gradient; None for a product with one.
    sums: float32 `(n,)`, the sum of each column of an int8 kernel, for the backend's own product; None where it cannot
        multiply by this kernel.
    parts: In how many int8 parts the rows are rounded, for an int8 kernel: 1 or 2.
    lora: Function of the rows that computes what LoRA adds to the product by an int8 kernel; or None.
    """

    kernel: Any
    scale: Any = None
    bias: Any = None
    transposed: bool = False
    multiply: Any = None
    sums: Any = None
    parts: int = 1
    lora: Any = None

    def for_many_products(self):
        """Returns operands for many products without a gradient.

        With few rows, a product with a transposed matrix of floats takes 2 to 4 times as long, so the axes are
        exchanged here, once.
        """
        if self.scale is not None:
            return self._replace(multiply=kernel_product(self))
        kernel = ops.transpose(self.kernel, (1, 0)) if self.transposed else self.kernel
        return self._replace(kernel=kernel, transposed=False)

    def joined(self, others):
        """Returns the operands of one product for this one and others of the same input, or None if they differ."""
        every = (self, *others)
        kinds = {
            (each.scale is None, each.bias is None, each.sums is None, each.parts, each.kernel.shape[0])
            for each in every
        }
        if len(kinds) > 1 or any(each.lora is not None for each in every):
            return None
        vectors = {"scale": self.scale, "bias": self.bias, "sums": self.sums}
        joined = {
            name: ops.concatenate([getattr(each, name) for each in every])
            for name, vector in vectors.items()
            if vector is not None
        }
        return self._replace(kernel=ops.concatenate([each.kernel for each in every], axis=1), **joined)


@contextlib.contextmanager
def inference(model, join=True):
    """Reads the weights of a model once, for the calls inside, and computes the operands of all its products.

    A loop inside then reads no weight. TensorFlow would keep the order of these reads, and so run two loops one after
    the other. Weights of user-defined layers are read at each use, because the layer may change them.

    Args:
        model: A built layer or model.
        join: Whether to compute products that share an input as one: their layer lists them in `joint_products`. It
            copies their kernels, which a loop of many steps outweighs.
    """
    layers = sublayers(model)
    weights = [(weight, ops.cast(weight, weight.dtype)) for weight in _constant_weights(model)]
    # An int8 product asks for its variable.
    with _HeldWeights([(weight, value) for weight, value in weights if "int" not in weight.dtype]):
        plan = {layer: layer.operands() for layer in layers if isinstance(layer, OneProduct)}
    for layer in layers if join else ():
        first, *others = [plan.get(part) for part in getattr(layer, "joint_products", ())] or [None]
        if first is not None and None not in others:
            plan[layer] = first.joined(others)
    plan = {layer: operands.for_many_products() for layer, operands in plan.items() if operands is not None}
    token = _HELD.set(plan)
    try:
        with _HeldWeights(weights):
            yield
    finally:
        _HELD.reset(token)


@contextlib.contextmanager
def holding(values, plan):
    """Gives weights other values, and products other operands, for the calls inside.

    Args:
        values: A list of pairs: a `keras.Variable`, and the tensor with its value.
        plan: A dict from a layer to the `Operands` of its product.

    Yields:
        The scope, which knows the values and the losses that were set inside. Its `read` and `assigned` are the ids of
        the weights that were read, and of those that were set.
    """
    token = _HELD.set(plan)
    try:
        with _HandedWeights(values) as scope:
            yield scope
    finally:
        _HELD.reset(token)


def predict_graph(model):
    """Lets the graph of `predict` treat int8 weights as constants, and leave out gradients that nobody may take."""
    # A layer of a user's class may take a gradient.
    return native.inference_graph(differentiable=any(map(is_user_defined, [model, *sublayers(model)])))


def has_int8_weights(model):
    """Returns whether a model is quantized to int8, at least in part."""
    return any(weight.dtype == "int8" for weight in model.weights)


def is_user_defined(value):
    """Returns whether a layer, a function or another object is a user's: of no class and no function of a library."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.split(".")[0] not in ("keras", "keras_transformer", "tensorflow", "jax")


def _constant_weights(model):
    """Returns the weights of a model that no call without training changes, as far as this library can know.

    A layer of a user's class, and a recurrent layer of Keras, may change the weights of its own.
    """
    changing = set()
    for layer in [model, *sublayers(model)]:
        if is_user_defined(layer) or isinstance(layer, keras.layers.RNN):
            inner = {id(weight) for part in sublayers(layer) for weight in part.weights}
            changing |= {id(weight) for weight in layer.weights} - inner
    return [weight for weight in model.weights if id(weight) not in changing]


class _HeldWeights(keras.StatelessScope):
    """A context in which some weights keep their values; all other variables are read and assigned as outside.

    Keras's scope drops what is assigned inside, such as the next seed of a dropout.

    Args:
        state_mapping: A list of pairs: a `keras.Variable`, and the tensor with its value.
    """

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        outer = self.original_scope
        return outer.get_current_value(variable) if value is None and outer is not None else value

    def add_update(self, update):
        variable, value = update
        if id(variable) in self.state_mapping:
            self.assign(variable, value)
        elif self.original_scope is not None:
            self.original_scope.add_update(update)
        else:
            variable._direct_assign(value)

    def assign(self, variable, value):
        """Gives one of the weights another value."""
        raise ValueError(f"A search must not change a weight of its model. Received: {variable.path}.")


class _HandedWeights(_HeldWeights):
    """The same, but the weights may be assigned inside. It knows which of them were read, and which were assigned."""

    def __init__(self, values):
        super().__init__(state_mapping=values, collect_losses=True)
        self.read, self.assigned = set(), set()

    def get_current_value(self, variable):
        self.read.add(id(variable))
        return super().get_current_value(variable)

    def assign(self, variable, value):
        self.assigned.add(id(variable))
        self.state_mapping[id(variable)] = value


def run_growing(run, unfinished, state, room, grown, result, limit):
    """Runs a loop whose state grows: a cache that is too large makes each of its steps slower.

    It has more and more room, until it is finished or has taken `limit` steps.

    Args:
        run: `run(state)` takes steps until the loop is finished or the room is used up, and returns the state.
        unfinished: `unfinished(state)`, bool scalar.
        state: A nest of tensors.
        room: `room(state)`, the number of steps that the state has room for, an int or int32 scalar.
        grown: `grown(state, steps, further)` returns the state with room for `steps` steps; `further` says whether it
            grew before.
        result: `result(state)`, the nest to return; its shapes do not depend on the room.
        limit: The largest number of steps, an int or int32 scalar.

    Returns:
        What `result` returns for the last state.
    """

    def run_sizes(state, steps, further=False):
        """Runs with room for `steps` steps; where it is unfinished then, with twice the room, up to `limit`."""
        state = run(grown(state, steps, further))
        if not isinstance(steps, int) or steps == limit:
            return result(state)
        more = min(2 * steps, limit)
        return ops.cond(unfinished(state), lambda: run_sizes(state, more, True), lambda: result(state))

    if isinstance(limit, int):
        # A loop for each size, with static shapes.
        return run_sizes(state, min(max(FIRST_STEPS, room(state)), limit))
    if native.in_xla():
        # XLA needs one shape, and the size is unknown.
        return run_sizes(state, limit)

    def more(state):
        return ops.minimum(ops.maximum(2 * room(state), FIRST_STEPS), limit)

    # A loop over sizes with open shapes. Its state has them from the first growth on, which is as small as one can be.
    state = grown(state, ops.minimum(1, limit), False)
    (state,) = ops.while_loop(unfinished, lambda state: (run(grown(state, more(state), True)),), (state,))
    return result(state)


def encode_rows(encoder, x, masks, training=None):
    """Calls an encoder, in which no row sees another; in int8 on parts of a large batch side by side.

    Args:
        encoder: A layer, called as `encoder(x, training=training, **masks)`.
        x: `(batch, length, features)`.
        masks: A dict of masks, bool `(batch, length)` each.
        training: False or None: the encoder does not drop.

    Returns:
        `(batch, length, features)`.
    """
    batch, length = ops.shape(x)[:2]
    one_row = isinstance(batch, int) and batch < 2
    if one_row or not _encodes_parts(encoder):
        return encoder(x, training=training, **masks)
    half, tokens = -(-batch // 2), batch * length
    if isinstance(tokens, int):
        size = batch if 2 * tokens < PART else max(1, min(PART // length, half))
    else:
        size = ops.maximum(1, ops.minimum(PART // ops.maximum(length, 1), half))
        size = ops.where(2 * tokens < PART, batch, size)
    with inference(encoder, join=False):
        results = [(x.shape[1:], encoder.compute_dtype)]

        def encode(rows):
            x, masks = rows
            return (encoder(x, training=training, **masks),)

        return in_parts(encode, (x, masks), results, size)[0]


def _encodes_parts(encoder):
    """Returns whether parts of a batch are computed side by side: in int8, by layers that see no other row."""
    if not (native.makes_inference_graph() and has_int8_weights(encoder)):
        return False
    # A user's layer may look at the whole batch, and layers of another precision return another dtype.
    layers = encoder, *sublayers(encoder)
    return len({layer.compute_dtype for layer in layers}) == 1 and not any(map(is_user_defined, layers))


def search_rows(search, model, rows, width, results):
    """Searches rows of a batch, of which none sees another; an int8 model the halves of a large batch side by side.

    Args:
        search: Takes a nest like `rows` with some of the rows, and returns a tuple of tensors `(rows, ...)`.
        model: The model that searches.
        rows: A nest of tensors `(batch, ...)`, and of numbers, scalar tensors and None, which are those of every row.
            The first is a tensor `(batch, ...)`.
        width: Number of hypotheses of each row.
        results: For each tensor of the tuple its shape without the batch, and its dtype.

    Returns:
        What `search` returns for all rows.
    """
    # Products of floats gain nothing from two halves.
    if not (has_int8_weights(model) and native.makes_inference_graph()):
        return search(rows)
    batch = ops.shape(keras.tree.flatten(rows)[0])[0]
    half, least = -(-batch // 2), max(2, LARGE_BATCH // width)
    small = batch < least
    size = (batch if small else half) if isinstance(batch, int) else ops.where(small, batch, half)
    return in_parts(search, rows, results, size)


def groups_of_lengths(lengths, steps):
    """Groups the rows of a search by length, where that saves more than another search costs.

    A prompt of 2,000 tokens among fifteen of 10 makes a batch of 32,000 positions, of which 29,850 are padding. The
    tokens of a row do not depend on the other rows.

    Args:
        lengths: int `(batch,)`, the number of tokens of each source.
        steps: Function from the length of the longest source of a group to its number of steps, at most.

    Returns:
        A list of int arrays, the numbers of the rows of each group, shorter sources first.
    """
    lengths = np.maximum(keras.ops.convert_to_numpy(lengths), 1)
    order, groups = np.argsort(lengths, kind="stable"), []
    while len(order):
        longest_of_shorter = lengths[order[:-1]]
        padding = np.arange(1, len(order)) * (lengths[order[-1]] - longest_of_shorter)
        costs = [
            max(LEAST_PADDING, POSITIONS_OF_A_STEP * int(steps(int(each)))) for each in longest_of_shorter
        ]
        saved = np.append(0, padding - costs)
        place = int(np.argmax(saved))
        groups.append(order[place:])
        order = order[:place]
    return groups[::-1]


def in_parts(function, rows, results, size):
    """Applies a function to parts of a batch, two at a time, in a graph for inference.

    A second core hardly speeds up an operation on a few rows. Two parts use two cores, and what an operation writes
    stays in the core's cache for the next one.

    Args:
        function: Takes a nest like `rows` with some of the rows, and returns a tuple of tensors `(rows, ...)`.
        rows: A nest of tensors `(batch, ...)`, and of numbers, scalar tensors and None, which are those of every row.
            The first is a tensor `(batch, ...)`.
        results: For each tensor of the tuple its shape without the batch, and its dtype.
        size: Rows of a part, at most those of the batch, an int or an int scalar tensor.

    Returns:
        What `function` returns for all rows.
    """
    leaves = keras.tree.flatten(rows)
    given = [x for x in leaves if _is_cut(x)]
    batch = ops.shape(given[0])[0]
    size = max(size, 1) if isinstance(size, int) else ops.maximum(size, 1)
    parts = -(-batch // size)
    if isinstance(parts, int) and parts <= 1:
        return function(rows)
    # The last row fills the last part up.
    members = ops.minimum(ops.arange(parts * size, dtype="int32"), batch - 1)

    def apply(part):
        left = iter(part)
        return tuple(
            function(keras.tree.pack_sequence_as(rows, [next(left) if _is_cut(x) else x for x in leaves]))
        )

    cut = [ops.take(x, members, axis=0) for x in given]
    cut = [ops.reshape(x, (parts, size, *ops.shape(x)[1:])) for x in cut]
    known = size if isinstance(size, int) else None
    found = native.side_by_side(apply, cut, [((known, *shape), dtype) for shape, dtype in results])
    every = [ops.reshape(x, (parts * size, *ops.shape(x)[2:])) for x in found]
    return tuple(ops.reshape(x[:batch], (batch, *ops.shape(x)[1:])) for x in every)


def _is_cut(x):
    """Returns whether a leaf of a nest has an axis of rows."""
    return len(getattr(x, "shape", ())) > 0


class CompiledFunctions:
    """Keeps compiled functions of a model as long as it has the variables that they were made with.

    `enable_lora`, `quantize` and new layers change the variables of a model. New values of int8 variables need new
    functions too. A change of another attribute is not seen: `compile` forgets all functions.
    """

    def __init__(self):
        self.variables, self.functions = [], {}
        self.unchanged = lambda: True
        self.lock = threading.Lock()

    def get(self, key, variables, make):
        """Returns the function of a key, and makes it if there is none for these variables."""
        with self.lock:
            same = len(variables) == len(self.variables) and all(map(operator.is_, variables, self.variables))
            if not (same and self.unchanged()):
                self.variables, self.functions = list(variables), {}
                self.unchanged = native.unchanged(variables)
            function = self.functions.pop(key, None) or make()
            if len(self.functions) == KEPT_FUNCTIONS:
                # This one was not used for the longest time.
                del self.functions[next(iter(self.functions))]
            self.functions[key] = function
            return function

    def clear(self):
        """Forgets all functions."""
        self.functions = {}


class KeepsFunctions:
    """Mixin of a class whose objects keep compiled functions."""

    @functools.cached_property
    def _functions(self):
        return CompiledFunctions()
