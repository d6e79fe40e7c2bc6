"""Layers: keras and the masks, nothing else."""

from keras_transformer.layers.attention import MultiHeadAttention, dot_product_attention
from keras_transformer.layers.cache import KVCache, TreeCache, empty_cache
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.norm import LayerNormalization
from keras_transformer.layers.positions import PositionalEncoding, sinusoidal_positions
from keras_transformer.layers.residual import Residual

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KVCache",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Residual",
    "TokenEmbedding",
    "TreeCache",
    "dot_product_attention",
    "empty_cache",
    "sinusoidal_positions",
]
