"""What becomes of a training whose loss is no number any more."""

import math

import keras
import numpy as np

SHOWN = 5


class Diverged(ArithmeticError):
    """The loss is not finite; nothing of this step was saved."""


class StopOnNaN(keras.callbacks.Callback):
    """Stops the training at the step whose loss is NaN or infinite, and says where.

    It must stand before whatever saves, in the list of callbacks.

    Args:
        texts: A function of the epoch and the step in it to that batch's pairs of str, or None.
        first_step: How many steps of the first epoch were done before.

    Raises:
        Diverged: With the epoch, the step, the learning rate, the weights that are not finite, and the batch.
    """

    def __init__(self, texts=None, first_step=0):
        super().__init__()
        self.texts = texts
        self.first_step = first_step
        self.epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self.done = self.first_step if self.epoch is None else 0
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            return
        lost = [
            v.path for v in self.model.trainable_variables if not np.isfinite(np.asarray(v, "float32")).all()
        ]
        total = len(self.model.trainable_variables)
        step = self.done + batch
        said = [
            f"The loss is {loss} in epoch {self.epoch + 1}, step {step + 1}, "
            f"at a learning rate of {float(self.model.optimizer.learning_rate):.3g}.",
            f"{len(lost)} of {total} weights are not finite after it{_some(lost)}.",
        ]
        if self.texts is not None:
            said.append(f"The batch begins with {self.texts(self.epoch, step)[:2]}.")
        said.append("A lower learning rate, a longer warm-up or clipped gradients may help.")
        raise Diverged(" ".join(said))


def _some(names):
    """The first of some names, after a colon."""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f": {shown}" if names else ""
