"""PEGASUS: Zhang et al., 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive Summarization"."""

from keras_transformer.huggingface.sentence_piece import PEGASUS_SENTENCE_PIECE
from keras_transformer.huggingface.seq2seq import BOS_KEY, DEFAULTS, Seq2SeqNames, seq2seq_family

FAMILY = seq2seq_family(
    Seq2SeqNames(
        "pegasus",
        "PegasusForConditionalGeneration",
        defaults={**DEFAULTS, "pad_token_id": 0, "eos_token_id": 1, BOS_KEY: 0},
        normalize_first=True,
        embedding_norm=False,
        positions={"interleaved": False},
        stored_table=True,
    ),
    PEGASUS_SENTENCE_PIECE,
)
