"""Hugging Face folders to folders of servables and back."""

from pathlib import Path

from keras_transformer.decoding import ExcludeTokens
from keras_transformer.huggingface import (
    from_huggingface,
    preprocessing_from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.huggingface.configs import labels_of
from keras_transformer.huggingface.files import CONFIG, read_config
from keras_transformer.huggingface.images import FILE as PREPROCESSOR
from keras_transformer.models import Transformer, VisionTransformer
from keras_transformer.serving import load, servable_of


def convert(source, target, pairs=False, tokenizers=True, **kwargs):
    """Makes a folder that `keras-transformer export` takes of a Hugging Face folder, or the other way round.

    Args:
        source: A folder with config.json, or one that a servable's `save` or a training run wrote.
        target: A new folder, which appears whole or not at all.
        pairs: Whether a model with classes of texts is for pairs of them, as no checkpoint says.
        tokenizers: Whether the way back writes the tokenizers too; not every one has a form there.
        **kwargs: What `from_huggingface` or `to_huggingface` takes besides.

    Returns:
        The servable, which `target` holds now; None for a Hugging Face folder.

    Raises:
        ValueError: If `source` is neither, or `target` exists; else as `from_huggingface` and `to_huggingface`.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise ValueError(f"`target` must not exist yet. Received: {target}.")
    if not source.is_dir():
        raise ValueError(
            f"`source` must be a folder: nothing is downloaded. Received: {source}, which is none."
        )
    if not (source / CONFIG).is_file():
        servable = load(source)
        to_huggingface(
            servable.model, target, tokenizers=servable.tokenizers if tokenizers else None, **kwargs
        )
        return None
    model = from_huggingface(source, **kwargs)
    options, images = {}, isinstance(model, VisionTransformer)
    found = () if images else tokenizers_from_huggingface(source)
    if images:
        options["labels"] = labels_of(read_config(source))[1]
        if (source / PREPROCESSOR).is_file():
            options["preprocessing"] = preprocessing_from_huggingface(source)
    if isinstance(model, Transformer):
        # Marian's, which begins with padding, and learned nothing of it as an answer.
        options["constraints"] = [ExcludeTokens([model.pad_id])]
    servable = servable_of(model, found, pairs=pairs, **options)
    servable.save(target)
    return servable
