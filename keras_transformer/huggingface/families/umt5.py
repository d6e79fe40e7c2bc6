"""umT5: Chung et al., 2023, "UniMax: Fairer and More Effective Language Sampling for Large-Scale Multilingual
Pretraining".
"""

import dataclasses

from keras_transformer.huggingface.families import mt5, t5

FAMILY = dataclasses.replace(
    mt5.FAMILY,
    model_type="umt5",
    classes=("UMT5ForConditionalGeneration",),
    rows={**mt5.MT5_ROWS, "share_biases": (None, False), "is_scaled": t5.ROWS["is_scaled"]},
)
