"""Dropout from one random byte an element."""

import math

import keras
from keras import ops

BYTES_PER_WORD = 4
LEVELS = 256


@keras.saving.register_keras_serializable("keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, at a fraction of its time: it draws one random byte an element, not one float.

    So the share that is dropped is rounded to a multiple of 1/256 (at least one, unless `rate` is 0); what is kept
    is scaled by that very share, and the expected value stays the input's.

    Args: as `keras.layers.Dropout`.

    Call arguments:
        inputs: Of any shape and a floating dtype.
        training: Whether to drop.

    Returns:
        Of the inputs' shape and dtype.

    Raises:
        ValueError: If `rate` is outside [0, 1].
    """

    @property
    def dropped_levels(self):
        """How many of the 256 values of a byte drop their element."""
        return max(1, round(self.rate * LEVELS)) if self.rate else 0

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        if self.dropped_levels == LEVELS:
            return ops.zeros_like(inputs)
        if self.noise_shape is not None:
            shape = [n if m is None else m for n, m in zip(ops.shape(inputs), self.noise_shape, strict=True)]
        else:
            shape = ops.shape(inputs)
        kept = self._random_bytes(shape) >= self.dropped_levels - LEVELS // 2
        scale = LEVELS / (LEVELS - self.dropped_levels)
        return inputs * (ops.cast(kept, inputs.dtype) * ops.cast(scale, inputs.dtype))

    def save_own_variables(self, store):
        """Keeps the random state, which Keras leaves out: training goes on with the numbers that come next."""
        if self.rate:
            store["random_state"] = self.seed_generator.state

    def load_own_variables(self, store):
        if self.rate and "random_state" in store:
            self.seed_generator.state.assign(store["random_state"])

    def _random_bytes(self, shape):
        """int8 of a shape whose sizes may be known late."""
        count = math.prod(shape)
        words = (count + BYTES_PER_WORD - 1) // BYTES_PER_WORD
        drawn = keras.random.randint((words, 1), -(2**31), 2**31 - 1, dtype="int32", seed=self.seed_generator)
        return ops.reshape(ops.reshape(ops.view(drawn, "int8"), (-1,))[:count], shape)
