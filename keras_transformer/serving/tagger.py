"""Taggers: a text in, the label of each of its tokens out, such as the names of people and places."""

from typing import ClassVar, NamedTuple

import tensorflow as tf

from keras_transformer.checks import check, check_choice
from keras_transformer.masks import lengths_of
from keras_transformer.models.heads import SpanHead, TaggingHead
from keras_transformer.serving.entities import AGGREGATIONS, entities_of
from keras_transformer.serving.signatures import parts_by_row, readable
from keras_transformer.serving.text_encoder import TextEncoder, TextEncoderSignatures


class TaggerSignatures(TextEncoderSignatures):
    """The signatures of a tagger's export."""

    descriptions: ClassVar = {
        "serving_default": "The likeliest label of each token of each text.",
        "entities": "The entities of each text, such as names, with their characters.",
    }

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        functions = {"serving_default": self.function_of_texts(self.tag)}
        if not self._servable.hides_characters:
            functions["entities"] = self.function_of_texts(self.entities)
        return functions

    def tag(self, text):
        """Finds the likeliest label of each token.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict: `tokens` and `labels`, string, and `probabilities`, float32, `(batch, tokens)`, with "" and 0 after
            the last token of a row; `truncated`, bool, and `unknown`, int32, `(batch,)`.
        """
        servable = self._servable
        ids, probabilities, real, notes = self._labelled(text)
        pieces = tf.constant(servable.tokenizer.pieces(range(servable.tokenizer.vocab_size)))
        best = tf.argmax(probabilities, axis=-1)
        return {
            "tokens": tf.where(real, tf.gather(pieces, ids), ""),
            "labels": tf.where(real, tf.gather(servable.labels, best), ""),
            "probabilities": tf.where(real, tf.reduce_max(probabilities, axis=-1), 0.0),
            **notes,
        }

    def _labelled(self, text):
        """Returns the ids of texts, their probabilities, which ids are real, and the notes of `pack`."""
        packed, notes = self.pack([text])
        shape = (self._padded_length(packed), len(self._servable.labels))
        logits = self.compute(packed, lambda inputs: self._model(inputs, training=False), shape)
        starts = 1 if self._model.starts_with_cls else 0
        ids, logits = packed[:, starts:-1], logits[:, starts : tf.shape(packed)[1] - 1]
        lengths = lengths_of(packed, self._model.pad_id) - starts - 1  # without [CLS] and [SEP]
        return ids, tf.nn.softmax(logits), tf.sequence_mask(lengths, tf.shape(ids)[1]), notes

    def entities(self, text):
        """Finds the entities of texts.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict of `(batch, entities)`: `words`, string, the characters of each entity; `labels`, string;
            `probabilities`, float32; `starts` and `ends`, int32, the first character in the text and the one after the
            last; with "" and 0 after the last entity of a row. And `truncated`, bool, and `unknown`, int32, `(batch,)`.
        """
        servable = self._servable
        _, probabilities, real, notes = self._labelled(text)
        text, _ = readable(text, servable.max_source_length)
        places = servable.tokenizer.spans(text)[1:]
        width = tf.shape(real)[1]
        places = (tf.boolean_mask(each.to_tensor(shape=(None, None))[:, :width], real) for each in places)
        rows, labels, shares, starts, ends = entities_of(
            tf.boolean_mask(probabilities, real),
            tf.where(real)[:, 0],
            *places,
            servable.labels,
            servable.aggregation,
        )
        words = tf.strings.substr(tf.gather(text, rows), starts, ends - starts, unit="UTF8_CHAR")
        columns = {"words": words, "labels": labels, "probabilities": shares, "starts": starts, "ends": ends}
        columns, _ = parts_by_row(columns, rows, tf.size(text, tf.int64))
        return {**columns, **notes}


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
        aggregation: How the tokens of a word give the one label that `entities` counts. "first": that of the first
            token, which `keras-transformer tune` trains; "average": that of their mean probabilities; "max": that of
            the token that is surest. With "simple" each token counts.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model does not label tokens, the tokenizer has more
            ids than the model or other special ids, the limit is out of range, or `aggregation` is unknown.
    """

    DESCRIPTION = "tagger.json"
    signatures_class = TaggerSignatures

    def __init__(self, model, tokenizer, max_source_length=None, aggregation="first"):
        super().__init__(model, tokenizer, max_source_length)
        check_choice(AGGREGATIONS, aggregation=aggregation)
        self.aggregation = aggregation
        head = model.head
        rule = "`model` must have a head for the labels of tokens, such as `TaggingHead(2)`."
        check(isinstance(head, TaggingHead) and (not isinstance(head, SpanHead)), rule, head=head)
        self.labels = head.labels or [str(i) for i in range(head.num_classes)]

    @property
    def hides_characters(self):
        """Why the tokenizer does not tell where its pieces stand in a text, a dict by argument; empty if it does."""
        return getattr(self.tokenizer, "hides_characters", {"tokenizer": type(self.tokenizer).__name__})

    def entities(self, texts, batch_size=32, jit_compile=None, verbose=False):
        """Finds the entities of texts: words with the same label that follow one another, such as names.

        The labels may be those of words, such as "PER", or tell the first word of an entity from the others: "B-PER"
        and "I-PER" (Ramshaw and Marcus, 1995). Words with the label "O" are in no entity. The numbers are those of the
        pipeline of transformers with this `aggregation_strategy`, where a piece that continues a word begins with `##`
        or follows no blank.

        Args:
            texts: List of str, or of UTF-8 bytes.
            batch_size: Number of texts at once. Texts of similar length are labelled together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of lists of `Entity`, one for each text, in their order.

        Raises:
            ValueError: If `texts` is not a list of strings, `batch_size` is not positive, or the tokenizer does not
                tell where its pieces stand in a text.
        """
        rule = "`entities` needs a tokenizer that tells where its pieces stand in a text."
        check(not self.hides_characters, rule, **self.hides_characters)
        options = {"jit_compile": jit_compile, "signature": "entities"}
        return list(map(entities_in, self.answer_and_warn(texts, "texts", batch_size, verbose, **options)))

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
        answers = self.answer_and_warn(texts, "texts", batch_size, verbose, jit_compile=jit_compile)
        return list(map(tags_of, answers))


def tags_of(answer):
    """Returns the tokens of one row of a tagger's outputs: a list of tuples of piece, label and probability."""
    rows = zip(answer["tokens"], answer["labels"], answer["probabilities"], strict=True)
    return [(token.decode(), label.decode(), float(value)) for token, label, value in rows if token]


class Entity(NamedTuple):
    """An entity in a text.

    >>> Entity("Ada", "PER", 0.9, 0, 3).word
    'Ada'

    Attributes:
        word: Its characters, such as those of a name of two words.
        label: Its label.
        probability: The probability of the label, a float.
        start: Its first character in the text, from 0.
        end: The character after its last one.
    """

    word: str
    label: str
    probability: float
    start: int
    end: int


def entities_in(answer):
    """Returns the entities of one row of the outputs of `entities`, a list of `Entity`."""
    columns = (answer[name] for name in ("words", "labels", "probabilities", "starts", "ends"))
    return [
        Entity(word.decode(), label.decode(), float(share), int(start), int(end))
        for word, label, share, start, end in zip(*columns, strict=True)
        if word
    ]
