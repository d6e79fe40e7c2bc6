"""Checkpoints that a crash cannot spoil, and that training goes on from exactly."""

import io
import re
import signal
import threading
import zipfile
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check_count, check_positive
from keras_transformer.files import replaced
from keras_transformer.training.divergence import check_finite

METRICS = "metrics.npz"  # what a checkpoint of an unfinished epoch holds beside Keras's own parts


class SavedState(NamedTuple):
    """A checkpoint and how far its training was: `epochs` whole ones, and `steps` of the next."""

    path: Path | None
    epochs: int = 0
    steps: int = 0

    def restore_metrics(self, model):
        """Puts the model's metrics back to where they were in the middle of an epoch."""
        with zipfile.ZipFile(self.path) as archive, np.load(io.BytesIO(archive.read(METRICS))) as values:
            for i, variable in enumerate(model.metrics_variables):
                variable.assign(values[str(i)])


class Terminated(Exception):
    """The process was asked to stop (SIGTERM), and has saved where it was."""


class Checkpoint(keras.callbacks.Callback):
    """Saves the model, its optimizer and its random states, so that training goes on as if it had not stopped.

    After each epoch there is a `checkpoint-EEEE.keras`, named for the epochs that are done; in the middle of one,
    where that is asked for, a `checkpoint-EEEE-SSSSSSSS.keras`, named also for the steps done in the next. A file
    appears whole or not at all, and an older one goes only when the newer is there.

    Args:
        folder: Where to keep them; created when missing.
        keep: How many checkpoints of whole epochs to keep, the newest.
        every: Also save after so many steps within an epoch; None for whole epochs alone.
        resumed: The `SavedState` that the training goes on from, or None.
        termination: A `Termination`; once it was asked for, the step under way is the last: it is saved, and
            `Terminated` raised.

    Raises:
        ValueError: If `keep` or `every` is not positive.
        Diverged: If a weight is NaN or infinite; the checkpoints before it are still there.
        OSError: If a checkpoint cannot be written; those before it are still there.
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
            return  # the epoch ends here, and saves
        steps = self.first_step + batch + 1
        if self._ending or (self.every is not None and steps % self.every == 0):
            path = self.folder / f"checkpoint-{self.epoch:04d}-{steps:08d}.keras"
            self._save(SavedState(path, self.epoch, steps))
        if self._ending:
            raise Terminated(f"stopped in epoch {self.epoch + 1} after {steps} steps; the state is saved")

    def on_epoch_end(self, epoch, logs=None):
        self._save(SavedState(self.folder / f"checkpoint-{epoch + 1:04d}.keras", epoch + 1))
        if self._ending:
            raise Terminated(f"stopped after epoch {epoch + 1}; the state is saved")

    @property
    def _ending(self):
        return self.termination is not None and self.termination.requested

    def _save(self, state):
        step = f"epoch {state.epochs + 1}, step {state.steps}" if state.steps else f"epoch {state.epochs}"
        check_finite(self.model, step)
        with replaced(state.path) as temporary:
            self.model.save(temporary)
            if state.steps:
                values = {str(i): np.asarray(v) for i, v in enumerate(self.model.metrics_variables)}
                with zipfile.ZipFile(temporary, "a") as archive, archive.open(METRICS, "w") as file:
                    np.savez(file, **values)
        whole = [saved for saved in checkpoints(self.folder) if not saved.steps]
        for old in checkpoints(self.folder):
            if (old.steps and old != state) or old in whole[self.keep :]:
                old.path.unlink()


def checkpoints(folder):
    """The checkpoints in a folder, a list of `SavedState`, the newest first."""
    found = []
    for path in Path(folder).glob("checkpoint-*.keras"):
        if match := re.fullmatch(r"checkpoint-(\d+)(?:-(\d+))?", path.stem):
            found.append(SavedState(path, int(match[1]), int(match[2] or 0)))
    return sorted(found, key=lambda saved: (saved.epochs, saved.steps), reverse=True)


class Termination:
    """While it is entered, SIGTERM asks for an end instead of making one; a second one does make it.

    In the main thread alone; elsewhere Python cannot listen, and SIGTERM stays what it was.

    with Termination() as termination:
        model.fit(..., callbacks=[Checkpoint(folder, termination=termination)])
    """

    requested = False

    def __enter__(self):
        self.listening = threading.current_thread() is threading.main_thread()
        if self.listening:
            self.previous = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *exception):
        if self.listening:
            signal.signal(signal.SIGTERM, self.previous)

    def _request(self, number, frame):
        self.requested = True
        signal.signal(signal.SIGTERM, self.previous)


def average_weights(paths, load):
    """The mean of the weights of several checkpoints ("Attention Is All You Need", section 6.1).

    Args:
        paths: Paths of checkpoints of one model.
        load: A function from a path to a model.

    Returns:
        The last one's model, with the mean weights; random states and integers are the last one's own.

    Raises:
        ValueError: If there is no path, or the models differ.
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
                f"Checkpoints of one model can be averaged. {path} is of another than {paths[0]}."
            )
        totals = values if totals is None else [a + b for a, b in zip(totals, values, strict=True)]
    for variable, total in zip(model.trainable_variables, totals, strict=True):
        variable.assign((total / len(paths)).astype("float32"))
    return model
