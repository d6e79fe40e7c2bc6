"""mT5: Xue et al., 2021, "mT5: A Massively Multilingual Pre-trained Text-to-Text Transformer"."""

import dataclasses

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families import t5

MT5_ROWS = {
    **with_defaults(
        t5.ROWS, vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward="gated-gelu"
    ),
    "is_scaled": (None, False),
}
FAMILY = dataclasses.replace(
    t5.FAMILY, model_type="mt5", classes=("MT5ForConditionalGeneration",), rows=MT5_ROWS
)
