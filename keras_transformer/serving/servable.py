"""A model with all that turns a request into its answer: saved, loaded and exported as one."""

import functools
import json
import re
import warnings
from pathlib import Path

import keras
import tensorflow as tf
import tqdm

from keras_transformer.backend import compiles
from keras_transformer.checks import check_positive
from keras_transformer.files import replaced
from keras_transformer.models.generation import SOURCE_LENGTH_STEP
from keras_transformer.serving.export import export
from keras_transformer.serving.loading import load_model
from keras_transformer.text import TOKENIZERS

MODEL = "model.keras"
FORMAT = 1
COMPILED_BATCH_SIZES = [2**k for k in range(13)]


class Servable:
    """The base of what a server can answer with: `Translator`, `TextGenerator`, `Classifier` and others.

    A subclass has `model`, and

    - `DESCRIPTION`: the name of the file that describes it in a folder, its own;
    - `model_class`: what its model must be;
    - `TOKENIZERS`: the names of the arguments that are tokenizers, and attributes of it;
    - `describe()`: all other arguments, as JSON holds them; `arguments_of` takes them back;
    - `signatures_class`: the `Rows` of its export;
    - `max_source_length`: where a text is cut, in tokens; None where there is no text;
    - `measured(texts)`: the lengths of texts (bytes) in tokens, and how many of them are cut;
    - `requests(shapes)`: pairs of a signature and its inputs, with which a server warms up.
    """

    DESCRIPTION = None
    TOKENIZERS = ()
    model_class = keras.Model

    def __init__(self, model):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"A {type(self).__name__} needs Keras's TensorFlow backend. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}."
            )
        if not isinstance(model, self.model_class):
            raise ValueError(
                f"`model` must be of class {self.model_class.__name__}. Received: {model!r:.200}."
            )
        self.model = model

    @property
    def tokenizers(self):
        """A tuple of its tokenizers."""
        return tuple(getattr(self, name) for name in self.TOKENIZERS)

    def signatures(self, batch_sizes, source_lengths=None, weights=None):
        """The functions of its export; arguments as `Rows`."""
        return self.signatures_class(self, batch_sizes, source_lengths, weights)

    def in_batches(self, texts, name, batch_size, verbose=False, second=None, **options):
        """Answers texts, those of like length together.

        Args:
            texts: List of str, or of UTF-8 bytes.
            name: The argument's name, for messages.
            batch_size: Number of texts at once.
            verbose: Whether to show a progress bar on stderr.
            second: Likewise, the second text of each pair, or None.
            **options: As `answer` takes them.

        Returns:
            A list of dicts, one for each text, in order: its row of each of the answers.
        """
        sides = [_as_bytes(name, texts), *([] if second is None else [_as_bytes("second", second)])]
        check_positive(batch_size=batch_size)
        if {len(side) for side in sides} != {len(texts)}:
            raise ValueError(
                f"`second` must have a text for each of `{name}`. Received: {len(second)} for {len(texts)}."
            )
        if not texts:
            return []
        lengths, cut = self.measured(*sides)
        self.warn_of_cut(cut, len(texts), name, stacklevel=4)
        by_length = lengths.argsort(kind="stable")
        answers = [None] * len(texts)
        with tqdm.tqdm(
            total=len(texts), unit=name.removesuffix("s"), disable=not verbose, leave=False
        ) as bar:
            for start in range(0, len(texts), batch_size):
                rows = by_length[start : start + batch_size]
                found = self.answer(*([side[i] for i in rows] for side in sides), **options)
                for row, i in enumerate(rows):
                    answers[i] = {key: value[row] for key, value in found.items()}
                bar.update(len(rows))
        return answers

    def warn_of_cut(self, cut, count, name="sentences", stacklevel=3):
        """Warns where some of `count` texts were cut, in the name of who called what calls this."""
        if cut:
            warnings.warn(
                f"{cut} of {count} {name} are longer than `max_source_length`={self.max_source_length} tokens; what "
                "follows is not read.",
                stacklevel=stacklevel,
            )

    def answer(self, *inputs, jit_compile=None):
        """What the first signature gives for a request, all at once.

        Args:
            *inputs: Lists of bytes, or arrays, `(batch, ...)`.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.

        Returns:
            A dict of NumPy arrays `(batch, ...)`.
        """
        found = self._function(compiles(jit_compile))(*map(tf.constant, inputs))
        return {name: value.numpy() for name, value in found.items()}

    @functools.cached_property
    def _function(self):
        return functools.cache(self._make_function)

    def _make_function(self, xla):
        """What `answer` calls, for any number of rows: traced once, whatever the batch sizes."""
        if not xla or self.max_source_length is None:
            return self.signatures([tf.int32.max]).functions()["serving_default"]
        # Each shape costs a compilation: few of them.
        step, longest = SOURCE_LENGTH_STEP, self.max_source_length
        lengths = [*range(step, longest, step), longest]
        return self.signatures(COMPILED_BATCH_SIZES, lengths).functions()["serving_default"]

    def save(self, folder):
        """Saves everything to a new folder, which appears whole or not at all.

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
        """Writes what `load` reads into an existing folder, each file whole or not at all, the description last.

        What else the description is to say, `notes`, is JSON; `load` passes over it.
        """
        folder = Path(folder)
        with replaced(folder / MODEL) as temporary:
            self.model.save(temporary, include_optimizer=False)
        written = {}
        for name, tokenizer in zip(self.TOKENIZERS, self.tokenizers, strict=True):
            if any(tokenizer is other for other in written.values()):  # one for two arguments
                continue
            written[name] = tokenizer
            with replaced(folder / f"{name}.model") as temporary:
                tokenizer.save(temporary)
        description = {
            "format": FORMAT,
            **{name: type(tokenizer).__name__ for name, tokenizer in written.items()},
            **self.describe(),
            **notes,
        }
        with replaced(folder / self.DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder):
        """Loads what `save` or a training run wrote. No code from the folder is executed.

        Raises:
            ValueError: If the folder holds none, or one that names what this library does not have.
        """
        folder, kind = Path(folder), re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        try:
            description = json.loads((folder / cls.DESCRIPTION).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} holds no {kind}: {error}") from None
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ValueError(f"{folder / cls.DESCRIPTION} is not of format {FORMAT}.")
        try:
            tokenizers = {
                name: named(TOKENIZERS, description[name], folder).load(folder / f"{name}.model")
                for name in cls.TOKENIZERS
                if name in description
            }
            model = load_model(folder / MODEL, cls.model_class)
            arguments = cls.arguments_of(description, folder)
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"{folder} holds no whole {kind}: {error!r}") from None
        try:
            return cls(model, **tokenizers, **arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder} holds no whole {kind}: {error}") from None

    @classmethod
    def arguments_of(cls, description, folder):
        """All arguments but the model and the tokenizers.

        Args:
            description: What `describe` said, and more.
            folder: Where it comes from, for messages.
        """
        raise NotImplementedError

    def export(self, folder, version=1, xla=False, **options):
        """Writes a SavedModel for TensorFlow Serving, `folder/version/`; arguments as `serving.export.export`:
        `weights`, `batch_sizes`, `source_lengths`, `warmup`."""
        return export(self, folder, version, xla, **options)


def _as_bytes(name, texts):
    """A list of texts as UTF-8 bytes, if it is one."""
    if isinstance(texts, (str, bytes)) or not all(isinstance(text, (str, bytes)) for text in texts):
        raise ValueError(f"`{name}` must be a list of strings. Received: {texts!r:.200}.")
    return [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]


def named(known, name, folder):
    """What a dict knows by a name that a folder says.

    Raises:
        ValueError: If it knows no such thing.
    """
    if name not in known:
        raise ValueError(f"{folder} names {name!r}; known are {sorted(known)}.")
    return known[name]
