"""Tokenizers that live in the graph; this folder loads tensorflow_text."""

from keras_transformer.text.byte import ByteTokenizer
from keras_transformer.text.sentence_piece import SentencePieceTokenizer

TOKENIZERS = {cls.__name__: cls for cls in (ByteTokenizer, SentencePieceTokenizer)}

__all__ = ["TOKENIZERS", "ByteTokenizer", "SentencePieceTokenizer"]
