"""Stops a training when its loss or its weights become NaN or infinite."""

import math

import keras
import numpy as np

# Number of names of weights in a message.
MAX_NAMES = 5
ADVICE = (
    "A lower learning rate, a longer warm-up or clipped gradients may help. A target that is not an id of the "
    "vocabulary also makes the loss NaN."
)


class Diverged(ArithmeticError):
    """The loss or a weight is NaN or infinite. The step where it happened is not saved."""


class StopOnNaN(keras.callbacks.Callback):
    """Stops the training at the first step with a NaN or infinite loss, and reports the details.

    Put it before every callback that saves, because callbacks run in the order of the list.

    Args:
        texts: A function of `(epoch, step)`, both counted from 0, that returns the list of (source, target) str pairs
            of that batch, such as `Batches.texts`. None leaves the texts out of the message.
        first_step: Number of steps of the first epoch that an earlier call of `fit` did.

    Raises:
        Diverged: During `fit`. The message has the epoch, the step, the learning rate, the weights that are not finite,
            and the first texts of the batch.
    """

    def __init__(self, texts=None, first_step=0):
        super().__init__()
        self.texts = texts
        self.first_step = first_step
        self.epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self.steps_before = self.first_step if self.epoch is None else 0
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            return
        step = self.steps_before + batch
        sentences = [
            f"The loss is {loss} in epoch {self.epoch + 1}, step {step + 1}, "
            f"at a learning rate of {float(self.model.optimizer.learning_rate):.3g}.",
            _report(self.model, _names_of_not_finite(self.model), "it"),
        ]
        if self.texts is not None:
            sentences.append(f"The batch begins with {self.texts(self.epoch, step)[:2]}.")
        raise Diverged(" ".join([*sentences, ADVICE]))


def check_finite(model, point):
    """Raises `Diverged` if a trainable weight is NaN or infinite.

    A finite loss does not show it: the loss of a step is computed before the step changes the weights.

    Args:
        model: The model to check, before it is saved.
        point: The epoch or the step that is done, a str for the message, such as "epoch 3".

    Raises:
        Diverged: If a weight is not finite; the message names the weights.
    """
    names = _names_of_not_finite(model)
    if names:
        raise Diverged(f"{_report(model, names, point)} Nothing of it is saved. {ADVICE}")


def _names_of_not_finite(model):
    return [v.path for v in model.trainable_variables if not np.isfinite(np.asarray(v, "float32")).all()]


def _report(model, names, point):
    """Returns a sentence with the number of weights that are not finite, and their first names."""
    count = f"{len(names)} of {len(model.trainable_variables)} weights are not finite after {point}"
    first = f": {', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}" if names else ""
    return f"{count}{first}."
