"""Converts Hugging Face folders to folders that this library serves, and back."""

import contextlib
import logging
from pathlib import Path

from keras_transformer.checks import check
from keras_transformer.decoding import ExcludeTokens
from keras_transformer.huggingface import (
    DECODERS,
    ENCODER_DECODERS,
    SPEECH,
    embedder_files,
    is_sentence_embedder,
    preprocessing_from_huggingface,
    search_options,
    to_huggingface,
    transcriber_options,
    translator_options,
    with_dense_modules,
)
from keras_transformer.huggingface.adapters import ADAPTER_CONFIG, joined
from keras_transformer.huggingface.checkpoint import Checkpoint
from keras_transformer.huggingface.configs import label_keys, labels_of
from keras_transformer.huggingface.files import CONFIG
from keras_transformer.huggingface.images import PREPROCESSOR_CONFIG
from keras_transformer.huggingface.reading import (
    READERS,
    embedder_arguments,
    read_encoder,
    read_language_model,
)
from keras_transformer.huggingface.sentence_embeddings import MODULES
from keras_transformer.models import EncoderModel, Transformer, VisionTransformer
from keras_transformer.serving import Embedder, ImageClassifier, TextGenerator, load, servable_of

log = logging.getLogger(__name__)

# Number of tokens of a source.
DEFAULT_LENGTH = 256
EMBEDDER_OPTIONS = ("pooling", "normalize", "prompt", "max_source_length")


def is_huggingface(folder):
    """Returns whether a folder is a Hugging Face folder: a checkpoint, or an adapter of PEFT."""
    return any((Path(folder) / name).exists() for name in (CONFIG, ADAPTER_CONFIG))


def convert(
    source,
    target,
    pairs=False,
    verbose=False,
    *,
    source_language=None,
    target_language=None,
    precision="float32",
    chat=False,
    base=None,
    **kwargs,
):
    """Converts a Hugging Face folder to a folder that `keras-transformer export` reads.

    An adapter of PEFT is merged into its base model. Nothing is downloaded.

    Args:
        source: A Hugging Face folder, a path.
        target: The new folder, a path. It appears whole or not at all.
        pairs: Whether a text classifier classifies pairs of texts, a bool. A checkpoint does not say.
        verbose: Whether to show a progress bar on stderr while the folder is read, a bool.
        source_language: The language that a multilingual model translates from, such as "deu_Latn"; None for the one
            that the checkpoint names.
        target_language: The language that it translates into, likewise.
        precision: "float32"; or "int8" to quantize the matrices while they are read.
        chat: Whether a language model reads prompts of its `ChatTemplate`, whose special tokens get their ids; a bool.
        base: For a `source` with adapter_config.json, the folder of the adapter's base model; None for the one that the
            file names.
        **kwargs: Further arguments of `from_huggingface`.

    Returns:
        The model with its tokenizers (a `Translator`, a `Classifier`, ...) that `target` holds now.

    Raises:
        ValueError: If `source` is not such a folder, `target` exists, or `from_huggingface` refuses the model or its
            tokenizers.
    """
    _check_folders(source, target)
    rule = f"`source` must be a Hugging Face folder, with {CONFIG} or {ADAPTER_CONFIG}."
    check(is_huggingface(source), rule, source=str(source))
    languages = {"source_language": source_language, "target_language": target_language}
    kwargs = {**kwargs, "verbose": verbose, "precision": precision}
    with joined(Path(source), base) as whole:
        servable = _read_huggingface(whole, pairs, languages, chat, kwargs)
    servable.save(target)
    log.info("converted", extra={"folder": str(target), "servable": type(servable).__name__})
    return servable


def convert_back(source, target, tokenizers=True):
    """Converts a folder that `keras-transformer export` reads to a Hugging Face folder.

    Args:
        source: The folder of a run, or a folder that `save` wrote; a path.
        target: The new folder, a path. It appears whole or not at all.
        tokenizers: Whether the new folder gets the tokenizers too, a bool. Hugging Face has no format for some
            tokenizers; those raise.

    Raises:
        ValueError: If `source` is not such a folder, `target` exists, or `to_huggingface` refuses the model or its
            tokenizers.
    """
    _check_folders(source, target)
    servable = load(source)
    given = {"tokenizers": servable.tokenizers if tokenizers else None}
    if isinstance(servable, Embedder):
        options = {name: value for name, value in servable.arguments.items() if name in EMBEDDER_OPTIONS}
        given["files"] = embedder_files(servable.model, **options)
    elif isinstance(servable, ImageClassifier) and servable.labels is not None:
        given["config"] = label_keys(len(servable.labels), servable.labels)
    to_huggingface(servable.model, target, **given)
    if not isinstance(servable, Embedder):
        _name_lost_options(servable, Path(target))
    elif servable.dimensions is not None:
        log.warning("the folder makes whole vectors: `dimensions` of the Embedder is not in it")
    log.info("converted", extra={"folder": str(target), "servable": "Hugging Face checkpoint"})


def _check_folders(source, target):
    """Raises `ValueError` unless `source` is a folder and `target` does not exist."""
    if Path(target).exists():
        raise ValueError(f"`target` must not exist yet. Received: {target}.")
    if not Path(source).is_dir():
        raise ValueError(f"`source` must be a folder; nothing is downloaded. Received: {source}.")


def _name_lost_options(servable, folder):
    """Warns of the options of a servable that the Hugging Face folder does not have where it is read again.

    Args:
        servable: The servable.
        folder: The folder of its model, a `pathlib.Path`.
    """
    readers = (lambda *_, **__: servable.model, lambda _: servable.tokenizers)
    package = logging.getLogger(__name__.partition(".")[0])
    level, pairs, lost = package.level, getattr(servable, "pairs", False), []
    # The warnings of reading are for who reads.
    package.setLevel(logging.ERROR)
    try:
        for chat in (False, True) if isinstance(servable, TextGenerator) else (False,):
            with contextlib.suppress(ValueError, ImportError):
                again = _read_huggingface(folder, pairs, {}, chat, {}, readers).describe()
                own = servable.describe()
                lost.append(sorted(name for name in own if own[name] != again.get(name)))
    finally:
        package.setLevel(level)
    names = ", ".join(min(lost, key=len)) if lost else "all"
    if names:
        log.warning("these options of the %s are not in the folder: %s", type(servable).__name__, names)


def _read_huggingface(source, pairs, languages, chat, kwargs, readers=READERS):
    """Reads a Hugging Face folder as a model with its tokenizers.

    Args:
        source: The folder, a `pathlib.Path`.
        pairs: As in `convert`.
        languages: A dict of `source_language` and `target_language`.
        chat: As in `convert`.
        kwargs: The arguments of `from_huggingface`.
        readers: What reads the model and the tokenizers, as `READERS`.
    """
    from_huggingface, tokenizers_from_huggingface = readers
    checkpoint = Checkpoint(source)
    config, model_type = checkpoint.config, checkpoint.family.model_type
    if model_type not in ENCODER_DECODERS and any(languages.values()):
        raise ValueError(f"A {model_type!r} model does not translate. Received: {languages}.")
    encodes = EncoderModel in checkpoint.family.model_classes
    if (encodes or model_type not in DECODERS) and chat:
        raise ValueError(f"A {model_type!r} model does not chat. Received: chat={chat!r}.")
    if encodes:
        model, tokenizer = read_encoder(source, readers, **kwargs)
        if not is_sentence_embedder(source):
            return servable_of(model, (tokenizer,), pairs=pairs)
        options = embedder_arguments(source, model)
        return Embedder(with_dense_modules(model, source), tokenizer, **options)
    if is_sentence_embedder(source):
        raise ValueError(
            f"A folder with {MODULES} makes vectors of texts, and the library cannot make them with such a model. "
            f"Received: {source}, a {model_type!r} model with {MODULES}. Remove the file to convert the model alone."
        )
    if model_type in ENCODER_DECODERS:
        tokenizers = tokenizers_from_huggingface(source)
        ids, options = translator_options(source, tokenizers[0], **languages)
        model = from_huggingface(source, **{**ids, **kwargs})
        options |= search_options(source, model)
        excluded = {i for each in options["constraints"] for i in getattr(each, "token_ids", ())}
        if isinstance(model, Transformer) and model.pad_id not in excluded:
            # A Marian model starts its output with padding, and never learned that padding is not an answer.
            options["constraints"].append(ExcludeTokens([model.pad_id]))
        longest = model.max_positions
        options["max_source_length"] = DEFAULT_LENGTH if longest is None else min(DEFAULT_LENGTH, longest)
        return servable_of(model, tokenizers, pairs=pairs, **options)
    if model_type in DECODERS:
        model, tokenizer, starts = read_language_model(source, readers, chat=chat, **kwargs)
        options = {"starts_with_bos": starts}
        options |= search_options(source, model)
        if options["max_length"] is not None and model.max_positions is not None:
            room = model.max_positions + 1 - options["max_length"]
            options["max_source_length"] = max(1, min(DEFAULT_LENGTH, room))
        return servable_of(model, (tokenizer,), pairs=pairs, **options)
    if model_type in SPEECH:
        model, tokenizers = from_huggingface(source, **kwargs), tokenizers_from_huggingface(source)
        return servable_of(model, tokenizers, pairs=pairs, **transcriber_options(source))
    rule = "A model that is neither of texts nor of images has no servable: use `from_huggingface` in Python."
    check(VisionTransformer in checkpoint.family.model_classes, rule, model_type=model_type)
    options = {"labels": labels_of(config)[1]}
    if (source / PREPROCESSOR_CONFIG).is_file():
        options["preprocessing"] = preprocessing_from_huggingface(source)
    return servable_of(from_huggingface(source, **kwargs), pairs=pairs, **options)
