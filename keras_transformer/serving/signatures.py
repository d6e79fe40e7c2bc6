"""The base class of an export's signatures, which computes the rows of a request a few at a time."""

import contextlib
import functools
import inspect
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.execution import native
from keras_transformer.masks import lengths_of
from keras_transformer.text.base import valid_utf8

# SentencePiece trains pieces of at most 16 characters by default. Runs of blanks or of unknown characters can make
# longer tokens. A text with more characters than this for each token is cut, and its row is marked as truncated.
CHARACTERS_PER_TOKEN = 16
LOOPS = ("While", "StatelessWhile")


class Output(NamedTuple):
    """The shape of one result in the whole batch.

    Args:
        shape: The size of each axis but the batch, ints or int32 scalars.
        fill: The number that pads a smaller result; the result has its dtype.
    """

    shape: tuple
    fill: int | float


class Signatures:
    """Base class of the functions of an export.

    A request may have any number of rows. They are sorted by length and computed a few at a time, so the memory of a
    step does not grow with the request. No row changes the answer of another.

    Args:
        servable: A `Servable`.
        batch_sizes: Increasing ints. The last is the largest number of rows of a step. With `source_lengths`, a step is
            padded to one of these sizes.
        source_lengths: Increasing ints: XLA compiles the steps, and their ids are padded to one of these lengths. No
            ints where the steps have no ids; None for steps that are not compiled.
        weights: A function without arguments that returns the tensors to compute with, in the order of
            `model.weights`. None to compute with the model's variables.
    """

    # A dict from a signature's name to a sentence about it, for `export.json`.
    descriptions = None
    # Names of signatures that are written into an export only where they are asked for.
    on_request = ()

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        self._servable = servable
        self._model = servable.model
        self._batch_sizes = batch_sizes
        self._source_lengths = source_lengths
        self._weights = weights

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        raise NotImplementedError

    def _padded_length(self, ids):
        """Returns the largest length of a step with ids `(batch, length)`, with padding, an int32 scalar."""
        width = tf.shape(ids)[1]
        return next_size(self._source_lengths, width) if self._source_lengths else width

    def _compiled_step(self, function):
        """Compiles a function for the sizes that were asked for; without `source_lengths` returns it as it is.

        Args:
            function: Takes int32 tensors `(rows, length)`, other tensors `(rows, ...)` and scalars; the first one has
                rows. Returns a list of tensors `(rows, ...)`.

        Returns:
            A function with the same arguments and results.
        """
        if self._source_lengths is None:
            return function
        compiled_function = native.compiled(function, self._model, jit_compile=True)

        def padded_step(*inputs):
            rows = tf.shape(inputs[0])[0]
            widths = [tf.shape(each)[1] for each in inputs if each.shape.rank == 2]
            size = next_size(self._batch_sizes, rows)
            longest = (
                next_size(self._source_lengths, functools.reduce(tf.maximum, widths)) if widths else None
            )

            def padded(each):
                if each.shape.rank == 2:
                    room = [[0, size - rows], [0, longest - tf.shape(each)[1]]]
                    return tf.pad(each, room, constant_values=self._model.pad_id)
                if not each.shape.rank:
                    return each
                filled = tf.pad(each, [[0, size - rows], *[[0, 0]] * (each.shape.rank - 1)])
                # Without ids nothing marks a row as padding, and the search of zeros may take longer than all others.
                # So the last row is repeated.
                members = tf.minimum(tf.range(size), tf.maximum(rows - 1, 0))
                return filled if widths else tf.gather(filled, members)

            results = compiled_function(*map(padded, inputs))
            return tf.nest.map_structure(lambda result: result[:rows], results)

        return padded_step

    def _in_chunks(self, function, inputs, outputs, size):
        """Applies a function to a few rows at a time.

        Rows of similar length are computed together, without the padding that they have in common.

        Args:
            function: Takes tensors `(rows, ...)`, one for each input. Returns a list of tensors `(rows, ...)`.
            inputs: A list of tensors. Those of rank 2 are ids `(batch, length)`, padded on the right; others are
                `(batch, ...)` and have no length. The first input decides which rows are computed together.
            outputs: A list of `Output`, one for each result.
            size: The largest number of rows at a time, an int.

        Returns:
            A list of tensors `(batch, ...)`, in the order of the inputs' rows.
        """
        rows = tf.shape(inputs[0])[0]
        lengths = [lengths_of(each, self._model.pad_id) if each.shape.rank == 2 else None for each in inputs]
        order = tf.range(rows) if lengths[0] is None else tf.argsort(lengths[0], stable=True)
        count = tf.maximum(1, -(-rows // size))

        def rows_of(each, length, members):
            chunk = tf.gather(each, members)
            if length is None:
                return chunk
            return chunk[:, : tf.maximum(1, tf.reduce_max(tf.gather(length, members)))]

        def step(i, arrays):
            members = order[i * size : (i + 1) * size]
            chunk = [rows_of(each, length, members) for each, length in zip(inputs, lengths, strict=True)]
            results = function(*chunk)
            arrays = [
                array.write(i, _padded(result, output))
                for array, result, output in zip(arrays, results, outputs, strict=True)
            ]
            return i + 1, arrays

        arrays = [
            tf.TensorArray(
                tf.convert_to_tensor(output.fill).dtype,
                count,
                infer_shape=False,
                element_shape=[None] * (1 + len(output.shape)),
            )
            for output in outputs
        ]
        _, arrays = tf.while_loop(lambda i, _: i < count, step, (0, arrays), parallel_iterations=1)
        back = tf.math.invert_permutation(order)
        return [
            tf.ensure_shape(
                tf.gather(array.concat(), back),
                (None, *(axis if isinstance(axis, int) else None for axis in output.shape)),
            )
            for array, output in zip(arrays, outputs, strict=True)
        ]

    def _unknown(self, ids, tokenizer):
        """Counts the tokens of each row that replace text which the vocabulary cannot write.

        Args:
            ids: int32 `(batch, length)`, padded on the right.
            tokenizer: The tokenizer of the ids. One without `is_unknown` knows every text.

        Returns:
            int32 `(batch,)`.
        """
        real = tf.sequence_mask(lengths_of(ids, self._model.pad_id), tf.shape(ids)[1])
        unknown = (
            tokenizer.is_unknown(ids) & real if hasattr(tokenizer, "is_unknown") else tf.zeros_like(real)
        )
        return tf.reduce_sum(tf.cast(unknown, tf.int32), axis=1)

    def _computing(self):
        """Returns a context in which the model computes with `weights`."""
        if self._weights is None:
            return contextlib.nullcontext()
        return keras.StatelessScope(
            state_mapping=list(zip(self._model.weights, self._weights(), strict=True))
        )


def readable(text, limit, keep_end=False):
    """Makes valid UTF-8 of texts, and cuts them at the characters that `limit` tokens can hold.

    Args:
        text: string `(batch,)`.
        limit: The largest number of tokens, an int.
        keep_end: Whether to keep the end of a long text, not its beginning.

    Returns:
        The texts, string `(batch,)`, and which of them were cut, bool `(batch,)`.
    """
    text = valid_utf8(text)
    characters = limit * CHARACTERS_PER_TOKEN
    excess = tf.maximum(0, tf.strings.length(text, unit="UTF8_CHAR") - characters)
    start = excess if keep_end else tf.zeros_like(excess)
    return tf.strings.substr(text, start, tf.fill(tf.shape(text), characters), unit="UTF8_CHAR"), excess > 0


def parts_by_row(parts, row, rows):
    """Sorts parts of texts or recordings, such as words, into rows.

    Args:
        parts: A dict of tensors `(n,)`.
        row: The number of each part's row, rising, int `(n,)`.
        rows: Number of rows, of the same dtype.

    Returns:
        A dict of tensors `(rows, longest)`, with 0 or "" after the last part of a row; and the number of parts of each
        row, int32 `(rows,)`.
    """
    ragged = {
        name: tf.RaggedTensor.from_value_rowids(x, row, rows, validate=False) for name, x in parts.items()
    }
    counts = next(iter(ragged.values())).row_lengths()
    return {name: x.to_tensor() for name, x in ragged.items()}, tf.cast(counts, tf.int32)


def next_size(sizes, size):
    """Returns the smallest of `sizes` (increasing ints) that is at least `size`, or the last; an int32 scalar."""
    return tf.reduce_min(tf.where(tf.constant(sizes) >= size, sizes, sizes[-1]))


def function_of(function, **specs):
    """Makes a `tf.function` of arguments with these names and `tf.TensorSpec`s.

    The graph itself checks the shapes: a session, or the function in a loaded SavedModel, computes with any shape.
    """

    @functools.wraps(function)
    def checked(*inputs):
        return function(
            *(tf.ensure_shape(each, spec.shape) for each, spec in zip(inputs, specs.values(), strict=True))
        )

    # Arguments after a `*` have no names of their own.
    checked.__signature__ = inspect.Signature(
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in specs
    )
    return tf.function(checked, input_signature=list(specs.values()), autograph=False)


def as_called(function):
    """Returns a function of a signature's inputs by name, which answers as the signature does.

    TensorFlow needs seconds to build a search, and builds it for each function that holds it. So the operations of a
    signature without a loop of its own run one by one: the search that several of them call is built once.

    Args:
        function: What `function_of` returned.
    """
    concrete = function.get_concrete_function()
    if any(operation.type in LOOPS for operation in concrete.graph.get_operations()):
        return concrete
    body = function.python_function
    return lambda **inputs: body(*inspect.signature(body).bind(**inputs).args)


def _padded(x, output):
    """Pads a tensor `(rows, ...)` to the shape of an `Output`, `(rows, *shape)`."""
    sizes = tf.shape(x)[1:]
    padding = [[0, 0], *([0, longest - sizes[axis]] for axis, longest in enumerate(output.shape))]
    return tf.pad(x, padding, constant_values=tf.cast(output.fill, x.dtype)) if output.shape else x
