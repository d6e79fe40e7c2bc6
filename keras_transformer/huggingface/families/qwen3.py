"""Qwen 3: Yang et al., 2025, "Qwen3 Technical Report"; the models without experts."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import DecoderFamily
from keras_transformer.huggingface.families.qwen2 import QWEN_ROWS, layer_types
from keras_transformer.huggingface.tokenizers.byte_pair import BYTE_PAIR

FAMILY = DecoderFamily(
    "qwen3",
    ("Qwen3ForCausalLM",),
    BYTE_PAIR,
    rows={**with_defaults(QWEN_ROWS, key_dim=128), "query_key_norm": (None, "rms")},
    layer_types=layer_types,
)
