"""What all servables share that read texts with an `EncoderModel`."""

import functools
import math

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check_count
from keras_transformer.models import EncoderModel
from keras_transformer.serving.rows import CHARACTERS_A_TOKEN, Rows, function_of, readable
from keras_transformer.serving.servable import Servable
from keras_transformer.serving.warmup import text_of
from keras_transformer.text.pairs import pack_ids

TEXTS = ("text", "second")
LENGTH = 128  # in tokens, where nobody says how long texts are


class EncodedTexts(Rows):
    """The base of the functions of their graphs.

    Args: as `Rows`, of a `TextEncoder`.
    """

    def function_of_texts(self, function):
        """A `tf.function` of texts, of two where the servable reads pairs."""
        names = TEXTS if self._servable.pairs else TEXTS[:1]
        return function_of(function, **{name: tf.TensorSpec((None,), tf.string, name=name) for name in names})

    def encoded(self, texts, function, features):
        """What a function makes of texts, or of pairs as one.

        Args:
            texts: One or two tensors of strings `(batch,)`.
            function: Of what an `EncoderModel` is called with to a tensor `(batch, features)`.
            features: An int.

        Returns:
            `(batch, features)`, and which texts were cut, bool `(batch,)`.
        """
        servable, model = self._servable, self._model
        limit = servable.max_source_length
        texts, cut = zip(*(readable(text, limit) for text in texts), strict=True)
        ids = [servable.tokenizer.tokenize(text) for text in texts]
        lengths = sum(each.row_lengths() for each in ids)
        truncated = functools.reduce(tf.logical_or, cut) | (lengths > servable.room(len(ids)))
        marks = {
            "pad_id": model.pad_id,
            "cls_id": servable.tokenizer.bos_id,
            "sep_id": servable.tokenizer.eos_id,
        }
        packed = pack_ids(*ids, max_length=limit, **marks)["token_ids"]

        def step(token_ids):
            return [
                function({"token_ids": token_ids, "segment_ids": segments_of(token_ids, marks["sep_id"])})
            ]

        with self._computing():
            (found,) = self._in_chunks(
                self._shaped(step), [packed], [((features,), 0.0)], self._batch_sizes[-1]
            )
        return found, truncated


class TextEncoder(Servable):
    """The base of `Classifier`, `Embedder` and `Similarity`.

    Rows stand alone: an empty text has an answer too, invalid UTF-8 is read as U+FFFD, a long text or pair is cut at
    `max_source_length`, and no row changes another's answer.

    Args:
        model: An `EncoderModel`.
        tokenizer: From `keras_transformer.text`; its `bos_id` stands for `[CLS]`, its `eos_id` for `[SEP]`.
        max_source_length: Longest text or pair in tokens, `[CLS]` and `[SEP]` included; the rest is cut off. None for
            128, or as many positions as the model has.
        pairs: Whether it reads pairs of texts.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, the tokenizer has more ids than the model, or the limit is out
            of range.
    """

    TOKENIZERS = ("tokenizer",)
    model_class = EncoderModel

    def __init__(self, model, tokenizer, max_source_length=None, pairs=False):
        super().__init__(model)
        if tokenizer.vocab_size > model.vocab_size:
            raise ValueError(
                "`tokenizer` has more ids than the model embeds. "
                f"Received: {tokenizer.vocab_size} ids, vocab_size={model.vocab_size}."
            )
        if tokenizer.bos_id is None or tokenizer.eos_id is None:
            raise ValueError(
                "`tokenizer` must have ids that stand for `[CLS]` and `[SEP]`. "
                f"Received: bos_id={tokenizer.bos_id}, eos_id={tokenizer.eos_id}."
            )
        for name, own, expected in (
            ("pad_id", tokenizer.pad_id, model.pad_id),
            ("cls_id", tokenizer.bos_id, model.cls_id),
            ("sep_id", tokenizer.eos_id, model.sep_id),
        ):
            if expected is not None and own not in (None, expected):
                raise ValueError(
                    f"`tokenizer` must have the model's `{name}`. Received: {own}, the model's is {expected}."
                )
        longest = getattr(model.positions, "max_length", math.inf)
        max_source_length = min(LENGTH, longest) if max_source_length is None else max_source_length
        check_count(3 if pairs else 2, longest, max_source_length=max_source_length)
        self.tokenizer = tokenizer
        self.max_source_length = max_source_length
        self.pairs = pairs

    @property
    def together(self):
        """Whether both texts of a pair stand in one row."""
        return self.pairs

    def room(self, count):
        """How many tokens rows of so many texts may have, `[CLS]` and `[SEP]` left out."""
        return self.max_source_length - 1 - count

    def measured(self, *sides):
        characters = self.max_source_length * CHARACTERS_A_TOKEN
        lengths = [self.tokenizer.tokenize(side).row_lengths().numpy() for side in sides]
        rows = [sum(lengths)] if self.together else lengths
        cut = functools.reduce(np.logical_or, [row > self.room(len(sides) // len(rows)) for row in rows])
        long = [
            any(len(text) > characters and len(text.decode(errors="replace")) > characters for text in row)
            for row in zip(*sides, strict=True)
        ]
        return sum(lengths), int((cut | long).sum())

    def limited(self, max_source_length):
        """The same with another limit."""
        return type(self)(
            self.model, self.tokenizer, **{**self.describe(), "max_source_length": max_source_length}
        )

    def answer(self, *sides, jit_compile=None):
        if len(sides) != 1 + self.pairs:
            raise ValueError(f"`second` is for pairs, and they need it. Received: pairs={self.pairs}.")
        return super().answer(*sides, jit_compile=jit_compile)

    def requests(self, shapes):
        for batch_size, length in shapes:
            yield "serving_default", self._texts(batch_size, length)
        for signature in [name for name in self.signatures_class.about if name != "serving_default"]:
            yield signature, self._texts(*shapes[0])

    def _texts(self, batch_size, length):
        """Texts, or pairs, of a length in tokens."""
        names = TEXTS if self.pairs else TEXTS[:1]
        text = text_of(self.tokenizer, max(2, (length - 1) // len(names)))
        return {name: [text] * batch_size for name in names}

    def describe(self):
        return {"max_source_length": self.max_source_length, "pairs": self.pairs}

    @classmethod
    def arguments_of(cls, description, folder):
        return {name: description[name] for name in ("max_source_length", "pairs")}


def segments_of(token_ids, sep_id):
    """The segment of each token, int32: 0 up to the first `[SEP]`, 1 after it."""
    ends = tf.cast(token_ids == sep_id, tf.int32)
    return tf.minimum(tf.cumsum(ends, axis=1, exclusive=True), 1)
