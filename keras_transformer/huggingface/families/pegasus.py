"""PEGASUS: Zhang et al., 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive Summarization"."""

from keras_transformer.huggingface.configs import with_defaults
from keras_transformer.huggingface.families.seq2seq import ROWS, Seq2SeqFamily
from keras_transformer.huggingface.tokenizers.sentence_piece import PEGASUS_SENTENCE_PIECE

FAMILY = Seq2SeqFamily(
    "pegasus",
    ("PegasusForConditionalGeneration",),
    PEGASUS_SENTENCE_PIECE,
    rows=with_defaults(ROWS, pad_id=0, eos_id=1, bos_id=0),
    # Sinusoidal positions have no limit.
    guessed_keys=("max_position_embeddings",),
    writes_tables=True,
    normalize_first=True,
    positions={"interleaved": False},
    stored_table=True,
)
