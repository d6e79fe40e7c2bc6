"""Models: compositions of the layers."""

from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.transformer import Transformer

__all__ = ["LanguageModel", "Transformer"]
