"""Qwen 3: Yang et al., 2025, "Qwen3 Technical Report"; the models without experts."""

from keras_transformer.huggingface.byte_pair import BYTE_PAIR
from keras_transformer.huggingface.decoders import DecoderNames, decoder_family
from keras_transformer.huggingface.qwen2 import QWEN_DEFAULTS, layer_types, window_keys

FAMILY = decoder_family(
    DecoderNames(
        "qwen3",
        "Qwen3ForCausalLM",
        defaults={**QWEN_DEFAULTS, "head_dim": 128},
        layer_types=layer_types,
        writes_layer_types=True,
        window_keys=window_keys,
        query_key_norm=True,
        biased=("attention_bias",),
    ),
    BYTE_PAIR,
)
