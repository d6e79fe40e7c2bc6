"""BERT: Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"."""

import re

from keras_transformer.huggingface.encoder_words import HeadNames
from keras_transformer.huggingface.encoders import COUNTED, EncoderFamily
from keras_transformer.huggingface.word_piece import WORD_PIECE
from keras_transformer.models import (
    ClassificationHead,
    MaskedLanguageHead,
    MultipleChoiceHead,
    SpanHead,
    TaggingHead,
)

POOLER = "bert.pooler.dense"
DROPOUT = ("classifier_dropout", "hidden_dropout_prob")
PREDICTIONS = "cls.predictions"
HEADS = {
    "BertModel": HeadNames(pooler=POOLER),
    "BertForMaskedLM": HeadNames(
        MaskedLanguageHead,
        f"{PREDICTIONS}.transform.dense",
        norm=f"{PREDICTIONS}.transform.LayerNorm",
        biases=(f"{PREDICTIONS}.bias", f"{PREDICTIONS}.decoder.bias"),
        output=f"{PREDICTIONS}.decoder.weight",
    ),
    "BertForSequenceClassification": HeadNames(ClassificationHead, "classifier", POOLER, dropout=DROPOUT),
    "BertForMultipleChoice": HeadNames(MultipleChoiceHead, "classifier", POOLER, dropout=DROPOUT),
    "BertForTokenClassification": HeadNames(TaggingHead, "classifier", dropout=DROPOUT),
    "BertForQuestionAnswering": HeadNames(SpanHead, "qa_outputs"),
}
FAMILY = EncoderFamily(
    "bert",
    HEADS,
    WORD_PIECE,
    "bert.",
    ignored=(
        COUNTED,
        # Published checkpoints keep parts of their pretraining beside a head that does not read them.
        re.compile(r"^(bert\.)?pooler\.dense\.(weight|bias)$"),
        re.compile(r"^cls\.seq_relationship\.(weight|bias)$"),
    ),
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
