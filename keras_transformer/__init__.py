"""The Transformer as Keras 3 layers: train with `model.fit`, export text in, text out."""

import importlib
import sys

from keras_transformer.lazy import after_import, lazy_names

_OTHERS = ("cli", "client", "data", "explain", "huggingface", "plots", "runs", "serving", "text", "training")
_CORE = ("decoding", "layers", "losses", "masks", "metrics", "models", "schedules")
_NAMES = {
    "decoding": ("Beam", "Greedy", "Sample"),
    "huggingface": ("from_keras_hub",),
    "layers": (
        "Decoder",
        "DecoderLayer",
        "Encoder",
        "EncoderLayer",
        "FeedForward",
        "MultiHeadAttention",
        "PositionalEncoding",
        "TokenEmbedding",
    ),
    "losses": ("MaskedCrossentropy",),
    "metrics": ("MaskedAccuracy", "Perplexity"),
    "models": ("Transformer",),
    "schedules": ("WarmupSchedule",),
}
_HOMES = {
    **{module: module for module in (*_CORE, *_OTHERS)},
    **{name: module for module, names in _NAMES.items() for name in names},
    "__version__": "version",
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__package__, _HOMES)


def _register_classes():
    """Imports the classes that `keras.models.load_model` looks up. `models` imports all of them."""
    # One of these modules may be importing Keras at this moment. It is incomplete until then, and `models` needs it.
    importers = (*_CORE, "embedding_losses", "execution", "keras_internals", "optimizers")
    if not any(f"{__package__}.{module}" in sys.modules for module in importers):
        importlib.import_module(f"{__package__}.models")


# The client and the command line's `--help` do without Keras.
after_import("keras", _register_classes)
