"""Files, batches of pairs, packed texts, chats, tags and masked tokens. The caller passes the tokenizer."""

from keras_transformer.lazy import lazy_names

_HOMES = {
    "Batches": "batches",
    "Chats": "chats",
    "Frame": "frame",
    "LONGEST_LINE": "files",
    "Masking": "masking",
    "PackedRows": "packing",
    "PackedTexts": "packing",
    "hold_out": "tables",
    "iterate_lines": "files",
    "read_chats": "chats",
    "read_conll": "tags",
    "read_lines": "corpus",
    "read_parallel": "corpus",
    "read_table": "tables",
    "read_tsv": "corpus",
    "split_lines": "files",
    "stream_lines": "files",
}

__all__ = sorted(_HOMES)
# `Batches` needs TensorFlow, which reading lines does not.
__getattr__, __dir__ = lazy_names(__package__, _HOMES)
