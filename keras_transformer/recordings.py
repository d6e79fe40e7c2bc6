"""Recordings as bytes of WAV files: of arrays, and of FLAC, Ogg and MP3 files where soundfile is installed."""

import io
import struct

import numpy as np

from keras_transformer.checks import check, check_count, printable
from keras_transformer.untrusted import LARGEST_RECORDING, bytes_of

# The format of a WAV file's samples: integers and floating point numbers.
INTEGERS, FLOATS = 1, 3
# Samples that are decoded at a time: what a file says about its length may be false.
BLOCK = 2**20
# The most bytes of a decoded recording, which has one channel: an hour at 48 kHz has 7e8.
LARGEST_DECODED = 2**30
MOST_CHANNELS, HIGHEST_RATE = 2**16 - 1, 2**32 - 1


def wav_of(recording, sampling_rate=None):
    """Returns a recording as the bytes of a WAV file.

    Args:
        recording: The path of a WAV, FLAC, Ogg or MP3 file, its bytes, or an array `(samples,)` or
            `(samples, channels)` of floats in [-1, 1] or of ints of 16 or 32 bits.
        sampling_rate: Samples a second of an array; None where there are no arrays.

    Raises:
        ValueError: If it is something else, or damaged, or the path is not that of a regular file of at most 2**31
            bytes.
        ImportError: If it is a FLAC, Ogg or MP3 file and soundfile is not installed.
        OSError: If the file cannot be read.
    """
    content = bytes_of(recording, LARGEST_RECORDING)
    if content is not None:
        kind = _kind_of(content)
        name = "A recording" if isinstance(recording, bytes) else printable(str(recording))
        return content if kind is None else _decoded(content, kind, name)
    samples = np.asarray(recording)
    rule = "`audio` must hold paths, bytes, or arrays `(samples,)` or `(samples, channels)` of numbers."
    fits = sampling_rate is not None and samples.ndim in (1, 2) and samples.dtype.kind in "fi"
    check(fits, rule, dtype=samples.dtype, shape=samples.shape)
    check_count(1, HIGHEST_RATE, sampling_rate=sampling_rate)
    rule = f"`audio` must have from 1 to {MOST_CHANNELS} channels."
    check(samples.ndim == 1 or 0 < samples.shape[1] <= MOST_CHANNELS, rule, shape=samples.shape)
    if samples.dtype.kind == "i":
        rule = "Ints of `audio` must have 16 or 32 bits."
        check(samples.dtype.itemsize in (2, 4), rule, dtype=samples.dtype)
    channels = samples.shape[1] if samples.ndim == 2 else 1
    return _written([samples], samples.dtype, channels, sampling_rate)


def _kind_of(content):
    """Returns the name of the kind of a file that is decoded here, or None for every other one.

    >>> _kind_of(b"fLaC..."), _kind_of(b"RIFF....WAVE")
    ('FLAC', None)
    """
    for begin, kind in ((b"fLaC", "FLAC"), (b"OggS", "Ogg"), (b"ID3", "MP3")):
        if content.startswith(begin):
            return kind
    # A frame of MP3 begins with eleven bits that are set.
    return "MP3" if content[:1] == b"\xff" and content[1:2] >= b"\xe0" else None


def _decoded(content, kind, name):
    """Returns the bytes of a FLAC, Ogg or MP3 file as those of a WAV file. Errors begin with the kind or the name."""
    try:
        import soundfile
    except ImportError as error:
        raise ImportError(f"{kind} files are read with soundfile: pip install soundfile") from error
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            dtype = {"PCM_S8": "int16", "PCM_16": "int16", "PCM_24": "int32"}.get(file.subtype, "float32")
            dtype = dtype if file.channels == 1 else "float32"
            room, blocks = LARGEST_DECODED // np.dtype(dtype).itemsize, []
            while len(block := file.read(max(BLOCK // file.channels, 1), dtype=dtype)):
                blocks.append(block if block.ndim == 1 else block.mean(axis=1, dtype=dtype))
                room -= len(block)
                check(room >= 0, f"{name} must have at most {LARGEST_DECODED} bytes when it is decoded.")
            check(blocks, f"{name} must have samples.")
            return _written(blocks, np.dtype(dtype), 1, file.samplerate)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{name} must be a whole {kind} file. Received: {printable(str(error))}") from error


def _written(blocks, dtype, channels, sampling_rate):
    """Returns samples as the bytes of a WAV file.

    Args:
        blocks: List of arrays, one after another; they are taken out of it, so that memory holds no more copies.
        dtype: Their dtype, floats or ints of 16 or 32 bits.
        channels: Number of channels.
        sampling_rate: Samples a second.
    """
    code = FLOATS if dtype.kind == "f" else INTEGERS
    dtype = np.dtype("<f4") if dtype.kind == "f" else dtype.newbyteorder("<")
    parts = []
    while blocks:
        parts.append(blocks.pop(0).astype(dtype, copy=False).tobytes())
    size, count = dtype.itemsize, sum(map(len, parts))
    form = struct.pack(
        "<HHIIHH", code, channels, sampling_rate, sampling_rate * size * channels, size * channels, 8 * size
    )
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", count)
    return b"".join([b"RIFF", struct.pack("<I", len(chunks) + count), chunks, *parts])
