"""From a model to translated text, in Python and as a SavedModel."""

from keras_transformer.serving.bulk import translate_file, translate_lines
from keras_transformer.serving.translator import Translator

__all__ = ["Translator", "translate_file", "translate_lines"]
