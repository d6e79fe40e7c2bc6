"""M2M-100 and NLLB: Fan et al., 2021, "Beyond English-Centric Multilingual Machine Translation"; NLLB Team, 2022."""

import re

from keras_transformer.huggingface.families.seq2seq import DEFAULTS, OFFSET, Seq2SeqFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import MULTILINGUAL_SENTENCE_PIECE

CHANGES = {
    "vocab_size": 128112,
    "activation_function": "relu",
    "scale_embedding": True,
    "attention_dropout": 0.1,
}
FAMILY = Seq2SeqFamily(
    "m2m_100",
    ("M2M100ForConditionalGeneration",),
    MULTILINGUAL_SENTENCE_PIECE,
    defaults={**DEFAULTS, **CHANGES},
    ignored=(re.compile(r"embed_positions\.weights$"),),  # sinusoids
    guessed_keys=("max_position_embeddings",),  # sinusoidal positions have no limit
    normalize_first=True,
    embedding_norm=False,
    output_bias=False,
    positions={"interleaved": False, "offset": OFFSET, "endpoint": True},
)
