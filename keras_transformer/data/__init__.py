"""Files, batches of sentence pairs, packed texts and masked tokens. No tokenizer is imported: the caller passes one."""

from keras_transformer.data.batches import Batches
from keras_transformer.data.files import (
    LONGEST_LINE,
    iterate_lines,
    read_lines,
    read_parallel,
    read_tsv,
    split_lines,
    stream_lines,
)
from keras_transformer.data.masking import Masking
from keras_transformer.data.packing import PackedTexts

__all__ = [
    "LONGEST_LINE",
    "Batches",
    "Masking",
    "PackedTexts",
    "iterate_lines",
    "read_lines",
    "read_parallel",
    "read_tsv",
    "split_lines",
    "stream_lines",
]
