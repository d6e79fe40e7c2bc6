"""The Transformer as Keras 3 layers: train with `model.fit`, export text in, text out."""

import importlib
import sys

from keras_transformer.lazy import lazy_names

_OTHERS = ("cli", "client", "data", "explain", "huggingface", "plots", "runs", "serving", "text", "training")
_CORE = ("decoding", "layers", "losses", "masks", "metrics", "models", "schedules")
_NAMES = {
    "decoding": ("Beam", "Greedy", "Sample"),
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

# A program that uses Keras may load a file with `keras.models.load_model`, which needs the registered classes. The
# client and the command line's `--help` do without Keras.
if "keras" in sys.modules:
    for _module in _CORE:
        importlib.import_module(f"{__package__}.{_module}")
