"""Parallel text to batches; is handed a tokenizer, imports none."""

from keras_transformer.data.batches import Batches
from keras_transformer.data.files import line_batches, read_lines, read_parallel, read_tsv, split_lines

__all__ = ["Batches", "line_batches", "read_lines", "read_parallel", "read_tsv", "split_lines"]
