"""The results of a run: the measurements of each epoch, and the translator of the best epoch."""

import contextlib
import csv
import io
import math
from pathlib import Path

import keras

from keras_transformer.files import replaced
from keras_transformer.runs.initial import copy_of
from keras_transformer.training import check_finite
from keras_transformer.training.adapters import adapter_rank
from keras_transformer.training.moving_average import assign_average, average_in_place, keeps_average
from keras_transformer.untrusted import read_text

HISTORY = "history.csv"


def read_history(folder):
    """Reads the measurements of each epoch from the folder of a run.

    Args:
        folder: The folder of a run, a path.

    Returns:
        A list with one dict for each epoch, from a column's name (`epoch`, `loss`, `val_perplexity`, ...) to its
        value, both str. The first epoch is `"0"`. The list is empty if no epoch is done.

    Raises:
        ValueError: If the file is damaged.
    """
    path = Path(folder) / HISTORY
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
        for row in rows:
            int(row["epoch"])
            if None in row or None in row.values():
                raise ValueError("a row with more or fewer values than the first line has names")
        val_perplexities(rows)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as the history of a run: {error!r:.500}") from None
    return rows


def write_history(folder, history):
    """Writes the measurements of each epoch.

    Args:
        folder: The folder of a run, a `Path`.
        history: As `read_history` returns it; the values may be numbers.
    """
    with replaced(folder / HISTORY) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, history[-1])
        writer.writeheader()
        writer.writerows(history)


def val_perplexities(history):
    """Returns the validation perplexity of each epoch of a history as a list of float; NaN counts as infinity."""
    values = [float(row["val_perplexity"]) for row in history if row.get("val_perplexity")]
    return [math.inf if math.isnan(value) else value for value in values]


class Results(keras.callbacks.Callback):
    """Writes the measurements of each epoch, and the translator of the best epoch, into a run's folder.

    The best epoch has the lowest validation perplexity. Without validation pairs, the newest epoch is the best.

    Args:
        folder: The run's folder, a `Path`.
        epochs_done: How many whole epochs the training resumes after, an int. The history of later epochs is dropped.
        translator: A `Translator` of the model that is trained.

    Raises:
        Diverged: If a weight is NaN or infinite at the end of an epoch. Nothing of that epoch is written.
    """

    def __init__(self, folder, epochs_done, translator):
        super().__init__()
        self.folder = folder
        self.translator = translator
        self.history = [row for row in read_history(folder) if int(row["epoch"]) < epochs_done]

    def on_epoch_end(self, epoch, logs=None):
        check_finite(self.model, f"epoch {epoch + 1}")
        best = min(val_perplexities(self.history), default=math.inf)
        if not self.history or logs.get("val_perplexity", -math.inf) < best:
            serving_translator(self.translator, self.model).write_into(self.folder)
        self.history.append({"epoch": epoch, **logs})
        write_history(self.folder, self.history)


def serving_model(model):
    """Returns the model that is saved for translating: in float32, with the moving average of the weights, and with
    adapters added to the kernels.

    Args:
        model: A model after training. Its weights are float32 under every policy that a recipe allows.

    Returns:
        `model` itself if it computes in float32, has no adapters and its optimizer keeps no moving average; else a new
        model.
    """
    averaged = keeps_average(model)
    if model.compute_dtype == "float32" and not averaged and not adapter_rank(model):
        return model
    serving = copy_of(model, "float32")
    if averaged:
        assign_average(serving, model.optimizer)
    return serving


def serving_translator(translator, model):
    """Returns a copy of a `Translator` with the `serving_model` of `model`."""
    return translator.changed(model=serving_model(model))


class ValidateAverage(keras.callbacks.Callback):
    """Validates with the moving average of the weights.

    The weights come back bit for bit afterwards. `keras.callbacks.SwapEMAWeights` would give back rounded weights.
    """

    def __init__(self):
        super().__init__()
        self._swapped = contextlib.ExitStack()

    def on_test_begin(self, logs=None):
        self._swapped.enter_context(average_in_place(self.model))

    def on_test_end(self, logs=None):
        self._swapped.close()
