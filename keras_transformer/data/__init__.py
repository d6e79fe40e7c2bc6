"""Parallel text to batches; is handed a tokenizer, imports none."""

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

__all__ = [
    "LONGEST_LINE",
    "Batches",
    "iterate_lines",
    "read_lines",
    "read_parallel",
    "read_tsv",
    "split_lines",
    "stream_lines",
]
