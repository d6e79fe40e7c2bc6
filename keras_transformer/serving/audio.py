"""Recordings: WAV files are read, and resampled, inside a graph."""

import math
import os
import struct

import numpy as np
import tensorflow as tf

from keras_transformer.checks import check
from keras_transformer.untrusted import read_small

# Sizes of a sample in bits, by the format of a WAV file: integers and floating point numbers.
INTEGERS, FLOATS = 1, 3
BITS = {INTEGERS: (8, 16, 24, 32), FLOATS: (32, 64)}
# A format that names the true one further on.
EXTENSIBLE = 0xFFFE
MAX_CHANNELS, LOWEST_RATE, HIGHEST_RATE = 32, 1000, 192_000
UNREADABLE = (
    "`wav` must be a WAV file of 8 to 32 bits, or of floating point numbers, at 1 to 192 kHz, which is not longer than "
    "the model reads."
)
# A file of more bytes is not read: an hour of stereo at 48 kHz with 32 bits has 1.4e9.
MAX_BYTES = 2**31
# Rates are multiples of this many samples a second. Others are read as the nearest one that is.
RATE_STEP = 25
# The filter of `resampled` reads so many crossings of zero on each side.
CROSSINGS = 24


def waves(contents, sampling_rate, max_samples):
    """Reads WAV files: PCM of 8, 16, 24 or 32 bits, or floating point numbers; any rate; channels are averaged.

    Microsoft and IBM, 1991, "Multimedia Programming Interface and Data Specifications 1.0", section "WAVE".

    Args:
        contents: The bytes of files, string `(batch,)`.
        sampling_rate: Samples a second of the result, an int.
        max_samples: The most samples of a result, an int. A longer recording is unreadable.

    Returns:
        float32 `(batch, samples)`, in [-1, 1], padded with zeros on the right; the number of samples of each row, int32
        `(batch,)`; and which files could be read, bool `(batch,)`. Other rows have no samples.
    """
    empty = tf.zeros((0,), tf.float32)

    def read(content):
        # In a dataset a row whose file is damaged can be left out, so its error stays in the row.
        def wave(content):
            return tf.ensure_shape(_wave(content, sampling_rate, max_samples), (None,))

        files = tf.data.Dataset.from_tensors(content).map(wave).ignore_errors()
        return files.reduce((empty, False), lambda _, samples: (samples, True))

    # The rows differ in length, so each is written as the bytes of its numbers.
    def bytes_of(content):
        samples, readable = read(content)
        return tf.RaggedTensor.from_row_lengths(samples, [tf.size(samples)]), readable

    spec = tf.RaggedTensorSpec((1, None), tf.float32, ragged_rank=1, row_splits_dtype=tf.int64)
    rows, readable = tf.map_fn(bytes_of, contents, fn_output_signature=(spec, tf.bool))
    rows = rows.merge_dims(0, 1)
    return rows.to_tensor(), tf.cast(rows.row_lengths(), tf.int32), readable


def _wave(content, sampling_rate, max_samples):
    """Reads one WAV file, a string scalar: float32 `(samples,)`. It raises an error for another file."""
    form, data = _chunks(content)
    with tf.control_dependencies([tf.debugging.assert_greater_equal(tf.strings.length(form), 16)]):
        code, channels, bits = (_number(form, start, 2) for start in (0, 2, 14))
    rate = _number(form, 4, 4)
    code = tf.cond(tf.equal(code, EXTENSIBLE), lambda: _number(form, 24, 2), lambda: code)
    size = bits // 8
    rules = [
        tf.debugging.Assert(
            tf.reduce_any([(code == kind) & (bits == width) for kind in BITS for width in BITS[kind]]),
            [code, bits],
        ),
        tf.debugging.assert_less_equal(channels, MAX_CHANNELS),
        tf.debugging.assert_positive(channels),
        tf.debugging.assert_greater_equal(rate, LOWEST_RATE),
        tf.debugging.assert_less_equal(rate, HIGHEST_RATE),
    ]
    with tf.control_dependencies(rules):
        frames = tf.strings.length(data) // (size * channels)
    samples = tf.cast(frames, tf.float64) * sampling_rate / tf.cast(rate, tf.float64)
    with tf.control_dependencies(
        [tf.debugging.assert_less_equal(samples, tf.constant(max_samples, tf.float64))]
    ):
        data = tf.strings.substr(data, 0, frames * size * channels)
    samples = tf.reshape(_samples(data, code, bits), (-1, channels))
    samples = tf.debugging.assert_all_finite(tf.reduce_mean(samples, axis=1), "samples")
    return resampled(samples, rate, sampling_rate)


def _chunks(content):
    """Returns the contents of the chunks "fmt " and "data" of a file."""
    header = tf.strings.substr(content, 0, 4) == "RIFF", tf.strings.substr(content, 8, 4) == "WAVE"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(header), ["no WAV file"])]):
        end = tf.strings.length(content)

    def goes_on(place, form, data):
        return (place + 8 <= end) & (data < 0)

    def read(place, form, data):
        name, size = tf.strings.substr(content, place, 4), _number(content, place + 4, 4)
        # The file of a stream has the largest size, which is negative here.
        size = tf.where((size < 0) | (size > end - place - 8), end - place - 8, size)
        form = tf.where(name == "fmt ", place, form)
        data = tf.where(name == "data", place, data)
        return place + 8 + size + size % 2, form, data

    _, form, data = tf.while_loop(goes_on, read, (12, -1, -1))
    found = [tf.debugging.assert_non_negative(form), tf.debugging.assert_non_negative(data)]

    def content_of(place):
        size = _number(content, place + 4, 4)
        # The end of a file that was cut off is missing.
        with tf.control_dependencies([tf.debugging.assert_less_equal(size, end - place - 8)]):
            return tf.strings.substr(content, place + 8, tf.where(size < 0, end, size))

    with tf.control_dependencies(found):
        return content_of(tf.identity(form)), content_of(tf.identity(data))


def _number(content, start, size):
    """Reads a little-endian integer of 2 or 4 bytes, an int32 scalar."""
    kind = {2: tf.uint16, 4: tf.int32}[size]
    return tf.cast(tf.io.decode_raw(tf.strings.substr(content, start, size), kind)[0], tf.int32)


def _samples(data, code, bits):
    """Returns the numbers in the bytes of samples, float32 in [-1, 1]."""

    def three_bytes():
        triples = tf.reshape(tf.io.decode_raw(data, tf.uint8), (-1, 3))
        # The highest byte has the sign.
        low, middle, high = tf.unstack(tf.cast(triples, tf.int32), axis=1)
        value = low + 256 * middle + 65536 * high
        return tf.cast(tf.where(high >= 128, value - 2**24, value), tf.float32) / 2.0**23

    def integers(kind, largest):
        return lambda: tf.cast(tf.io.decode_raw(data, kind), tf.float32) / largest

    readers = {
        (INTEGERS, 8): lambda: (tf.cast(tf.io.decode_raw(data, tf.uint8), tf.float32) - 128.0) / 128.0,
        (INTEGERS, 16): integers(tf.int16, 2.0**15),
        (INTEGERS, 24): three_bytes,
        (INTEGERS, 32): integers(tf.int32, 2.0**31),
        (FLOATS, 32): integers(tf.float32, 1.0),
        (FLOATS, 64): integers(tf.float64, 1.0),
    }
    keys = tf.constant(list(readers))
    return tf.switch_case(
        tf.argmax(tf.reduce_all(keys == tf.stack([code, bits]), axis=1), output_type=tf.int32),
        list(readers.values()),
    )


def resampled(samples, rate, new_rate):
    """Changes the rate of a recording, with a windowed sinc as low-pass filter.

    Smith, 2002, "Digital Audio Resampling Home Page". One product computes it.

    Args:
        samples: float32 `(samples,)`.
        rate: Samples a second, an int or an int32 scalar.
        new_rate: Samples a second of the result, an int.

    Returns:
        float32 `(ceil(samples * new_rate / rate),)`.
    """
    rate = tf.cast(tf.round(tf.cast(rate, tf.float64) / RATE_STEP), tf.int32) * RATE_STEP
    divisor, _ = tf.while_loop(
        lambda _, rest: rest > 0, lambda a, rest: (rest, a % rest), (rate, tf.constant(new_rate))
    )
    # So many samples become so many new ones.
    old, new = rate // divisor, new_rate // divisor

    def filtered():
        count = -(-tf.size(samples, tf.int64) * tf.cast(new, tf.int64) // tf.cast(old, tf.int64))
        count = tf.cast(count, tf.int32)
        # The filter is as wide as the lower of the two rates asks.
        scale = tf.minimum(tf.constant(1.0, tf.float64), new / old)
        reach = tf.cast(tf.math.ceil(CROSSINGS / scale), tf.int32)
        # A block reads its own samples and those of the next one: it is longer than the filter.
        times = -(-2 * reach // old)
        width, outputs = old * times, new * times
        blocks = -(-count // outputs)
        padded = tf.pad(samples, [[reach, (blocks + 1) * width - tf.size(samples)]])[: (blocks + 1) * width]
        rows = tf.reshape(padded, (blocks + 1, width))
        centres = tf.cast(tf.range(outputs), tf.float64) * (old / new) + tf.cast(reach, tf.float64)
        distances = (tf.cast(tf.range(2 * width), tf.float64)[:, None] - centres) * scale
        window = tf.where(
            tf.abs(distances) < CROSSINGS, tf.cos(distances * (math.pi / 2 / CROSSINGS)) ** 2, 0.0
        )
        angles = distances * math.pi
        sinc = tf.where(angles == 0.0, tf.ones_like(angles), tf.math.divide_no_nan(tf.sin(angles), angles))
        weights = tf.cast(scale * window * sinc, tf.float32)
        result = tf.matmul(tf.concat([rows[:-1], rows[1:]], axis=1), weights)
        return tf.reshape(result, (-1,))[:count]

    return tf.cond(tf.equal(old, new), lambda: samples, filtered)


def wav_of(recording, sampling_rate):
    """Returns a recording as the bytes of a WAV file, which `waves` reads.

    Args:
        recording: The path of a WAV file, its bytes, or an array `(samples,)` or `(samples, channels)` of floats in
            [-1, 1] or of ints of 16 or 32 bits.
        sampling_rate: Samples a second of an array.

    Raises:
        ValueError: If it is something else, or the path is not that of a regular file of at most 2**31 bytes.
        OSError: If the file cannot be read.
    """
    if isinstance(recording, bytes):
        return recording
    if isinstance(recording, (str, os.PathLike)):
        return read_small(recording, MAX_BYTES)
    samples = np.asarray(recording)
    rule = "`audio` must hold paths, bytes, or arrays `(samples,)` or `(samples, channels)` of numbers."
    fits = samples.ndim in (1, 2) and samples.dtype.kind in "fi"
    check(fits, rule, dtype=samples.dtype, shape=samples.shape)
    if samples.dtype.kind == "f":
        samples, code = samples.astype("<f4"), FLOATS
    else:
        rule = "Ints of `audio` must have 16 or 32 bits."
        check(samples.dtype.itemsize in (2, 4), rule, dtype=samples.dtype)
        samples, code = samples.astype(samples.dtype.newbyteorder("<")), INTEGERS
    size, channels = samples.dtype.itemsize, samples.shape[1] if samples.ndim == 2 else 1
    data = samples.tobytes()
    form = struct.pack(
        "<HHIIHH", code, channels, sampling_rate, sampling_rate * size * channels, size * channels, 8 * size
    )
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks
