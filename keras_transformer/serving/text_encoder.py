"""The base classes of the servables that read texts with an `EncoderModel`: classifiers and embedders."""

import functools

import tensorflow as tf

from keras_transformer.checks import check, check_count
from keras_transformer.decoding.loop import MOST_TOKENS
from keras_transformer.models import EncoderModel
from keras_transformer.serving.servable import Servable
from keras_transformer.serving.signatures import Output, Signatures, function_of, readable
from keras_transformer.serving.warmup import text_of_length
from keras_transformer.text.pairs import pack_ids

INPUTS = ("text", "second")
DEFAULT_LENGTH = 128


class TextEncoderSignatures(Signatures):
    """Base class of the signatures that read texts with an `EncoderModel`."""

    def function_of_texts(self, function):
        """Makes a `tf.function` of texts, string `(batch,)`: of two if the servable reads pairs, else of one."""
        return function_of(
            function, **{name: tf.TensorSpec((None,), tf.string, name=name) for name in self._servable.inputs}
        )

    def encode(self, texts, function, features):
        """Tokenizes texts and applies the model to them.

        Args:
            texts: One or two tensors, string `(batch,)`. Two are read as pairs, each pair in one row.
            function: Takes the inputs of an `EncoderModel`, a dict of `token_ids` and `segment_ids`. Returns a tensor
                `(rows, features)`.
            features: Number of features, an int.

        Returns:
            The features, float32 `(batch, features)`; and a dict of tensors `(batch,)`: `truncated`, bool, which rows
            were cut; `unknown`, int32, the number of tokens that replace text which the vocabulary cannot write.
        """
        packed, notes = self.pack(texts)
        return self.compute(packed, function, (features,)), notes

    def pack(self, texts):
        """Tokenizes texts and packs their ids.

        Args:
            texts: As in `encode`.

        Returns:
            The ids, int32 `(batch, length)`, and the dict that `encode` returns.
        """
        servable, model = self._servable, self._model
        limit = servable.max_source_length
        texts, truncated = zip(*(readable(text, limit) for text in texts), strict=True)
        ids = [servable.tokenizer.tokenize(text) for text in texts]
        separators = model.num_separators
        ends = 2 if model.starts_with_cls else 1
        # [CLS] begins the row, and [SEP] ends each text.
        room = limit - ends - separators * (len(ids) - 1)
        truncated = functools.reduce(tf.logical_or, truncated) | (
            sum(each.row_lengths() for each in ids) > room
        )
        packed = pack_ids(
            *ids,
            max_length=limit,
            pad_id=model.pad_id,
            cls_id=servable.tokenizer.bos_id if model.starts_with_cls else None,
            sep_id=servable.tokenizer.eos_id,
            separators=separators,
        )["token_ids"]
        return packed, {"truncated": truncated, "unknown": self._unknown(packed, servable.tokenizer)}

    def compute(self, packed, function, shape):
        """Applies the model to the ids that `pack` returns, a few rows at a time.

        Args:
            packed: int32 `(batch, length)`.
            function: As in `encode`; it returns a tensor `(rows, *shape)`.
            shape: The size of each axis of the result but the batch, ints or int32 scalars.

        Returns:
            float32 `(batch, *shape)`.
        """
        sep_id, separators = self._servable.tokenizer.eos_id, self._model.num_separators

        def step(token_ids):
            # Where two `[SEP]` stand between the texts of a pair, as in RoBERTa, there is one segment.
            segments = _segments(token_ids, sep_id) if separators == 1 else tf.zeros_like(token_ids)
            return [function({"token_ids": token_ids, "segment_ids": segments})]

        with self._computing():
            (outputs,) = self._in_chunks(
                self._compiled_step(step), [packed], [Output(shape, 0.0)], self._batch_sizes[-1]
            )
        return outputs


class TextEncoder(Servable):
    """Base class of `Classifier`, `Tagger`, `Embedder` and `Similarity`.

    Each row is answered independently. An empty text has an answer too, invalid UTF-8 is read as U+FFFD, and a long
    text or pair is cut at `max_source_length`.

    Args:
        model: An `EncoderModel`.
        tokenizer: From `keras_transformer.text`. Its `bos_id` is used as `[CLS]`, its `eos_id` as `[SEP]`.
        max_source_length: Largest number of tokens of a text or pair, `[CLS]` and `[SEP]` included; the rest is cut
            off. None for 128, or for the number of the model's positions if that is smaller.
        pairs: Whether it reads pairs of texts.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the tokenizer has more ids than the model or other
            special ids, or the limit is out of range.
    """

    TOKENIZERS = ("tokenizer",)
    model_classes = (EncoderModel,)

    def __init__(self, model, tokenizer, max_source_length=None, pairs=False):
        super().__init__(model)
        if tokenizer.vocab_size > model.vocab_size:
            raise ValueError(
                "`tokenizer` must not have more ids than the model. "
                f"Received: {tokenizer.vocab_size} ids, vocab_size={model.vocab_size}."
            )
        bos_id, eos_id = tokenizer.bos_id, tokenizer.eos_id
        rule = "`tokenizer` must have a `bos_id` for `[CLS]` and an `eos_id` for `[SEP]`."
        fits = eos_id is not None and (bos_id is not None or not model.starts_with_cls)
        check(fits, rule, bos_id=bos_id, eos_id=eos_id)
        for name, received, expected in (
            ("pad_id", tokenizer.pad_id, model.pad_id),
            ("cls_id", tokenizer.bos_id, model.cls_id),
            ("sep_id", tokenizer.eos_id, model.sep_id),
        ):
            if expected is not None and received not in (None, expected):
                raise ValueError(
                    f"`tokenizer` must have the model's `{name}`. Received: {received}, the model's is {expected}."
                )
        longest = model.embeddings.max_length or MOST_TOKENS
        max_source_length = min(DEFAULT_LENGTH, longest) if max_source_length is None else max_source_length
        check_count(3 if pairs else 2, longest, max_source_length=max_source_length)
        self.tokenizer = tokenizer
        self.max_source_length = max_source_length
        self.pairs = pairs

    @property
    def inputs(self):
        """The names of the inputs of every signature, a tuple of str."""
        return INPUTS if self.pairs else INPUTS[:1]

    def token_lengths(self, *sides):
        return sum(self.tokenizer.tokenize(side).row_lengths().numpy() for side in sides)

    def answer(self, *sides, **options):
        if len(sides) != len(self.inputs):
            raise ValueError(
                "`second` must be given if the servable reads pairs, and only then. "
                f"Received: {len(sides)} texts in each row for pairs={self.pairs}."
            )
        return super().answer(*sides, **options)

    def warmup_requests(self, shapes):
        for signature in self.signatures_class.descriptions:
            for batch_size, length in shapes if signature == "serving_default" else shapes[:1]:
                text = text_of_length(self.tokenizer, max(2, (length - 1) // len(self.inputs)))
                yield signature, {name: [text] * batch_size for name in self.inputs}


def _segments(token_ids, sep_id):
    """Returns the segment of each token, int32 `(batch, length)`: 0 up to the first `[SEP]`, 1 after it.

    No tokenizer makes a `[SEP]` of a text, so the ids alone say where the second text begins.
    """
    ends = tf.cast(token_ids == sep_id, tf.int32)
    return tf.minimum(tf.cumsum(ends, axis=1, exclusive=True), 1)
