"""What every signature does with the rows of a request, whatever the model."""

import contextlib

import keras
import tensorflow as tf

from keras_transformer.backend import compiled
from keras_transformer.models.generation import lengths_of
from keras_transformer.text.base import valid_utf8

# No piece of a SentencePiece model is longer unless its training was told so. Runs of blanks and of unknown characters
# can be, as they become one token: what a text holds after more of them is lost, and its row says that it was cut.
CHARACTERS_A_TOKEN = 16


class Rows:
    """The base of all signatures: computes with a few rows at once, and none changes another.

    Rows are taken in order of their length, at most the largest of `batch_sizes` at once: neither time nor memory
    of a step grows with the request.

    Args:
        servable: A `Servable`.
        batch_sizes: Increasing ints. The last is how many rows are computed at once. With `source_lengths` a step
            has one of these sizes, filled up with rows of padding.
        source_lengths: Increasing ints, to which inputs are padded for a step compiled with XLA; None for one that is
            not.
        weights: Tensors to compute with instead of the model's variables: a function to a list of them, in the order of
            `model.weights`; None for the variables.
    """

    about = None  # a dict from a signature's name to what it is for

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        self._servable = servable
        self._model = servable.model
        self._batch_sizes = batch_sizes
        self._source_lengths = source_lengths
        self._weights = weights

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        raise NotImplementedError

    def _padded_length(self, inputs):
        """The longest row of a step with these inputs `(batch, length)`, padding included."""
        width = tf.shape(inputs)[1]
        return next_of(self._source_lengths, width) if self._source_lengths else width

    def _shaped(self, function):
        """A function of int32 tensors `(rows, length)`, and scalars after them, to a list of tensors `(rows, ...)`: as
        it is, or compiled for the few shapes that were asked for."""
        if not self._source_lengths:
            return function
        compiled_function = compiled(function, self._model, jit_compile=True)

        def shaped(*inputs):
            rows, length = tf.unstack(tf.shape(inputs[0]))
            size, longest = next_of(self._batch_sizes, rows), next_of(self._source_lengths, length)
            padded = [
                tf.pad(each, [[0, size - rows], [0, longest - length]], constant_values=self._model.pad_id)
                if each.shape.rank == 2
                else each
                for each in inputs
            ]
            return tf.nest.map_structure(lambda part: part[:rows], compiled_function(*padded))

        return shaped

    def _in_chunks(self, function, inputs, outputs, size):
        """Applies a function to a few rows at a time, those of like length together, without their common padding.

        Args:
            function: Of tensors `(rows, ...)` to a list of tensors `(rows, ...)`.
            inputs: Tensors for it: ids `(batch, length)`, padded on the right, or what has no length, `(batch, ...)`.
                The first says which rows go together.
            outputs: The shape of each result in the whole batch, without the batch, and what fills it up.
            size: How many rows at a time.

        Returns:
            A list of tensors `(batch, ...)`.
        """
        rows = tf.shape(inputs[0])[0]
        lengths = [lengths_of(each, self._model.pad_id) if each.shape.rank == 2 else None for each in inputs]
        order = tf.range(rows) if lengths[0] is None else tf.argsort(lengths[0], stable=True)
        count = tf.maximum(1, -(-rows // size))

        def taken(each, length, members):
            chunk = tf.gather(each, members)
            if length is None:
                return chunk
            return chunk[:, : tf.maximum(1, tf.reduce_max(tf.gather(length, members)))]

        def turn(i, arrays):
            members = order[i * size : (i + 1) * size]
            chunk = [taken(each, length, members) for each, length in zip(inputs, lengths, strict=True)]
            results = [
                filled(result, shape, fill)
                for result, (shape, fill) in zip(function(*chunk), outputs, strict=True)
            ]
            return i + 1, [array.write(i, result) for array, result in zip(arrays, results, strict=True)]

        arrays = [
            tf.TensorArray(
                tf.convert_to_tensor(fill).dtype,
                count,
                infer_shape=False,
                element_shape=[None] * (1 + len(shape)),
            )
            for shape, fill in outputs
        ]
        _, arrays = tf.while_loop(lambda i, _: i < count, turn, (0, arrays), parallel_iterations=1)
        back = tf.math.invert_permutation(order)
        results = [tf.gather(array.concat(), back) for array in arrays]
        return [
            tf.ensure_shape(result, (None, *(to if isinstance(to, int) else None for to in shape)))
            for result, (shape, _) in zip(results, outputs, strict=True)
        ]

    def _computing(self):
        if self._weights is None:
            return contextlib.nullcontext()
        return keras.StatelessScope(
            state_mapping=list(zip(self._model.weights, self._weights(), strict=True))
        )


def readable(text, limit, last=False):
    """Texts `(batch,)` as a tokenizer can read them: valid UTF-8, of no more characters than `limit` tokens can hold,
    the first ones or the `last`; and which were cut, bool `(batch,)`."""
    text = valid_utf8(text)
    characters = limit * CHARACTERS_A_TOKEN
    beyond = tf.maximum(0, tf.strings.length(text, unit="UTF8_CHAR") - characters)
    start = beyond if last else tf.zeros_like(beyond)
    return tf.strings.substr(text, start, tf.fill(tf.shape(text), characters), unit="UTF8_CHAR"), beyond > 0


def next_of(sizes, size):
    """The least of some sizes that has room for one."""
    return tf.reduce_min(tf.where(tf.constant(sizes) >= size, sizes, sizes[-1]))


def function_of(function, **signature):
    """A `tf.function` of arguments of these names and kinds."""
    return tf.function(function, input_signature=list(signature.values()), autograph=False)


def filled(x, shape, fill):
    """A tensor `(rows, ...)` padded to `(rows, *shape)`."""
    sizes = tf.shape(x)[1:]
    padding = [[0, 0], *([0, to - sizes[axis]] for axis, to in enumerate(shape))]
    return tf.pad(x, padding, constant_values=tf.cast(fill, x.dtype)) if shape else x
