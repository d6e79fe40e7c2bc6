"""Finds the class of a servable: from the files of its folder, or from its model."""

from pathlib import Path

from keras_transformer.models import EncoderModel, LanguageModel, VisionTransformer
from keras_transformer.models.heads import ClassificationHead, MaskedLanguageHead, SpanHead, TaggingHead
from keras_transformer.serving.classifier import Classifier
from keras_transformer.serving.embedder import Embedder, Similarity
from keras_transformer.serving.generator import TextGenerator
from keras_transformer.serving.image_classifier import ImageClassifier
from keras_transformer.serving.tagger import Tagger
from keras_transformer.serving.translator import Translator

SERVABLES = (Translator, TextGenerator, Classifier, Tagger, Embedder, Similarity, ImageClassifier)


def load(folder):
    """Loads the folder of any servable, or of a training run. No code from the folder is executed.

    Args:
        folder: Path of the folder, which the `save` of a servable or a training run wrote.

    Returns:
        A `Translator`, `TextGenerator`, `Classifier`, `Tagger`, `Similarity`, `Embedder` or `ImageClassifier`.

    Raises:
        ValueError: If the folder holds no servable, a file is missing or damaged, or names a class that this library
            does not have.
    """
    classes = [servable for servable in SERVABLES if (Path(folder) / servable.DESCRIPTION).is_file()]
    if len(classes) != 1:
        names = ", ".join(servable.DESCRIPTION for servable in classes or SERVABLES)
        received = "with several of them" if classes else "with none of them"
        if not Path(folder).is_dir():
            received = "which is no folder"
        elif not classes and (Path(folder) / "config.json").is_file():
            received = "a checkpoint of Hugging Face: convert it first with `keras-transformer convert`"
        raise ValueError(f"`folder` must hold one of {names}. Received: {folder}, {received}.")
    return classes[0].load(folder)


def servable_of(model, tokenizers=(), *, pairs=False, **options):
    """Makes the servable that fits a model.

    Args:
        model: A model of this library.
        tokenizers: A tuple of its tokenizers: one, or the source's and the target's. Empty for a model of images.
        pairs: Whether the model classifies pairs of texts.
        **options: Other arguments of the servable.

    Returns:
        A `Translator`, `TextGenerator`, `Classifier`, `Tagger`, `Similarity`, `Embedder` or `ImageClassifier`.

    Raises:
        ValueError: If no servable fits the model, or `pairs` is given for a model that does not classify texts.
    """
    classifies = isinstance(model, EncoderModel) and isinstance(model.head, ClassificationHead)
    if classifies and model.head.num_classes > 1:
        return Classifier(model, *tokenizers, pairs=pairs, **options)
    if pairs:
        raise ValueError(
            f"`pairs` is for models that classify texts. Received: pairs=True for {model!r:.200}."
        )
    if isinstance(model, VisionTransformer):
        return ImageClassifier(model, **options)
    if isinstance(model, LanguageModel):
        return TextGenerator(model, *tokenizers, **options)
    if not isinstance(model, EncoderModel):
        return Translator(model, *tokenizers, **options)
    if model.head is None:
        return Embedder(model, *tokenizers, **options)
    if isinstance(model.head, MaskedLanguageHead):
        # The head was for the pretraining only; the encoder makes the vectors.
        return Embedder(model.with_head(None), *tokenizers, **options)
    if isinstance(model.head, TaggingHead) and not isinstance(model.head, SpanHead):
        return Tagger(model, *tokenizers, **options)
    if not classifies:
        raise ValueError(
            "`model` must have no head, a `ClassificationHead`, a `TaggingHead` or a `MaskedLanguageHead`. "
            f"Received: head={model.head!r}."
        )
    return Similarity(model, *tokenizers, **options)
