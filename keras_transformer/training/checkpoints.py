"""Checkpoints that a crash cannot spoil."""

import re
from pathlib import Path

import keras

from keras_transformer.files import replaced


class Checkpoint(keras.callbacks.Callback):
    """Saves the model and its optimizer after each epoch, and keeps the newest.

    The file `checkpoint-NNNN.keras` says how many epochs are done. It appears whole or not at all, and the one
    before it goes only when it is there.

    Args:
        folder: Where to keep it; created when missing.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    def on_epoch_end(self, epoch, logs=None):
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"checkpoint-{epoch + 1:04d}.keras"
        with replaced(path) as temporary:
            self.model.save(temporary)
        for old, _ in _checkpoints(self.folder):
            if old != path:
                old.unlink()


def latest_checkpoint(folder):
    """The newest checkpoint in a folder and the number of epochs it has behind it, or `(None, 0)`."""
    return max(_checkpoints(folder), key=lambda found: found[1], default=(None, 0))


def _checkpoints(folder):
    for path in Path(folder).glob("checkpoint-*.keras"):
        if match := re.fullmatch(r"checkpoint-(\d+)", path.stem):
            yield path, int(match[1])
