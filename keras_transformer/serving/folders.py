"""Folders of servables: what kind one holds, and what kind a model makes."""

from pathlib import Path

from keras_transformer.models import EncoderModel, LanguageModel, VisionTransformer
from keras_transformer.models.heads import ClassificationHead
from keras_transformer.serving.classifier import Classifier
from keras_transformer.serving.embedder import Embedder, Similarity
from keras_transformer.serving.generator import TextGenerator
from keras_transformer.serving.image_classifier import ImageClassifier
from keras_transformer.serving.translator import Translator

SERVABLES = (Translator, TextGenerator, Classifier, Embedder, Similarity, ImageClassifier)


def load(folder):
    """Loads what the `save` of any servable wrote, or a training run. No code from the folder is executed.

    Raises:
        ValueError: If the folder holds none, or one that names what this library does not have.
    """
    found = [servable for servable in SERVABLES if (Path(folder) / servable.DESCRIPTION).is_file()]
    if len(found) != 1:
        names = ", ".join(servable.DESCRIPTION for servable in found or SERVABLES)
        raise ValueError(
            f"`folder` must hold one of {names}. Received: {folder} with {'several' if found else 'none'} of them."
        )
    return found[0].load(folder)


def servable_of(model, tokenizers=(), **options):
    """The servable that a model makes: one that writes texts, tells classes or makes vectors.

    Args:
        model: A model of this library.
        tokenizers: A tuple of its tokenizers, one or two.
        **options: Other arguments of the servable.

    Returns:
        A `Translator`, `TextGenerator`, `Classifier`, `Similarity`, `Embedder` or `ImageClassifier`.
    """
    if isinstance(model, VisionTransformer):
        return ImageClassifier(model, **options)
    if isinstance(model, LanguageModel):
        return TextGenerator(model, *tokenizers, **options)
    if not isinstance(model, EncoderModel):
        return Translator(model, *tokenizers, **options)
    if model.head is None:
        return Embedder(model, *tokenizers, **options)
    if not isinstance(model.head, ClassificationHead):
        raise ValueError(
            f"`model` must have no head, or one for classes of texts, to be served. Received: head={model.head!r}."
        )
    return (Similarity if model.head.num_classes == 1 else Classifier)(model, *tokenizers, **options)
