"""Qwen 2 and 2.5: Yang et al., 2024, "Qwen2 Technical Report"."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.decoders import FULL, ROWS, SLIDING, DecoderFamily
from keras_transformer.huggingface.tokenizers.byte_pair import BYTE_PAIR

QWEN_ROWS = {
    **with_defaults(
        ROWS,
        vocab_size=151936,
        d_ff=22016,
        num_key_value_heads=32,
        max_length=32768,
        bos_id=None,
        eos_id=None,
    ),
    "feed_forward_bias": (None, False),
    "layer_types": ("layer_types", None),
    "uses_window": ("use_sliding_window", False),
    "sliding_window": ("sliding_window", 4096),
    "layers_without_window": ("max_window_layers", 28),
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
    rows={**QWEN_ROWS, "attention_bias": (None, True), "output_bias": (None, False)},
    layer_types=layer_types,
)
