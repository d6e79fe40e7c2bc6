"""A model with its tokenizers and its strategy: text in, text out."""

import functools
import json
import warnings
from pathlib import Path

import keras
import tensorflow as tf
import tqdm

from keras_transformer.backend import compiles
from keras_transformer.checks import check_positive
from keras_transformer.decoding import CONSTRAINTS, STRATEGIES, Greedy, Strategy
from keras_transformer.files import replaced
from keras_transformer.models import EncoderDecoder
from keras_transformer.models.generation import SOURCE_LENGTH_STEP, check_constraints
from keras_transformer.serving.export import export
from keras_transformer.serving.loading import load_model
from keras_transformer.serving.signatures import Signatures, measured
from keras_transformer.text import TOKENIZERS

DESCRIPTION = "translator.json"
MODEL = "model.keras"
FORMAT = 1
COMPILED_BATCH_SIZES = [2**k for k in range(13)]


class Translator:
    """Translates text: tokenizer, model and strategy in one graph.

    Rows stand alone: an empty text gives an empty translation, invalid UTF-8 is read as U+FFFD, a long text is
    cut at `max_source_length`, and no row changes another's translation.

    Args:
        model: A `Transformer` or `T5`: an `EncoderDecoder`.
        source_tokenizer: From `keras_transformer.text`.
        target_tokenizer: Likewise; the source's when None.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
        max_source_length: Longest source in tokens, eos included; the rest is cut off.
        max_length: Longest translation in tokens, eos included. None for twice each source's length plus 16.
        constraints: What every translation must satisfy, such as `[NoRepeatNgram(3)]`.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, a tokenizer has more ids than the model or other
            special ones, a limit is out of range, or the constraints contradict one another.
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        strategy=Greedy(),  # noqa: B008
        max_source_length=256,
        max_length=None,
        constraints=(),
    ):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "A Translator needs Keras's TensorFlow backend. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}."
            )
        target_tokenizer = target_tokenizer or source_tokenizer
        for side, tokenizer, size in (
            ("source", source_tokenizer, model.source_vocab_size),
            ("target", target_tokenizer, model.target_vocab_size),
        ):
            if tokenizer.vocab_size > size:
                raise ValueError(
                    f"`{side}_tokenizer` has more ids than the model embeds. "
                    f"Received: {tokenizer.vocab_size} ids, {side}_vocab_size={size}."
                )
            for name in ("pad_id", "eos_id"):
                own, expected = getattr(tokenizer, name), getattr(model, name)
                if own not in (None, expected):
                    raise ValueError(
                        f"`{side}_tokenizer` must have the model's `{name}`, or none. "
                        f"Received: {name}={own}, the model's is {expected}."
                    )
        if max_source_length < 2:
            raise ValueError(
                f"`max_source_length` must be at least 2. Received: max_source_length={max_source_length}."
            )
        if max_length is not None:
            check_positive(max_length=max_length)
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.strategy = strategy
        self.max_source_length = max_source_length
        self.max_length = max_length
        self.constraints = check_constraints(constraints, max_length)
        if not isinstance(strategy, Strategy):
            raise ValueError(f"`strategy` must be a strategy such as `Greedy()`. Received: {strategy!r}.")
        self._function = functools.cache(self._make_function)

    @property
    def tokenizers(self):
        """The source's and the target's."""
        return self.source_tokenizer, self.target_tokenizer

    def searching(self, strategy, constraints=(), *, max_source_length=None, max_length=None):
        """The same translator with another strategy, other constraints and, where given, other limits."""
        return Translator(
            self.model,
            self.source_tokenizer,
            self.target_tokenizer,
            strategy,
            self.max_source_length if max_source_length is None else max_source_length,
            self.max_length if max_length is None else max_length,
            constraints,
        )

    def translate(self, sentences, batch_size=32, jit_compile=None, verbose=False):
        """Translates sentences.

        Args:
            sentences: List of str (or of UTF-8 bytes).
            batch_size: Number of sentences at once; they are grouped by length and returned in order.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of str, one for each sentence.

        Raises:
            ValueError: If `sentences` is a single string, or `batch_size` is not positive.
        """
        if isinstance(sentences, (str, bytes)) or not all(isinstance(s, (str, bytes)) for s in sentences):
            raise ValueError(f"`sentences` must be a list of strings. Received: {sentences!r:.200}.")
        check_positive(batch_size=batch_size)
        texts = [s.encode("utf-8", "surrogatepass") if isinstance(s, str) else s for s in sentences]
        if not texts:
            return []
        lengths, cut = measured(texts, self.source_tokenizer, self.max_source_length)
        self.warn_of_cut(cut, len(texts))
        by_length = lengths.argsort(kind="stable")
        translations = [""] * len(texts)
        with tqdm.tqdm(total=len(texts), unit="sentence", disable=not verbose, leave=False) as bar:
            for start in range(0, len(texts), batch_size):
                rows = by_length[start : start + batch_size]
                found = self.translate_batch([texts[i] for i in rows], jit_compile)
                for i, translation in zip(rows, found, strict=True):
                    translations[i] = translation
                bar.update(len(rows))
        return translations

    def translate_batch(self, texts, jit_compile=None):
        """Translates texts (bytes) as they are, at once, and says nothing of those that are cut: a list of str."""
        found = self._function(compiles(jit_compile))(tf.constant(texts, tf.string))
        return [text.decode("utf-8", "replace") for text in found["translation"].numpy()]

    def warn_of_cut(self, cut, count):
        """Warns where some of `count` sentences were cut, in the name of who called what calls this."""
        if cut:
            warnings.warn(
                f"{cut} of {count} sentences are longer than `max_source_length`={self.max_source_length} tokens; what "
                "follows is not translated.",
                stacklevel=3,
            )

    def _make_function(self, xla):
        """What `translate` calls, for any number of texts: traced once, whatever the batch sizes."""
        if not xla:
            return Signatures(self, [tf.int32.max]).functions()["serving_default"]
        # Each shape costs a compilation: few of them.
        step, longest = SOURCE_LENGTH_STEP, self.max_source_length
        lengths = [*range(step, longest, step), longest]
        return Signatures(self, COMPILED_BATCH_SIZES, lengths).functions()["serving_default"]

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
        tokenizers = {"source_tokenizer": self.source_tokenizer}
        if self.target_tokenizer is not self.source_tokenizer:
            tokenizers["target_tokenizer"] = self.target_tokenizer
        for name, tokenizer in tokenizers.items():
            with replaced(folder / f"{name}.model") as temporary:
                tokenizer.save(temporary)
        for known, parts in ((STRATEGIES, [self.strategy]), (CONSTRAINTS, self.constraints)):
            for part in parts:
                if known.get(type(part).__name__) is not type(part):
                    raise ValueError(
                        f"Only this library's strategies and constraints are saved. Received: {part}."
                    )
        description = {
            "format": FORMAT,
            **{name: type(tokenizer).__name__ for name, tokenizer in tokenizers.items()},
            **self.describe(),
            **notes,
        }
        with replaced(folder / DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    def describe(self):
        """Strategy, constraints and limits, as JSON holds them."""
        return {
            "strategy": type(self.strategy).__name__,
            "strategy_arguments": self.strategy.get_config(),
            "constraints": [[type(c).__name__, c.get_config()] for c in self.constraints],
            "max_source_length": self.max_source_length,
            "max_length": self.max_length,
        }

    @classmethod
    def load(cls, folder):
        """Loads what `save` or a training run wrote. No code from the folder is executed.

        Raises:
            ValueError: If the folder holds no translator, or one that names what this library does not have.
        """
        folder = Path(folder)
        try:
            description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} holds no translator: {error}") from None
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ValueError(f"{folder / DESCRIPTION} is not of format {FORMAT}.")

        def tokenizer(name):
            tokenizer_class = _named(TOKENIZERS, description[name], folder)
            return tokenizer_class.load(folder / f"{name}.model")

        try:
            strategy_class = _named(STRATEGIES, description["strategy"], folder)
            constraints = [
                _named(CONSTRAINTS, name, folder).from_config(config)
                for name, config in description.get("constraints", ())
            ]
            return cls(
                load_model(folder / MODEL, EncoderDecoder),
                tokenizer("source_tokenizer"),
                tokenizer("target_tokenizer") if "target_tokenizer" in description else None,
                strategy_class.from_config(description["strategy_arguments"]),
                description["max_source_length"],
                description["max_length"],
                constraints,
            )
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"{folder} holds no whole translator: {error!r}") from None

    def export(self, folder, version=1, xla=False, **options):
        """Writes a SavedModel for TensorFlow Serving, `folder/version/`; arguments as `serving.export.export`:
        `weights`, `batch_sizes`, `source_lengths`, `warmup`."""
        return export(self, folder, version, xla, **options)


def _named(known, name, folder):
    if name not in known:
        raise ValueError(f"{folder} names {name!r}; known are {sorted(known)}.")
    return known[name]
