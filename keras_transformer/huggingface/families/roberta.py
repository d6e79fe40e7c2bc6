"""RoBERTa: Liu et al., 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach"."""

import re

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.encoders import COUNTED, ROWS, EncoderFamily
from keras_transformer.huggingface.families.heads import HeadNames
from keras_transformer.huggingface.tokenizers.byte_pair import ROBERTA_BYTE_PAIR
from keras_transformer.huggingface.tokenizers.kinds import first_of
from keras_transformer.huggingface.tokenizers.word_piece import WORD_PIECE
from keras_transformer.models import (
    ClassificationHead,
    MaskedLanguageHead,
    MultipleChoiceHead,
    SpanHead,
    TaggingHead,
)

ROBERTA_ROWS = with_defaults(ROWS, vocab_size=50265, pad_id=1, cls_id=0, sep_id=2)
# Published checkpoints keep a pooler, which their head does not read.
IGNORED = (COUNTED, re.compile(r"^(roberta\.)?pooler\.dense\.(weight|bias)$"))


def heads(name, base="roberta", dropout=("classifier_dropout", "hidden_dropout_prob")):
    """Describes the heads of RoBERTa and of the families that have the same.

    Args:
        name: Beginning of the names of transformers' classes.
        base: Name of the part that all classes share.
        dropout: Keys of config.json for a head's dropout.

    Returns:
        A dict of `HeadNames` for each class.
    """
    pooler = f"{base}.pooler.dense"
    return {
        f"{name}Model": HeadNames(pooler=pooler),
        f"{name}ForMaskedLM": HeadNames(
            MaskedLanguageHead,
            "lm_head.dense",
            norm="lm_head.layer_norm",
            biases=("lm_head.bias", "lm_head.decoder.bias"),
            output="lm_head.decoder.weight",
            activation="gelu",
        ),
        f"{name}ForSequenceClassification": HeadNames(
            ClassificationHead, "classifier.out_proj", "classifier.dense", pooler_drops=True, dropout=dropout
        ),
        f"{name}ForMultipleChoice": HeadNames(
            MultipleChoiceHead, "classifier", pooler, dropout=("hidden_dropout_prob",)
        ),
        f"{name}ForTokenClassification": HeadNames(TaggingHead, "classifier", dropout=dropout),
        f"{name}ForQuestionAnswering": HeadNames(SpanHead, "qa_outputs"),
    }


FAMILY = EncoderFamily(
    "roberta",
    heads("Roberta"),
    # KLUE's RoBERTa has BERT's tokenizer.
    first_of(WORD_PIECE, ROBERTA_BYTE_PAIR),
    "roberta.",
    rows=ROBERTA_ROWS,
    ignored=IGNORED,
    offset=True,
    separators=2,
)
