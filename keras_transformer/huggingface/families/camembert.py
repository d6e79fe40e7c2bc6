"""CamemBERT: Martin et al., 2020, "CamemBERT: a Tasty French Language Model"."""

import dataclasses

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families import roberta
from keras_transformer.huggingface.tokenizers.sentence_piece import CAMEMBERT_SENTENCE_PIECE

FAMILY = dataclasses.replace(
    roberta.FAMILY,
    model_type="camembert",
    classes=roberta.heads("Camembert"),
    tokenizer=CAMEMBERT_SENTENCE_PIECE,
    rows=with_defaults(roberta.ROBERTA_ROWS, vocab_size=30522),
)
