"""Layers: the mathematics of attention and of the layers around it."""

from keras_transformer.execution.int8 import TwoPartQuantizer
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.audio import ConvolutionalSubsampling, LogMelSpectrogram
from keras_transformer.layers.cache import KVCache, Place, TreeCache, empty_cache
from keras_transformer.layers.dot_product import dot_product_attention
from keras_transformer.layers.embedding import (
    Embeddings,
    LearnedPositions,
    PositionalEncoding,
    SegmentEmbedding,
    TokenEmbedding,
    sinusoidal_positions,
)
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward
from keras_transformer.layers.grids import GridPositions, RelativeGridBias, resized_grid
from keras_transformer.layers.images import ImagePreprocessing
from keras_transformer.layers.mixture import MixtureOfExperts
from keras_transformer.layers.patches import PatchEmbedding, Patches
from keras_transformer.layers.pooling import ClassToken, Pooling
from keras_transformer.layers.positions import (
    ALiBi,
    AttentionPositions,
    LinearScaling,
    Llama3Scaling,
    RelativePositionBias,
    RotaryPositions,
    YarnScaling,
)
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.recurrent import LSTMStack, LuongAttention
from keras_transformer.layers.residual import (
    Dropout,
    LayerNormalization,
    Residual,
    RMSNormalization,
    StochasticDepth,
    ZeroCenteredRMSNormalization,
)
from keras_transformer.layers.stack import Decoder, DecoderLayer, Encoder, EncoderLayer

__all__ = [
    "ALiBi",
    "AttentionPositions",
    "ClassToken",
    "ConvolutionalSubsampling",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Embeddings",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GatedFeedForward",
    "GridPositions",
    "ImagePreprocessing",
    "KVCache",
    "LSTMStack",
    "LayerNormalization",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LogMelSpectrogram",
    "LuongAttention",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "PatchEmbedding",
    "Patches",
    "Place",
    "Pooling",
    "PositionalEncoding",
    "Projection",
    "RMSNormalization",
    "RelativeGridBias",
    "RelativePositionBias",
    "Residual",
    "RotaryPositions",
    "SegmentEmbedding",
    "StochasticDepth",
    "TokenEmbedding",
    "TreeCache",
    "TwoPartQuantizer",
    "YarnScaling",
    "ZeroCenteredRMSNormalization",
    "dot_product_attention",
    "empty_cache",
    "resized_grid",
    "sinusoidal_positions",
]
