"""Translators: a text in, its translation out."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check, check_count, check_ids, check_positive
from keras_transformer.data import Frame
from keras_transformer.decoding import Greedy
from keras_transformer.models import EncoderDecoder, Ensemble
from keras_transformer.request_options import OPTIONS
from keras_transformer.serving.documents import SentenceTranslator
from keras_transformer.serving.searcher import Searcher, SearcherSignatures, option_specs, options_request
from keras_transformer.serving.servable import as_bytes
from keras_transformer.serving.signatures import Output, function_of, readable
from keras_transformer.serving.warmup import text_of_length
from keras_transformer.serving.writer import count_empty, warn_of_empty, warn_of_unended

# The logits of a scored row have the shape (target_len, target_vocab_size), so only a few rows are scored at once.
SCORED_ROWS = 8
# The names of the arguments with ids around texts.
FRAME = ("source_start", "source_end", "target_start")


class TranslatorSignatures(SearcherSignatures):
    """The signatures of a translator's export."""

    descriptions: ClassVar = {
        "serving_default": "Translates texts.",
        "n_best": "The n best translations of each text, best first.",
        "alignment": "Translates texts, and gives the attention from each piece of a translation to each piece of its "
        "text.",
        "score": "The log probability of given translations.",
        "tokens": "Translates token ids, for callers that have a tokenizer.",
        "options": "Translates texts, each with a prefix, lengths, draws, penalties and stop strings of its own.",
    }

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        super().__init__(servable, batch_sizes, source_lengths, weights)
        ids = tf.TensorSpec((None, None), tf.int32)
        self._score = function_of(self._score_in_chunks, source=ids, target=ids)
        tokenizers = servable.source_tokenizer, servable.target_tokenizer
        pieces = {tokenizer: self._pieces_function(tokenizer) for tokenizer in tokenizers}
        self._source_pieces, self._target_pieces = (pieces[tokenizer] for tokenizer in tokenizers)

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        text, target = (tf.TensorSpec((None,), tf.string, name=name) for name in ("text", "target"))
        source = tf.TensorSpec((None, None), tf.int32, name="source")
        return {
            "serving_default": function_of(self.translate, text=text),
            "n_best": function_of(self.n_best, text=text),
            "alignment": function_of(self.alignment, text=text),
            "score": function_of(self.score, text=text, target=target),
            "tokens": function_of(self.tokens, source=source),
            "options": function_of(self.translate_with_options, text=text, **option_specs()),
        }

    def translate(self, text):
        """Translates texts.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict of tensors `(batch,)`: `translation`, string; `score`, float32; `ended`, bool, whether the
            translation is complete: it was not cut at its largest length; `truncated`, bool; `unknown`, int32.
        """
        source, truncated = self._tokenize(text)
        tokens, _, scores, ended = self._search(source)
        best = {"translation": self._translations(tokens[:, 0]), "score": scores[:, 0], "ended": ended[:, 0]}
        return {**best, **self._notes(source, truncated)}

    def n_best(self, text):
        """Finds several translations of each text, best first.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict: `translations`, string, `scores`, float32, and `ended`, bool, `(batch, n_best)`; `truncated`, bool,
            and `unknown`, int32, `(batch,)`.
        """
        source, truncated = self._tokenize(text)
        tokens, _, scores, ended = self._search(source)
        n, length = self._servable.strategy.n_best, tf.shape(tokens)[2]
        translations = self._translations(tf.reshape(tokens, (-1, length)))
        translations = tf.reshape(translations, (-1, n))
        outputs = {"translations": translations, "scores": scores, "ended": ended}
        return {**outputs, **self._notes(source, truncated)}

    def alignment(self, text):
        """Translates texts and shows what each piece of a translation attends to.

        Args:
            text: string `(batch,)`.

        Returns:
            A dict: `translation`, string `(batch,)`; `source_pieces`, string `(batch, source_len)`; `target_pieces`,
            string `(batch, target_len)`; `attention`, float32 `(batch, target_len, source_len)`; `ended` and
            `truncated`, bool, and `unknown`, int32, `(batch,)`.
        """
        source, truncated = self._tokenize(text)
        tokens, _, _, ended = self._search(source)
        target = tokens[:, 0]
        _, _, attention = self._score(source, target)
        return {
            "translation": self._translations(target),
            "source_pieces": self._source_pieces(source),
            "target_pieces": self._target_pieces(target),
            "attention": attention,
            "ended": ended[:, 0],
            **self._notes(source, truncated),
        }

    def score(self, text, target):
        """Scores given translations.

        An empty translation is eos alone. The empty translation of an empty text scores 0, as `translate` does.

        Args:
            text: string `(batch,)`.
            target: The translations, string `(batch,)`.

        Returns:
            A dict: `score`, the log probability, float32 `(batch,)`; `token_scores`, float32, and `target_pieces`,
            string, `(batch, target_len)`; `truncated`, bool, and `unknown`, int32, for both texts together, `(batch,)`.
        """
        source, truncated = self._tokenize(text)
        target, target_truncated = self._target_ids(
            target, self._servable.longest_output, tf.reduce_any(source != self._model.pad_id, axis=1)
        )
        score, token_scores, _ = self._score(source, target)
        return {
            "score": score,
            "token_scores": token_scores,
            "target_pieces": self._target_pieces(target),
            "truncated": truncated | target_truncated,
            "unknown": sum(map(self._unknown, (source, target), self._servable.tokenizers)),
        }

    def translate_with_options(self, text, *options):
        """Translates texts, each with options of its own. A row with an unusable option gets an empty translation.

        Args:
            text: string `(batch,)`.
            *options: `OPTIONS` in their order, each `(batch,)`. `max_length` and `min_length` are of the translation,
                prefix and eos included.

        Returns:
            A dict of tensors `(batch,)`: `translation`, string, cut before the first stop string after its prefix;
            `truncated`, bool; `unknown`, int32; and those of `search_with_options`.
        """
        options = dict(zip(OPTIONS, options, strict=True))
        source, truncated = self._tokenize(text)
        limit = self._servable.max_source_length
        prefix = self._target_ids(options["prefix"], limit, frame_if_empty=True, end=())
        tokens, outputs = self.search_with_options(source, prefix, options)
        translation = self._translations(tokens[:, 0])
        written = tf.minimum(tf.strings.length(self._translations(prefix[0])), tf.strings.length(translation))
        start = tf.strings.substr(translation, tf.zeros_like(written), written)
        rest = tf.strings.substr(translation, written, tf.strings.length(translation))
        rest, outputs = self._ended_at_stops(rest, options["stop"], outputs)
        return {"translation": tf.strings.join([start, rest]), **self._notes(source, truncated), **outputs}

    def _translations(self, tokens):
        """Returns the texts of outputs `(batch, target_len)`, without their `target_start`."""
        return self._detokenize(tokens[:, len(self._servable.target_start) :])

    def _cut(self, source):
        limit = self._servable.max_source_length
        return source[:, :limit], tf.reduce_any(source[:, limit:] != self._model.pad_id, axis=1)

    def _source_ids(self, text):
        servable = self._servable
        start, end = servable.source_start, servable.source_end
        return self._ids(text, servable.source_tokenizer, servable.max_source_length, start, end)

    def _target_ids(self, text, limit, frame_if_empty, end=None):
        end = (self._model.eos_id,) if end is None else end
        servable = self._servable
        return self._ids(text, servable.target_tokenizer, limit, servable.target_start, end, frame_if_empty)

    def _ids(self, text, tokenizer, limit, start, end, frame_if_empty=False):
        """Tokenizes texts, cuts them, and puts ids before and after them.

        Args:
            text: string `(batch,)`.
            tokenizer: The tokenizer.
            limit: The largest number of tokens, those of `start` and `end` included.
            start: The ids before a text, a tuple of int.
            end: The ids after it, such as eos.
            frame_if_empty: Whether a text without a token gets these ids, bool or bool `(batch,)`. Without them its row
                is only padding, and its answer is empty.

        Returns:
            Ids, int32 `(batch, length)`, and which texts were cut, bool `(batch,)`.
        """
        text, truncated = readable(text, limit)
        ids = tokenizer.tokenize(text)
        lengths, room = ids.row_lengths(), limit - len(start) - len(end)
        truncated |= lengths > room
        framed = (lengths > 0) | frame_if_empty

        def repeated(added):
            rows = len(added) * tf.cast(framed, tf.int64)
            ids = tf.tile(tf.constant(added, tf.int32), [tf.reduce_sum(tf.cast(framed, tf.int32))])
            return tf.RaggedTensor.from_row_lengths(ids, rows)

        ids = tf.concat([repeated(start), ids[:, :room], repeated(end)], axis=1).to_tensor(self._model.pad_id)
        return self._at_least_one_column(ids), truncated

    def _pieces_function(self, tokenizer):
        """Makes a function from ids `(batch, length)` to their pieces, string; padding becomes empty strings."""

        def pieces(ids):
            table = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
            known = (ids >= 0) & (ids < tokenizer.vocab_size)
            return tf.where(
                ids == self._model.pad_id, "", tf.gather(table, tf.where(known, ids, tokenizer.unk_id))
            )

        return function_of(pieces, ids=tf.TensorSpec((None, None), tf.int32))

    def _score_in_chunks(self, source, target):
        """Scores targets.

        Args:
            source: int32 `(batch, source_len)`.
            target: int32 `(batch, target_len)`.

        Returns:
            A list: the scores `(batch,)`, the scores of tokens `(batch, target_len)` and the attention
            `(batch, target_len, source_len)`, all float32.
        """
        source_len, target_len = tf.shape(source)[1], tf.shape(target)[1]

        def score(source, target):
            return [part[:, 0] for part in self._model.score_all(source, target[:, None])]

        with self._computing():
            return self._in_chunks(
                score,
                [source, target],
                [Output((), 0.0), Output((target_len,), 0.0), Output((target_len, source_len), 0.0)],
                min(SCORED_ROWS, self._batch_sizes[-1]),
            )


class Translator(Searcher):
    """Translates text. The tokenizers, the model and the search are one graph.

    Each row is translated independently. An empty text has an empty translation, invalid UTF-8 is read as U+FFFD, and
    a long text is cut at `max_source_length`.

    ```python
    tokenizer = kt.text.ByteTokenizer()
    model = kt.models.Transformer.from_preset("tiny", tokenizer.vocab_size)
    translator = kt.serving.Translator(model, tokenizer, strategy=kt.decoding.Beam(4))
    translator.translate(["A dog runs."])
    translator.export("models/en_de", version=1)
    ```

    Args:
        model: A `Transformer`, `T5` or another `EncoderDecoder`, or an `Ensemble` of them.
        source_tokenizer: The tokenizer of the sources, from `keras_transformer.text`.
        target_tokenizer: The tokenizer of the translations; None for `source_tokenizer`.
        strategy: How to choose tokens: `Greedy()`, `Beam()` or `Sample()`.
        max_source_length: Largest number of tokens of a source, `source_start` and `source_end` included; the rest is
            cut off.
        max_length: Largest number of tokens of a translation, `target_start` and eos included. None for twice the
            length of each source plus 16.
        constraints: List of constraints that every translation must satisfy, such as `[NoRepeatNgram(3)]`.
        source_start: Ids before the tokens of each source, such as the id of its language; a sequence of int.
        source_end: Ids after the tokens of each source. None for the model's `eos_id` alone.
        target_start: Ids that every translation begins with, such as the id of its language. They are not part of the
            text. They count for the score, and the outputs `tokens` and `target_pieces` hold them.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, a tokenizer has more ids than the model or other special
            ids, `strategy` is not a strategy, a limit is out of range, the constraints contradict one another, or an id
            around a text is not in the vocabulary.
    """

    DESCRIPTION = "translator.json"
    TOKENIZERS = ("source_tokenizer", "target_tokenizer")
    model_classes = (EncoderDecoder, Ensemble)
    signatures_class = TranslatorSignatures
    # Number of translations of `translate_batch` that were cut at their largest length.
    _unended = 0

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        strategy=Greedy(),  # noqa: B008
        max_source_length=256,
        max_length=None,
        constraints=(),
        *,
        source_start=(),
        source_end=None,
        target_start=(),
    ):
        super().__init__(
            model,
            source_tokenizer,
            target_tokenizer or source_tokenizer,
            strategy,
            max_source_length,
            max_length,
            constraints,
        )
        self.source_start = tuple(source_start)
        self.source_end = (model.eos_id,) if source_end is None else tuple(source_end)
        self.target_start = tuple(target_start)
        for name, size in (
            ("source_start", model.source_vocab_size),
            ("source_end", model.source_vocab_size),
            ("target_start", model.target_vocab_size),
        ):
            for token_id in getattr(self, name):
                check_ids(size, **{name: token_id})
        check_count(len(self.source_start + self.source_end) + 1, max_source_length=max_source_length)
        if max_length is not None:
            check_count(len(self.target_start) + 1, max_length=max_length)

    def translate(self, sentences, batch_size=32, jit_compile=None, verbose=False):
        """Translates sentences.

        Warns when some of them were cut, or hold text that the vocabulary cannot write, or when translations were cut
        at their largest length or are empty.

        Args:
            sentences: List of str, or of UTF-8 bytes.
            batch_size: Number of sentences at once. Sentences of similar length are translated together.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.
            verbose: Whether to show a progress bar on stderr.

        Returns:
            A list of str, one for each sentence, in their order.

        Raises:
            ValueError: If `sentences` is not a list of strings, or `batch_size` is not positive.
        """
        # An iterator is read once.
        sentences = as_bytes("sentences", sentences)
        answers = self.answer_and_warn(sentences, "sentences", batch_size, verbose, jit_compile=jit_compile)
        self.warn_if_unended(sum(not answer["ended"] for answer in answers), len(answers))
        translations = [answer["translation"].decode("utf-8", "replace") for answer in answers]
        warn_of_empty(count_empty(sentences, translations), len(answers))
        return translations

    def translate_document(self, text, language, batch_size=32):
        """Translates a text of several lines and sentences: each sentence alone.

        The lines, the empty ones too, and the blanks around sentences stay as they are. A sentence does not go beyond
        its line: join the lines of a paragraph first. It needs the package sentencex.

        Args:
            text: A str.
            language: The language of the text, a code such as "en".
            batch_size: Number of lines at once.

        Returns:
            A str with as many lines.

        Raises:
            ValueError: If `language` is not the code of a language, or `batch_size` is not positive.
            ImportError: If sentencex is not installed.
        """
        check_positive(batch_size=batch_size)
        sentences, lines = SentenceTranslator(self, language), text.splitlines(keepends=True)
        translated = []
        for start in range(0, len(lines), batch_size):
            translated += sentences.translate_batch(lines[start : start + batch_size])
        self.warn_if_cut(sentences.count_cut(lines, None), len(lines), "lines")
        self.warn_if_unknown(sentences.count_unknown(), len(lines), "lines")
        self.warn_if_unended(sentences.count_unended(), len(lines))
        return "".join(translated)

    def translate_batch(self, texts, jit_compile=None):
        """Translates texts in one batch, without a warning about texts or translations that were cut.

        Args:
            texts: List of bytes.
            jit_compile: True for XLA, False for the portable graph, None for XLA if there is an accelerator.

        Returns:
            A list of str, one for each text.
        """
        answers = self.answer(texts, jit_compile=jit_compile)
        self._unended += int(np.sum(~answers["ended"]))
        return [text.decode("utf-8", "replace") for text in answers["translation"]]

    def count_unended(self):
        """Returns how many translations of `translate_batch` were cut at their largest length since the last call."""
        unended, self._unended = self._unended, 0
        return unended

    def warn_if_unended(self, unended, count):
        """Warns that some translations have no end.

        Args:
            unended: Number of texts whose translation was cut at its largest length, an int.
            count: Number of texts, an int.
        """
        limit = "twice the length of the source plus 16" if self.max_length is None else self.max_length
        warn_of_unended(unended, count, "translations", limit)

    @property
    def room(self):
        return self.max_source_length - len(self.source_start) - len(self.source_end)

    @property
    def frame(self):
        """The `Frame`: the ids around texts."""
        ids = {name: getattr(self.model, name) for name in ("pad_id", "bos_id", "eos_id")}
        return Frame(**ids, **{name: getattr(self, name) for name in FRAME})

    @classmethod
    def ensemble(cls, translators):
        """Joins translators into one, whose model is the `Ensemble` of their models.

        The strategy and the limits are those of the first. `max_source_length` is lowered to the number of positions
        that the models have.

        Args:
            translators: List of at least two translators with the same tokenizers.

        Returns:
            A translator.

        Raises:
            ValueError: If `translators` is not such a list, their tokenizers or the ids around texts differ, or
                `Ensemble` refuses the models.
        """
        fits = isinstance(translators, (list, tuple)) and all(isinstance(each, cls) for each in translators)
        rule = f"`translators` must be a list of at least two translators of class `{cls.__name__}`."
        check(fits and len(translators) > 1, rule, translators=translators)
        first, *others = translators
        for number, other in enumerate(others, start=2):
            for name, own, its in zip(cls.TOKENIZERS, first.tokenizers, other.tokenizers, strict=True):
                rule = (
                    f"`translators` must have the same `{name}`. Train translator {number} with the tokenizers of the "
                    "first: `Recipe(tokenizer=FIRST_RUN)`, or `--tokenizer FIRST_RUN`."
                )
                ids = {"first": own.vocab_size, f"translator_{number}": its.vocab_size}
                check((type(own), own.content) == (type(its), its.content), rule, **ids)
            check(
                first.frame == other.frame,
                "`translators` must have the same ids around texts.",
                frames=[first.frame, other.frame],
            )
        joint = Ensemble([each.model for each in translators])
        limits = first.max_source_length, joint.max_positions, joint.max_source_positions
        longest = min(limit for limit in limits if limit is not None)
        return first.changed(model=joint, max_source_length=longest)

    def warmup_requests(self, shapes):
        for batch_size, length in shapes:
            yield "serving_default", {"text": [text_of_length(self.source_tokenizer, length)] * batch_size}
        batch_size, length = shapes[0]
        texts = [text_of_length(self.source_tokenizer, length)] * batch_size
        targets = [text_of_length(self.target_tokenizer, length)] * batch_size
        yield "n_best", {"text": texts}
        yield "alignment", {"text": texts}
        yield "score", {"text": texts, "target": targets}
        yield "tokens", {"source": self.source_tokenizer.tokenize(texts)[:, : length - 1].to_tensor().numpy()}
        yield options_request(texts)
