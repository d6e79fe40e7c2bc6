"""BERT: Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"."""

import re

from keras_transformer.huggingface.families.encoders import COUNTED, EncoderFamily
from keras_transformer.huggingface.families.heads import HeadNames
from keras_transformer.huggingface.tokenizers.kinds import first_of
from keras_transformer.huggingface.tokenizers.sentence_piece import FAIRSEQ_SENTENCE_PIECE
from keras_transformer.huggingface.tokenizers.word_piece import WORD_PIECE
from keras_transformer.models import (
    ClassificationHead,
    MaskedLanguageHead,
    MultipleChoiceHead,
    SpanHead,
    TaggingHead,
)

DROPOUT = ("classifier_dropout", "hidden_dropout_prob")
PREDICTIONS = "cls.predictions"
# Published checkpoints keep parts of their pretraining, which their head does not read.
IGNORED = (
    COUNTED,
    re.compile(r"^([a-z]+\.)?pooler\.dense\.(weight|bias)$"),
    re.compile(r"^cls\.seq_relationship\.(weight|bias)$"),
)


def heads(name, base):
    """Describes the heads of BERT and of the families that have the same.

    Args:
        name: Beginning of the names of transformers' classes.
        base: Name of the part that all classes share.

    Returns:
        A dict of `HeadNames` for each class.
    """
    pooler = f"{base}.pooler.dense"
    return {
        f"{name}Model": HeadNames(pooler=pooler),
        f"{name}ForMaskedLM": HeadNames(
            MaskedLanguageHead,
            f"{PREDICTIONS}.transform.dense",
            norm=f"{PREDICTIONS}.transform.LayerNorm",
            biases=(f"{PREDICTIONS}.bias", f"{PREDICTIONS}.decoder.bias"),
            output=f"{PREDICTIONS}.decoder.weight",
        ),
        f"{name}ForSequenceClassification": HeadNames(
            ClassificationHead, "classifier", pooler, dropout=DROPOUT
        ),
        f"{name}ForMultipleChoice": HeadNames(MultipleChoiceHead, "classifier", pooler, dropout=DROPOUT),
        f"{name}ForTokenClassification": HeadNames(TaggingHead, "classifier", dropout=DROPOUT),
        f"{name}ForQuestionAnswering": HeadNames(SpanHead, "qa_outputs"),
    }


FAMILY = EncoderFamily(
    "bert",
    heads("Bert", "bert"),
    # Multilingual MiniLM and E5 small have XLM-RoBERTa's tokenizer.
    first_of(WORD_PIECE, FAIRSEQ_SENTENCE_PIECE),
    "bert.",
    ignored=IGNORED,
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
