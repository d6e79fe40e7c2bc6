"""Mistral: Jiang et al., 2023, "Mistral 7B"."""

from keras_transformer.huggingface.decoders import DEFAULTS, DecoderNames, all_windows, decoder_family
from keras_transformer.huggingface.llama import TOKENIZER

FAMILY = decoder_family(
    DecoderNames(
        "mistral",
        "MistralForCausalLM",
        defaults={
            **DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        layer_types=all_windows,
        window_keys=lambda window: {"sliding_window": window},
        biased=(),
    ),
    TOKENIZER,
)
