"""Models: compositions of the layers."""

from keras_transformer.models.encoder_model import EncoderModel
from keras_transformer.models.heads import (
    ClassificationHead,
    Head,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    TaggingHead,
)
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.transformer import Transformer

__all__ = [
    "ClassificationHead",
    "EncoderModel",
    "Head",
    "LanguageModel",
    "MaskedLanguageHead",
    "MultipleChoiceHead",
    "Pooler",
    "TaggingHead",
    "Transformer",
]
