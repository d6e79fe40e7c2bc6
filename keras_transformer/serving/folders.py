"""Folders of servables: what kind one holds, and what kind a model makes."""

from pathlib import Path

from keras_transformer.models import EncoderModel, LanguageModel, VisionTransformer
from keras_transformer.models.heads import ClassificationHead, MaskedLanguageHead
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
        what = "with several of them" if found else "with none of them"
        if not Path(folder).is_dir():
            what = "which is no folder"
        elif not found and (Path(folder) / "config.json").is_file():
            what = "a checkpoint of Hugging Face: `keras-transformer convert` it first"
        raise ValueError(f"`folder` must hold one of {names}. Received: {folder}, {what}.")
    return found[0].load(folder)


def servable_of(model, tokenizers=(), *, pairs=False, **options):
    """The servable that a model makes: one that writes texts, tells classes or makes vectors.

    Args:
        model: A model of this library.
        tokenizers: A tuple of its tokenizers, one or two.
        pairs: Whether a model's classes are those of pairs of texts.
        **options: Other arguments of the servable.

    Returns:
        A `Translator`, `TextGenerator`, `Classifier`, `Similarity`, `Embedder` or `ImageClassifier`.
    """
    classifies = isinstance(model, EncoderModel) and isinstance(model.head, ClassificationHead)
    if classifies and model.head.num_classes > 1:
        return Classifier(model, *tokenizers, pairs=pairs, **options)
    if pairs:
        raise ValueError(f"`pairs` is for classes of texts. Received: pairs=True for {model!r:.200}.")
    if isinstance(model, VisionTransformer):
        return ImageClassifier(model, **options)
    if isinstance(model, LanguageModel):
        return TextGenerator(model, *tokenizers, **options)
    if not isinstance(model, EncoderModel):
        return Translator(model, *tokenizers, **options)
    if model.head is None:
        return Embedder(model, *tokenizers, **options)
    if isinstance(model.head, MaskedLanguageHead):
        # What its pretraining learnt, without what it was asked there.
        return Embedder(model.with_head(None), *tokenizers, **options)
    if not classifies:
        raise ValueError(
            "`model` must have no head, one for classes of texts or one for masked tokens, to be served. "
            f"Received: head={model.head!r}."
        )
    return Similarity(model, *tokenizers, **options)
