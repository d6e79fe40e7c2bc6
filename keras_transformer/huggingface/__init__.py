"""Reading and writing of Hugging Face checkpoints."""

from keras_transformer.huggingface.chat import ChatTemplate, chat_template_from_huggingface
from keras_transformer.huggingface.checkpoint import from_huggingface, tokenizers_from_huggingface
from keras_transformer.huggingface.families import DECODERS, ENCODER_DECODERS, ENCODERS, FAMILIES, SPEECH
from keras_transformer.huggingface.generation import search_options
from keras_transformer.huggingface.images import preprocessing_from_huggingface
from keras_transformer.huggingface.keras_hub import from_keras_hub, tokenizer_from_keras_hub
from keras_transformer.huggingface.languages import translator_options
from keras_transformer.huggingface.sentence_embeddings import (
    embedder_files,
    embedder_options,
    is_sentence_embedder,
    with_dense_modules,
)
from keras_transformer.huggingface.speech import speech_ids_from_huggingface, transcriber_options
from keras_transformer.huggingface.writer import to_huggingface

__all__ = [
    "DECODERS",
    "ENCODERS",
    "ENCODER_DECODERS",
    "FAMILIES",
    "SPEECH",
    "ChatTemplate",
    "chat_template_from_huggingface",
    "embedder_files",
    "embedder_options",
    "from_huggingface",
    "from_keras_hub",
    "is_sentence_embedder",
    "preprocessing_from_huggingface",
    "search_options",
    "speech_ids_from_huggingface",
    "to_huggingface",
    "tokenizer_from_keras_hub",
    "tokenizers_from_huggingface",
    "transcriber_options",
    "translator_options",
    "with_dense_modules",
]
