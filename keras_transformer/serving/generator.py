"""A language model with its tokenizer and its strategy: a prompt in, what follows it out."""

import tensorflow as tf

from keras_transformer.decoding import Greedy
from keras_transformer.models import LanguageModel
from keras_transformer.models.generation import lengths_of
from keras_transformer.serving.rows import function_of, readable
from keras_transformer.serving.searcher import Searcher
from keras_transformer.serving.signatures import Searches
from keras_transformer.serving.warmup import text_of

SIGNATURES = {
    "serving_default": "Goes on with prompts.",
    "n_best": "The n best continuations of each prompt, best first.",
    "tokens": "Goes on with token ids, for callers with a tokenizer of their own.",
}

LENGTH = 256  # in tokens, where nobody says how long prompts are


class Continuations(Searches):
    """The functions of a text generator's graph."""

    about = SIGNATURES

    def functions(self):
        """A dict from a signature's name to its `tf.function`."""
        text = tf.TensorSpec((None,), tf.string, name="text")
        source = tf.TensorSpec((None, None), tf.int32, name="source")
        return {
            "serving_default": function_of(self.generate, text=text),
            "n_best": function_of(self.n_best, text=text),
            "tokens": function_of(self.tokens, source=source),
        }

    def generate(self, text):
        """Prompts `(batch,)` to the best continuation of each, its score and whether the prompt was cut, all
        `(batch,)`."""
        source, truncated = self._source(text)
        tokens, _, scores = self._search(source)
        return {
            "continuation": self._continuations(source, tokens)[:, 0],
            "score": scores[:, 0],
            "truncated": truncated,
        }

    def n_best(self, text):
        """Prompts `(batch,)` to continuations and scores `(batch, n)`, best first, and which prompts were cut."""
        source, truncated = self._source(text)
        tokens, _, scores = self._search(source)
        return {
            "continuations": self._continuations(source, tokens),
            "scores": scores,
            "truncated": truncated,
        }

    def _cut(self, source):
        """Ids `(batch, source_len)`: of a long row the end."""
        limit, pad_id = self._servable.max_source_length, self._model.pad_id
        rows = tf.RaggedTensor.from_tensor(source, lengths=lengths_of(source, pad_id))
        return rows[:, -limit:].to_tensor(pad_id), rows.row_lengths() > limit

    def _continuations(self, source, tokens):
        """What ids `(batch, n, length)` add to the texts of prompts `(batch, prompt_len)`: strings `(batch, n)`.

        As part of the whole: alone, the blank that a first word begins with would be lost.
        """
        n, length = self._servable.strategy.n_best, tf.shape(tokens)[2]
        source = tf.repeat(source, n, axis=0)
        prompts = self._detokenize(source)
        wholes = self._detokenize(tf.concat([source, tf.reshape(tokens, (-1, length))], axis=1))
        starts = tf.minimum(tf.strings.length(prompts), tf.strings.length(wholes))
        added = tf.strings.substr(wholes, starts, tf.strings.length(wholes))
        return tf.reshape(added, (-1, n))

    def _source_ids(self, text):
        """Prompts as ids, int32 `(batch, length)`: of a long one the end, after `bos_id` where prompts have one."""
        servable, pad_id = self._servable, self._model.pad_id
        limit = servable.max_source_length
        text, truncated = readable(text, limit, last=True)
        ids = servable.source_tokenizer.tokenize(text)
        room = limit - int(servable.starts_with_bos)
        truncated |= ids.row_lengths() > room
        ids = ids[:, -room:]
        starts = tf.fill((ids.nrows(), 1), self._model.bos_id)
        if not servable.starts_with_bos:  # a prompt without a token has to begin with something
            starts = tf.ragged.boolean_mask(starts, ids.row_lengths()[:, None] == 0)
        return tf.concat([starts, ids], axis=1).to_tensor(pad_id), truncated


class TextGenerator(Searcher):
    """Goes on with prompts: tokenizer, language model and strategy in one graph.

    Rows stand alone: an empty prompt begins a text, invalid UTF-8 is read as U+FFFD, of a long prompt the last
    `max_source_length` tokens are read, and no row changes another's continuation.

    Args:
        model: A `LanguageModel`.
        tokenizer: From `keras_transformer.text`.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
        max_source_length: Longest prompt in tokens. None for 256, or for half of the positions that the model has if
            that is less.
        max_length: Longest continuation in tokens, eos included. None for twice each prompt's length plus 16.
        constraints: What every continuation must satisfy, such as `[NoRepeatNgram(3)]`.
        starts_with_bos: Whether prompts begin with the model's `bos_id`, as its training texts did.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, the tokenizer has more ids than the model, a limit is
            out of range, or the constraints contradict one another.
    """

    DESCRIPTION = "generator.json"
    TOKENIZERS = ("tokenizer",)
    model_class = LanguageModel
    signatures_class = Continuations

    def __init__(
        self,
        model,
        tokenizer,
        strategy=Greedy(),  # noqa: B008
        max_source_length=None,
        max_length=None,
        constraints=(),
        starts_with_bos=True,
    ):
        longest = getattr(model, "longest", None)
        if max_source_length is None:
            max_source_length = LENGTH if longest is None else max(2, min(LENGTH, longest // 2))
        super().__init__(model, tokenizer, tokenizer, strategy, max_source_length, max_length, constraints)
        if longest is not None and max_source_length + (max_length or 1) > longest + 1:
            raise ValueError(
                f"`max_source_length` and `max_length` must leave all tokens within the model's {longest} positions. "
                f"Received: max_source_length={max_source_length}, max_length={max_length}."
            )
        self.tokenizer = tokenizer
        self.starts_with_bos = starts_with_bos

    def generate(self, prompts, batch_size=32, jit_compile=None, verbose=False):
        """Goes on with prompts.

        Args:
            prompts: List of str (or of UTF-8 bytes).
            batch_size: Number of prompts at once; they are grouped by length and returned in order.
            jit_compile: True for XLA, False for the portable graph, None for XLA where there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of str, what follows each prompt.

        Raises:
            ValueError: If `prompts` is a single string, or `batch_size` is not positive.
        """
        answers = self.in_batches(prompts, "prompts", batch_size, verbose, jit_compile=jit_compile)
        return [answer["continuation"].decode("utf-8", "replace") for answer in answers]

    def requests(self, shapes):
        for batch_size, length in shapes:
            yield "serving_default", {"text": [text_of(self.tokenizer, length)] * batch_size}
        batch_size, length = shapes[0]
        texts = [text_of(self.tokenizer, length)] * batch_size
        yield "n_best", {"text": texts}
        yield "tokens", {"source": self.tokenizer.tokenize(texts)[:, :length].to_tensor().numpy()}

    def describe(self):
        return {**super().describe(), "starts_with_bos": self.starts_with_bos}

    @classmethod
    def arguments_of(cls, description, folder):
        return {
            **super().arguments_of(description, folder),
            "starts_with_bos": description["starts_with_bos"],
        }
