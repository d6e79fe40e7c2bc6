"""Transcribers: a recording in, its words out."""

from typing import NamedTuple

import numpy as np

from keras_transformer.checks import check, check_range
from keras_transformer.decoding import Greedy, SpeechIds
from keras_transformer.decoding.speech import rule_of_choice
from keras_transformer.layers import LogMelSpectrogram
from keras_transformer.models import EncoderDecoder
from keras_transformer.recordings import wav_of
from keras_transformer.serving.transcripts import WINDOWS, TranscriberSignatures
from keras_transformer.serving.writer import FileWriter


class Segment(NamedTuple):
    """A part of a transcript: the seconds of its begin and of its end, floats, and its text, a str."""

    begin: float
    end: float
    text: str


def segments_of(answer):
    """Returns the segments of one row of the signature `segments`, a list of `Segment`."""
    columns = (answer[name][: answer["segments"]].tolist() for name in ("begin", "end", "text"))
    return [
        Segment(begin, end, text.decode(errors="replace")) for begin, end, text in zip(*columns, strict=True)
    ]


class Transcriber(FileWriter):
    """Transcribes speech. The reading of files, the spectrogram, the model and the search are one graph.

    Each recording is transcribed independently. One that is longer than the model's window is read window by window;
    the next one begins where the last whole segment ended (Radford et al., 2022, "Robust Speech Recognition via
    Large-Scale Weak Supervision", section 4.5). Silence has an empty transcript. Zeros at the end are no part of a
    recording.

    ```python
    model = kt.huggingface.from_huggingface("whisper-base")
    (tokenizer,) = kt.huggingface.tokenizers_from_huggingface("whisper-base")
    options = kt.huggingface.transcriber_options("whisper-base")
    transcriber = kt.serving.Transcriber(model, tokenizer, **options)
    transcriber.transcribe(["talk.wav"], language="en")
    transcriber.export("models/speech", version=1)
    ```

    Args:
        model: An `EncoderDecoder` whose source reads spectrograms `(batch, frames, num_mel_bins)`.
        tokenizer: The tokenizer of the transcripts, from `keras_transformer.text`.
        strategy: How to choose tokens: `Greedy()`, `Beam()` or `Sample()`.
        max_length: Largest number of tokens of a window's transcript, prefix and eos included. None for the number of
            the model's positions.
        constraints: List of constraints that every window's transcript must satisfy.
        spectrogram: The `LogMelSpectrogram` of the model's training.
        ids: The `SpeechIds` of the model.
        language: The code of the recordings' language; None for the one that the model hears.
        task: "transcribe" for the words as they are said, "translate" for English.
        window_seconds: How long a part of a recording the model reads at once. None for the longest that its source
            takes.
        max_seconds: The longest recording, in seconds.

    Raises:
        ValueError: If the backend of Keras is not TensorFlow, the model reads ids, the tokenizer has more ids than the
            model, an argument is of another class or out of range, or `language` or `task` is unknown.
    """

    DESCRIPTION = "transcriber.json"
    TOKENIZERS = ("tokenizer",)
    model_classes = (EncoderDecoder,)
    signatures_class = TranscriberSignatures
    reads = "spectrograms"
    # The padding of Whisper's tokenizers is their eos.
    shared_ids = ()

    def __init__(
        self,
        model,
        tokenizer,
        strategy=Greedy(),  # noqa: B008
        max_length=None,
        constraints=(),
        *,
        spectrogram=None,
        ids=None,
        language=None,
        task=None,
        window_seconds=None,
        max_seconds=3600,
    ):
        super().__init__(model, tokenizer, strategy, max_length, constraints)
        spectrogram = LogMelSpectrogram() if spectrogram is None else spectrogram
        ids = SpeechIds() if ids is None else ids
        for name, value, kind in (("spectrogram", spectrogram, LogMelSpectrogram), ("ids", ids, SpeechIds)):
            check(isinstance(value, kind), f"`{name}` must be a `{kind.__name__}`.", **{name: value})
        for name, value, known in (("language", language, ids.languages), ("task", task, ids.tasks)):
            check(value is None or value in known, rule_of_choice(name, known), **{name: value})
        heads = [layer.cross_attention.num_heads for layer in model.decoder.layers]
        fits = all(layer < len(heads) and head < heads[layer] for layer, head in ids.alignment_heads)
        rule = (
            f"`ids.alignment_heads` must be pairs of a layer and one of its heads: the layers have {heads}."
        )
        check(fits, rule, alignment_heads=ids.alignment_heads)
        rule = "`window_seconds` must be given for a model that has no longest source."
        check(getattr(model.source, "max_length", None) or window_seconds, rule, window_seconds=None)
        check_range(0, above=True, max_seconds=max_seconds)
        if window_seconds is not None:
            check_range(0, above=True, window_seconds=window_seconds)
        self.tokenizer, self.spectrogram, self.ids = tokenizer, spectrogram, ids
        self.language, self.task = language, task
        self.window_seconds, self.max_seconds = window_seconds, max_seconds

    @property
    def usual(self):
        """The language and the task of a recording for which nobody names one, a dict of str; "" for none."""
        task = self.task or self.ids.task or ("transcribe" if self.ids.tasks else "")
        return {"language": self.language or self.ids.language or "", "task": task}

    @property
    def sampling_rate(self):
        """Samples a second of the recordings that the model reads."""
        return self.spectrogram.sampling_rate

    @property
    def frame_seconds(self):
        """The time between two frames of a spectrogram, in seconds."""
        return self.spectrogram.sequence_stride / self.sampling_rate

    @property
    def window_frames(self):
        """The number of frames that the model reads at once."""
        seconds = self.window_seconds
        return self.model.source.max_length if seconds is None else round(seconds / self.frame_seconds)

    @property
    def max_samples(self):
        """The largest number of samples of a recording."""
        return round(self.max_seconds * self.sampling_rate)

    def transcribe(
        self, audio, language=None, task=None, timestamps=False, *, sampling_rate=None, batch_size=8
    ):
        """Transcribes recordings.

        Args:
            audio: List of recordings: the path of a WAV file, its bytes, or an array `(samples,)` or
                `(samples, channels)` of floats in [-1, 1] or of ints. With soundfile also FLAC, Ogg and MP3 files.
            language: The code of the recordings' language; None for the transcriber's own, or for the one that the
                model hears.
            task: "transcribe" or "translate"; None for the transcriber's own.
            timestamps: Whether to return segments with their begin and end; "words" for each word's.
            sampling_rate: Samples a second of the arrays; None for the rate of the model.
            batch_size: Number of recordings at once.

        Returns:
            A list of str; with `timestamps` a list with a list for each recording, of `Segment(begin, end, text)`.

        Raises:
            ValueError: If a recording cannot be read or is longer than `max_seconds`, `language` or `task` is unknown,
                or `timestamps` is "words" without `ids.alignment_heads`.
            ImportError: If it is a FLAC, Ogg or MP3 file and soundfile is not installed.
        """
        rule = "`audio` must be a list of recordings."
        check(isinstance(audio, (list, tuple)), rule, audio=type(audio).__name__)
        rate = self.sampling_rate if sampling_rate is None else sampling_rate
        files = [wav_of(recording, rate) for recording in audio]
        names = {False: "wav", True: "segments", "words": "words"}
        check(timestamps in names, '`timestamps` must be False, True or "words".', timestamps=timestamps)
        signature = names[timestamps]
        self.check_has_times(signature)
        batches = self.answers_of(files, batch_size, "audio", language or "", task or "", signature=signature)
        return [each for answers in batches for each in self._results(answers, timestamps)]

    def check_has_times(self, signature):
        """Raises `ValueError` if a signature is "words", and the model does not say when words are said."""
        rule = "Times of words need the heads of attention that follow the audio, `ids.alignment_heads`."
        check(signature != "words" or self.ids.alignment_heads, rule, alignment_heads=())

    def _results(self, answers, timestamps):
        if not timestamps:
            return [text.decode(errors="replace") for text in answers["text"]]
        rows = range(len(answers["segments"]))
        return [segments_of({name: values[i] for name, values in answers.items()}) for i in rows]

    def warmup_requests(self, shapes):
        samples = np.zeros((self.sampling_rate,), "float32")
        # Zeros alone have no transcript, and the search would not be warm.
        samples[-1] = 2**-15
        for rows in sorted({min(batch_size, WINDOWS) for batch_size, _ in shapes}):
            yield "serving_default", {"audio": np.stack([samples] * rows)}
        # One answer takes a window of the encoder, which are seconds: so these have one row.
        file = {"wav": [wav_of(samples, self.sampling_rate)], "language": [""], "task": [""]}
        words = ("words",) if self.ids.alignment_heads else ()
        yield from ((signature, file) for signature in ("wav", "segments", *words))
