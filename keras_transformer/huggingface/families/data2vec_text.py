"""data2vec for text: Baevski et al., 2022, "data2vec: A General Framework for Self-supervised Learning"."""

import dataclasses
import re

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families import roberta
from keras_transformer.huggingface.families.encoders import COUNTED
from keras_transformer.huggingface.tokenizers.byte_pair import ROBERTA_BYTE_PAIR

FAMILY = dataclasses.replace(
    roberta.FAMILY,
    model_type="data2vec-text",
    classes=roberta.heads("Data2VecText", "data2vec_text"),
    tokenizer=ROBERTA_BYTE_PAIR,
    prefix="data2vec_text.",
    rows=with_defaults(roberta.ROBERTA_ROWS, vocab_size=30522),
    ignored=(COUNTED, re.compile(r"^(data2vec_text\.)?pooler\.dense\.(weight|bias)$")),
)
