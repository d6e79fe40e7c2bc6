"""Shared by the examples that put attention into a Keras model of their own: other encoders to compare, and a server.

`ENCODERS` are three functions from `(batch, length, width)` to the same shape, which read Keras's implicit mask: this
library's `Encoder`, the same block built of `keras.layers.MultiHeadAttention`, and bidirectional LSTMs.
"""

import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import keras
import numpy as np

import keras_transformer as kt

LAYERS, HEADS, DROPOUT = 2, 4, 0.1
SEED = 1
# What a server runs: the SavedModel in TensorFlow, without this library.
SERVER = """
import sys
import numpy as np
import tensorflow as tf
folder, given, answered = sys.argv[1:]
model = tf.saved_model.load(folder)
signature = model.signatures["serving_default"]
(name,) = signature.structured_input_signature[1]
(outputs,) = signature(**{name: tf.constant(np.load(given))}).values()
np.save(answered, outputs.numpy())
assert "keras_transformer" not in sys.modules
"""


def encoder(x):
    """This library's encoder: positions, then layers of attention and feed-forward networks."""
    x = kt.PositionalEncoding()(x)
    return kt.Encoder(LAYERS, HEADS, 2 * x.shape[-1], dropout=DROPOUT, normalize_first=True, name="encoder")(
        x
    )


def keras_attention(x):
    """The same block, of Keras's own layers."""
    width = x.shape[-1]
    x = kt.PositionalEncoding()(x)  # Keras has no such layer
    for _ in range(LAYERS):
        y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        y = keras.layers.MultiHeadAttention(HEADS, width // HEADS)(y, y)
        x = keras.layers.Add()([x, keras.layers.Dropout(DROPOUT)(y)])
        y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        y = keras.layers.Dense(width)(keras.layers.Dense(2 * width, activation="relu")(y))
        x = keras.layers.Add()([x, keras.layers.Dropout(DROPOUT)(y)])
    return keras.layers.LayerNormalization(epsilon=1e-6)(x)


def lstm(x):
    """Bidirectional LSTMs of the same width."""
    for _ in range(LAYERS):
        one_way = keras.layers.LSTM(x.shape[-1] // 2, return_sequences=True)
        x = keras.layers.Dropout(DROPOUT)(keras.layers.Bidirectional(one_way)(x))
    return x


ENCODERS = {"kt.Encoder": encoder, "keras MultiHeadAttention": keras_attention, "LSTM": lstm}


def compare(train, score, of):
    """Trains a model with each encoder from the same seed, and prints a table of them.

    Args:
        train: A function from an encoder to a trained model.
        score: A function from a model to a number between 0 and 1.
        of: What the number is, for the head of the table.

    Returns:
        The model with the first encoder.
    """
    print(f"\n{'encoder':<26}{'parameters':>11}{of:>15}{'seconds':>9}")
    models = []
    for name, function in ENCODERS.items():
        keras.utils.set_random_seed(SEED)
        began = time.perf_counter()
        models.append(train(function))
        seconds = time.perf_counter() - began
        print(
            f"{name:<26}{models[-1].count_params():>11,}{score(models[-1]):>15.1%}{seconds:>9.0f}", flush=True
        )
    return models[0]


def served(folder, inputs):
    """Returns what an export answers in a new process, which imports TensorFlow alone.

    Args:
        folder: The folder of a SavedModel.
        inputs: The array that it is asked with.
    """
    with tempfile.TemporaryDirectory() as scratch:
        given, answered = Path(scratch, "inputs.npy"), Path(scratch, "outputs.npy")
        np.save(given, inputs)
        subprocess.run([sys.executable, "-I", "-c", SERVER, folder, given, answered], check=True)
        return np.load(answered)


def check_served(model, folder, inputs):
    """Exports a model, asks the export in a new process, and compares its answer with the model's."""
    model.export(str(folder), verbose=False)
    difference = np.abs(served(folder, inputs) - model.predict(inputs, verbose=0)).max()
    print(f"Exported to {folder}; a process with TensorFlow alone answers alike, to {difference:.0e}.")
    assert difference < 1e-3


def quantize(model):
    """Makes a model int8. Keras warns of each layer that has no matrix; these warnings are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.quantize("int8")


def check_saved(model, inputs):
    """Saves and loads a model, and returns the loaded one, which must answer alike."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "model.keras"))
        loaded = keras.models.load_model(Path(folder, "model.keras"), compile=False)
    answers, again = (each.predict(inputs, verbose=0) for each in (model, loaded))
    np.testing.assert_allclose(answers, again, atol=1e-5)
    print("Saved, loaded, and answered alike.")
    return loaded
