"""Loading models without executing code from their files."""

import zipfile
from pathlib import Path

import keras


def load_model(path, model_class=keras.Model, compile=False):
    """Loads a `.keras` file; refuses whatever would execute code from it.

    Args:
        path: The file.
        model_class: What the model must be.
        compile: Whether to restore the optimizer, loss and metrics too.

    Raises:
        ValueError: If the file is missing, damaged, of another class, or needs code that is not registered.
    """
    if not Path(path).is_file():
        raise ValueError(f"Cannot load {path}: there is no such file.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"Cannot load {path}: it is no .keras file, or damaged.")
    try:
        model = keras.models.load_model(path, compile=compile, safe_mode=True)
    except Exception as error:  # Keras raises many kinds, some with pages of configuration
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"Cannot load {path}: {reason}") from error
    if not isinstance(model, model_class):
        raise ValueError(
            f"{path} must hold a model of class {model_class.__name__}. Received: a {type(model).__name__}."
        )
    return model
