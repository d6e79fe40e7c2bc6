"""What becomes of a training whose loss or weights are no numbers any more."""

import math

import keras
import numpy as np

SHOWN = 5
ADVICE = "A lower learning rate, a longer warm-up or clipped gradients may help."


class Diverged(ArithmeticError):
    """The loss or a weight is not finite; nothing of this step was saved."""


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
        step = self.done + batch
        said = [
            f"The loss is {loss} in epoch {self.epoch + 1}, step {step + 1}, "
            f"at a learning rate of {float(self.model.optimizer.learning_rate):.3g}.",
            _said(self.model, _lost(self.model), "it"),
        ]
        if self.texts is not None:
            said.append(f"The batch begins with {self.texts(self.epoch, step)[:2]}.")
        raise Diverged(" ".join([*said, ADVICE]))


def check_finite(model, where):
    """Raises `Diverged` unless every trainable weight is finite: a step's loss is of the weights before its update.

    Args:
        model: The model that is about to be saved.
        where: The epoch or the step that is done, for the message.
    """
    lost = _lost(model)
    if lost:
        raise Diverged(f"{_said(model, lost, where)} Nothing of it is saved. {ADVICE}")


def _lost(model):
    """The paths of the weights that are not finite."""
    return [v.path for v in model.trainable_variables if not np.isfinite(np.asarray(v, "float32")).all()]


def _said(model, lost, where):
    """How many weights are not finite, and the first of their names."""
    names = f": {', '.join(lost[:SHOWN])}{', …' if len(lost) > SHOWN else ''}" if lost else ""
    return f"{len(lost)} of {len(model.trainable_variables)} weights are not finite after {where}{names}."
