"""umT5: Chung et al., 2023, "UniMax: Fairer and More Effective Language Sampling for Large-Scale Multilingual
Pretraining".
"""

import dataclasses

from keras_transformer.huggingface.families import mt5

FAMILY = dataclasses.replace(
    mt5.FAMILY,
    model_type="umt5",
    classes=("UMT5ForConditionalGeneration",),
    share_biases=False,
    scales=True,
)
