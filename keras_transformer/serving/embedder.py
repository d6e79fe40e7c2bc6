"""Embedders: a text in, its vector out. And the similarity of two texts."""

from typing import ClassVar

import tensorflow as tf

from keras_transformer.checks import check, check_count
from keras_transformer.models.heads import ClassificationHead
from keras_transformer.serving.text_encoder import TextEncoder, TextEncoderSignatures


class EmbedderSignatures(TextEncoderSignatures):
    """The signatures of an embedder's export."""

    descriptions: ClassVar = {"serving_default": "The vector of each text."}

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        return {"serving_default": self.function_of_texts(self.embed)}

    def embed(self, text):
        """Computes the vectors of texts.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict: `vector`, float32 `(batch, width)`, of length 1 where `normalize` is True;
            `truncated`, bool, and `unknown`, int32, `(batch,)`.
        """
        vectors, notes = self._vectors(text)
        return {"vector": vectors, **notes}

    def _vectors(self, text):
        servable = self._servable
        text = tf.strings.join([servable.prompt, text]) if servable.prompt else text
        vectors, notes = self.encode(
            [text],
            lambda inputs: self._model.embed(inputs, servable.pooling),
            self._model.vector_width(servable.pooling),
        )
        vectors = vectors[:, : servable.dimensions]
        return tf.math.l2_normalize(vectors, axis=-1) if servable.normalize else vectors, notes


class SimilaritySignatures(EmbedderSignatures):
    """The signatures of a `Similarity`'s export."""

    descriptions: ClassVar = {"serving_default": "The similarity of the two texts of each pair."}

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        return {"serving_default": self.function_of_texts(self.compare)}

    def compare(self, text, second):
        """Compares the texts of each pair.

        Args:
            text: string `(batch,)`.
            second: string `(batch,)`.

        Returns:
            A dict of tensors `(batch,)`: `score`, float32, the cosine of the two vectors, in [-1, 1], or the output of
            the model's head; `truncated`, bool; `unknown`, int32, for both texts together.
        """
        if self._model.head is not None:
            scores, notes = self.encode([text, second], lambda inputs: self._model(inputs, training=False), 1)
            return {"score": scores[:, 0], **notes}
        (first, notes), (other, other_notes) = self._vectors(text), self._vectors(second)
        return {
            "score": tf.reduce_sum(first * other, axis=-1),
            "truncated": notes["truncated"] | other_notes["truncated"],
            "unknown": notes["unknown"] + other_notes["unknown"],
        }


class _PoolingEncoder(TextEncoder):
    """Base class of `Embedder` and `Similarity`, which have a pooling."""

    normalize = True
    prompt = ""
    dimensions = None

    def __init__(self, model, tokenizer, max_source_length, pooling, pairs):
        super().__init__(model, tokenizer, max_source_length, pairs)
        # It raises for a pooling that the model does not have.
        model.vector_width(pooling)
        self.pooling = pooling


class Embedder(_PoolingEncoder):
    """Makes vectors of texts. The tokenizer and the model are one graph.

    Vectors have length 1, so the dot product of two is the cosine of their angle, unless `normalize=False`. Each row
    is embedded independently.
    An empty text has a vector too, invalid UTF-8 is read as U+FFFD, and a long text is cut at `max_source_length`.

    Args:
        model: An `EncoderModel`. Its head is not used.
        tokenizer: From `keras_transformer.text`. Its `bos_id` is used as `[CLS]`, its `eos_id` as `[SEP]`.
        max_source_length: Largest number of tokens of a text, `[CLS]` and `[SEP]` included; the rest is cut off. None
            for 128, or for the number of the model's positions if that is smaller.
        pooling: How one vector is made of the tokens' vectors, one of the poolings of `EncoderModel.embed`.
        normalize: Whether vectors are divided by their lengths.
        prompt: Text that is put before each text, such as "query: ".
        dimensions: How many numbers of a vector are kept, for a model that was trained with `Matryoshka`; all when
            None.

    Attributes:
        width: How many numbers a vector has.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the tokenizer has more ids than the model or other
            special ids, or an argument is out of range.
    """

    DESCRIPTION = "embedder.json"
    signatures_class = EmbedderSignatures

    def __init__(
        self,
        model,
        tokenizer,
        max_source_length=None,
        pooling="mean",
        *,
        normalize=True,
        prompt="",
        dimensions=None,
    ):
        super().__init__(model, tokenizer, max_source_length, pooling, pairs=False)
        if dimensions is not None:
            check_count(1, model.vector_width(pooling), dimensions=dimensions)
        self.dimensions = dimensions
        self.width = dimensions or model.vector_width(pooling)
        self.normalize = normalize
        self.prompt = prompt

    def embed(self, texts, batch_size=32, jit_compile=None, verbose=False):
        """Computes the vectors of texts. Warns when some were cut, or hold text that the vocabulary cannot write.

        Args:
            texts: List of str, or of UTF-8 bytes.
            batch_size: Number of texts at once. Texts of similar length are embedded together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of float32 arrays `(width,)`, one for each text, in their order.

        Raises:
            ValueError: If `texts` is not a list of strings, or `batch_size` is not positive.
        """
        answers = self.answer_and_warn(texts, "texts", batch_size, verbose, jit_compile=jit_compile)
        return [answer["vector"] for answer in answers]


class Similarity(_PoolingEncoder):
    """Compares pairs of texts. The tokenizer and the model are one graph.

    A model without a head makes a vector of each text, and the answer is the cosine of the two vectors (Reimers and
    Gurevych, 2019, "Sentence-BERT", section 3). A model with a head of one class reads both texts in one row, and the
    answer is the output of the head, on the scale of its training (Devlin et al., 2019, "BERT", section 4.1).

    Each row is answered independently. An empty text has an answer too, invalid UTF-8 is read as U+FFFD, and a long
    text or pair is cut at `max_source_length`.

    Args:
        model: An `EncoderModel` without a head, or with `ClassificationHead(1)`.
        tokenizer: From `keras_transformer.text`. Its `bos_id` is used as `[CLS]`, its `eos_id` as `[SEP]`.
        max_source_length: Largest number of tokens of a row, `[CLS]` and `[SEP]` included; the rest is cut off. A row
            is one text for a model without a head, else a pair. None for 128, or for the number of the model's
            positions if that is smaller.
        pooling: How one vector is made of the tokens' vectors, one of the poolings of `EncoderModel.embed`. It is for
            a model without a head.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model has another head, the tokenizer has more ids
            than the model or other special ids, or an argument is out of range.
    """

    DESCRIPTION = "similarity.json"
    signatures_class = SimilaritySignatures

    def __init__(self, model, tokenizer, max_source_length=None, pooling="mean"):
        super().__init__(model, tokenizer, max_source_length, pooling, pairs=True)
        has_one_class = isinstance(model.head, ClassificationHead) and model.head.num_classes == 1
        rule = "`model` must have no head, or one of one class, such as `ClassificationHead(1)`."
        check(model.head is None or has_one_class, rule, head=model.head)

    def compare(self, texts, second, batch_size=32, jit_compile=None, verbose=False):
        """Compares pairs of texts. Warns when some of them were cut, or hold text that the vocabulary cannot write.

        Args:
            texts: List of str or of UTF-8 bytes, the first text of each pair.
            second: List of str or of UTF-8 bytes, the second text of each pair.
            batch_size: Number of pairs at once. Pairs of similar length are compared together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of float, one for each pair, in their order.

        Raises:
            ValueError: If `texts` or `second` is not a list of strings, they differ in length, or `batch_size` is not
                positive.
        """
        answers = self.answer_and_warn(texts, "texts", batch_size, verbose, second, jit_compile)
        return [float(answer["score"]) for answer in answers]
