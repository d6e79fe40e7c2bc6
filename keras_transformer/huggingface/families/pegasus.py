"""PEGASUS: Zhang et al., 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive Summarization"."""

from keras_transformer.huggingface.families.seq2seq import BOS_KEY, DEFAULTS, Seq2SeqFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import PEGASUS_SENTENCE_PIECE

FAMILY = Seq2SeqFamily(
    "pegasus",
    ("PegasusForConditionalGeneration",),
    PEGASUS_SENTENCE_PIECE,
    defaults={**DEFAULTS, "pad_token_id": 0, "eos_token_id": 1, BOS_KEY: 0},
    guessed_keys=("max_position_embeddings",),  # sinusoidal positions have no limit
    writes_tables=True,
    normalize_first=True,
    embedding_norm=False,
    positions={"interleaved": False},
    stored_table=True,
)
