"""Mistral: Jiang et al., 2023, "Mistral 7B"."""

from keras_transformer.huggingface.families.decoders import DEFAULTS, DecoderFamily
from keras_transformer.huggingface.families.llama import TOKENIZER

SIZES = {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
FAMILY = DecoderFamily(
    "mistral",
    ("MistralForCausalLM",),
    TOKENIZER,
    defaults={**DEFAULTS, **SIZES, "sliding_window": 4096},
    biased=(),
)
