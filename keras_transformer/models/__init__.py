"""Models: compositions of the layers."""

from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.t5 import T5
from keras_transformer.models.transformer import Transformer

__all__ = ["T5", "EncoderDecoder", "LanguageModel", "Transformer"]
