"""Tokenizers as TensorFlow ops, which an export contains. Importing this folder loads tensorflow_text."""

from keras_transformer.text.added_tokens import AddedToken
from keras_transformer.text.byte import ByteTokenizer
from keras_transformer.text.byte_pair import BytePairTokenizer
from keras_transformer.text.pairs import pack, pack_ids
from keras_transformer.text.sentence_piece import SentencePieceTokenizer
from keras_transformer.text.word_piece import WordPieceTokenizer

TOKENIZERS = {
    cls.__name__: cls
    for cls in (BytePairTokenizer, ByteTokenizer, SentencePieceTokenizer, WordPieceTokenizer)
}

__all__ = [
    "TOKENIZERS",
    "AddedToken",
    "BytePairTokenizer",
    "ByteTokenizer",
    "SentencePieceTokenizer",
    "WordPieceTokenizer",
    "pack",
    "pack_ids",
]
