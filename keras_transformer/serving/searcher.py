"""The base classes of the servables that read text and write text: `Translator` and `TextGenerator`."""

import dataclasses

import tensorflow as tf

from keras_transformer.checks import check_count
from keras_transformer.decoding import (
    Greedy,
    MinLength,
    PresencePenalty,
    RepetitionPenalty,
    Sample,
    StopStrings,
)
from keras_transformer.decoding.loop import MOST_TOKENS
from keras_transformer.masks import lengths_of
from keras_transformer.request_options import LONGEST_STOP, MOST_STOPS, OPTIONS, SIGNATURE, columns
from keras_transformer.serving.signatures import CHARACTERS_PER_TOKEN, Output, function_of
from keras_transformer.serving.writer import Writer, WriterSignatures
from keras_transformer.text.base import valid_utf8

# The options that a step of the search takes as they are.
OF_SEARCH = (
    *("min_length", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def option_specs():
    """Returns the `tf.TensorSpec` of each option, a dict by name."""
    return {name: tf.TensorSpec((None,), option.dtype, name=name) for name, option in OPTIONS.items()}


class SearcherSignatures(WriterSignatures):
    """Base class of the signatures that read text and write text.

    A subclass defines `_source_ids(text)`, which returns the ids of texts, and `_cut(source)`, which cuts ids at
    `max_source_length`. Both also return which rows were cut, bool `(batch,)`.
    """

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        super().__init__(servable, batch_sizes, source_lengths, weights)
        ids = tf.TensorSpec((None, None), tf.int32)
        # Several signatures call these. As functions of their own, they are in the graph once.
        self._tokenize = function_of(self._source_ids, text=tf.TensorSpec((None,), tf.string))
        self._detokenize = function_of(self._texts, ids=ids)
        self._search = function_of(self._search_in_chunks, source=ids)

    def tokens(self, source):
        """Searches token ids instead of texts. Ids that the model does not know are read as unk.

        Args:
            source: int32 `(batch, source_len)`, padded on the right.

        Returns:
            A dict: `tokens`, int32 `(batch, n_best, target_len)`; `lengths`, int32, `scores`, float32, and `ended`,
            bool, `(batch, n_best)`; `truncated`, bool, and `unknown`, int32, the number of tokens that are read as unk,
            `(batch,)`.
        """
        known = (source >= 0) & (source < self._model.source_vocab_size)
        source, truncated = self._cut(tf.where(known, source, self._servable.source_tokenizer.unk_id))
        tokens, lengths, scores, ended = self._search(self._at_least_one_column(source))
        outputs = {"tokens": tokens, "lengths": lengths, "scores": scores, "ended": ended}
        return {**outputs, **self._notes(source, truncated)}

    def _notes(self, source, truncated):
        """Returns the outputs that say what of a source was not read.

        Args:
            source: The ids that are read, int32 `(batch, source_len)`.
            truncated: Which sources were cut, bool `(batch,)`.

        Returns:
            A dict: `truncated`; and `unknown`, int32 `(batch,)`, the number of tokens that replace text which the
            vocabulary cannot write.
        """
        return {"truncated": truncated, "unknown": self._unknown(source, self._servable.source_tokenizer)}

    def _at_least_one_column(self, ids):
        missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
        return tf.pad(ids, [[0, 0], [0, missing]], constant_values=self._model.pad_id)

    def _starts(self, source):
        """Returns `target_start` for each row of ids `(batch, source_len)`; padding for a row of padding alone."""
        pad_id, starts = self._model.pad_id, tf.constant([self._servable.target_start], tf.int32)
        return tf.where(tf.reduce_any(source != pad_id, axis=1, keepdims=True), starts, pad_id)

    def _search_in_chunks(self, source):
        """Searches the outputs of sources.

        Args:
            source: int32 `(batch, source_len)`.

        Returns:
            Tokens, int32 `(batch, n_best, target_len)`; lengths, int32, scores, float32, and which outputs are
            complete, bool, `(batch, n_best)`.
        """
        servable, strategy = self._servable, self._strategy()

        def search(source):
            return self._model.search(
                source,
                strategy,
                servable.max_length,
                constraints=servable.constraints,
                prefix=self._starts(source) if servable.target_start else None,
            )

        longest = servable.limits.of(self._padded_length(source), len(servable.target_start))
        n = strategy.n_best
        with self._computing():
            tokens, lengths, scores = self._in_chunks(
                self._compiled_step(search),
                [source],
                [Output((n, longest), self._model.pad_id), Output((n,), 0), Output((n,), 0.0)],
                self._batch_sizes[-1],
            )
        ended = self._ended(source, tokens, lengths)
        return tokens[:, :, : tf.maximum(1, tf.reduce_max(lengths))], lengths, scores, ended

    def _ended(self, source, tokens, lengths):
        """Says which outputs of sources `(batch, source_len)` are complete, bool `(batch, n_best)`."""
        servable, source_lengths = self._servable, lengths_of(source, self._model.pad_id)
        limits = servable.limits.of_rows(source_lengths, len(servable.target_start))
        return self.which_ended(tokens, lengths, limits) | (source_lengths == 0)[:, None]

    def search_with_options(self, source, prefix, options, earlier=0):
        """Searches outputs. The options of a row change no other row.

        A row with an unusable option gets no token, and its error names the option. The limit of a row is the
        servable's `max_length`; without one it is the length that the row's text may have without any option. So no
        option makes a row cost more than the operator or the text allows.

        Args:
            source: int32 `(batch, source_len)`.
            prefix: The first tokens of each output, int32 `(batch, prefix_len)`, and which prefixes were cut, bool
                `(batch,)`. None for a language model.
            options: A dict of the options by name, as `OPTIONS` has them, each `(batch,)`. `prefix` is not read.
            earlier: The number of tokens at the end of each source that penalties count, int32 `(batch,)`.

        Returns:
            Tokens, int32 `(batch, 1, target_len)`; a dict of tensors `(batch, ...)`: `score`, float32; `error`,
            string, empty for a row without an error; `ended`, bool, False for an output that was cut at the largest
            length of its row and for a row with an error; `source_length` and `length`, int32, the number of tokens;
            `logprobs`, float32, and `logprob_tokens`, string, `(batch, n, 1 + k)`: of each token itself, and of the
            likeliest ones in its place.
        """
        servable, model = self._servable, self._model
        options = {name: options[name] for name in OPTIONS if name != "prefix"}
        for name, values in options.items():
            rows = tf.shape(source)[0]
            tf.debugging.assert_equal(tf.shape(values)[0], rows, f"`{name}` must have a value for each text.")
        lengths = lengths_of(source, model.pad_id)
        prefix_ids, prefix_cut = (None, False) if prefix is None else prefix
        prefix_lengths = 0 if prefix is None else lengths_of(prefix_ids, model.pad_id)
        longest = servable.longest_output
        usual = servable.limits.of_rows(lengths, prefix_lengths)
        # A text without tokens is answered with options too.
        highest = tf.minimum(servable.limits.of_rows(tf.maximum(lengths, 1), prefix_lengths), longest)
        max_length, min_length = options["max_length"], options["min_length"]
        limits = tf.where(max_length > 0, max_length, tf.minimum(tf.maximum(usual, min_length), highest))
        strategy = servable.strategy if isinstance(servable.strategy, Sample) else Sample()
        most_k = min(strategy.top_k or model.target_vocab_size, model.target_vocab_size)
        stops, wrong_stops = _stops_of(options["stop"])
        wrong = {
            name: ~_in_range(options[name], OPTIONS[name])
            for name in options
            if OPTIONS[name].low is not None
        }
        wrong["max_length"] |= limits > highest
        wrong["min_length"] |= min_length > limits
        wrong["top_k"] |= options["top_k"] > most_k
        wrong["stop"] = wrong_stops
        if prefix is not None:
            unknown = servable.target_tokenizer.is_unknown(prefix_ids) & (prefix_ids != model.pad_id)
            wrong["prefix"] = prefix_cut | (prefix_lengths > limits) | tf.reduce_any(unknown, axis=1)
        error = tf.fill(tf.shape(lengths), "")
        for name, rows in wrong.items():
            error = tf.where(rows, f"`{name}` must be {OPTIONS[name].rule}.", error)
        usable = error == ""

        # An unusable row gets the options of a row that asks for nothing.
        def usable_or_neutral(name):
            return tf.where(usable, options[name], tf.cast(OPTIONS[name].neutral, options[name].dtype))

        wanted = tf.where(usable, options["logprobs"], -1)
        compiled = self._source_lengths is not None
        count = min(OPTIONS["logprobs"].high, model.target_vocab_size)
        logged = True if compiled else tf.reduce_any(wanted >= 0)
        seed = options["seed"]
        inputs = {
            "max_length": tf.where(usable, limits, 0),
            **{name: usable_or_neutral(name) for name in OF_SEARCH},
            # All 64 bits count. A seed from 0 to 2**31 - 1 stays as it is.
            "seed": tf.cast((seed ^ seed // 2**31 ^ seed // 2**62) & 0x7FFFFFFF, tf.int32),
            "earlier": tf.broadcast_to(earlier, tf.shape(lengths)),
            "stops": tf.where(usable[:, None, None], stops, 0),
        }
        inputs["top_k"] = tf.where(inputs["top_k"] > 0, inputs["top_k"], strategy.top_k)
        inputs["min_p"] = tf.maximum(inputs["min_p"], strategy.min_p)
        if prefix is not None:
            inputs["prefix"] = tf.where(usable[:, None], prefix_ids, model.pad_id)
        strategy = dataclasses.replace(
            strategy, seed=None, num_samples=1, most_k=strategy.top_k, log_probs=count, logged=logged
        )

        def search(source, *values):
            given = dict(zip(inputs, values, strict=True))
            max_length, min_length = given["max_length"], given["min_length"]
            drawn = {name: given[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
            places = lengths_of(source, model.pad_id)[:, None] - tf.range(tf.shape(source)[1])
            counted = tf.where((places > 0) & (places <= given["earlier"][:, None]), source, -1)
            constraints = (
                *servable.constraints,
                RepetitionPenalty(given["repetition_penalty"], counted),
                PresencePenalty(given["presence_penalty"], given["frequency_penalty"], counted),
                MinLength(min_length),
                StopStrings.of(given["stops"], servable.target_tokenizer),
            )
            return model.search(
                source,
                dataclasses.replace(strategy, **drawn),
                max_length,
                target_len=longest if compiled else tf.maximum(1, tf.reduce_max(max_length)),
                constraints=constraints,
                prefix=given.get("prefix"),
            )

        shape = 1, longest * tf.cast(logged, tf.int32)
        with self._computing():
            tokens, found_lengths, scores, likeliest, log_probs = self._in_chunks(
                self._compiled_step(search),
                [source, *inputs.values()],
                [
                    *(Output((1, longest), model.pad_id), Output((1,), 0), Output((1,), 0.0)),
                    *(Output((*shape, count), 0), Output((*shape, count + 1), 0.0)),
                ],
                self._batch_sizes[-1],
            )
        # A text without tokens gets its prefix alone.
        ended = self.which_ended(tokens, found_lengths, limits)[:, 0] | (lengths == 0)
        outputs = {"score": scores[:, 0], "error": error, "ended": usable & ended, "source_length": lengths}
        outputs["length"] = found_lengths[:, 0]
        tokens = tokens[:, :, : tf.maximum(1, tf.reduce_max(found_lengths))]
        return tokens, outputs | self._logged(tokens, outputs["length"], likeliest, log_probs, wanted)

    def _logged(self, tokens, lengths, likeliest, log_probs, wanted):
        """Returns `logprobs` and `logprob_tokens` of outputs, as wide as the row needs that wants most."""
        places = tf.where(wanted >= 0, lengths, 0)
        longest, most = tf.reduce_max(tf.pad(places, [[0, 1]])), tf.reduce_max(tf.pad(wanted, [[0, 1]]))
        ids = tf.concat([tokens[:, 0, :longest, None], likeliest[:, 0, :longest, :most]], axis=-1)
        columns = tf.range(tf.shape(ids)[-1])
        kept = tf.sequence_mask(places, longest)[..., None] & (columns <= wanted[:, None])[:, None]
        # A model may have ids that its tokenizer lacks.
        texts = [*self._servable.target_tokenizer.written(), b""]
        texts = tf.gather(tf.constant(texts), tf.minimum(ids, len(texts) - 1))
        return {
            "logprobs": tf.where(kept, log_probs[:, 0, :longest, : most + 1], 0.0),
            "logprob_tokens": tf.where(kept, texts, ""),
        }

    def _ended_at_stops(self, texts, stop, outputs):
        """Cuts texts at their first stop string. Returns them, and the outputs, whose `ended` knows of the strings."""
        stop = tf.where(outputs["error"] == "", _separated(stop), "")
        cut = tf.cond(tf.reduce_any(stop != ""), lambda: _cut_at(texts, stop), lambda: texts)
        return cut, {**outputs, "ended": outputs["ended"] | (cut != texts)}


class Searcher(Writer):
    """Base class of the servables that read text and write text.

    Args:
        model: A model with `search`.
        source_tokenizer: The tokenizer of the sources, from `keras_transformer.text`.
        target_tokenizer: The tokenizer of the outputs, from `keras_transformer.text`; it may be the same object.
        strategy: How to choose tokens: `Greedy()`, `Beam()`, `DiverseBeam()` or `Sample()`.
        max_source_length: Largest number of tokens of a source.
        max_length: Largest number of tokens of an output, eos included. None for twice the length of each source plus
            16.
        constraints: List of constraints that every output must satisfy, such as `[NoRepeatNgram(3)]`.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, a tokenizer has more ids than the model or other special
            ids, `strategy` is not a strategy, a limit is out of range, or the constraints contradict one another.
    """

    # Every output begins with these ids.
    target_start = ()

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer,
        strategy=Greedy(),  # noqa: B008
        max_source_length=256,
        max_length=None,
        constraints=(),
    ):
        options = strategy, max_length, constraints
        super().__init__(model, target_tokenizer, *options, tokenizer_name="target_tokenizer")
        self.check_tokenizer(source_tokenizer, "source_vocab_size", "source_tokenizer")
        longest = MOST_TOKENS if model.max_positions is None else model.max_positions
        check_count(2, longest, max_source_length=max_source_length)
        self.source_tokenizer = source_tokenizer
        self.max_source_length = max_source_length

    @property
    def limits(self):
        """The `Limits` of the outputs."""
        return self.model.limits(self.max_length, self.constraints)

    @property
    def longest_output(self):
        """The largest number of tokens of an output, whatever the text and the options of a request, an int."""
        return self.limits.of(self.max_source_length, len(self.target_start))

    @property
    def room(self):
        """The largest number of tokens of a text, without the ids around it."""
        raise NotImplementedError

    def token_lengths(self, texts):
        return self.source_tokenizer.tokenize(texts).row_lengths().numpy()

    def count_cut(self, texts, lengths):
        """Counts the texts that are longer than the servable reads.

        Args:
            texts: List of bytes.
            lengths: Their lengths in tokens, int NumPy `(batch,)`.

        Returns:
            An int.
        """
        limit = self.max_source_length * CHARACTERS_PER_TOKEN
        long = [len(text) > limit and len(text.decode(errors="replace")) > limit for text in texts]
        return int(((lengths > self.room) | long).sum())


def options_request(texts):
    """Returns the warm-up request of the signature, which draws, for a list of str."""
    return SIGNATURE, {"text": texts, **columns(len(texts), temperature=1.0, top_p=0.9, seed=1)}


def _separated(stop):
    """Returns strings of `stop` as valid UTF-8, without zero bytes at both ends and without two in a row."""
    stop = tf.strings.regex_replace(valid_utf8(stop), r"\x00+", "\0")
    return tf.strings.regex_replace(stop, r"^\x00|\x00$", "")


def _stops_of(stop):
    """Reads stop strings.

    Args:
        stop: The strings of each row with zero bytes between them, string `(batch,)`.

    Returns:
        The bytes of the strings, the last one first, int32 `(batch, MOST_STOPS, LONGEST_STOP)`; and which rows have too
        many strings or too long ones, bool `(batch,)`.
    """
    texts = tf.strings.split(_separated(stop), "\0")
    dense = texts.to_tensor("", shape=(None, MOST_STOPS))
    sizes = tf.strings.length(dense)
    wrong = (texts.row_lengths() > MOST_STOPS) | tf.reduce_any(sizes > LONGEST_STOP, axis=1)
    raw = tf.io.decode_raw(tf.reshape(dense, (-1,)), tf.uint8, fixed_length=LONGEST_STOP)
    backwards = tf.reverse_sequence(raw, tf.minimum(tf.reshape(sizes, (-1,)), LONGEST_STOP), seq_axis=1)
    return tf.reshape(tf.cast(backwards, tf.int32), (-1, MOST_STOPS, LONGEST_STOP)), wrong


def _cut_at(texts, stop):
    """Cuts texts before the first of their stop strings, which have zero bytes between them."""
    quoted = tf.strings.regex_replace(stop, r"([\\.+*?()|\[\]{}^$])", r"\\\1")
    either = tf.strings.regex_replace(quoted, r"\x00", "|")
    # The second pattern fits nowhere.
    pattern = tf.where(stop == "", r"\z\C", tf.strings.join(["(?s)(?:", either, r")\C*"]))

    def cut(row):
        return tf.strings.regex_replace(row[0], row[1], "", replace_global=False)

    return tf.map_fn(cut, (texts, pattern), fn_output_signature=tf.TensorSpec((), tf.string))


def _in_range(values, option):
    fits = (values > option.low) if option.above else (values >= option.low)
    return fits & (values <= (values.dtype.max if option.high is None else option.high))
