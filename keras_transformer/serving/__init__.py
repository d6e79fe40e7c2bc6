"""Serves models: in Python, as a SavedModel, and with TensorFlow Serving."""

from keras_transformer.lazy import lazy_names

_HOMES = {
    "Classifier": "classifier",
    "Embedder": "embedder",
    "Entity": "tagger",
    "Glossary": "glossary",
    "ImageClassifier": "image_classifier",
    "ImageWriter": "image_writer",
    "Similarity": "embedder",
    "Tagger": "tagger",
    "TermTranslator": "terms",
    "TextGenerator": "generator",
    "Transcriber": "transcriber",
    "Translator": "translator",
    "load": "folders",
    "servable_of": "folders",
    "translate_file": "bulk",
    "translate_lines": "bulk",
}

# The command `server-files` needs no servable and so no TensorFlow.
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__package__, _HOMES)
