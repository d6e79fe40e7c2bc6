"""Classifiers: a text or a pair of texts in, the label of its class out."""

import tensorflow as tf

from keras_transformer.models.heads import ClassificationHead
from keras_transformer.serving.encoding import EncodedTexts, TextEncoder

SIGNATURES = {
    "serving_default": "The likeliest class of each text, or of each pair of texts.",
    "probabilities": "How likely each class is.",
}


class Classes(EncodedTexts):
    """The functions of a classifier's graph."""

    about = SIGNATURES

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        return {
            "serving_default": self.function_of_texts(self.classify),
            "probabilities": self.function_of_texts(self.probabilities),
        }

    def classify(self, *texts):
        """Texts `(batch,)` to the label of each, its probability and whether the text was cut, all `(batch,)`."""
        found, truncated = self._probabilities(texts)
        return {**likeliest(found, self._servable.labels), "truncated": truncated}

    def probabilities(self, *texts):
        """Texts `(batch,)` to all labels and their probabilities `(batch, classes)`, and which texts were cut."""
        found, truncated = self._probabilities(texts)
        return {**all_of(found, self._servable.labels), "truncated": truncated}

    def _probabilities(self, texts):
        logits, truncated = self.encoded(
            texts, lambda inputs: self._model(inputs, training=False), len(self._servable.labels)
        )
        return tf.nn.softmax(logits), truncated


class Classifier(TextEncoder):
    """Tells the class of a text, or of a pair of texts: tokenizer and model in one graph.

    Rows stand alone: an empty text has a class too, invalid UTF-8 is read as U+FFFD, a long text or pair is cut at
    `max_source_length`, and no row changes another's answer.

    Args:
        model: An `EncoderModel` with a `ClassificationHead`, which has the labels; without labels there they are the
            classes' numbers.
        tokenizer: From `keras_transformer.text`; its `bos_id` stands for `[CLS]`, its `eos_id` for `[SEP]`.
        max_source_length: Longest text or pair in tokens, `[CLS]` and `[SEP]` included; the rest is cut off. None for
            128, or as many positions as the model has.
        pairs: Whether it reads pairs of texts.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, the model does not classify texts, the tokenizer has more ids
            than the model, or the limit is out of range.
    """

    DESCRIPTION = "classifier.json"
    signatures_class = Classes

    def __init__(self, model, tokenizer, max_source_length=None, pairs=False):
        super().__init__(model, tokenizer, max_source_length, pairs)
        self.labels = labels_of(model)

    def classify(self, texts, second=None, batch_size=32, jit_compile=None, verbose=False):
        """The labels of texts.

        Args:
            texts: List of str (or of UTF-8 bytes).
            second: Likewise, the second text of each pair; where the classifier reads pairs.
            batch_size: Number of texts at once; they are grouped by length and returned in order.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of pairs, one for each text: its label, a str, and the label's probability.

        Raises:
            ValueError: If an argument is no list of strings, `second` is missing or too much, or `batch_size` is not
                positive.
        """
        answers = self.in_batches(texts, "texts", batch_size, verbose, second, jit_compile=jit_compile)
        return [(answer["label"].decode(), float(answer["probability"])) for answer in answers]


def labels_of(model):
    """The labels of a model's classes, a list of str.

    Raises:
        ValueError: If its head has no classes.
    """
    head = model.head
    if not isinstance(head, ClassificationHead) or head.num_classes < 2:
        raise ValueError(
            "`model` must have a head for two or more classes, such as `ClassificationHead(2)`. "
            f"Received: head={head!r}."
        )
    return head.labels or [str(i) for i in range(head.num_classes)]


def likeliest(probabilities, labels):
    """The best class of each row of `(batch, classes)`: its label and its probability, `(batch,)`."""
    best = tf.argmax(probabilities, axis=-1)
    return {"label": tf.gather(labels, best), "probability": tf.reduce_max(probabilities, axis=-1)}


def all_of(probabilities, labels):
    """All labels beside the probabilities `(batch, classes)`."""
    return {
        "labels": tf.tile(tf.constant(labels)[None], (tf.shape(probabilities)[0], 1)),
        "probabilities": probabilities,
    }
