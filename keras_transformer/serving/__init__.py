"""From a model to answers: in Python, as a SavedModel, and from a server that runs one."""

from keras_transformer.serving.bulk import translate_file, translate_lines
from keras_transformer.serving.client import Client
from keras_transformer.serving.generator import TextGenerator
from keras_transformer.serving.translator import Translator

__all__ = ["Client", "TextGenerator", "Translator", "translate_file", "translate_lines"]
