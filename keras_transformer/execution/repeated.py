"""Equal layers of a stack are traced once for each graph, however many there are."""

import functools
import re
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.execution import native, ops
from keras_transformer.execution.inference import held, holding, is_user_defined
from keras_transformer.keras_internals import (
    WITHOUT_MEANING,
    implicit_mask,
    is_random_state,
    keeps_precision,
    set_implicit_mask,
    sublayers,
    without_autocast,
)

# Attributes of a layer that its outputs do not depend on: its names, and how its weights began.
NOT_COMPARED = re.compile(f"_?name|.*_initializer|_arguments|_made|saved_frozen|{WITHOUT_MEANING}")


def caller_of(layers, x):
    """Returns a function that calls one layer of a stack: `call(layer, *args, **kwargs)`.

    While a graph is made, equal layers share one function of the graph, which takes their weights and random states as
    arguments. So a stack of 24 layers is traced and differentiated as one layer. Layers that differ in more than names
    and values of weights are called as they are, and so are layers with int8 weights or with a layer or a function of a
    user, and all layers where a step has several replicas or is compiled by XLA outside of a search.

    Args:
        layers: List of built layers.
        x: The tensor that the first layer is called with.
    """
    calls = {}
    for group in _groups(layers) if _shares(x) else ():
        shared = _SharedCalls(group)
        calls |= {id(layer): functools.partial(shared, layer) for layer in group}

    def call(layer, *args, **kwargs):
        return calls.get(id(layer), layer)(*args, **kwargs)

    return call


def _shares(x):
    """Returns whether layers that are called with `x` may share a function."""
    if not isinstance(x, native.Traced) or native.in_replicas():
        return False
    return bool(held()) or native.SHARES_IN_XLA or not native.in_xla()


def _groups(layers):
    """Returns the lists of two or more equal layers among some layers."""
    groups = []
    for layer in filter(_may_share, layers):
        group = next((group for group in groups if _equal(group[0], layer, {})), None)
        if group is None:
            groups.append([layer])
        else:
            group.append(layer)
    return [group for group in groups if len(group) > 1]


def _may_share(layer):
    """Returns whether a layer may compute with weights that are handed to it."""
    # oneDNN packs an int8 kernel once for each operation, so two kernels must not share one. A recurrent layer, and a
    # layer or a function of a user, may keep tensors of the graph. This normalisation takes the gradient of what it
    # assigns.
    parts = layer, *sublayers(layer)
    values = (value for part in parts for value in _compared(part).values())
    kept = (value for value in values if callable(value) or hasattr(value, "get_config"))
    return all(
        part.built
        and part.quantization_mode is None
        and not isinstance(part, (keras.layers.RNN, keras.layers.SpectralNormalization, keras.layers.Lambda))
        for part in parts
    ) and not any(map(is_user_defined, (*parts, *kept)))


def _equal(x, y, pairs):
    """Returns whether two layers, or attributes of theirs, differ in names and values of weights alone.

    Args:
        x, y: The layers or attributes.
        pairs: The objects that were compared already: a dict from the id of each to the other one.
    """
    if type(x) is not type(y):
        return False
    if isinstance(x, keras.Variable):
        one, other = ((tuple(v.shape), v.dtype, v.trainable, keeps_precision(v)) for v in (x, y))
        return one == other
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(_equal(a, b, pairs) for a, b in zip(x, y, strict=True))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_equal(x[name], y[name], pairs) for name in x)
    if isinstance(x, np.ndarray):
        return np.array_equal(x, y)
    if hasattr(x, "get_config") and hasattr(x, "__dict__"):
        if ("x", id(x)) in pairs or ("y", id(y)) in pairs:
            return pairs.get(("x", id(x))) is y and pairs.get(("y", id(y))) is x
        pairs["x", id(x)], pairs["y", id(y)] = y, x
        return x is y or _equal(_compared(x), _compared(y), pairs)
    try:
        return x is y or bool(x == y)
    except (TypeError, ValueError):
        # The truth of a tensor is not known in a graph.
        return False


def _compared(part):
    """Returns the attributes of a layer, or of another object of Keras, that its results depend on."""
    return {name: value for name, value in vars(part).items() if not NOT_COMPARED.fullmatch(name)}


class _SharedCalls:
    """Calls equal layers, by one function of the graph for each kind of call.

    Args:
        layers: The layers. The first one is traced for all.
    """

    def __init__(self, layers):
        self.layers, self.functions = layers, {}

    def __call__(self, layer, *args, **kwargs):
        tensors, rest = _split((args, kwargs))
        masks = [implicit_mask(x) for x in tensors]
        operands = [held().get(part) for part in (layer, *sublayers(layer))]
        trains = kwargs.get("training") is True
        with without_autocast():
            # Only a training draws. An export would have to save a random state that it is handed.
            values = [
                native.tensor_of(v) if trains or not is_random_state(v) else None for v in layer.variables
            ]
        shapes = [ops.given_shape(x) for x in tensors]
        # A size is an int or a tensor, of which each has its own id.
        sizes = [
            tuple(size if isinstance(size, int) else id(size) for size in shape or ()) for shape in shapes
        ]
        key = rest.key(), len(args), *kwargs, *(x is None for x in (*masks, *operands)), *sizes
        if key not in self.functions:
            self.functions[key] = _SharedCall(self.layers[0], rest, shapes)
        return self.functions[key](layer, values, operands, tensors, masks)


class _SharedCall:
    """One function of the graph, in which a layer computes with given weights.

    Args:
        layer: The layer that is traced for all.
        rest: What its call takes besides tensors, a `_Rest`.
        shapes: What `ops.given_shape` returns for each of its tensors.
    """

    def __init__(self, layer, rest, shapes):
        self.layer, self.rest, self.shapes = layer, rest, shapes
        # Only a search calls. A model may be converted to another format, and converters know no calls; a training step
        # takes 3 % longer with calls.
        size = self.layer.count_params() if held() else None
        self.function = native.shared_function(self._traced, size, not native.without_gradient())
        # Tracing finds them: the rest of the outputs, which outputs have an implicit mask, which weights change.
        self.outputs, self.masked, self.changed = None, (), ()
        # Which weights and operands the layer reads. The first call hands it all. Where operands are held, the further
        # calls hand what is read: a loop would carry every weight.
        self.read = None

    def __call__(self, layer, values, operands, tensors, masks):
        if self.read is not None and any(x is not None for x in operands):
            values, operands = (
                [x if is_read else None for x, is_read in zip(every, are_read, strict=True)]
                for every, are_read in zip((values, operands), self.read, strict=True)
            )
        tensors, masks, changed, losses = self.function(values, operands, tensors, masks)
        for i, value in zip(self.changed, changed, strict=True):
            layer.variables[i].assign(value)
        for loss in losses:
            layer.add_loss(loss)
        _set_masks([tensors[i] for i in self.masked], masks)
        return self.outputs.joined(tensors)

    def _traced(self, values, operands, tensors, masks):
        _set_masks(tensors, masks)
        for x, shape in zip(tensors, self.shapes, strict=True):
            ops.of_shape(x, shape)
        parts, variables = (self.layer, *sublayers(self.layer)), self.layer.variables
        given = [(v, x) for v, x in zip(variables, values, strict=True) if x is not None]
        plan = _Plan((part, x) for part, x in zip(parts, operands, strict=True) if x is not None)
        args, kwargs = self.rest.joined(tensors)
        with holding(given, plan) as scope:
            outputs = self.layer(*args, **kwargs)
        read = [id(v) in scope.read for v in variables], [part in plan.read for part in parts]
        self.read = self.read or read
        assert read == self.read, "A layer reads the same weights in each call."
        tensors, self.outputs = _split(outputs)
        masks = [implicit_mask(x) for x in tensors]
        self.masked = [i for i, mask in enumerate(masks) if mask is not None]
        self.changed = [i for i, v in enumerate(variables) if id(v) in scope.assigned]
        changed = [scope.get_current_value(variables[i]) for i in self.changed]
        return tensors, [masks[i] for i in self.masked], changed, scope.losses


class _Plan(dict):
    """A mapping from layers to their operands, which knows whose operands were read."""

    def __init__(self, pairs):
        super().__init__(pairs)
        self.read = set()

    def get(self, layer, default=None):
        if layer in self:
            self.read.add(layer)
        return super().get(layer, default)


class _Rest(NamedTuple):
    """A nest whose tensors were taken out: its structure, and its leaves; the place of a tensor has `Ellipsis`."""

    nest: Any
    leaves: list

    def key(self):
        """Returns what two nests with the same rest have in common."""
        return tuple(map(id, self.leaves))

    def joined(self, tensors):
        """Returns the nest with tensors in their places."""
        tensors = iter(tensors)
        leaves = [next(tensors) if leaf is ... else leaf for leaf in self.leaves]
        return keras.tree.pack_sequence_as(self.nest, leaves)


def _split(nest):
    """Returns the tensors of a nest, variables as tensors, and its `_Rest`."""
    leaves = [native.tensor_of(x) if hasattr(x, "assign") else x for x in keras.tree.flatten(nest)]
    tensors = [leaf for leaf in leaves if keras.ops.is_tensor(leaf)]
    return tensors, _Rest(nest, [... if keras.ops.is_tensor(leaf) else leaf for leaf in leaves])


def _set_masks(tensors, masks):
    """Puts the implicit mask of each tensor on it, where it has one."""
    for x, mask in zip(tensors, masks, strict=True):
        if mask is not None:
            set_implicit_mask(x, mask)
