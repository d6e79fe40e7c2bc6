"""Tensors of a checkpoint and the weights of ours that lie in them, described once for both ways."""

import math
from typing import Any, NamedTuple

import numpy as np
from keras import ops

MOST_LISTED = 10
ROUNDING = 5e-3  # of values up to 1 in bfloat16, and then some


class Tensor(NamedTuple):
    """A tensor of a checkpoint and the weights of ours that lie in it.

    From theirs to ours: put the axes into our order, cut the last one into a part for each weight, give each part the
    weight's shape. From ours to theirs: the same backwards. Both follow from the one description, so neither can
    contradict the other.

    name: Its name there, prefix included.
    shape: tuple of int, its shape there.
    weights: Our variables, a tuple: side by side on the last axis, in our order.
    axes: Our order of its axes, as `numpy.transpose` takes it.
    """

    name: str
    shape: tuple
    weights: tuple
    axes: tuple

    @property
    def size(self):
        """Its number of elements."""
        return math.prod(self.shape)

    def to_ours(self, array):
        """The weights' values, a list, from the checkpoint's; views of it where that can be."""
        array = np.transpose(array, self.axes)
        columns = [math.prod(weight.shape) // math.prod(array.shape[:-1]) for weight in self.weights]
        parts = np.split(array, np.cumsum(columns)[:-1], axis=-1)
        return [part.reshape(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    def to_theirs(self, arrays):
        """The checkpoint's values from the weights', a view where that can be."""
        rows = [self.shape[axis] for axis in self.axes[:-1]]
        parts = [array.reshape(*rows, -1) for array in arrays]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        return np.transpose(joined, np.argsort(self.axes))

    def values(self):
        """What the checkpoint is to hold now, in the weights' dtype."""
        return self.to_theirs([value_of(weight) for weight in self.weights])


class Computed(NamedTuple):
    """A tensor that a checkpoint may hold, and that is computed here: a table with a row for each position.

    name: Its name there, prefix included.
    width: Number of columns.
    values: A function of a number of rows to the table, `(rows, width)`.
    """

    name: str
    width: int
    values: Any

    def equals(self, array):
        """Whether a checkpoint's table is the one that is computed, but for its rounding."""
        return np.allclose(array, self.values(len(array)), rtol=0, atol=ROUNDING)


def value_of(weight):
    """A variable's value, an array of its own dtype."""
    return ops.convert_to_numpy(weight)


def vector(name, *weights):
    """Weights of any shapes, flat and one after the other."""
    return Tensor(name, (sum(math.prod(weight.shape) for weight in weights),), weights, (0,))


def matrix(name, *kernels, inputs=1, transposed=False):
    """Kernels `(*inputs, *outputs)`, side by side in one matrix `(inputs, outputs)`.

    Args:
        name: The tensor's name.
        *kernels: Variables; an embedding `(vocab_size, d_model)` is one too.
        inputs: Number of a kernel's axes that are the inputs'.
        transposed: Whether the matrix is `(outputs, inputs)`, as those of PyTorch's `Linear`.
    """
    rows = math.prod(kernels[0].shape[:inputs])
    columns = sum(math.prod(kernel.shape[inputs:]) for kernel in kernels)
    if transposed:
        return Tensor(name, (columns, rows), kernels, (1, 0))
    return Tensor(name, (rows, columns), kernels, (0, 1))


def dense(name, *projections, inputs=1, transposed=True):
    """`name.weight`, and `name.bias` where there is one, of projections that the checkpoint holds as one.

    Args:
        name: What the tensors' names begin with.
        *projections: Pairs of a kernel and a bias, or None for all of the biases.
        inputs: As for `matrix`.
        transposed: As for `matrix`; PyTorch's way unless said otherwise.
    """
    kernels, biases = zip(*projections, strict=True)
    yield matrix(f"{name}.weight", *kernels, inputs=inputs, transposed=transposed)
    if biases[0] is not None:
        yield vector(f"{name}.bias", *biases)


def plain(name, layer, *, transposed=True):
    """The tensors of a layer with a kernel and perhaps a bias."""
    return dense(name, (layer.kernel, layer.bias), transposed=transposed)


def projections(layer, query, key, value, output):
    """The tensors of attention whose four projections the checkpoint holds apart, under names that begin so."""
    yield from dense(query, layer.query_weights)
    yield from dense(key, layer.key_weights)
    yield from dense(value, layer.value_weights)
    yield from dense(output, layer.output_weights, inputs=2)


def norm(name, layer):
    """`name.weight`, and `name.bias` where there is one, of a normalisation."""
    yield vector(f"{name}.weight", layer.gamma)
    if hasattr(layer, "beta"):
        yield vector(f"{name}.bias", layer.beta)


def without_copies(tensors):
    """The tensors, but for those whose weights an earlier one holds: a tied projection is stored once."""
    seen = set()
    for tensor in tensors:
        if _holds(tensor) not in seen:
            seen.add(_holds(tensor))
            yield tensor


def fill(tensors, stored, prefix="", buffers=(), computed=(), renamed=None):
    """Gives weights the values of a checkpoint, tensor by tensor.

    Nothing is read before all names, shapes and dtypes fit. Of tensors with the same weights, one must be stored; all
    that are must be equal.

    Args:
        tensors: The family's `Tensor`s of the model.
        stored: What the checkpoint holds: `files.Stored`s.
        prefix: What their names may leave out.
        buffers: Compiled patterns of the names of what is stored and is no weight.
        computed: What may be stored and must then be what is computed: `Computed`s.
        renamed: What old names end with, and what that is now, a dict; or None.

    Raises:
        ValueError: If a tensor is missing, left over, of another shape, of no float dtype, or differs from the one it
            is tied to or from what is computed.
    """
    tensors = {tensor.name: tensor for tensor in tensors}
    computed = {each.name: each for each in computed}
    known = tensors.keys() | computed.keys()
    found, tables, problems = {}, {}, []
    for each in sorted(stored, key=lambda each: each.name not in known):  # whole names first
        name = each.name
        for old, new in (renamed or {}).items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        name = name if name in known else prefix + name
        if name in tensors and name not in found:
            found[name] = each
            problems += each.problems(tensors[name].shape)
        elif name in computed and name not in tables:
            tables[name] = each
            problems += each.problems((*each.shape[:1], computed[name].width))
        elif not any(pattern.search(each.name) for pattern in buffers):
            problems.append(f"{each.name!r} is left over")
    held = {_holds(tensors[name]) for name in found}
    problems += [f"{t.name!r} is missing" for t in without_copies(tensors.values()) if _holds(t) not in held]
    _check(problems)

    filled = {}
    for name, tensor in tensors.items():
        if name not in found:
            continue
        if _holds(tensor) not in filled:
            filled[_holds(tensor)] = name
            _assign(tensor, found[name].read())
        elif not _equals(tensor, found[name].read()):
            problems.append(f"{name!r} differs from {filled[_holds(tensor)]!r}, which it is tied to")
    for name, each in tables.items():
        if not computed[name].equals(each.read()):
            problems.append(f"{name!r} differs from what is computed in its place")
    _check(problems)


def _assign(tensor, array):
    """Gives a tensor's weights its values."""
    for weight, value in zip(tensor.weights, tensor.to_ours(array), strict=True):
        weight.assign(value)


def _equals(tensor, array):
    """Whether a tensor's weights have its values already, as their dtype holds them."""
    owns = map(value_of, tensor.weights)
    return all(
        np.array_equal(own, value.astype(own.dtype, copy=False))
        for own, value in zip(owns, tensor.to_ours(array), strict=True)
    )


def _holds(tensor):
    """What tells the weights of tensors apart."""
    return tuple(id(weight) for weight in tensor.weights)


def _check(problems):
    if problems:
        listed = "; ".join(problems[:MOST_LISTED])
        more = f"; and {len(problems) - MOST_LISTED} more" if len(problems) > MOST_LISTED else ""
        raise ValueError(
            f"The checkpoint must hold the tensors that its config.json asks for. Received: {listed}{more}."
        )
