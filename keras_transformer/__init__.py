"""The Transformer as Keras 3 layers: train with `model.fit`, export text in, text out."""

import importlib

from keras_transformer import decoding, layers, losses, masks, metrics, models, schedules
from keras_transformer.decoding import Beam, Greedy, Sample
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEncoding,
    TokenEmbedding,
)
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.version import __version__

# These modules need TensorFlow, tensorflow_text or an optional package, so each is imported at its first use.
_LAZY_MODULES = ("cli", "data", "huggingface", "runs", "serving", "text", "training")

__all__ = [
    "Beam",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Greedy",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEncoding",
    "Sample",
    "TokenEmbedding",
    "Transformer",
    "WarmupSchedule",
    "__version__",
    "cli",
    "data",
    "decoding",
    "huggingface",
    "layers",
    "losses",
    "masks",
    "metrics",
    "models",
    "runs",
    "schedules",
    "serving",
    "text",
    "training",
]


def __getattr__(name):
    """Imports a lazy module when it is first used."""
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    """Lists the public names, the lazy modules included."""
    return sorted(__all__)
