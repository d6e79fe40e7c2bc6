"""Qwen 3: Yang et al., 2025, "Qwen3 Technical Report"; the models without experts."""

from keras_transformer.huggingface.families.decoders import DecoderFamily
from keras_transformer.huggingface.families.qwen2 import QWEN_DEFAULTS, layer_types
from keras_transformer.huggingface.tokenizers.byte_pair import BYTE_PAIR

FAMILY = DecoderFamily(
    "qwen3",
    ("Qwen3ForCausalLM",),
    BYTE_PAIR,
    defaults={**QWEN_DEFAULTS, "head_dim": 128},
    layer_types=layer_types,
    writes_layer_types=True,
    query_key_norm=True,
    biased=("attention_bias",),
)
