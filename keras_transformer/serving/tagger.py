"""Taggers: a text in, the label of each of its tokens out, such as the names of people and places."""

from typing import ClassVar

import tensorflow as tf

from keras_transformer.masks import lengths_of
from keras_transformer.models.heads import SpanHead, TaggingHead
from keras_transformer.serving.servable import with_unknown
from keras_transformer.serving.text_encoder import TextEncoder, TextEncoderSignatures


class TaggerSignatures(TextEncoderSignatures):
    """The signatures of a tagger's export."""

    descriptions: ClassVar = {"serving_default": "The likeliest label of each token of each text."}

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        return {"serving_default": self.function_of_texts(self.tag)}

    def tag(self, text):
        """Finds the likeliest label of each token.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict: `tokens` and `labels`, string, and `probabilities`, float32, `(batch, tokens)`, with "" and 0 after
            the last token of a row; `truncated`, bool, and `unknown`, int32, `(batch,)`.
        """
        servable = self._servable
        packed, notes = self.pack([text])
        shape = (self._padded_length(packed), len(servable.labels))
        logits = self.compute(packed, lambda inputs: self._model(inputs, training=False), shape)
        starts = 1 if self._model.starts_with_cls else 0
        ids, logits = packed[:, starts:-1], logits[:, starts : tf.shape(packed)[1] - 1]
        lengths = lengths_of(packed, self._model.pad_id) - starts - 1  # without [CLS] and [SEP]
        real = tf.sequence_mask(lengths, tf.shape(ids)[1])
        probabilities = tf.nn.softmax(logits)
        pieces = tf.constant(servable.tokenizer.pieces(range(servable.tokenizer.vocab_size)))
        best = tf.argmax(probabilities, axis=-1)
        return {
            "tokens": tf.where(real, tf.gather(pieces, ids), ""),
            "labels": tf.where(real, tf.gather(servable.labels, best), ""),
            "probabilities": tf.where(real, tf.reduce_max(probabilities, axis=-1), 0.0),
            **notes,
        }


class Tagger(TextEncoder):
    """Labels the tokens of texts. The tokenizer and the model are one graph.

    Each row is labelled independently. The tokens are the pieces of the tokenizer: `##` or a missing `▁` tells that a
    piece continues a word. An empty text has no tokens, invalid UTF-8 is read as U+FFFD, and a long text is cut at
    `max_source_length`.

    Args:
        model: An `EncoderModel` with a `TaggingHead`. If the head has no labels, the labels are "0", "1" and so on.
        tokenizer: From `keras_transformer.text`. Its `bos_id` is used as `[CLS]`, its `eos_id` as `[SEP]`.
        max_source_length: Largest number of tokens of a text, `[CLS]` and `[SEP]` included; the rest is cut off. None
            for 128, or for the number of the model's positions if that is smaller.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model does not label tokens, the tokenizer has more
            ids than the model or other special ids, or the limit is out of range.
    """

    DESCRIPTION = "tagger.json"
    signatures_class = TaggerSignatures

    def __init__(self, model, tokenizer, max_source_length=None):
        super().__init__(model, tokenizer, max_source_length)
        head = model.head
        if not isinstance(head, TaggingHead) or isinstance(head, SpanHead):
            raise ValueError(
                "`model` must have a head for the labels of tokens, such as `TaggingHead(2)`. "
                f"Received: head={head!r}."
            )
        self.labels = head.labels or [str(i) for i in range(head.num_classes)]

    def tag(self, texts, batch_size=32, jit_compile=None, verbose=False):
        """Labels the tokens of texts. Warns when some texts were cut, or hold text that the vocabulary cannot write.

        Args:
            texts: List of str, or of UTF-8 bytes.
            batch_size: Number of texts at once. Texts of similar length are labelled together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of lists, one for each text, in their order: for each token its piece and its label, two str, and the
            probability of the label, a float.

        Raises:
            ValueError: If `texts` is not a list of strings, or `batch_size` is not positive.
        """
        answers, cut = self.answer_all(texts, "texts", batch_size, verbose, jit_compile=jit_compile)
        self.warn_if_cut(cut, len(answers), "texts")
        self.warn_if_unknown(with_unknown(answers), len(answers), "texts")
        return [tags_of(answer) for answer in answers]


def tags_of(answer):
    """Returns the tokens of one row of a tagger's outputs: a list of tuples of piece, label and probability."""
    rows = zip(answer["tokens"], answer["labels"], answer["probabilities"], strict=True)
    return [(token.decode(), label.decode(), float(value)) for token, label, value in rows if token]
