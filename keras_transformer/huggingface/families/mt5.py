"""mT5: Xue et al., 2021, "mT5: A Massively Multilingual Pre-trained Text-to-Text Transformer"."""

import dataclasses

from keras_transformer.huggingface.families import t5

SIZES = {
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
FAMILY = dataclasses.replace(
    t5.FAMILY,
    model_type="mt5",
    classes=("MT5ForConditionalGeneration",),
    defaults={**t5.DEFAULTS, **SIZES},
    scales=False,
)
