"""Gemma 3, the text model: Gemma Team, 2025, "Gemma 3 Technical Report".

Where its tokens see the later ones too, it is an encoder: Vera et al., 2025, "EmbeddingGemma: Powerful and Lightweight
Text Representations".
"""

import dataclasses

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families import gemma2
from keras_transformer.huggingface.families.gated_layers import FULL, SLIDING

THETAS = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


def layer_types(config):
    """The kinds of layers: each `sliding_window_pattern`-th has no window."""
    pattern = config["sliding_window_pattern"]
    return [SLIDING if (i + 1) % pattern else FULL for i in range(config["num_hidden_layers"])]


FAMILY = dataclasses.replace(
    gemma2.FAMILY,
    model_type="gemma3_text",
    classes=("Gemma3ForCausalLM",),
    rows={
        **with_defaults(gemma2.GEMMA_ROWS, vocab_size=262208, max_length=131072, logit_soft_cap=None),
        "query_key_norm": (None, "zero_centered_rms"),
        "soft_cap": (None, None),
        "pattern": ("sliding_window_pattern", 6),
    },
    layer_types=layer_types,
    thetas=THETAS,
    # EmbeddingGemma.
    bidirectional="use_bidirectional_attention",
)
