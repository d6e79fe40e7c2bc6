"""M2M-100 and NLLB: Fan et al., 2021, "Beyond English-Centric Multilingual Machine Translation"; NLLB Team, 2022."""

import re

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.seq2seq import OFFSET, ROWS, Seq2SeqFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import MULTILINGUAL_SENTENCE_PIECE

FAMILY = Seq2SeqFamily(
    "m2m_100",
    ("M2M100ForConditionalGeneration",),
    MULTILINGUAL_SENTENCE_PIECE,
    rows=with_defaults(ROWS, vocab_size=128112, activation="relu", is_scaled=True, attention_dropout=0.1),
    # Sinusoids, which have no limit.
    ignored=(re.compile(r"embed_positions\.weights$"),),
    guessed_keys=("max_position_embeddings",),
    normalize_first=True,
    output_bias=False,
    positions={"interleaved": False, "offset": OFFSET, "endpoint": True},
)
