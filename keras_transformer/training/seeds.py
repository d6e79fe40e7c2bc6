"""Random numbers that follow from the epoch."""

import keras
import numpy as np


class EpochSeeds(keras.callbacks.Callback):
    """Sets the state of every dropout at the beginning of each epoch, from the seed and the epoch alone.

    A `.keras` file does not hold these states, so without this a resumed training would draw other numbers than
    one that was not stopped.

    Args:
        seed: Non-negative int.
    """

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        draw = np.random.default_rng([self.seed, epoch])
        for variable in self.model.non_trainable_variables:
            if variable.path.endswith("seed_generator_state"):
                variable.assign(draw.integers(0, 2**31, variable.shape).astype(variable.dtype))
