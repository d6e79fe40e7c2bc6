"""Classifiers: a text or a pair of texts in, the label of its class out."""

from typing import ClassVar

import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.models.heads import ClassificationHead
from keras_transformer.serving.text_encoder import TextEncoder, TextEncoderSignatures


class ClassifierSignatures(TextEncoderSignatures):
    """The signatures of a classifier's export."""

    descriptions: ClassVar = {
        "serving_default": "The likeliest class of each text, or of each pair of texts.",
        "probabilities": "The probability of each class.",
    }

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        return {
            "serving_default": self.function_of_texts(self.classify),
            "probabilities": self.function_of_texts(self.probabilities),
        }

    def classify(self, *texts):
        """Finds the likeliest class.

        Args:
            *texts: One or two tensors, string `(batch,)`.

        Returns:
            A dict of tensors `(batch,)`: `label`, string; `probability`, float32; `truncated`, bool; `unknown`, int32.
        """
        probabilities, notes = self._probabilities(texts)
        return {**likeliest(probabilities, self._servable.labels), **notes}

    def probabilities(self, *texts):
        """Computes the probability of each class.

        Args:
            *texts: One or two tensors, string `(batch,)`.

        Returns:
            A dict: `labels`, string, and `probabilities`, float32, `(batch, classes)`; `truncated`, bool, and
            `unknown`, int32, `(batch,)`.
        """
        probabilities, notes = self._probabilities(texts)
        return {**with_labels(probabilities, self._servable.labels), **notes}

    def _probabilities(self, texts):
        logits, notes = self.encode(
            texts, lambda inputs: self._model(inputs, training=False), len(self._servable.labels)
        )
        several = self._model.head.multi_label
        return tf.sigmoid(logits) if several else tf.nn.softmax(logits), notes


class Classifier(TextEncoder):
    """Classifies texts, or pairs of texts. The tokenizer and the model are one graph.

    Each row is classified independently. The probabilities of a row are a softmax over its classes. With a head whose
    `multi_label` is True each class has its own, the sigmoid of its logit. An empty text has a class too, invalid UTF-8
    is read as U+FFFD, and a long text or pair is cut at `max_source_length`.

    Args:
        model: An `EncoderModel` with a `ClassificationHead` of at least two classes. If the head has no labels, the
            labels are "0", "1" and so on.
        tokenizer: From `keras_transformer.text`. Its `bos_id` is used as `[CLS]`, its `eos_id` as `[SEP]`.
        max_source_length: Largest number of tokens of a text or pair, `[CLS]` and `[SEP]` included; the rest is cut
            off. None for 128, or for the number of the model's positions if that is smaller.
        pairs: Whether it reads pairs of texts.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model does not classify texts, the tokenizer has more
            ids than the model or other special ids, or the limit is out of range.
    """

    DESCRIPTION = "classifier.json"
    signatures_class = ClassifierSignatures

    def __init__(self, model, tokenizer, max_source_length=None, pairs=False):
        super().__init__(model, tokenizer, max_source_length, pairs)
        head = model.head
        rule = "`model` must have a head for two or more classes, such as `ClassificationHead(2)`."
        check(isinstance(head, ClassificationHead) and head.num_classes >= 2, rule, head=head)
        self.labels = head.labels or [str(i) for i in range(head.num_classes)]

    def classify(self, texts, second=None, batch_size=32, jit_compile=None, verbose=False):
        """Classifies texts. Warns when some of them were cut, or hold text that the vocabulary cannot write.

        Args:
            texts: List of str, or of UTF-8 bytes.
            second: List of str or of UTF-8 bytes, the second text of each pair; None if the classifier reads no pairs.
            batch_size: Number of texts at once. Texts of similar length are classified together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of pairs, one for each text, in their order: the label, a str, and its probability, a float.

        Raises:
            ValueError: If `texts` or `second` is not a list of strings, they differ in length, `second` is missing for
                pairs or given without them, or `batch_size` is not positive.
        """
        answers = self.answer_and_warn(texts, "texts", batch_size, verbose, second, jit_compile)
        return [(answer["label"].decode(), float(answer["probability"])) for answer in answers]


def likeliest(probabilities, labels):
    """Finds the likeliest class of each row.

    Args:
        probabilities: float32 `(batch, classes)`.
        labels: List of str, one for each class.

    Returns:
        A dict of tensors `(batch,)`: `label`, string; `probability`, float32.
    """
    best = tf.argmax(probabilities, axis=-1)
    return {"label": tf.gather(labels, best), "probability": tf.reduce_max(probabilities, axis=-1)}


def with_labels(probabilities, labels):
    """Repeats the labels for each row of the probabilities.

    Args:
        probabilities: float32 `(batch, classes)`.
        labels: List of str, one for each class.

    Returns:
        A dict of tensors `(batch, classes)`: `labels`, string; `probabilities`, float32.
    """
    return {
        "labels": tf.tile(tf.constant(labels)[None], (tf.shape(probabilities)[0], 1)),
        "probabilities": probabilities,
    }
