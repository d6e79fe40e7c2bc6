"""Checkpoints to resume training from: a crash cannot damage them, and no step is lost or repeated."""

import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check, check_count, check_positive
from keras_transformer.files import replaced
from keras_transformer.models.loading import load_model
from keras_transformer.termination import Terminated
from keras_transformer.training.adapters import (
    adapter_rank,
    assign_stored,
    holds_state,
    restore_state,
    write_state,
)
from keras_transformer.training.divergence import check_finite
from keras_transformer.untrusted import open_arrays

# A checkpoint within an epoch holds this file in addition to Keras's own.
METRICS = "metrics.npz"


class SavedState(NamedTuple):
    """A checkpoint file and the point in training where it was saved.

    Attributes:
        path: Path of the file, or None.
        epochs: Number of whole epochs that were done.
        steps: Number of steps that were done in the next epoch.
    """

    path: Path | None
    epochs: int = 0
    steps: int = 0

    def __str__(self):
        """Says how far the training was.

        >>> str(SavedState(None, 2, 88))
        '2 epochs and 88 steps of the next'
        """
        return f"{self.epochs} epochs" + (f" and {self.steps} steps of the next" if self.steps else "")

    def restore_metrics(self, model):
        """Gives the model's metrics the values that they had when the checkpoint was saved within an epoch.

        Args:
            model: The model that was loaded from this checkpoint.
        """
        with open_arrays(self.path, METRICS) as values:
            assign_stored(model.metrics_variables, values, self.path)


class Checkpoint(keras.callbacks.Callback):
    """Saves the model, its optimizer and its random states during `fit`, so that training can resume exactly.

    After each epoch it writes `checkpoint-EEEE.keras`, where EEEE is the number of epochs that are done. With `every`
    it also writes `checkpoint-EEEE-SSSSSSSS.keras` within an epoch, where SSSSSSSS is the number of steps that are
    done in the next epoch. A file appears only when it is complete, and an older file is removed only after the newer
    one is there. Load a file with `load_checkpoint` to go on training. `keras.models.load_model` loads it too, but a
    model with low-rank adapters (LoRA) without its optimizer, and with the adapters added to the kernels.

    Args:
        folder: Folder of the checkpoints; created when missing.
        keep: How many checkpoints of whole epochs to keep. The newest ones stay.
        every: Number of steps between two checkpoints within an epoch. None saves after whole epochs only.
        resumed: The `SavedState` that training resumes from, or None.
        termination: A `Termination`. After SIGTERM the callback saves at the end of the current step and raises
            `Terminated`.

    Raises:
        ValueError: If `keep` or `every` is not a positive integer.
        Terminated: During `fit`, after SIGTERM, when the state is saved.
        Diverged: During `fit`, if a weight is NaN or infinite. Earlier checkpoints stay.
        OSError: During `fit`, if a checkpoint cannot be written. Earlier checkpoints stay.

    Example:

        with Termination() as termination:
            model.fit(..., callbacks=[Checkpoint("run", keep=2, termination=termination)])

    and after a crash:

        saved = checkpoints("run")[0]
        model = load_checkpoint(saved.path)
        model.fit(..., initial_epoch=saved.epochs, callbacks=[Checkpoint("run", keep=2, resumed=saved)])
    """

    def __init__(self, folder, keep=1, every=None, resumed=None, termination=None):
        super().__init__()
        check_positive(keep=keep, **({} if every is None else {"every": every}))
        self.folder = Path(folder)
        self.keep = keep
        self.every = every
        self.resumed = resumed
        self.termination = termination

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.first_step = epoch, 0
        if self.resumed is not None and self.resumed.steps and self.resumed.epochs == epoch:
            self.first_step = self.resumed.steps
            self.resumed.restore_metrics(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.params.get("steps"):
            # After the last step of an epoch `on_epoch_end` saves.
            return
        steps = self.first_step + batch + 1
        if self._must_stop or (self.every is not None and steps % self.every == 0):
            path = self.folder / f"checkpoint-{self.epoch:04d}-{steps:08d}.keras"
            self._save(SavedState(path, self.epoch, steps))
        if self._must_stop:
            raise Terminated(f"stopped in epoch {self.epoch + 1} after {steps} steps; the state is saved")

    def on_epoch_end(self, epoch, logs=None):
        self._save(SavedState(self.folder / f"checkpoint-{epoch + 1:04d}.keras", epoch + 1))
        if self._must_stop:
            raise Terminated(f"stopped after epoch {epoch + 1}; the state is saved")

    @property
    def _must_stop(self):
        return self.termination is not None and self.termination.requested

    def _save(self, state):
        step = f"epoch {state.epochs + 1}, step {state.steps}" if state.steps else f"epoch {state.epochs}"
        check_finite(self.model, step)
        with replaced(state.path) as temporary:
            self.model.save(temporary)
            if adapter_rank(self.model):
                write_state(self.model, temporary)
            if state.steps:
                values = {str(i): np.asarray(v) for i, v in enumerate(self.model.metrics_variables)}
                with zipfile.ZipFile(temporary, "a") as archive, archive.open(METRICS, "w") as file:
                    np.savez(file, **values)
        whole_epochs = [saved for saved in checkpoints(self.folder) if not saved.steps]
        for old in checkpoints(self.folder):
            if (old.steps and old != state) or old in whole_epochs[self.keep :]:
                old.path.unlink()


def checkpoints(folder):
    """Lists the checkpoints in a folder.

    Args:
        folder: Path of the folder; it may be missing.

    Returns:
        A list of `SavedState`, the newest first.

    >>> checkpoints("a/folder/that/is/missing")
    []
    """
    states = []
    for path in Path(folder).glob("checkpoint-*.keras"):
        if match := re.fullmatch(r"checkpoint-([0-9]{1,9})(?:-([0-9]{1,9}))?", path.stem):
            states.append(SavedState(path, int(match[1]), int(match[2] or 0)))
    return sorted(states, key=lambda state: (state.epochs, state.steps), reverse=True)


def load_checkpoint(path):
    """Loads a file of `Checkpoint` to go on training: the model with its adapters and its optimizer, compiled.

    Args:
        path: Path of the file.

    Returns:
        The model, a `keras.Model`.

    Raises:
        ValueError: If the file is missing or damaged, or needs code that is not registered.

    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    >>> model.compile("adam", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model.fit(np.ones((2, 5)), np.ones((2, 3)), verbose=0, callbacks=[Checkpoint(folder)])
    ...     resumed = load_checkpoint(checkpoints(folder)[0].path)
    >>> int(resumed.optimizer.iterations)
    1
    """
    adapted = Path(path).is_file() and holds_state(path)
    model = load_model(path, compile=not adapted)
    if adapted:
        restore_state(model, path)
    rule = f"{path} must be a file of `Checkpoint`, which keeps the optimizer and the adapters."
    check(getattr(model, "optimizer", None) is not None, rule, model=model.name)
    return model


def average_weights(paths, load=load_model):
    """Averages the weights of several checkpoints ("Attention Is All You Need", section 6.1).

    Only trainable weights are averaged. Random states and integer variables are those of the last checkpoint.

    Args:
        paths: Paths of checkpoints of one model.
        load: A function from a path to a model. The default loads it without its optimizer.

    Returns:
        The model of the last checkpoint, with the mean weights.

    Raises:
        ValueError: If there is no path, or the models have different weights.
    """
    paths = list(paths)
    check_count(1, **{"number of checkpoints": len(paths)})
    totals = None
    for path in paths:
        model = load(path)
        values = [np.asarray(variable, "float64") for variable in model.trainable_variables]
        shapes = [value.shape for value in values]
        if totals is not None and shapes != [total.shape for total in totals]:
            raise ValueError(
                "Only checkpoints of one model can be averaged: the shapes of their weights must be equal. "
                f"Received: {path}, which differs from {paths[0]}."
            )
        totals = values if totals is None else [a + b for a, b in zip(totals, values, strict=True)]
    for variable, total in zip(model.trainable_variables, totals, strict=True):
        variable.assign((total / len(paths)).astype("float32"))
    return model
