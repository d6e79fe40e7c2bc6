"""The base classes of all servables that write text: what they check, and how their signatures choose tokens."""

import dataclasses

import tensorflow as tf

from keras_transformer.checks import check, check_count, check_positive, warn
from keras_transformer.decoding import Greedy, Strategy
from keras_transformer.decoding.hypotheses import one_of, tensors_of
from keras_transformer.serving.servable import Servable
from keras_transformer.serving.signatures import Signatures


class WriterSignatures(Signatures):
    """Base class of the signatures that write text."""

    def _texts(self, ids):
        """Returns the texts of ids `(batch, length)`, string `(batch,)`."""
        pad_id, tokenizer = self._model.pad_id, self._servable.target_tokenizer
        if tokenizer.pad_id == pad_id or pad_id == tokenizer.eos_id:
            return tokenizer.detokenize(ids)
        # The tokenizer would read the model's padding as text.
        return tokenizer.detokenize(tf.ragged.boolean_mask(ids, ids != pad_id))

    def _strategy(self):
        """Returns the strategy of the servable, which draws other samples in each call if it has no seed."""
        strategy = self._servable.strategy
        if getattr(strategy, "seed", 0) is not None:
            return strategy
        # Seeds of 0 make this operation draw its own seed in each process. `tf.random.uniform` would store the seed of
        # `keras.utils.set_random_seed` in an export, and all servers would draw the same samples.
        shape, largest = tf.constant([], tf.int32), tf.constant(tf.int32.max)
        seed = tf.raw_ops.RandomUniformInt(
            shape=shape, minval=tf.constant(0), maxval=largest, seed=0, seed2=0
        )
        return dataclasses.replace(strategy, seed=seed)

    def which_ended(self, tokens, lengths, limits):
        """Says which outputs are complete: they were not cut at their limit.

        Args:
            tokens: int32 `(batch, n_best, target_len)`.
            lengths: The number of tokens of each output, int32 `(batch, n_best)`.
            limits: The largest number of tokens of each row, int32 `(batch,)`, or an int for all.

        Returns:
            bool `(batch, n_best)`.
        """
        model, limits = self._model, tf.broadcast_to(limits, tf.shape(lengths)[:1])[:, None]
        last = tf.gather(tokens, tf.maximum(lengths - 1, 0), batch_dims=2)
        # A constraint may end an output below its limit.
        return one_of(last, (model.eos_id, *model.stop_ids)) | (lengths < limits)


class Writer(Servable):
    """Base class of the servables that write text.

    A subclass whose model reads something else than ids defines `reads`, the name of it. A subclass that takes the
    special ids out of its outputs itself defines `shared_ids`.

    Args:
        model: A model with `search`.
        tokenizer: The tokenizer of the outputs, from `keras_transformer.text`.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `DiverseBeam()` or `Sample()`.
        max_length: Largest number of tokens of an output, eos included. None for the default of the servable.
        constraints: List of constraints that every output must satisfy, such as `[NoRepeatNgram(3)]`.
        tokenizer_name: The name of the argument that is the tokenizer, for errors.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model reads something else, the tokenizer has more
            ids than the model or other special ids, `strategy` is not a strategy, or the constraints contradict one
            another.
    """

    reads = "ids"
    # The special ids of the model that a tokenizer must have too, or lack.
    shared_ids = ("pad_id", "eos_id")

    def __init__(
        self,
        model,
        tokenizer,
        strategy=Greedy(),  # noqa: B008
        max_length=None,
        constraints=(),
        *,
        tokenizer_name="tokenizer",
    ):
        super().__init__(model)
        check(model.reads_ids == (self.reads == "ids"), f"`model` must read {self.reads}.", model=model)
        self.check_tokenizer(tokenizer, "target_vocab_size", tokenizer_name)
        rule = "`strategy` must be a strategy such as `Greedy()`."
        check(isinstance(strategy, Strategy), rule, strategy=strategy)
        self.target_tokenizer = tokenizer
        self.strategy = strategy
        self.max_length = max_length
        self.constraints = model.limits(max_length, constraints).constraints
        rule = "`strategy` and `constraints` must hold one value for all rows: the rows of each request are others."
        fixed = not any(tensors_of((strategy, *self.constraints)))
        check(fixed, rule, strategy=strategy, constraints=constraints)

    def check_tokenizer(self, tokenizer, size_name, name):
        """Raises `ValueError` if a tokenizer has more ids than the model, or other special ids.

        Args:
            tokenizer: The tokenizer.
            size_name: The attribute of the model that is its number of ids.
            name: The name of the argument that is the tokenizer.
        """
        size = getattr(self.model, size_name)
        rule = f"`{name}` must not have more ids than the model."
        check(tokenizer.vocab_size <= size, rule, ids=tokenizer.vocab_size, **{size_name: size})
        for special in self.shared_ids:
            received, expected = getattr(tokenizer, special), getattr(self.model, special)
            rule = f"`{name}` must have the model's {special}={expected}, or None."
            check(received in (None, expected), rule, **{special: received})


class FileWriter(Writer):
    """Base class of the servables that write about files: recordings, pictures.

    Args:
        model: A model with `search` whose source does not read ids.
        tokenizer: As for `Writer`.
        strategy: As for `Writer`.
        max_length: As for `Writer`. None for the number of the model's positions.
        constraints: As for `Writer`.

    Raises:
        ValueError: As for `Writer`; or if `max_length` is out of range.
    """

    max_source_length = None

    def __init__(self, model, *arguments, **options):
        super().__init__(model, *arguments, **options)
        longest = model.max_positions
        rule = "`max_length` must be given for a model that has no longest output."
        check(longest or self.max_length, rule, max_length=None)
        check_count(1, longest or self.max_length, max_length=self.longest_output)

    @property
    def longest_output(self):
        """The largest number of tokens of an output."""
        return self.model.max_positions if self.max_length is None else self.max_length

    def answers_of(self, files, batch_size, name, *columns, signature="serving_default"):
        """Yields the answers about files, a dict of arrays for each batch.

        Args:
            files: List of bytes.
            batch_size: Number of files at once.
            name: The argument that holds the files, for errors.
            *columns: Further inputs, a value for all files each.
            signature: Name of the signature.

        Raises:
            ValueError: If `batch_size` is not positive. While reading: if an answer has an error.
        """
        check_positive(batch_size=batch_size)
        for start in range(0, len(files), batch_size):
            rows = files[start : start + batch_size]
            answers = self.answer(rows, *([each] * len(rows) for each in columns), signature=signature)
            for i, error in enumerate(answers["error"], start=start):
                check(not error, f"Row {i} of `{name}`: {error.decode()}", first_bytes=files[i][:12])
            yield answers


def count_empty(sources, translations):
    """Counts the empty translations, a list of str, of sources that are not blank, a list of UTF-8 bytes."""
    unwritten = [source for source, text in zip(sources, translations, strict=True) if not text.strip()]
    return sum(bool(source.decode("utf-8", "replace").strip()) for source in unwritten)


def warn_of_empty(empty, count):
    """Warns that some of `count` translations are empty, if there are any."""
    if empty > 0:
        warn(
            f"{empty:,} of {count:,} translations are empty, and their sources are not: the model wrote no text."
        )


def warn_of_unended(unended, count, kind, limit):
    """Warns that some outputs were cut at their largest length, if there are any.

    Args:
        unended: Number of outputs that were cut, an int.
        count: Number of outputs, an int.
        kind: What the outputs are, a str.
        limit: Their largest number of tokens, an int, or a str that says it.
    """
    if unended:
        warn(
            f"{unended:,} of {count:,} {kind} were cut at their largest number of tokens, `max_length`={limit}: "
            "they lack their end, or repeat themselves."
        )
