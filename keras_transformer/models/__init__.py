"""Models: compositions of the layers."""

from keras_transformer.models.transformer import Transformer

__all__ = ["Transformer"]
