"""M2M-100 and NLLB: Fan et al., 2021, "Beyond English-Centric Multilingual Machine Translation"; NLLB Team, 2022."""

import re

from keras_transformer.huggingface.sentence_piece import MULTILINGUAL_SENTENCE_PIECE
from keras_transformer.huggingface.seq2seq import DEFAULTS, OFFSET, Seq2SeqNames, seq2seq_family

FAMILY = seq2seq_family(
    Seq2SeqNames(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        defaults={
            **DEFAULTS,
            "vocab_size": 128112,
            "activation_function": "relu",
            "scale_embedding": True,
            "attention_dropout": 0.1,
        },
        normalize_first=True,
        embedding_norm=False,
        output_bias=False,
        positions={"interleaved": False, "offset": OFFSET, "endpoint": True},
    ),
    MULTILINGUAL_SENTENCE_PIECE,
    ignored=(re.compile(r"embed_positions\.weights$"),),  # sinusoids
)
