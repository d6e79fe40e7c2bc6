import doctest
import importlib
import pathlib

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer import layers

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
# Their examples search, train or change a vocabulary.
SLOW = ("serving.terms", "models.ensemble", "runs.vocabulary", "layers.stack")
PUBLIC = {name: getattr(keras_transformer, name) for name in keras_transformer.__all__}
PUBLIC |= {name: getattr(layers, name) for name in layers.__all__}


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the examples print shapes the way TensorFlow does"
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODULES]
)
def test_examples_print_what_they_say(name):
    module = importlib.import_module(f"keras_transformer.{name}")
    names = {"np": np, "keras": keras, "ops": keras.ops, **PUBLIC, **vars(module)}
    failed, _ = doctest.testmod(module, globs=names)
    assert failed == 0
