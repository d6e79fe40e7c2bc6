"""Layers: keras and the masks, nothing else."""

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.cache import KVCache, TreeCache, empty_cache
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dot_product import dot_product_attention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward
from keras_transformer.layers.images import ImagePreprocessing
from keras_transformer.layers.mixture import MixtureOfExperts
from keras_transformer.layers.norm import LayerNormalization, RMSNormalization
from keras_transformer.layers.patches import PatchEmbedding
from keras_transformer.layers.position_bias import ALiBi, RelativePositionBias
from keras_transformer.layers.positions import LearnedPositions, PositionalEncoding, sinusoidal_positions
from keras_transformer.layers.recurrent import LSTMStack, LuongAttention
from keras_transformer.layers.residual import Residual, SandwichResidual
from keras_transformer.layers.rotary import LinearScaling, Llama3Scaling, RotaryPositions
from keras_transformer.layers.segments import SegmentEmbedding

__all__ = [
    "ALiBi",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GatedFeedForward",
    "ImagePreprocessing",
    "KVCache",
    "LSTMStack",
    "LayerNormalization",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LuongAttention",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PositionalEncoding",
    "RMSNormalization",
    "RelativePositionBias",
    "Residual",
    "RotaryPositions",
    "SandwichResidual",
    "SegmentEmbedding",
    "TokenEmbedding",
    "TreeCache",
    "dot_product_attention",
    "empty_cache",
    "sinusoidal_positions",
]
