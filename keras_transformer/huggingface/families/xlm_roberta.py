"""XLM-RoBERTa: Conneau et al., 2020, "Unsupervised Cross-lingual Representation Learning at Scale"."""

import dataclasses

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families import roberta
from keras_transformer.huggingface.tokenizers.sentence_piece import FAIRSEQ_SENTENCE_PIECE

FAMILY = dataclasses.replace(
    roberta.FAMILY,
    model_type="xlm-roberta",
    classes=roberta.heads("XLMRoberta"),
    tokenizer=FAIRSEQ_SENTENCE_PIECE,
    rows=with_defaults(roberta.ROBERTA_ROWS, vocab_size=30522),
)
