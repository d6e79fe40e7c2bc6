"""XLM-RoBERTa: Conneau et al., 2020, "Unsupervised Cross-lingual Representation Learning at Scale"."""

from keras_transformer.huggingface.encoders import EncoderNames, encoder_family
from keras_transformer.huggingface.roberta import IGNORED, ROBERTA_DEFAULTS, heads
from keras_transformer.huggingface.sentence_piece import FAIRSEQ_SENTENCE_PIECE

FAMILY = encoder_family(
    EncoderNames(
        "xlm-roberta",
        heads("XLMRoberta"),
        "roberta.",
        defaults={**ROBERTA_DEFAULTS, "vocab_size": 30522},
        offset=True,
        separators=2,
    ),
    FAIRSEQ_SENTENCE_PIECE,
    ignored=IGNORED,
)
