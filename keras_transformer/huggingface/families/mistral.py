"""Mistral: Jiang et al., 2023, "Mistral 7B"."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import ROWS, DecoderFamily
from keras_transformer.huggingface.families.llama import TOKENIZER

MISTRAL_ROWS = {
    **with_defaults(ROWS, d_ff=14336, num_key_value_heads=8, max_length=131072),
    "attention_bias": (None, False),
    "feed_forward_bias": (None, False),
    "sliding_window": ("sliding_window", 4096),
}
FAMILY = DecoderFamily("mistral", ("MistralForCausalLM",), TOKENIZER, rows=MISTRAL_ROWS)
