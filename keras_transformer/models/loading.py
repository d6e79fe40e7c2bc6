"""Loads a `.keras` file that a stranger may have written."""

import math
import os
import zipfile
from pathlib import Path

import keras

from keras_transformer.checks import (
    MOST_LAYERS,
    SMALL_MODEL,
    check,
    check_finite_weights,
    check_numbers,
    printable,
)
from keras_transformer.keras_internals import sharing, without_memory
from keras_transformer.untrusted import SMALL, read_json_entry

LAYERS = ("num_layers", "num_encoder_layers", "num_decoder_layers")
# Weights have at most this many axes.
MOST_AXES = 4


def load_model(path, *model_classes, compile=False):
    """Loads a `.keras` file. A file that needs code from outside this library is refused.

    Args:
        path: Path of the file.
        *model_classes: The classes that the model may have; without them any.
        compile: Whether to restore the optimizer, the loss and the metrics, too.

    Returns:
        The model, a `keras.Model`.

    Raises:
        ValueError: If the file is missing or damaged, holds a model of another class or a weight that is NaN or
            infinite, or needs code that is not registered.
    """
    if not Path(path).is_file():
        reason = "it is not a regular file" if Path(path).exists() else "there is no such file"
        raise ValueError(f"Cannot load {path}: {reason}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"Cannot load {path}: it is not a .keras file, or it is damaged.")
    try:
        _check_numbers(path)
        model = keras.models.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:
        # Keras raises errors of many classes, some with pages of configuration.
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(f"Cannot load {path}: {printable(reason, 500)}") from error
    if model_classes and not isinstance(model, model_classes):
        raise ValueError(
            f"{path} must hold a model of class {names_of(model_classes)}. Received: a {type(model).__name__}."
        )
    check_finite_weights(model, path)
    return model


def _check_numbers(path):
    """Raises `ValueError` if a file describes a model of many more numbers than it has bytes.

    It builds the model without memory where its description has large integers: that takes as long as loading does.
    """
    with zipfile.ZipFile(path) as archive:
        compressed = sum(
            each.file_size for each in archive.infolist() if each.compress_type != zipfile.ZIP_STORED
        )
    rule = f"Only {SMALL} bytes of the file may be compressed, so that a small file cannot fill the memory."
    check(compressed <= SMALL, rule, compressed=compressed)
    # Without `compile_config` no optimizer is made, which has twice as many numbers as the model.
    config = read_json_entry(path, "config.json") | {"compile_config": None}
    rule = (
        "`build_config` of a layer must have `input_shape` or `shapes_dict`: without them it has no weights."
    )
    for build_config in _build_configs(config):
        fits = isinstance(build_config, dict) and build_config.keys() & {"input_shape", "shapes_dict"}
        check(fits, rule, build_config=build_config)
    sizes = list(_integers(config))
    layers = max((value for key, value in sizes if key in LAYERS), default=1)
    check(
        layers <= MOST_LAYERS, f"The described model must have at most {MOST_LAYERS} layers.", layers=layers
    )
    if layers * math.prod(sorted(value for _, value in sizes)[-MOST_AXES:]) > SMALL_MODEL:
        with without_memory(initialize=False), sharing():
            check_numbers(
                keras.saving.deserialize_keras_object(config, safe_mode=True), os.path.getsize(path)
            )


def _build_configs(value):
    """Yields the `build_config` of each layer in a JSON value, but for `FeatureSpace`, which has other keys."""
    if isinstance(value, dict) and value.get("build_config") and value.get("class_name") != "FeatureSpace":
        yield value["build_config"]
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _build_configs(inner)


def _integers(value, key=""):
    """Yields the positive integers in a JSON value, each with the key of the object that holds it."""
    if isinstance(value, int) and value > 0:
        yield key, value
    elif isinstance(value, (dict, list)):
        for name, inner in value.items() if isinstance(value, dict) else ((key, inner) for inner in value):
            yield from _integers(inner, name)


def names_of(classes):
    """Returns the names of classes, with "or" between them, for a message."""
    return " or ".join(each.__name__ for each in classes)
