"""Parallel text to batches, texts to packed rows, ids to masked ones; is handed a tokenizer, imports none."""

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
