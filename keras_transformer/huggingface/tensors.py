"""The tensors of a checkpoint and the weights that they hold, described once for reading and writing."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tqdm
from keras import ops

from keras_transformer.layers import GatedFeedForward, RMSNormalization

MAX_LISTED_PROBLEMS = 10
# bfloat16 rounds values up to 1 by a little less.
TABLE_TOLERANCE = 5e-3


class Tensor(NamedTuple):
    """A tensor of a checkpoint and the weights of a model that it holds.

    Reading transposes the tensor, cuts its last axis into one part for each weight, and reshapes each part. Writing
    does the same backwards. Both follow from this one description, so they cannot contradict each other.

    name: Name in the checkpoint, with the family's prefix.
    shape: Shape in the checkpoint, a tuple of int.
    weights: Variables of the model, a tuple; or an array, which is only written. They lie side by side on the last axis
        of the transposed tensor.
    axes: Order of the tensor's axes for `numpy.transpose`, a tuple of int.
    """

    name: str
    shape: tuple
    weights: tuple
    axes: tuple

    @property
    def size(self):
        """Number of elements."""
        return math.prod(self.shape)

    def to_weights(self, array):
        """Returns the value of each weight, a list of arrays, from the tensor's value; views where possible."""
        array = np.transpose(array, self.axes)
        columns = [math.prod(weight.shape) // math.prod(array.shape[:-1]) for weight in self.weights]
        parts = np.split(array, np.cumsum(columns)[:-1], axis=-1)
        return [part.reshape(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    def from_weights(self, arrays):
        """Returns the tensor's value from the values of the weights. It is a view where possible."""
        rows = [self.shape[axis] for axis in self.axes[:-1]]
        parts = [array.reshape(*rows, -1) for array in arrays]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        return np.transpose(joined, np.argsort(self.axes))

    def value(self):
        """Returns the tensor's value from the weights as they are now, in the dtype of the weights."""
        return self.from_weights([ops.convert_to_numpy(weight) for weight in self.weights])


class ComputedTable(NamedTuple):
    """A tensor that a checkpoint may hold and that the model computes: a table with a row for each position.

    name: Name in the checkpoint, with the family's prefix.
    width: Number of columns.
    compute: A function from a number of rows to the table, `(rows, width)`.
    """

    name: str
    width: int
    compute: Callable

    def equals(self, array):
        """Whether the checkpoint's table equals the computed one, but for rounding."""
        return np.allclose(array, self.compute(len(array)), rtol=0, atol=TABLE_TOLERANCE)

    def with_rows(self, rows):
        """Returns the table with this number of rows, to be written."""
        return Tensor(self.name, (rows, self.width), (self.compute(rows),), (0, 1))


def vector(name, *weights):
    """Describes a tensor `(n,)` that holds weights of any shapes, flat and one after the other."""
    return Tensor(name, (sum(math.prod(weight.shape) for weight in weights),), weights, (0,))


def matrix(name, *kernels, input_axes=1, transposed=False):
    """Describes a matrix `(inputs, outputs)` that holds kernels side by side.

    Args:
        name: The tensor's name.
        *kernels: Variables `(*inputs, *outputs)`; an embedding `(vocab_size, d_model)` is one too.
        input_axes: Number of a kernel's axes that belong to the inputs.
        transposed: Whether the matrix is `(outputs, inputs)`, as in PyTorch's `Linear`.
    """
    rows = math.prod(kernels[0].shape[:input_axes])
    columns = sum(math.prod(kernel.shape[input_axes:]) for kernel in kernels)
    if transposed:
        return Tensor(name, (columns, rows), kernels, (1, 0))
    return Tensor(name, (rows, columns), kernels, (0, 1))


def dense(name, *layers, input_axes=1, transposed=True):
    """Describes the tensors of dense layers that the checkpoint holds as one: `name.weight`, and perhaps `name.bias`.

    Args:
        name: Beginning of the tensors' names.
        *layers: Layers with a `kernel` and a `bias`, which is None for all layers or for none.
        input_axes: Number of a kernel's axes that belong to the inputs.
        transposed: Whether the matrix is `(outputs, inputs)`, as in PyTorch's `Linear`.
    """
    kernels = [layer.kernel for layer in layers]
    yield matrix(f"{name}.weight", *kernels, input_axes=input_axes, transposed=transposed)
    if layers[0].bias is not None:
        yield vector(f"{name}.bias", *(layer.bias for layer in layers))


def norm(name, layer):
    """Describes the tensors of a norm: `name.weight`, and `name.bias` for a `LayerNormalization` with a bias."""
    if isinstance(layer, RMSNormalization):
        yield vector(f"{name}.weight", layer.scale)
    else:
        yield vector(f"{name}.weight", layer.gamma)
        if layer.beta is not None:
            yield vector(f"{name}.bias", layer.beta)


class LayerNames(NamedTuple):
    """The names of the tensors of a layer, without their common beginning.

    attention: Names of the projections of queries, keys and values, or one name for all three; then that of the output.
    norms: Names of the norms in the order of their use. A layer without the first ones has the last names.
    inner: Names of the feed-forward network's gate and inner layer, or one name for both or for the only one.
    outer: Name of its outer layer.
    cross_attention: As `attention`, for a layer that attends to a memory.
    """

    attention: tuple
    norms: tuple
    inner: tuple
    outer: str
    cross_attention: tuple = ()


def layer_tensors(beginning, layer, names, transposed=True):
    """Describes the tensors of a layer of an encoder or a decoder.

    Args:
        beginning: Beginning of the tensors' names.
        layer: The layer.
        names: The `LayerNames`.
        transposed: Whether matrices are `(outputs, inputs)`, as in PyTorch's `Linear`.
    """

    def each(names, parts):
        groups = [parts] if len(names) == 1 else [(part,) for part in parts]
        for name, group in zip(names, groups, strict=True):
            yield from dense(beginning + name, *group, transposed=transposed)

    attentions, residuals = [(layer.self_attention, names.attention)], [layer.self_attention_residual]
    if getattr(layer, "cross_attention_residual", None) is not None:
        attentions.append((layer.cross_attention, names.cross_attention))
        residuals.append(layer.cross_attention_residual)
    for attention, (*inputs, output) in attentions:
        yield from each(inputs, (attention.query_dense, attention.key_dense, attention.value_dense))
        yield from dense(beginning + output, attention.output_dense, input_axes=2, transposed=transposed)
    feed_forward, residuals = layer.feed_forward, [*residuals, layer.feed_forward_residual]
    gates = (feed_forward.gate,) if isinstance(feed_forward, GatedFeedForward) else ()
    yield from each(names.inner, (*gates, feed_forward.inner))
    yield from dense(beginning + names.outer, feed_forward.outer, transposed=transposed)
    norms = [own for residual in residuals for own in (residual.norm, residual.norm_after) if own is not None]
    for name, own in zip(names.norms[-len(norms) :], norms, strict=True):
        yield from norm(beginning + name, own)


def without_copies(tensors):
    """Leaves out each tensor whose weights an earlier one holds: tied weights are stored once."""
    seen = set()
    for tensor in tensors:
        if weight_ids(tensor) not in seen:
            seen.add(weight_ids(tensor))
            yield tensor


def fill_weights(
    tensors, stored, prefix="", ignored=(), tables=(), renamed=None, verbose=False, values_of=None
):
    """Gives weights the values of a checkpoint, tensor by tensor.

    It reads no value before all names, shapes and dtypes fit. Of several tensors with the same weights at least one
    must be stored, and all that are stored must be equal.

    Args:
        tensors: The `Tensor`s of the model.
        stored: The checkpoint's tensors, a list of `files.StoredTensor`.
        prefix: Beginning of the names that the checkpoint may leave out.
        ignored: Compiled patterns of the names of stored tensors that are not weights.
        tables: The `ComputedTable`s of the model.
        renamed: A dict from the end of a name in old checkpoints to its end now; or None.
        verbose: Whether to show a progress bar on stderr.
        values_of: `values_of(weight, value)` gives the variables that hold a weight and their values, a list of pairs;
            None where each weight holds its own value.

    Raises:
        ValueError: If a tensor is missing, left over, of another shape or of no float dtype; or if it differs from the
            one it is tied to or from the computed table.
    """
    tensors = {tensor.name: tensor for tensor in tensors}
    tables = {table.name: table for table in tables}
    known = tensors.keys() | tables.keys()
    stored_of, stored_tables, problems = {}, {}, []
    # A tensor under its full name comes before one without the prefix: the second is then left over.
    for each in sorted(stored, key=lambda each: each.name not in known):
        name = full_name(each.name, known, prefix, renamed or {})
        if name in tensors and name not in stored_of:
            stored_of[name] = each
            problems += each.problems(tensors[name].shape)
        elif name in tables and name not in stored_tables:
            stored_tables[name] = each
            problems += each.problems((*each.shape[:1], tables[name].width))
        elif not any(pattern.search(each.name) for pattern in ignored):
            problems.append(f"{each.name!r:.200} is left over")
    filled = {weight_ids(tensors[name]) for name in stored_of}
    problems += [
        f"{tensor.name!r} is missing"
        for tensor in without_copies(tensors.values())
        if weight_ids(tensor) not in filled
    ]
    _raise_if_any(problems)

    first_names = {}
    to_read = [(name, tensor) for name, tensor in tensors.items() if name in stored_of]
    for name, tensor in tqdm.tqdm(to_read, unit="tensor", disable=not verbose, leave=False):
        array, first_name = stored_of[name].read(), first_names.setdefault(weight_ids(tensor), name)
        if first_name == name:
            for variable, value in _values(tensor, array, values_of):
                variable.assign(value)
        elif not _holds(tensor, array, values_of):
            problems.append(
                f"{name!r:.200} differs from {first_name!r}, which it is tied to (`tie_word_embeddings`)"
            )
    for name, each in stored_tables.items():
        if not tables[name].equals(each.read()):
            problems.append(f"{name!r:.200} differs from what is computed in its place")
    _raise_if_any(problems)


def full_name(name, known, prefix, renamed):
    """Returns a tensor's name as the family writes it now, with the prefix."""
    for old, new in renamed.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name if name in known else prefix + name


def _values(tensor, array, values_of):
    """Returns the variables that hold a tensor's weights, and their values from an array."""
    pairs = zip(tensor.weights, tensor.to_weights(array), strict=True)
    return pairs if values_of is None else [value for pair in pairs for value in values_of(*pair)]


def _holds(tensor, array, values_of):
    """Whether the tensor's weights already hold the values of an array, rounded to their dtype."""
    return all(
        np.array_equal(ops.convert_to_numpy(variable), value.astype(variable.dtype, copy=False))
        for variable, value in _values(tensor, array, values_of)
    )


def weight_ids(tensor):
    """Returns a key that two tensors share when they hold the same weights."""
    return tuple(id(weight) for weight in tensor.weights)


def _raise_if_any(problems):
    if problems:
        listed = "; ".join(problems[:MAX_LISTED_PROBLEMS])
        count = len(problems) - MAX_LISTED_PROBLEMS
        more = f"; and {count} more" if count > 0 else ""
        raise ValueError(
            f"The checkpoint must hold the tensors that its config.json asks for. Received: {listed}{more}."
        )
