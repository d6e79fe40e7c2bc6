"""Folders of servables: saves a servable to a folder, loads it without executing code from files, finds its class."""

import contextlib
import io
import json
import re
import shutil
import zipfile
from pathlib import Path

from keras_transformer import serving
from keras_transformer.checks import check
from keras_transformer.decoding import CONSTRAINTS, STRATEGIES, SpeechIds
from keras_transformer.files import replaced, write_json
from keras_transformer.keras_internals import sublayers
from keras_transformer.layers import Dropout, ImagePreprocessing, LogMelSpectrogram
from keras_transformer.layers.base import KERAS_ARGUMENTS, arguments_by_name
from keras_transformer.models import EncoderModel, LanguageModel, VisionTransformer
from keras_transformer.models.heads import ClassificationHead, MaskedLanguageHead, SpanHead, TaggingHead
from keras_transformer.models.loading import load_model
from keras_transformer.text import TOKENIZERS
from keras_transformer.untrusted import read_json, sha256_of

MODEL = "model.keras"
FORMAT = 1
# The classes of objects that a description may name.
OBJECTS = {
    **STRATEGIES,
    **CONSTRAINTS,
    **{each.__name__: each for each in (ImagePreprocessing, LogMelSpectrogram, SpeechIds)},
}
# The entry of a description that holds the hashes of the files.
HASHES = "sha256"
SERVABLES = (
    "Translator",
    "TextGenerator",
    "Classifier",
    "Tagger",
    "Embedder",
    "Similarity",
    "ImageClassifier",
    "Transcriber",
    "ImageWriter",
)


def load(folder):
    """Loads the folder of any servable, or of a training run. No code from the folder is executed.

    Args:
        folder: Path of the folder, which the `save` of a servable or a training run wrote.

    Returns:
        A `Translator`, `TextGenerator`, `Transcriber` or another servable.

    Raises:
        ValueError: If the folder holds no servable, a file is missing or damaged, or names a class that this library
            does not have.
    """
    known = [getattr(serving, name) for name in SERVABLES]
    classes = [servable for servable in known if (Path(folder) / servable.DESCRIPTION).is_file()]
    if len(classes) != 1:
        names = ", ".join(servable.DESCRIPTION for servable in classes or known)
        received = "with several of them" if classes else "with none of them, and no config.json"
        if not Path(folder).is_dir():
            received = "which is not a folder"
        elif not classes and (Path(folder) / "tuning.json").is_file():
            received = (
                f"a tuning: convert its model, {Path(folder) / 'model'}, with `keras-transformer convert`"
            )
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
        A `Translator`, `TextGenerator`, `Transcriber` or another servable.

    Raises:
        ValueError: If no servable fits the model, or `pairs` is given for a model that does not classify texts.
    """
    classifies = isinstance(model, EncoderModel) and isinstance(model.head, ClassificationHead)
    if classifies and model.head.num_classes > 1:
        return serving.Classifier(model, *tokenizers, pairs=pairs, **options)
    if pairs:
        raise ValueError(
            f"`pairs` is for models that classify texts. Received: pairs=True for {model!r:.200}."
        )
    if isinstance(model, VisionTransformer):
        return serving.ImageClassifier(model, **options)
    if isinstance(model, LanguageModel):
        return serving.TextGenerator(model, *tokenizers, **options)
    if not getattr(model, "reads_ids", True):
        source = model.input_signature()[0]["source"]
        if len(getattr(source, "shape", ())) == 4:
            return serving.ImageWriter(model, *tokenizers, **options)
        return serving.Transcriber(model, *tokenizers, **options)
    if not isinstance(model, EncoderModel):
        return serving.Translator(model, *tokenizers, **options)
    if model.head is None:
        return serving.Embedder(model, *tokenizers, **options)
    if isinstance(model.head, MaskedLanguageHead):
        # The head was for the pretraining only; the encoder makes the vectors.
        return serving.Embedder(model.with_head(None), *tokenizers, **options)
    if isinstance(model.head, TaggingHead) and not isinstance(model.head, SpanHead):
        return serving.Tagger(model, *tokenizers, **options)
    rule = "`model` must have no head, a `ClassificationHead`, a `TaggingHead` or a `MaskedLanguageHead`."
    check(classifies, rule, head=model.head)
    return serving.Similarity(model, *tokenizers, **options)


class Saving:
    """Saves a servable to a folder, and loads it. Every `Servable` has these methods."""

    def save(self, folder):
        """Saves the servable to a new folder. The folder appears whole or not at all.

        Args:
            folder: Path of the folder; must not exist.

        Raises:
            ValueError: If the folder exists.
        """
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"`folder` must not exist yet. Received: {folder}.")
        with replaced(folder) as temporary:
            temporary.mkdir()
            self.write_into(temporary)

    def write_into(self, folder, **notes):
        """Writes the files that `load` reads into an existing folder. Each file appears whole, the description last.

        The description holds the hashes of the other files. `load` refuses a file that has another one.

        Args:
            folder: Path of the folder.
            **notes: Further entries of the description, as JSON. `load` ignores them.

        Raises:
            ValueError: If an argument is an object of a class that this library does not have.
        """
        for value in self._described.values():
            for each in value if isinstance(value, (list, tuple)) else (value,):
                known = not hasattr(each, "get_config") or OBJECTS.get(type(each).__name__) is type(each)
                rule = "Only strategies and constraints of this library can be saved and loaded."
                check(known, rule, object=each)
        folder, path = Path(folder), Path(folder) / self.DESCRIPTION
        with contextlib.ExitStack() as files:
            temporary = files.enter_context(replaced(folder / MODEL))
            save_model(self.model, temporary)
            description = {
                "format": FORMAT,
                **self.write_tokenizers(folder, files),
                "arguments": self.describe(),
                **notes,
            }
            hashes = description[HASHES] = {**description[HASHES], MODEL: [sha256_of(temporary)]}
            # There may be no description, or a damaged one.
            with contextlib.suppress(ValueError):
                # After a kill between two of the files, the folder must load.
                before = self._description(folder)
                both = {
                    name: [*hashes.get(name, ()), *known] for name, known in before.get(HASHES, {}).items()
                }
                write_json(path, {**before, HASHES: both})
        write_json(path, description)

    def write_tokenizers(self, folder, files=None):
        """Writes the files of the tokenizers into an existing folder.

        Args:
            folder: Path of the folder.
            files: A `contextlib.ExitStack`. The files appear when it is closed. None for at once.

        Returns:
            A dict from an argument's name to the name of its class, with the hashes of the files, as `read_tokenizers`
            reads it. A tokenizer of two arguments is written once.
        """
        written, hashes = {}, {}
        with contextlib.ExitStack() as own:
            for name, tokenizer in zip(self.TOKENIZERS, self.tokenizers, strict=True):
                if any(tokenizer is other for other in written.values()):
                    continue
                written[name] = tokenizer
                path = Path(folder) / f"{name}.model"
                temporary = (files or own).enter_context(replaced(path))
                tokenizer.save(temporary)
                hashes[path.name] = [sha256_of(temporary)]
        return {**{name: type(tokenizer).__name__ for name, tokenizer in written.items()}, HASHES: hashes}

    @classmethod
    def read_tokenizers(cls, description, folder):
        """Reads the files of the tokenizers.

        Args:
            description: A dict with the entries that `write_tokenizers` returned, and others.
            folder: Path of the folder with the files.

        Returns:
            A dict from an argument's name to its tokenizer.

        Raises:
            ValueError: If a file is damaged, or another one than the description says.
        """
        tokenizers = {}
        for name in (name for name in cls.TOKENIZERS if name in description):
            kind, path = lookup(TOKENIZERS, description[name], folder), Path(folder) / f"{name}.model"
            check_hash(path, description)
            tokenizers[name] = kind.load(path)
        return tokenizers

    @classmethod
    def load(cls, folder):
        """Loads a folder that `save` or a training run wrote. No code from the folder is executed.

        Args:
            folder: Path of the folder.

        Returns:
            A servable of this class.

        Raises:
            ValueError: If a file is missing or damaged, or names a class that this library does not have.
        """
        folder, kind = Path(folder), cls._kind()
        description = cls._description(folder)
        try:
            tokenizers = cls.read_tokenizers(description, folder)
            if (folder / MODEL).is_file():
                check_hash(folder / MODEL, description)
            model = load_model(folder / MODEL, *cls.model_classes)
        except (KeyError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"{folder} holds no complete {kind}: {error!r:.500}") from None
        try:
            return cls(model, **tokenizers, **cls.arguments_from(description, folder))
        except ValueError as error:
            raise ValueError(f"{folder} holds no complete {kind}: {error!s:.1500}") from None
        except (KeyError, TypeError, AttributeError, OSError) as error:
            raise ValueError(f"{folder} holds no complete {kind}: {error!r:.500}") from None

    @classmethod
    def load_tokenizers(cls, folder):
        """Loads the tokenizers of a folder that `save` or a training run wrote, without the model.

        Args:
            folder: Path of the folder.

        Returns:
            A tuple of tokenizers: one, or the source's and the target's.

        Raises:
            ValueError: If a file is missing or damaged, or names a class that this library does not have.
        """
        folder = Path(folder)
        try:
            return tuple(cls.read_tokenizers(cls._description(folder), folder).values())
        except (TypeError, AttributeError, OSError) as error:
            raise ValueError(f"{folder} holds no complete {cls._kind()}: {error!r:.500}") from None

    @classmethod
    def _kind(cls):
        """Returns the name of the class in words."""
        return re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()

    @classmethod
    def _description(cls, folder):
        """Reads the JSON file that describes the servable of a folder."""
        try:
            description = read_json(folder / cls.DESCRIPTION)
        except ValueError as error:
            raise ValueError(f"{folder} holds no {cls._kind()}: {error}") from None
        if description.get("format") != FORMAT:
            raise ValueError(f"{folder / cls.DESCRIPTION} must be of format {FORMAT}.")
        return description

    @property
    def _described(self):
        """The arguments of the constructor without the model and the tokenizers, a dict by name."""
        others = ("model", *self.TOKENIZERS)
        return {name: value for name, value in self.arguments.items() if name not in others}

    def describe(self):
        """Returns the arguments of the constructor as JSON, without the model and the tokenizers, a dict by name."""
        return {name: _to_json(value) for name, value in self._described.items()}

    @classmethod
    def arguments_from(cls, description, folder):
        """Reads the arguments of the constructor, without the model and the tokenizers.

        Args:
            description: A dict. Its "arguments" are those of `describe()`.
            folder: Path of the folder with the description, for errors.

        Returns:
            A dict from an argument's name to its value. The constructor refuses an unknown name.

        Raises:
            ValueError: If an argument is missing, or names a class that this library does not have.
        """
        described = description["arguments"]
        missing = arguments_by_name(cls, (), {}).keys() - described.keys() - {*cls.TOKENIZERS, "args"}
        rule = "`arguments` must hold each argument of the constructor."
        check(not missing, rule, missing=sorted(missing))
        return {name: _from_json(value, folder) for name, value in described.items()}


def check_hash(path, description):
    """Raises `ValueError` if a file is another one than a description says.

    Args:
        path: Path of the file.
        description: A dict. `description["sha256"]` is a dict from a file's name to the hashes that it may have, a list
            of hexadecimal str. A file that it does not name is not checked.
    """
    known = description.get(HASHES, {}).get(Path(path).name)
    if known is not None and sha256_of(path) not in known:
        raise ValueError(
            f"{path} is not the file that was saved here: its SHA-256 is not {known!r:.200}. It is damaged, or it "
            "belongs to another model."
        )


def save_model(model, path):
    """Saves a model without its optimizer, which has twice as many numbers as the model, random states and times.

    So a run that was resumed ends with the same file as one that was not. Keras ignores `include_optimizer=False` for a
    `.keras` file. So the model has no optimizer while it is saved.

    The file is written twice, because Keras writes the time into it. The copy takes an eighth of the CPU time of
    Keras's own saving (0.12 and 0.95 s for 48 million weights). Until it is done, there are two files on the disk.

    Args:
        model: A `keras.Model`.
        path: Path of the file; its name ends with `.keras`.
    """
    optimizer, compiled = getattr(model, "optimizer", None), model.compiled
    model.optimizer, model.compiled = None, False
    dated = Path(path).with_suffix(".dated.keras")
    drops = [layer for layer in sublayers(model) if isinstance(layer, Dropout)]
    try:
        for drop in drops:
            drop.saves_random_state = False
        model.save(dated)
        _write_without_times(dated, path)
    finally:
        dated.unlink(missing_ok=True)
        for drop in drops:
            del drop.saves_random_state
        model.optimizer, model.compiled = optimizer, compiled


def _write_without_times(dated, path):
    """Copies a `.keras` file, so that it does not say when it was written."""
    with zipfile.ZipFile(dated) as source, zipfile.ZipFile(path, "w") as target:
        for each in source.infolist():
            entry = zipfile.ZipInfo(each.filename)
            entry.compress_type = each.compress_type
            with source.open(each) as content, target.open(entry, "w", force_zip64=True) as copy:
                if each.filename == "metadata.json":
                    content = io.BytesIO(json.dumps({**json.load(content), "date_saved": "unknown"}).encode())
                shutil.copyfileobj(content, copy, 1 << 20)


def lookup(known, name, folder):
    """Looks up a name that a description holds.

    Args:
        known: A dict from a name to a class.
        name: The name.
        folder: Path of the folder with the description, for errors.

    Returns:
        The class.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in known:
        raise ValueError(f"{folder} names {name!r:.200}, which is unknown. Known are {sorted(known)}.")
    return known[name]


def _to_json(value):
    """Returns an argument as JSON: an object as a dict of the name of its class and its configuration."""
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if not hasattr(value, "get_config"):
        return value
    config = {name: each for name, each in value.get_config().items() if name not in KERAS_ARGUMENTS}
    return {"class_name": type(value).__name__, "config": config}


def _from_json(value, folder):
    """Returns the argument that `_to_json` wrote."""
    if isinstance(value, list):
        return [_from_json(each, folder) for each in value]
    if not isinstance(value, dict):
        return value
    return lookup(OBJECTS, value["class_name"], folder).from_config(value["config"])
