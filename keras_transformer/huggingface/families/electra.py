"""ELECTRA: Clark et al., 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators".

A discriminator is read as an encoder without a head: the head that finds replaced tokens was for the pretraining only.
"""

import re

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.encoders import COUNTED, ROWS, EncoderFamily
from keras_transformer.huggingface.families.heads import HeadNames
from keras_transformer.huggingface.tokenizers.word_piece import WORD_PIECE
from keras_transformer.models import ClassificationHead, MaskedLanguageHead, SpanHead, TaggingHead

DROPOUT = ("classifier_dropout", "hidden_dropout_prob")
HEADS = {
    "ElectraModel": HeadNames(),
    "ElectraForPreTraining": HeadNames(),
    "ElectraForMaskedLM": HeadNames(
        MaskedLanguageHead,
        "generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        biases=("generator_lm_head.bias",),
        output="generator_lm_head.weight",
        activation="gelu",
    ),
    "ElectraForSequenceClassification": HeadNames(
        ClassificationHead,
        "classifier.out_proj",
        "classifier.dense",
        "gelu",
        pooler_drops=True,
        dropout=DROPOUT,
    ),
    "ElectraForTokenClassification": HeadNames(TaggingHead, "classifier", dropout=DROPOUT),
    "ElectraForQuestionAnswering": HeadNames(SpanHead, "qa_outputs"),
}
ELECTRA_ROWS = {
    **with_defaults(ROWS, d_model=256, num_heads=4, d_ff=1024),
    "embedding_dim": ("embedding_size", 128),
}
FAMILY = EncoderFamily(
    "electra",
    HEADS,
    WORD_PIECE,
    "electra.",
    rows=ELECTRA_ROWS,
    ignored=(COUNTED, re.compile(r"^discriminator_predictions\.")),
    widened="electra.embeddings_project",
)
