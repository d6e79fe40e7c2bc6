"""The base class of everything that can be served: a model with its tokenizers and its limits."""

import functools
import inspect
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf
import tqdm

from keras_transformer.checks import check_positive, warn
from keras_transformer.data.unknown import WARNING, UnknownTokens
from keras_transformer.execution import native
from keras_transformer.execution.inference import KeepsFunctions
from keras_transformer.layers.base import arguments_by_name
from keras_transformer.models.generation import SOURCE_LENGTH_STEP
from keras_transformer.models.loading import names_of
from keras_transformer.serving.export import ServedGraph, path_of_new_version
from keras_transformer.serving.folders import Saving

COMPILED_BATCH_SIZES = [2**k for k in range(13)]


def named_arguments(cls, args, kwargs):
    """Names the arguments of a constructor call. Those of `*args` get the names of the next constructor that has some.

    Their values are read from the attributes of these names, so a subclass may hand on others than it was given.

    Returns:
        A dict, with the defaults of the class.
    """
    arguments = arguments_by_name(cls, args, kwargs)
    values = arguments.pop("args", [])
    for base in cls.__mro__ if values else ():
        names = [*inspect.signature(base.__init__).parameters][1:]
        if "args" not in names:
            return {**dict(zip(names, values, strict=False)), **arguments}
    return arguments


class Servable(KeepsFunctions, Saving):
    """Base class of `Translator`, `TextGenerator`, `Classifier` and the other objects that can be served.

    A servable answers requests in Python, is saved and loaded as a folder, and is exported for TensorFlow Serving. A
    subclass defines:

    - `DESCRIPTION`: the name of the JSON file that describes the servable in its folder. Each subclass has another.
    - `TOKENIZERS`: the names of the constructor's arguments that are tokenizers.
    - `model_classes`: the classes that its model may have, a tuple.
    - `signatures_class`: the `Signatures` of its export.
    - `max_source_length`: the largest number of tokens of a text; None if the servable reads no texts.
    - `longest_output`: the largest number of tokens of an answer; None if the servable writes no text.
    - `token_lengths(*sides)`: the number of tokens of each row, int NumPy `(batch,)`, for lists of bytes.
    - `warmup_requests(shapes)`: yields requests for the warm-up of a server, pairs of a signature's name and a dict of
      inputs, for pairs of a batch size and a length in tokens.

    A constructor keeps each argument as an attribute of its name. So `changed`, `save` and `load` need no
    method of a subclass.

    Args:
        model: The model, of one of the `model_classes`.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, or `model` is of another class.
    """

    DESCRIPTION = None
    TOKENIZERS = ()
    longest_output = None
    model_classes = (keras.Model,)

    def __new__(cls, *args, **kwargs):
        servable = super().__new__(cls)
        vars(servable)["_arguments"] = named_arguments(cls, args, kwargs)
        return servable

    def __init__(self, model):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"A {type(self).__name__} needs the TensorFlow backend of Keras. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}."
            )
        if not isinstance(model, self.model_classes):
            raise ValueError(
                f"`model` must be of class {names_of(self.model_classes)}. Received: {model!r:.200}."
            )
        self.model = model

    @property
    def tokenizers(self):
        """A tuple of the tokenizers, in the order of `TOKENIZERS`."""
        return tuple(getattr(self, name) for name in self.TOKENIZERS)

    @property
    def arguments(self):
        """The arguments that make this servable again, a dict by name. Defaults are filled in."""
        return {name: getattr(self, name, value) for name, value in self._arguments.items()}

    def changed(self, **changes):
        """Returns a servable of the same class. What does not change is shared, such as the model.

        Args:
            **changes: Arguments of the constructor.

        Raises:
            ValueError: If an argument is out of range.
        """
        return type(self)(**{**self.arguments, **changes})

    def signatures(self, batch_sizes, source_lengths=None, weights=None):
        """Makes the signatures of the export.

        Args:
            batch_sizes: Increasing ints. The last is the largest number of rows of a step. With `source_lengths`, a
                step is padded to one of these sizes.
            source_lengths: Increasing ints: XLA compiles the steps, and their ids are padded to one of these
                lengths. No ints where the steps have no ids; None for steps that are not compiled.
            weights: A function without arguments that returns the tensors to compute with, in the order of
                `model.weights`. None to compute with the model's variables.

        Returns:
            A `Signatures`.
        """
        return self.signatures_class(self, batch_sizes, source_lengths, weights)

    def answer_all(
        self,
        texts,
        name,
        batch_size,
        verbose=False,
        second=None,
        jit_compile=None,
        signature="serving_default",
    ):
        """Answers any number of texts. Texts of similar length are answered together.

        Args:
            texts: List of str, or of UTF-8 bytes.
            name: Name of the argument `texts`, for errors and the progress bar.
            batch_size: Number of texts at once.
            verbose: Whether to show a progress bar on stderr.
            second: List of str or of UTF-8 bytes, the second text of each pair. None if there are no pairs.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            signature: Name of the signature that answers.

        Returns:
            A list of dicts, one for each text, in their order: its row of each output of the signature.

        Raises:
            ValueError: If `texts` or `second` is not a list of strings, they differ in length, or `batch_size` is not
                positive.
        """
        texts = as_bytes(name, texts)
        sides = [texts, *([] if second is None else [as_bytes("second", second)])]
        check_positive(batch_size=batch_size)
        if len(sides[-1]) != len(texts):
            raise ValueError(
                f"`second` must have a text for each of `{name}`. Received: {len(sides[-1])} for {len(texts)}."
            )
        if not texts:
            return []
        by_length = self.token_lengths(*sides).argsort(kind="stable")
        answers = [None] * len(texts)
        with tqdm.tqdm(
            total=len(texts), unit=name.removesuffix("s"), disable=not verbose, leave=False
        ) as bar:
            for start in range(0, len(texts), batch_size):
                rows = by_length[start : start + batch_size]
                batch = self.answer(
                    *([side[i] for i in rows] for side in sides), signature=signature, jit_compile=jit_compile
                )
                for row, i in enumerate(rows):
                    answers[i] = {key: value[row] for key, value in batch.items()}
                bar.update(len(rows))
        return answers

    def answer_and_warn(self, texts, name, *options, **more_options):
        """Calls `answer_all`. Warns when some texts were cut, or hold text that the vocabulary cannot write."""
        answers = self.answer_all(texts, name, *options, **more_options)
        cut, unknown = (sum(bool(each[output]) for each in answers) for output in ("truncated", "unknown"))
        self.warn_if_cut(cut, len(answers), name)
        self.warn_if_unknown(unknown, len(answers), name)
        return answers

    def unknown_shares(self, texts):
        """Returns which share of the tokens of each text the vocabulary cannot write.

        The model reads such tokens as unknown, and an answer to a text of them may be invented.

        Args:
            texts: List of str, or of UTF-8 bytes.

        Returns:
            float64 NumPy `(batch,)` in [0, 1]; 0 for a text without tokens.
        """
        ids = self.tokenizers[0].tokenize(as_bytes("texts", texts))
        return UnknownTokens(self.tokenizers[0]).rows(ids) / np.maximum(1, ids.row_lengths().numpy())

    def warn_if_cut(self, cut, count, name):
        """Warns that some texts were cut.

        Args:
            cut: Number of texts that were cut, an int.
            count: Number of texts, an int.
            name: What the texts are, such as "sentences".
        """
        if cut:
            warn(
                f"{cut} of {count} {name} are longer than `max_source_length`={self.max_source_length} tokens; the "
                "rest of them is not read."
            )

    def warn_if_unknown(self, unknown, count, name):
        """Warns that some texts hold unknown tokens.

        Args:
            unknown: Number of texts with an unknown token, an int.
            count: Number of texts, an int.
            name: What the texts are, such as "sentences".
        """
        if unknown:
            warn(f"{unknown:,} of {count:,} {name} {WARNING.format('')}")

    def answer(self, *inputs, signature="serving_default", jit_compile=None):
        """Answers one request.

        Args:
            *inputs: The inputs of the signature, lists of bytes or arrays `(batch, ...)`.
            signature: Name of the signature.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.

        Returns:
            A dict from an output's name to its NumPy array `(batch, ...)`.
        """
        function = self._default_function(native.compiles(jit_compile), signature)
        with native.optimized_quickly():
            outputs = function(*map(tf.constant, inputs))
        return {name: value.numpy() for name, value in outputs.items()}

    def _default_function(self, xla, signature="serving_default"):
        """Returns the function of a signature, the same one as long as the model keeps its variables."""
        make = functools.partial(self._make_function, xla, signature)
        return self._functions.get((xla, signature), self.model.variables, make)

    def _make_function(self, xla, signature):
        if not xla:
            function = self.signatures([tf.int32.max]).functions()[signature]
            # `CompiledFunctions` makes a new function for new int8 weights.
            with native.inference_graph():
                function.get_concrete_function()  # traces it
            return function
        # XLA compiles each shape, which takes seconds. So there are few shapes.
        step, longest = SOURCE_LENGTH_STEP, self.max_source_length
        lengths = [] if longest is None else [*range(step, longest, step), longest]
        return self.signatures(COMPILED_BATCH_SIZES, lengths).functions()[signature]

    def export(self, folder, version=1, xla=False, *, warmup=True, check=True, verbose=False, **options):
        """Writes a SavedModel for TensorFlow Serving, `folder/version/`. TensorFlow and tensorflow-text can load it.

        `assets.extra/export.json` describes it: the inputs and outputs of each signature, the strategy, the limits, the
        largest number of tokens of an answer (`longest_output`), and the versions of the packages.

        Args:
            folder: The base path of the model; created when missing.
            version: Positive int.
            xla: False for a graph without any XLA op, which every server runs. True for a graph that XLA compiles.
            warmup: Whether to write warm-up requests, which a server answers before it serves the version.
            check: Whether to load the export and compare its answers with the model's before it appears: of each
                signature, with `xla=True` of the first one.
            verbose: Whether to show a progress bar on stderr.
            **options: `precision`, `signatures`, `batch_sizes` and `source_lengths` of `serving.export.ServedGraph`.

        Returns:
            The `Path` of the version. It appears whole or not at all.

        Raises:
            ValueError: If the version exists or is not positive, an option is out of range, the warm-up has too many
                requests, the graph holds an op that a stock server does not have, or the export answers otherwise than
                the model.
        """
        path = path_of_new_version(folder, version)
        ServedGraph(self, xla, **options).write(path, warmup, check, verbose)
        return path


def as_bytes(name, texts):
    """Encodes a list, an array or an iterable of strings as UTF-8; raises `ValueError` if it is something else."""
    several = isinstance(texts, Iterable) and not isinstance(texts, (str, bytes))
    strings = list(texts) if several else [None]
    if not all(isinstance(text, (str, bytes)) for text in strings):
        raise ValueError(f"`{name}` must be a list of strings. Received: {texts!r:.200}.")
    return [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in strings]
