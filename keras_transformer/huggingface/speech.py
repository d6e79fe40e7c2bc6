"""Checkpoints that write what they hear: the ids of their prompts, and how their audio is prepared."""

from keras_transformer.checks import short_errors
from keras_transformer.decoding import SpeechIds
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import GENERATION_CONFIG, read_config
from keras_transformer.huggingface.known_keys import IGNORED, check_keys
from keras_transformer.layers import LogMelSpectrogram

PREPROCESSOR_CONFIG = "preprocessor_config.json"
EXTRACTOR = "WhisperFeatureExtractor"
# The arguments of a `LogMelSpectrogram`: the key of preprocessor_config.json, and transformers' value without it.
SPECTROGRAM = {
    "num_mel_bins": ("feature_size", 80),
    "sampling_rate": ("sampling_rate", 16000),
    "fft_length": ("n_fft", 400),
    "sequence_stride": ("hop_length", 160),
}


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


def transcriber_options(folder):
    """Reads how a checkpoint that writes what it hears, such as Whisper's, is asked.

    Args:
        folder: A path. The folder holds the checkpoint, with its preprocessor_config.json and generation_config.json.

    Returns:
        A dict of arguments of `serving.Transcriber`: `ids` and `spectrogram`.

    Raises:
        ValueError: If a file is missing or damaged, or asks for something that the library does not do.

    Example::

        model, (tokenizer,) = from_huggingface(folder), tokenizers_from_huggingface(folder)
        transcriber = Transcriber(model, tokenizer, **transcriber_options(folder))
    """
    spectrogram = spectrogram_of(read_config(folder, PREPROCESSOR_CONFIG), PREPROCESSOR_CONFIG)
    return {"ids": speech_ids_from_huggingface(folder), "spectrogram": spectrogram}
