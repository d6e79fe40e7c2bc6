"""Embedders: a text in, its vector out; and how similar two texts are."""

import tensorflow as tf

from keras_transformer.models.encoder_model import POOLINGS
from keras_transformer.models.heads import ClassificationHead
from keras_transformer.serving.encoding import EncodedTexts, TextEncoder

VECTORS = {"serving_default": "The vector of each text."}
SIMILARITIES = {"serving_default": "How similar the two texts of each pair are."}


class Vectors(EncodedTexts):
    """The functions of an embedder's graph."""

    about = VECTORS

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        return {"serving_default": self.function_of_texts(self.embed)}

    def embed(self, text):
        """Texts `(batch,)` to vectors, float32 `(batch, d_model)`, and which texts were cut, bool `(batch,)`."""
        vectors, truncated = self._vectors(text)
        return {"vector": vectors, "truncated": truncated}

    def _vectors(self, text):
        """Vectors of length 1, where they are not zero."""
        pooling = self._servable.pooling
        vectors, truncated = self.encoded(
            [text], lambda inputs: self._model.embed(inputs, pooling), self._model.d_model
        )
        return tf.math.l2_normalize(vectors, axis=-1), truncated


class Similarities(Vectors):
    """The functions of a graph that compares texts."""

    about = SIMILARITIES

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        return {"serving_default": self.function_of_texts(self.compare)}

    def compare(self, text, second):
        """Texts `(batch,)` and as many others to the cosine of their vectors, in [-1, 1]; of a model with a head, which
        reads both at once, what that says; and which were cut."""
        if self._model.head is not None:
            scores, truncated = self.encoded(
                [text, second], lambda inputs: self._model(inputs, training=False), 1
            )
            return {"score": scores[:, 0], "truncated": truncated}
        (vectors, truncated), (others, cut) = self._vectors(text), self._vectors(second)
        return {"score": tf.reduce_sum(vectors * others, axis=-1), "truncated": truncated | cut}


class _Pooling(TextEncoder):
    """What makes vectors of texts, and how."""

    def __init__(self, model, tokenizer, max_source_length=None, pooling="mean", pairs=False):
        super().__init__(model, tokenizer, max_source_length, pairs)
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {POOLINGS}. Received: pooling={pooling!r}.")
        self.pooling = pooling

    def describe(self):
        return {"max_source_length": self.max_source_length, "pooling": self.pooling}

    @classmethod
    def arguments_of(cls, description, folder):
        return {name: description[name] for name in ("max_source_length", "pooling")}


class Embedder(_Pooling):
    """Makes a vector of a text: tokenizer and model in one graph. Rows stand alone, as in `Classifier`.

    Vectors have length 1: the product of two is the cosine of their angle.

    Args:
        model: An `EncoderModel`; a head is not asked.
        tokenizer: From `keras_transformer.text`; its `bos_id` stands for `[CLS]`, its `eos_id` for `[SEP]`.
        max_source_length: Longest text in tokens, `[CLS]` and `[SEP]` included; the rest is cut off. None for
            128, or as many positions as the model has.
        pooling: As in `EncoderModel.embed`.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, the tokenizer has more ids than the model, or an argument is
            out of range.
    """

    DESCRIPTION = "embedder.json"
    signatures_class = Vectors

    def __init__(self, model, tokenizer, max_source_length=None, pooling="mean"):
        super().__init__(model, tokenizer, max_source_length, pooling)

    def embed(self, texts, batch_size=32, jit_compile=None, verbose=False):
        """The vectors of texts.

        Args:
            texts: List of str (or of UTF-8 bytes).
            batch_size: Number of texts at once; they are grouped by length and returned in order.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of float32 arrays `(d_model,)`.

        Raises:
            ValueError: If `texts` is a single string, or `batch_size` is not positive.
        """
        answers = self.in_batches(texts, "texts", batch_size, verbose, jit_compile=jit_compile)
        return [answer["vector"] for answer in answers]


class Similarity(_Pooling):
    """Tells how similar two texts are: tokenizer and model in one graph. Rows stand alone, as in `Classifier`.

    A model without a head makes a vector of each text; the answer is the cosine of the two (Reimers and Gurevych, 2019,
    "Sentence-BERT", section 3). One with a head of one class reads both as a pair; the answer is what the head says, on
    the scale of its training (Devlin et al., 2019, section 4.1).

    Args:
        model: An `EncoderModel` without a head, or with `ClassificationHead(1)`.
        tokenizer: As in `Embedder`, like `max_source_length`: of a text, or of a pair.
        max_source_length: Longest text or pair in tokens.
        pooling: As in `EncoderModel.embed`.

    Raises:
        ValueError: As `Embedder`; if the model has another head.
    """

    DESCRIPTION = "similarity.json"
    signatures_class = Similarities

    def __init__(self, model, tokenizer, max_source_length=None, pooling="mean"):
        super().__init__(model, tokenizer, max_source_length, pooling, pairs=True)
        one = isinstance(model.head, ClassificationHead) and model.head.num_classes == 1
        if model.head is not None and not one:
            raise ValueError(
                "`model` must have no head, or one of one class, such as `ClassificationHead(1)`. "
                f"Received: head={model.head!r}."
            )

    @property
    def together(self):
        return self.model.head is not None

    def compare(self, texts, second, batch_size=32, jit_compile=None, verbose=False):
        """How similar texts are.

        Args:
            texts: List of str (or of UTF-8 bytes).
            second: Likewise, what each is compared with.
            batch_size: Number of pairs at once; they are grouped by length and returned in order.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of float.

        Raises:
            ValueError: If an argument is no list of strings, or `batch_size` is not positive.
        """
        answers = self.in_batches(texts, "texts", batch_size, verbose, second, jit_compile=jit_compile)
        return [float(answer["score"]) for answer in answers]
