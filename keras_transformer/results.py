"""What a run keeps beside its checkpoints: its history, and a model to decode with."""

import csv
import math
from pathlib import Path

import keras

from keras_transformer.files import replaced
from keras_transformer.training import check_finite
from keras_transformer.training.moving_average import assign_average, average_in_place, keeps_average

HISTORY = "history.csv"


def read_history(folder):
    """What each epoch of a run measured: a list of dicts from column to str."""
    try:
        with open(Path(folder) / HISTORY, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def val_perplexities(rows):
    """The validation perplexities of a history, a list of float; one that is no number counts as infinite."""
    values = [float(row["val_perplexity"]) for row in rows if row.get("val_perplexity")]
    return [math.inf if math.isnan(value) else value for value in values]


class Results(keras.callbacks.Callback):
    """Keeps what each epoch measured, and the translator of the best one, in float32."""

    def __init__(self, folder, done, make_translator):
        super().__init__()
        self.folder = folder
        self.make_translator = make_translator
        self.rows = [row for row in read_history(folder) if int(row["epoch"]) < done]

    def on_epoch_end(self, epoch, logs=None):
        check_finite(self.model, f"epoch {epoch + 1}")
        best = min(val_perplexities(self.rows), default=math.inf)
        if not self.rows or logs.get("val_perplexity", -math.inf) < best:
            self.make_translator(in_float32(self.model)).write_into(self.folder)
        self.rows.append({"epoch": epoch, **logs})
        with (
            replaced(self.folder / HISTORY) as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, self.rows[-1])
            writer.writeheader()
            writer.writerows(self.rows)


def in_float32(model):
    """A model to decode with: its moving average where it has one, in float32, which the weights are in already."""
    averaged = keeps_average(model)
    if model.compute_dtype == "float32" and not averaged:
        return model
    served = type(model).from_config({**model.get_config(), "dtype": "float32"})
    served.set_weights(model.get_weights())
    if averaged:
        assign_average(served, model.optimizer)
    return served


class ValidateAverage(keras.callbacks.Callback):
    """Validates with the moving average; `keras.callbacks.SwapEMAWeights` would give back rounded weights."""

    def on_test_begin(self, logs=None):
        self.average = average_in_place(self.model)
        self.average.__enter__()

    def on_test_end(self, logs=None):
        self.average.__exit__(None, None, None)
