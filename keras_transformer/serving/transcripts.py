"""The signatures of a transcriber's export: its reading of files, its windows, its search and its segments."""

import functools
from typing import ClassVar

import tensorflow as tf

from keras_transformer.decoding import ExcludeTokens, SuppressFirstTokens, TimestampRules, feature_keys
from keras_transformer.decoding.speech import rule_of_choice
from keras_transformer.models.transformer import Memory
from keras_transformer.serving.audio import sounding, spectrograms, waves
from keras_transformer.serving.signatures import Output, function_of, parts_by_row
from keras_transformer.serving.word_times import WITHOUT_BLANKS, spans_of, token_times, words_of
from keras_transformer.serving.writer import WriterSignatures

# A timestamp counts steps of 0.02 seconds.
STEP_SECONDS = 0.02
# A window is silence where "no speech" is likelier than this, and the tokens are on average less likely than that.
NO_SPEECH, LOG_PROB = 0.6, -1.0
# So many windows are read at once: the scores of each one's encoder have 72 MB in Whisper base.
WINDOWS = 8
# A slot of a window without a token of the transcript.
DROPPED = -1


class TranscriberSignatures(WriterSignatures):
    """The signatures of a transcriber's export."""

    descriptions: ClassVar = {
        "serving_default": "Transcribes recordings.",
        "wav": "Transcribes WAV files, each in its language and for its task.",
        "segments": "Transcribes WAV files, and says when each sentence begins and ends.",
        "words": "Transcribes WAV files, and says when each word begins and ends.",
    }
    # It shares no nodes with the others.
    on_request = ("words",)

    def __init__(self, servable, batch_sizes, source_lengths=None, weights=None):
        # A step has at most so many rows, so a compiled one is not padded to more.
        sizes = sorted({min(size, WINDOWS) for size in batch_sizes})
        super().__init__(servable, sizes, source_lengths, weights)
        samples, first_samples = (tf.TensorSpec((None,), dtype) for dtype in (tf.float32, tf.int64))
        rows, asked = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.bool)
        of_rows = {"first_samples": first_samples, "lengths": rows, "language": rows, "task": rows}
        self._windows, self._timed_windows = (
            function_of(
                functools.partial(self._written, words=words), samples=samples, **of_rows, timestamps=asked
            )
            for words in (False, True)
        )
        read = functools.partial(
            waves, sampling_rate=servable.sampling_rate, max_samples=servable.max_samples
        )
        self._waves = function_of(read, wav=tf.TensorSpec((None,), tf.string))

    def functions(self):
        """Returns a dict from a signature's name to its `tf.function`."""
        audio = tf.TensorSpec((None, None), tf.float32, name="audio")
        wav, language, task = (
            tf.TensorSpec((None,), tf.string, name=name) for name in ("wav", "language", "task")
        )
        words = {"words": self.words} if self._servable.ids.alignment_heads else {}
        functions = {"wav": self.transcribe_wav, "segments": self.segments, **words}
        of_files = {
            name: function_of(each, wav=wav, language=language, task=task) for name, each in functions.items()
        }
        return {"serving_default": function_of(self.transcribe, audio=audio), **of_files}

    def transcribe(self, audio):
        """Transcribes recordings.

        Args:
            audio: float32 `(batch, samples)` in [-1, 1], at the rate of the model, padded with zeros on the right.

        Returns:
            A dict of tensors `(batch,)`: `text`, string; `language`, string, the code of the language that the model
            heard, empty for a model of one language; `error`, string, empty for a row with an answer.
        """
        finite = tf.reduce_all(tf.math.is_finite(audio), axis=1)
        audio = tf.where(finite[:, None], audio, 0.0)
        lengths = sounding(audio)
        too_long = lengths > self._servable.max_samples
        error = tf.where(too_long, f"`audio` must be at most {self._servable.max_seconds} seconds long.", "")
        error = tf.where(finite, error, "`audio` must hold finite numbers.")
        rows, width = tf.unstack(tf.shape(audio, tf.int64))
        samples, first_samples = tf.reshape(audio, (-1,)), width * tf.range(rows)
        recordings = samples, first_samples, tf.where(error == "", lengths, 0)
        return self._transcripts(recordings, self._no_choice(error), error)

    def transcribe_wav(self, wav, language, task):
        """Transcribes files.

        Args:
            wav: The bytes of WAV files, string `(batch,)`.
            language: The code of each one's language, string `(batch,)`; empty for the transcriber's own, or for the
                one that the model hears.
            task: "transcribe" or "translate" for each one, string `(batch,)`; empty for the transcriber's own.

        Returns:
            What `transcribe` returns. A row that cannot be read, or whose language or task is unknown, has an error,
            and changes no other row.
        """
        return self._transcripts(*self._read(wav, language, task))

    def segments(self, wav, language, task):
        """Transcribes files, and says when each segment begins and ends.

        Args:
            wav: As for `transcribe_wav`.
            language: As for `transcribe_wav`.
            task: As for `transcribe_wav`.

        Returns:
            A dict: `text`, string, `begin` and `end`, seconds, float32, `(batch, segments)`; `segments`, the number of
            each row's segments, int32 `(batch,)`; `language` and `error` as for `transcribe_wav`. Without timestamps a
            segment is a window of the model.
        """
        recordings, chosen, error = self._read(wav, language, task)
        tokens, seconds, heard = self._windows(*recordings, *chosen, True)
        ends = tf.cast(recordings[-1], tf.float32) / self._servable.sampling_rate
        return {**self._segments(tokens, seconds, ends), **self._notes(heard, error)}

    def words(self, wav, language, task):
        """Transcribes files, and says when each word begins and ends.

        Args:
            wav: As for `transcribe_wav`.
            language: As for `transcribe_wav`.
            task: As for `transcribe_wav`.

        Returns:
            What `segments` returns, with a word in the place of each segment. In a language that is written without
            blanks it is a token of whole characters.
        """
        recordings, chosen, error = self._read(wav, language, task)
        tokens, seconds, heard, times = self._timed_windows(*recordings, *chosen, False)
        is_text = self._is_text(tokens)
        ids, row = tf.boolean_mask(tokens, is_text), tf.cast(tf.where(is_text)[:, 0], tf.int32)
        codes = ["", *self._servable.ids.languages]
        no_blanks = tf.gather(tf.constant([code in WITHOUT_BLANKS for code in codes]), tf.gather(heard, row))
        times = tf.boolean_mask(times + seconds[..., None], is_text)
        parts = words_of(ids, row, times, no_blanks, self._servable.tokenizer)
        return {**_by_row(*parts, tf.shape(tokens)[0]), **self._notes(heard, error)}

    def _no_choice(self, rows):
        language, task = (tf.fill(tf.shape(rows), "") for _ in range(2))
        return self._chosen(language, task)[0]

    def _read(self, wav, language, task):
        audio, unreadable = self._waves(wav)
        chosen, error = self._chosen(language, task)
        error = tf.where(unreadable == "", error, unreadable)
        lengths = tf.where(error == "", tf.cast(audio.row_lengths(), tf.int32), 0)
        return (audio.values, audio.row_starts(), lengths), chosen, error

    def _chosen(self, language, task):
        """Returns the ids of languages and tasks, int32 `(batch,)` each, and an error for each row; -1 for no id."""
        servable, error, ids = self._servable, tf.fill(tf.shape(language), ""), []
        for name, values in (("language", language), ("task", task)):
            known = getattr(servable.ids, f"{name}s")
            own = servable.usual[name]
            values = tf.where(values == "", own, values)
            place = tf.argmax(tf.constant(["", *known]) == values[:, None], axis=1)
            unknown = (place == 0) & (values != "") if known else values != own
            error = tf.where(unknown, rule_of_choice(name, known, own), error)
            ids.append(tf.gather(tf.constant([-1, *known.values()], tf.int32), place))
        return ids, error

    def _transcripts(self, recordings, chosen, error):
        tokens, _, heard = self._windows(*recordings, *chosen, False)
        text = self._servable.tokenizer.detokenize(tf.ragged.boolean_mask(tokens, self._is_text(tokens)))
        return {"text": tf.strings.strip(text), **self._notes(heard, error)}

    def _notes(self, language, error):
        codes = tf.constant(["", *self._servable.ids.languages])
        return {"language": tf.gather(codes, language), "error": error}

    @property
    def _first_stamp(self):
        """The id of the first timestamp; of no token for a model without timestamps."""
        first = self._servable.ids.first_timestamp_id
        return self._model.target_vocab_size if first is None else first

    def _is_text(self, tokens):
        """Marks the tokens that are neither special nor a timestamp."""
        special = self._servable.ids
        others = {self._model.pad_id, self._model.bos_id, self._model.eos_id, DROPPED}
        others |= {*special.languages.values(), *special.tasks.values(), special.no_timestamps_id}
        ids = tf.constant(sorted(others - {None}), tf.int32)
        return tf.reduce_all(tokens[..., None] != ids, axis=-1) & (tokens < self._first_stamp)

    def _written(self, samples, first_samples, lengths, language, task, timestamps, words):
        """Writes the transcripts of recordings, one window after the other.

        Radford et al., 2022 (Whisper), section 4.5: the next window begins where the last whole segment ended.

        Args:
            samples: The samples of all recordings, float32 `(samples,)`.
            first_samples: The place of each row's first one, int64 `(batch,)`.
            lengths: The number of samples of each row, int32 `(batch,)`.
            language: The id of each row's language, int32 `(batch,)`; -1 for the one that the model hears.
            task: The id of each row's task, int32 `(batch,)`; -1 for a model of one task.
            timestamps: Whether to write timestamps for rows of one window too, bool.
            words: Whether to say when each token is said, a bool.

        Returns:
            The tokens of all windows, one after another, int32 `(batch, windows * length)`, `DROPPED` where there is
            none; the second at which each one's window begins, float32 `(batch, windows * length)`, for `_segments`;
            the number of each row's language among the languages, from 1 on, int32 `(batch,)`; and with `words` the
            seconds after the begin of its window at which each token begins and ends, float32
            `(batch, windows * length, 2)`.
        """
        servable, frames = self._servable, self._servable.window_frames
        batch, longest = tf.shape(lengths)[0], servable.longest_output
        totals = -(-lengths // servable.spectrogram.sequence_stride)
        features, first_frames = spectrograms(samples, first_samples, lengths, servable.spectrogram, frames)
        has_stamps = servable.ids.no_timestamps_id is not None
        stamps = tf.logical_and(has_stamps, timestamps | (totals > frames))

        def goes_on(_, begin, *others):
            return tf.reduce_any(begin < totals)

        def step(i, begin, language, tokens, begins, *times):
            active = tf.where(begin < totals)[:, 0]
            places = tf.gather(first_frames + begin, active)[:, None] + tf.range(frames)
            windows = tf.gather(features, places)
            chosen = [tf.gather(each, active) for each in (language, task, stamps)]
            left = tf.minimum(tf.gather(totals, active) - tf.gather(begin, active), frames)
            outputs = [Output((longest,), DROPPED), Output((), 0), Output((), False), Output((), -1)]
            search = functools.partial(self._search, strategy=self._strategy(), words=words)
            with self._computing():
                new, lengths, silent, own, *said = self._in_chunks(
                    # What finds the words has shapes of its own for each recording.
                    search if words else self._compiled_step(search),
                    [windows, *chosen, left],
                    outputs + [Output((longest, 2), 0.0)] * words,
                    self._batch_sizes[-1],
                )
            kept, steps = self._kept(new, lengths, silent, left)
            members = active[:, None]
            row = tf.tensor_scatter_nd_update(tf.fill((batch, longest), DROPPED), members, kept)
            return (
                i + 1,
                tf.tensor_scatter_nd_add(begin, members, steps),
                # The first window decides about the language of the others.
                tf.tensor_scatter_nd_update(language, members, own),
                tokens.write(i, row),
                begins.write(i, begin),
                *(each.write(i, tf.scatter_nd(members, *said, (batch, longest, 2))) for each in times),
            )

        def array(*shape, dtype=tf.int32):
            shape = (None, *shape)
            return tf.TensorArray(dtype, 0, dynamic_size=True, infer_shape=False, element_shape=shape)

        def stacked(array, *shape):
            # An array without an element has no shape.
            return tf.cond(
                count > 0, lambda: tf.reshape(array.stack(), shape), lambda: tf.zeros(shape, array.dtype)
            )

        arrays = [array(longest), array(), *[array(longest, 2, dtype=tf.float32)] * words]
        first = (0, tf.zeros_like(lengths), language, *arrays)
        count, _, language, tokens, begins, *times = tf.while_loop(
            goes_on, step, first, parallel_iterations=1
        )
        shape = (count, batch, longest)
        tokens, begins = stacked(tokens, *shape), stacked(begins, count, batch)
        seconds = tf.cast(begins, tf.float32) * servable.frame_seconds
        seconds = tf.broadcast_to(seconds[..., None], shape)
        tokens, seconds = (tf.transpose(x, (1, 0, 2)) for x in (tokens, seconds))
        whole = (batch, count * longest)
        times = [tf.transpose(stacked(each, *shape, 2), (1, 0, 2, 3)) for each in times]
        times = [tf.reshape(each, (*whole, 2)) for each in times]
        return tf.reshape(tokens, whole), tf.reshape(seconds, whole), self._number_of(language), *times

    def _number_of(self, language):
        """Returns the number of each language's id among the languages, from 1 on; 0 for -1."""
        ids = tf.constant([-1, *self._servable.ids.languages.values()], tf.int32)
        return tf.argmax(ids == language[:, None], axis=1, output_type=tf.int32)

    def _search(self, features, language, task, stamps, left, strategy, words):
        """Writes the tokens of windows.

        Args:
            features: float32 `(rows, frames, features)`.
            language: int32 `(rows,)`, -1 for the one that the model hears.
            task: int32 `(rows,)`.
            stamps: bool `(rows,)`, which rows get timestamps.
            left: Number of frames of each window that are there, int32 `(rows,)`.
            strategy: How to choose tokens.
            words: Whether to say when each token is said, a bool.

        Returns:
            A list: tokens, int32 `(rows, max_length)`; their numbers, int32 `(rows,)`; which windows are silence, bool
            `(rows,)`; the ids of their languages, int32 `(rows,)`; with `words` when each token begins and ends,
            in seconds, float32 `(rows, max_length, 2)`.
        """
        servable, model, special = self._servable, self._model, self._servable.ids
        memory = model.projected(model.encode(features, training=False))
        begin = tf.fill((tf.shape(features)[0], 1), model.bos_id)
        first = model.decode(begin, memory, training=False)[:, 0]
        if special.languages:
            ids = tf.constant(list(special.languages.values()), tf.int32)
            heard = tf.gather(ids, tf.argmax(tf.gather(first, ids, axis=1), axis=1))
            language = tf.where(language < 0, heard, language)
        silent = tf.zeros_like(first[:, 0])
        if special.no_speech_id is not None:
            silent = tf.nn.softmax(first)[:, special.no_speech_id]
        columns = [language] * bool(special.languages) + [task] * bool(special.tasks)
        has_stamps = special.no_timestamps_id is not None
        count, constraints = len(columns), [*servable.constraints]
        own = tf.fill(tf.shape(language), count)
        if has_stamps:
            columns.append(tf.where(stamps, model.pad_id, special.no_timestamps_id))
            own += tf.cast(~stamps, tf.int32)
        if special.suppressed:
            constraints.append(ExcludeTokens(special.suppressed))
        if special.suppressed_first:
            constraints.append(SuppressFirstTokens(special.suppressed_first, begin=own))
        if has_stamps:
            constraints.append(
                TimestampRules(self._first_stamp, model.eos_id, special.max_first_timestamp, own, stamps)
            )
        prefix = tf.stack(columns, axis=1) if columns else None
        found = model.search(
            memory,
            strategy,
            servable.longest_output,
            constraints=constraints,
            prefix=prefix,
            keys=feature_keys(features) if hasattr(strategy, "seed") else None,
        )
        tokens, lengths, scores = (x[:, 0] for x in found)
        if columns:
            given = tf.concat([begin, prefix], axis=1)
            logits = model.decode(given[:, :-1], memory, training=False)
            log_probs = tf.gather(tf.nn.log_softmax(logits), prefix, batch_dims=2)
            scores -= tf.reduce_sum(tf.where(prefix == model.pad_id, 0.0, log_probs), axis=1)
        mean = scores / tf.cast(tf.maximum(lengths - own, 1), tf.float32)
        times = []
        if words:
            given = [begin, *(each[:, None] for each in columns[:count])]
            times.append(self._times(memory, given, tokens, left))
        return [tokens, lengths, (silent > NO_SPEECH) & (mean < LOG_PROB), language, *times]

    def _times(self, memory, prompt, tokens, left):
        """Says when each token of windows is said.

        The model reads the words once more, without times among them.

        Args:
            memory: The `Memory` of the windows.
            prompt: List of int32 `(rows, 1)`: what the tokens follow, but for the id that says whether there are times.
            tokens: int32 `(rows, max_length)`.
            left: Number of frames of each window that are there, int32 `(rows,)`.

        Returns:
            float32 `(rows, max_length, 2)`, the seconds at which each token begins and ends; 0 where there is no text.
        """
        model, special = self._model, self._servable.ids
        if special.no_timestamps_id is not None:
            prompt = [*prompt, tf.fill(tf.shape(prompt[0]), special.no_timestamps_id)]
        prompt, longest = tf.concat(prompt, axis=1), tf.shape(tokens)[1]
        seconds = self._servable.window_frames * self._servable.frame_seconds

        def of_row(row):
            states, prompt, tokens, left = row
            memory = Memory(tf.nest.map_structure(lambda x: x[None], states), None)
            is_text = self._is_text(tokens)
            text = tf.boolean_mask(tokens, is_text)
            # A transcript may fill all positions of the model, without room for the id that there are no times.
            room = model.max_positions or tf.int32.max
            ids = tf.concat([prompt, text[: room - tf.size(prompt) - 1], [model.eos_id]], axis=0)
            _, attention = model.decode(ids[None], memory, training=False, return_attention_scores=True)
            scores = tf.stack([attention[layer][1][0, head] for layer, head in special.alignment_heads])
            places = tf.shape(scores)[2]
            there = -(-left * places // self._servable.window_frames)
            begins = token_times(scores, tf.size(prompt) - 1, there)
            times = spans_of(begins, tf.size(text)) * (seconds / tf.cast(places, tf.float32))
            return tf.scatter_nd(tf.cast(tf.where(is_text), tf.int32), times, (longest, 2))

        # A window has all its frames, so its memory has no mask.
        rows = memory.states, prompt, tokens, left
        spec = tf.TensorSpec((None, 2), tf.float32)
        return tf.map_fn(of_row, rows, fn_output_signature=spec, parallel_iterations=1)

    def _kept(self, tokens, lengths, silent, left):
        """Says what a window keeps, and where the next one begins.

        Args:
            tokens: int32 `(rows, length)`.
            lengths: int32 `(rows,)`.
            silent: bool `(rows,)`.
            left: Number of frames of the window that are there, int32 `(rows,)`.

        Returns:
            The tokens, `DROPPED` for what is not kept; and the number of frames to the next window, int32 `(rows,)`.
        """
        places = tf.range(tf.shape(tokens)[1])
        there = places < lengths[:, None]
        is_stamp = there & (tokens >= self._first_stamp)
        # The end of the transcript is not a part of it.
        lengths -= tf.reduce_sum(tf.cast(there & (tokens == self._model.eos_id), tf.int32), axis=1)

        def at(mask, i):
            index = tf.maximum(lengths - i, 0)
            return tf.gather(mask, index, batch_dims=1) & (lengths >= i)

        after_stamp = tf.pad(is_stamp, [[0, 0], [1, 0]])[:, :-1]
        pairs = is_stamp & after_stamp
        # The place of the last begin of a segment that follows the end of another one.
        cut = tf.reduce_max(tf.where(pairs, places, 0), axis=1)
        is_open = (cut > 0) & ~(at(is_stamp, 1) & ~at(is_stamp, 2))
        ended = tf.gather(tokens, tf.maximum(cut - 1, 0), batch_dims=1) - self._first_stamp
        steps = tf.cast(
            tf.cast(ended, tf.float32) * (STEP_SECONDS / self._servable.frame_seconds) + 0.5, tf.int32
        )
        is_open &= (steps > 0) & ~silent
        end = tf.where(is_open, cut, tf.where(silent, 0, lengths))
        kept = tf.where(places < end[:, None], tokens, DROPPED)
        return kept, tf.where(is_open, tf.minimum(steps, left), left)

    def _segments(self, tokens, seconds, ends):
        """Cuts transcripts into segments: at timestamps, and where a window ends.

        Args:
            tokens: int32 `(batch, length)`, `DROPPED` where there is none.
            seconds: float32 `(batch, length)`, when each one's window begins.
            ends: float32 `(batch,)`, when each recording ends.

        Returns:
            A dict of `text`, `begin`, `end` and `segments`.
        """
        is_stamp, is_text = tokens >= self._first_stamp, self._is_text(tokens)
        rows, columns = tf.shape(tokens)[0], tf.shape(tokens)[1]
        times = seconds + STEP_SECONDS * tf.cast(tokens - self._first_stamp, tf.float32)
        is_mark = is_stamp | (tf.range(columns) % self._servable.longest_output == 0)
        marks = tf.ragged.boolean_mask(tf.where(is_stamp, times, seconds), is_mark)
        marks = tf.concat([marks, ends[:, None]], axis=1).to_tensor()
        # The text after each mark is one segment.
        places = tf.cumsum(tf.cast(is_mark, tf.int32), axis=1) - 1 + columns * tf.range(rows)[:, None]
        own, segment = tf.unique(tf.boolean_mask(places, is_text))
        ids = tf.RaggedTensor.from_value_rowids(tf.boolean_mask(tokens, is_text), segment)
        text = self._servable.tokenizer.detokenize(ids)
        row, mark = own // tf.maximum(columns, 1), own % tf.maximum(columns, 1)
        begin, end = (tf.gather_nd(marks, tf.stack([row, mark + i], axis=1)) for i in (0, 1))
        return _by_row(tf.strings.strip(text), begin, tf.maximum(begin, end), row, rows)


def _by_row(text, begin, end, row, rows):
    """Returns the outputs of segments or words.

    Args:
        text: string `(n,)`.
        begin, end: float32 `(n,)`, seconds.
        row: The number of each one's recording, rising, int32 `(n,)`.
        rows: Number of recordings.

    Returns:
        A dict of `text`, `begin` and `end` `(rows, longest)`, and `segments` `(rows,)`.
    """
    parts, counts = parts_by_row({"text": text, "begin": begin, "end": end}, row, rows)
    return {**parts, "segments": counts}
