"""How fast the library computes, never what: the same numbers with and without it.

Layers, models and decoding hold mathematics. What they ask of this package has a plain meaning: `ops` are those of
Keras, `inference(model)` reads weights once, `compiled(function, ...)` computes a function. XLA, threads, int8 kernels
and the backend of Keras are named here and nowhere above.
"""

import importlib

import keras

# The operations of the backend: one file or the other, with the same names.
_FILE = "tensorflow" if keras.backend.backend() == "tensorflow" else "jax"
native = importlib.import_module(f"keras_transformer.execution.{_FILE}")
