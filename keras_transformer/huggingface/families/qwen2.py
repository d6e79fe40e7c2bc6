"""Qwen 2 and 2.5: Yang et al., 2024, "Qwen2 Technical Report"."""

from keras_transformer.huggingface.families.decoders import DEFAULTS, FULL, SLIDING, DecoderFamily
from keras_transformer.huggingface.tokenizers.byte_pair import BYTE_PAIR

QWEN_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "bos_token_id": None,
    "eos_token_id": None,
}


def layer_types(config):
    """The kinds of layers: the first `max_window_layers` have no window."""
    windows = config["use_sliding_window"] and config["sliding_window"] is not None
    return [
        SLIDING if windows and i >= config["max_window_layers"] else FULL
        for i in range(config["num_hidden_layers"])
    ]


FAMILY = DecoderFamily(
    "qwen2",
    ("Qwen2ForCausalLM",),
    BYTE_PAIR,
    defaults={**QWEN_DEFAULTS, "attention_bias": True},
    layer_types=layer_types,
    writes_layer_types=True,
    output_bias=False,
    biased=(),
)
