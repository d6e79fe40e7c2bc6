"""Checkpoints that write what they hear: the ids of their prompts, and how their audio is prepared."""

from dataclasses import dataclass, field

from keras_transformer.checks import check, short_errors
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import GENERATION_CONFIG, read_config
from keras_transformer.huggingface.known_keys import IGNORED, check_keys
from keras_transformer.layers import LogMelSpectrogram

EXTRACTOR = "WhisperFeatureExtractor"
# The arguments of a `LogMelSpectrogram`: the key of preprocessor_config.json, and transformers' value without it.
SPECTROGRAM = {
    "num_mel_bins": ("feature_size", 80),
    "sampling_rate": ("sampling_rate", 16000),
    "fft_length": ("n_fft", 400),
    "sequence_stride": ("hop_length", 160),
}


@dataclass(frozen=True)
class SpeechIds:
    """The ids with a meaning in a model that writes what it hears, as generation_config.json has them.

    Radford et al., 2023, "Robust Speech Recognition via Large-Scale Weak Supervision", section 2.3. An output begins
    with the model's `bos_id`, and goes on with `prompt(...)`.

    Attributes:
        languages: A dict from the code of a language, such as "ko", to its id; empty where there is one language.
        tasks: A dict from a task, "transcribe" or "translate", to its id; empty where there is one task.
        language, task: What an output is in where nobody says; None where the file does not say either.
        no_timestamps_id: The id that asks for a text without times, or None. The ids after it are times, two hundredths
            of a second apart.
        suppressed: The ids that no output has, a tuple.
        suppressed_first: The ids that do not follow the prompt, a tuple.
        max_first_timestamp: Number of the last time that may follow the prompt; None for any.
        previous_id: The id that begins the text before a prompt, or None.
        alignment_heads: The heads of attention that follow the audio: pairs of a layer of the decoder and a head, a
            tuple.
    """

    languages: dict = field(default_factory=dict)
    tasks: dict = field(default_factory=dict)
    language: str | None = None
    task: str | None = None
    no_timestamps_id: int | None = None
    suppressed: tuple = ()
    suppressed_first: tuple = ()
    max_first_timestamp: int | None = None
    previous_id: int | None = None
    alignment_heads: tuple = ()

    def prompt(self, language=None, task=None, timestamps=False):
        """Returns the ids that follow `bos_id`: a list of the language, the task, and whether there are times.

        Args:
            language: A code of `languages`; None for `self.language`.
            task: One of `tasks`; None for `self.task`, or else "transcribe".
            timestamps: Whether the model writes times.

        Raises:
            ValueError: If the model has no such language, task, or text without times.

        >>> SpeechIds({"ko": 7}, {"transcribe": 5}, no_timestamps_id=6).prompt("ko")
        [7, 5, 6]
        """
        language = self.language if language is None else language
        task = (self.task or "transcribe") if task is None else task
        codes, tasks = [*self.languages] or [None], [*self.tasks] or ["transcribe"]
        check(language in codes, f"`language` must be one of {codes}.", language=language)
        check(task in tasks, f"`task` must be one of {tasks}.", task=task)
        rule = f"`timestamps` must be True where {GENERATION_CONFIG} has no `no_timestamps_token_id`."
        check(timestamps or self.no_timestamps_id is not None, rule, timestamps=timestamps)
        ids = (
            self.languages.get(language),
            self.tasks.get(task),
            None if timestamps else self.no_timestamps_id,
        )
        return [each for each in ids if each is not None]


@short_errors()
def speech_ids_from_huggingface(folder):
    """Reads the ids with a meaning in a model that writes what it hears.

    Args:
        folder: A path. The folder holds generation_config.json.

    Returns:
        A `SpeechIds`.

    Raises:
        ValueError: If the file is missing or damaged.

    >>> import pathlib, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = pathlib.Path(folder, "generation_config.json").write_text('{"lang_to_id": {"<|ko|>": 7}}')
    >>> speech_ids_from_huggingface(folder).languages
    {'ko': 7}
    """
    config = read_config(folder, GENERATION_CONFIG)
    several = config.get("is_multilingual") is not False
    tokens, tasks = ((config.get(key) or {}) if several else {} for key in ("lang_to_id", "task_to_id"))
    languages = {token.strip("<|>"): token_id for token, token_id in tokens.items()}
    lists = ("suppress_tokens", "begin_suppress_tokens", "alignment_heads")
    suppressed, suppressed_first, heads = (_listed(config.get(key)) for key in lists)
    return SpeechIds(
        languages,
        tasks,
        _asked(config, "language", languages),
        _asked(config, "task", tasks),
        config.get("no_timestamps_token_id"),
        suppressed,
        suppressed_first,
        config.get("max_initial_timestamp_index"),
        config.get("prev_sot_token_id"),
        tuple(map(tuple, heads)),
    )


def _asked(config, key, ids):
    """Returns the language or the task that a file asks for, in its own key or as old versions of transformers do."""
    name = (config.get(key) or "").strip("<|>")
    forced = [pair[1:] for pair in config.get("forced_decoder_ids") or ()]
    return next((each for each, token_id in ids.items() if each == name or [token_id] in forced), None)


def _listed(value):
    """Returns a list, one value or None as a tuple."""
    return tuple(value) if isinstance(value, list) else () if value is None else (value,)


def spectrogram_of(config, file):
    """Makes the `LogMelSpectrogram` that a preprocessor_config.json describes.

    Args:
        config: The content of the file, a dict.
        file: Name of the file, for errors.

    Raises:
        ValueError: If it asks for something that the layer does not do.
    """
    read = [key for key, _ in SPECTROGRAM.values()]
    check_keys(config, (*read, "dither", "padding_value", *IGNORED[f"{file} of Whisper"]), file)
    check_config(config, file, dither=0.0, padding_value=0.0)
    arguments = {name: config.get(key, default) for name, (key, default) in SPECTROGRAM.items()}
    return LogMelSpectrogram(**arguments, max_freq=8000.0)
