"""Gemma 3, the text model: Gemma Team, 2025, "Gemma 3 Technical Report"."""

from keras_transformer.huggingface.decoders import DecoderNames, decoder_family
from keras_transformer.huggingface.gated_layers import FULL, SLIDING
from keras_transformer.huggingface.gemma2 import GEMMA_DEFAULTS, NORMS, TOKENIZER

THETAS = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


def layer_types(config):
    """The kinds of layers: each `sliding_window_pattern`-th has no window."""
    pattern = config["sliding_window_pattern"]
    return [SLIDING if (i + 1) % pattern else FULL for i in range(config["num_hidden_layers"])]


FAMILY = decoder_family(
    DecoderNames(
        "gemma3_text",
        "Gemma3ForCausalLM",
        defaults={
            **GEMMA_DEFAULTS,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
        },
        layer_types=layer_types,
        writes_layer_types=True,
        window_keys=lambda window: {"sliding_window": window},
        thetas=THETAS,
        activation="hidden_activation",
        norm="zero_centered_rms",
        query_key_norm=True,
        norms=NORMS,
        scaled=True,
        caps=True,
        biased=("attention_bias",),
    ),
    TOKENIZER,
)
