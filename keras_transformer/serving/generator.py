"""Text generators: a prompt in, its continuation out."""

from typing import ClassVar

import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.decoding import Greedy
from keras_transformer.decoding.hypotheses import one_of
from keras_transformer.masks import lengths_of
from keras_transformer.models import LanguageModel
from keras_transformer.request_options import OPTIONS
from keras_transformer.serving.searcher import Searcher, SearcherSignatures, option_specs, options_request
from keras_transformer.serving.signatures import function_of, readable
from keras_transformer.serving.warmup import text_of_length

DEFAULT_LENGTH = 256  # in tokens


class TextGeneratorSignatures(SearcherSignatures):
    """The signatures of a text generator's export."""

    descriptions: ClassVar = {
        "serving_default": "Continues prompts.",
        "n_best": "The n best continuations of each prompt, best first.",
        "tokens": "Continues token ids, for callers that have a tokenizer.",
        "options": "Continues prompts, each with a prefix, lengths, draws, penalties and stop strings of its own.",
    }

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        text = tf.TensorSpec((None,), tf.string, name="text")
        source = tf.TensorSpec((None, None), tf.int32, name="source")
        return {
            "serving_default": function_of(self.generate, text=text),
            "n_best": function_of(self.n_best, text=text),
            "tokens": function_of(self.tokens, source=source),
            "options": function_of(self.generate_with_options, text=text, **option_specs()),
        }

    def generate(self, text):
        """Continues prompts.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict of tensors `(batch,)`: `continuation`, string; `score`, float32; `ended`, bool, whether the
            continuation is complete: it was not cut at its largest length; `truncated`, bool; `unknown`, int32.
        """
        source, truncated = self._tokenize(text)
        tokens, _, scores, ended = self._search(source)
        return {
            "continuation": self._continuations(source, tokens)[:, 0],
            "score": scores[:, 0],
            "ended": ended[:, 0],
            **self._notes(source, truncated),
        }

    def n_best(self, text):
        """Finds several continuations of each prompt, best first.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict: `continuations`, string, `scores`, float32, and `ended`, bool, `(batch, n_best)`; `truncated`, bool,
            and `unknown`, int32, `(batch,)`.
        """
        source, truncated = self._tokenize(text)
        tokens, _, scores, ended = self._search(source)
        return {
            "continuations": self._continuations(source, tokens),
            "scores": scores,
            "ended": ended,
            **self._notes(source, truncated),
        }

    def generate_with_options(self, text, prefix, *options):
        """Continues prompts, each with options of its own. A row with an unusable option gets an empty continuation.

        Args:
            text: string `(batch,)`.
            prefix: The text that each continuation begins with, string `(batch,)`. It is read as a part of the prompt,
                so it counts neither for the lengths nor for the score, but for the penalties.
            *options: The other `OPTIONS`, in their order, each `(batch,)`. `max_length` and `min_length` are of the
                continuation, eos included.

        Returns:
            A dict of tensors `(batch,)`: `continuation`, string, cut before the first stop string; `truncated`, bool;
            `unknown`, int32; and those of `search_with_options`.
        """
        options = dict(zip(OPTIONS, (prefix, *options), strict=True))
        source, truncated = self._tokenize(tf.strings.join([text, prefix]))
        prefix_text, _ = readable(prefix, self._servable.max_source_length, keep_end=True)
        earlier = tf.cast(self._servable.tokenizer.tokenize(prefix_text).row_lengths(), tf.int32)
        tokens, outputs = self.search_with_options(source, None, options, earlier)
        continuation = self._continuations(source, tokens)[:, 0]
        continuation, outputs = self._ended_at_stops(continuation, options["stop"], outputs)
        continuation = tf.where(outputs["error"] == "", tf.strings.join([prefix, continuation]), "")
        return {"continuation": continuation, **self._notes(source, truncated), **outputs}

    def _cut(self, source):
        limit, pad_id = self._servable.max_source_length, self._model.pad_id
        rows = tf.RaggedTensor.from_tensor(source, lengths=lengths_of(source, pad_id))
        return rows[:, -limit:].to_tensor(pad_id), rows.row_lengths() > limit

    def _continuations(self, source, tokens):
        """Detokenizes continuations.

        A prompt is detokenized with its continuation, and its own text is cut off. Alone, a continuation would lose the
        blank that its first word begins with.

        Args:
            source: The ids of the prompts, int32 `(batch, source_len)`.
            tokens: The ids of the continuations, int32 `(batch, n_best, target_len)`.

        Returns:
            The continuations, string `(batch, n_best)`.
        """
        n, length = tokens.shape[1], tf.shape(tokens)[2]
        # Stop ids are not text.
        if self._model.stop_ids:
            tokens = tf.where(one_of(tokens, self._model.stop_ids), self._model.pad_id, tokens)
        source = tf.repeat(source, n, axis=0)
        prompts = self._detokenize(source)
        wholes = self._detokenize(tf.concat([source, tf.reshape(tokens, (-1, length))], axis=1))
        starts = tf.minimum(tf.strings.length(prompts), tf.strings.length(wholes))
        continuations = tf.strings.substr(wholes, starts, tf.strings.length(wholes))
        return tf.reshape(continuations, (-1, n))

    def _source_ids(self, text):
        servable, pad_id = self._servable, self._model.pad_id
        limit = servable.max_source_length
        text, truncated = readable(text, limit, keep_end=True)
        ids = servable.source_tokenizer.tokenize(text)
        room = servable.room
        truncated |= ids.row_lengths() > room
        ids = ids[:, -room:]
        starts = tf.fill((ids.nrows(), 1), self._model.bos_id)
        # The model needs a token, which an empty prompt does not have.
        if not servable.starts_with_bos:
            starts = tf.ragged.boolean_mask(starts, ids.row_lengths()[:, None] == 0)
        return tf.concat([starts, ids], axis=1).to_tensor(pad_id), truncated


class TextGenerator(Searcher):
    """Continues prompts. The tokenizer, the language model and the search are one graph.

    Each row is continued independently. After an empty prompt the model begins a text, invalid UTF-8 is read as
    U+FFFD, and of a long prompt the last `max_source_length` tokens are read.

    Args:
        model: A `LanguageModel`.
        tokenizer: The tokenizer, from `keras_transformer.text`.
        strategy: How to choose tokens: `Greedy()`, `Beam()` or `Sample()`.
        max_source_length: Largest number of tokens of a prompt, bos included; a longer prompt loses its first tokens.
            None for 256, or for half of the model's positions if that is smaller.
        max_length: Largest number of tokens of a continuation, eos included. None for twice the length of each prompt
            plus 16.
        constraints: List of constraints that every continuation must satisfy, such as `[NoRepeatNgram(3)]`.
        starts_with_bos: Whether prompts begin with the model's `bos_id`, as the texts of its training did.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the tokenizer has more ids than the model or other
            special ids, `strategy` is not a strategy, a limit is out of range, or the constraints contradict one
            another.
    """

    DESCRIPTION = "generator.json"
    TOKENIZERS = ("tokenizer",)
    model_classes = (LanguageModel,)
    signatures_class = TextGeneratorSignatures

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
        longest = getattr(model, "max_positions", None)
        if max_source_length is None:
            max_source_length = (
                DEFAULT_LENGTH if longest is None else max(2, min(DEFAULT_LENGTH, longest // 2))
            )
        super().__init__(model, tokenizer, tokenizer, strategy, max_source_length, max_length, constraints)
        check(
            longest is None or max_source_length + (max_length or 1) <= longest + 1,
            f"`max_source_length` and `max_length` must leave all tokens within the model's {longest} positions.",
            max_source_length=max_source_length,
            max_length=max_length,
        )
        self.tokenizer = tokenizer
        self.starts_with_bos = starts_with_bos

    def generate(self, prompts, batch_size=32, jit_compile=None, verbose=False):
        """Continues prompts. Warns when some of them were cut, or hold text that the vocabulary cannot write.

        Args:
            prompts: List of str, or of UTF-8 bytes.
            batch_size: Number of prompts at once. Prompts of similar length are continued together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of str, the continuation of each prompt without the prompt, in their order.

        Raises:
            ValueError: If `prompts` is not a list of strings, or `batch_size` is not positive.
        """
        answers = self.answer_and_warn(prompts, "prompts", batch_size, verbose, jit_compile=jit_compile)
        return [answer["continuation"].decode("utf-8", "replace") for answer in answers]

    @property
    def room(self):
        return self.max_source_length - int(self.starts_with_bos)

    def warmup_requests(self, shapes):
        for batch_size, length in shapes:
            yield "serving_default", {"text": [text_of_length(self.tokenizer, length)] * batch_size}
        batch_size, length = shapes[0]
        texts = [text_of_length(self.tokenizer, length)] * batch_size
        yield "n_best", {"text": texts}
        yield "tokens", {"source": self.tokenizer.tokenize(texts)[:, :length].to_tensor().numpy()}
        yield options_request(texts)
