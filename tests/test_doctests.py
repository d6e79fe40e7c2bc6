import doctest
import importlib

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer import layers

MODULES = [
    "masks",
    "schedules",
    "losses",
    "metrics",
    "backend",
    "checks",
    "layers.attention",
    "layers.cache",
    "layers.decoder",
    "layers.embedding",
    "layers.encoder",
    "layers.feed_forward",
    "layers.positions",
    "layers.residual",
    "models.generation",
    "models.recurrent_seq2seq",
    "models.transformer",
    "models.vision_transformer",
    "data.packing",
    "decoding.loop",
    "decoding.strategies",
    "serving.tensors",
]
PUBLIC = {name: getattr(keras_transformer, name) for name in keras_transformer.__all__}
PUBLIC |= {name: getattr(layers, name) for name in layers.__all__}


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the examples print shapes the way TensorFlow does"
)
@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    module = importlib.import_module(f"keras_transformer.{name}")
    names = {"np": np, "keras": keras, "ops": keras.ops, **PUBLIC, **vars(module)}
    failed, _ = doctest.testmod(module, globs=names)
    assert failed == 0
