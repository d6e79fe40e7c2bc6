"""Recordings: WAV files are read and resampled, and their spectrograms computed, inside a graph."""

import math

import tensorflow as tf

from keras_transformer.recordings import FLOATS, INTEGERS

# Sizes of a sample in bits, by the format of a WAV file.
FORMATS = [*((INTEGERS, bits) for bits in (8, 16, 24, 32)), *((FLOATS, bits) for bits in (32, 64))]
# Chunks of a file that are looked at. Each takes a step of the graph, and 10 MB can hold a million empty ones.
MOST_CHUNKS = 100
# The names in a file, read as integers.
RIFF, WAVE, FORM, DATA = (int.from_bytes(name, "little") for name in (b"RIFF", b"WAVE", b"fmt ", b"data"))
# A format that names the true one further on.
EXTENSIBLE = 0xFFFE
MAX_CHANNELS, LOWEST_RATE, HIGHEST_RATE = 32, 1000, 192_000
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
        A `tf.RaggedTensor`, float32 `(batch, samples)`, in [-1, 1], without the zeros at the end of a recording; and
        why files could not be read, string `(batch,)`, empty for those that could. Rows with an error have no samples.
    """

    def rows_of(content):
        samples, error = _wave(content, sampling_rate, max_samples)
        samples = samples[: sounding(samples[None])[0]]
        return tf.RaggedTensor.from_row_lengths(samples, [tf.size(samples)]), error

    spec = tf.RaggedTensorSpec((1, None), tf.float32, ragged_rank=1, row_splits_dtype=tf.int64)
    rows, error = tf.map_fn(rows_of, contents, fn_output_signature=(spec, tf.string))
    return rows.merge_dims(0, 1), error


def sounding(audio):
    """Counts the samples of recordings, float32 `(batch, samples)`, up to the last one that is not zero: `(batch,)`."""
    marks = tf.pad(tf.cast(audio != 0.0, tf.uint8), [[0, 0], [1, 0]], constant_values=1)
    return tf.shape(audio)[1] - tf.argmax(tf.reverse(marks, [1]), axis=1, output_type=tf.int32)


def spectrograms(samples, first_samples, lengths, spectrogram, frames):
    """Computes the spectrograms of recordings, one window more than each is long.

    They stand one after another: a long recording makes no short one longer. It computes a window at a time: the
    transform of a long recording has many times its size. The highest value is that of the whole recording.

    Args:
        samples: The samples of all recordings, float32 `(samples,)`.
        first_samples: The place of each one's first sample, int64 `(batch,)`.
        lengths: The number of samples of each one, int32 `(batch,)`.
        spectrogram: A `LogMelSpectrogram`.
        frames: The number of frames of a window, an int.

    Returns:
        float32 `(frames, features)`; and the place of each recording's first frame, int32 `(batch,)`.
    """
    stride = spectrogram.sequence_stride
    # A frame reads less than `beside` frames on each side.
    beside = -(-spectrogram.fft_length // (2 * stride))
    width, edge = frames * stride, beside * stride

    def of_row(row):
        begin, length = row
        windows = -(-length // width) + 1
        own = samples[begin : begin + tf.cast(length, tf.int64)]
        padded = tf.pad(own, [[0, windows * width + edge - length]])
        padded = tf.concat([tf.reverse(padded[1 : edge + 1], [0]), padded], axis=0)

        def step(i, parts):
            window = padded[None, i * width : (i + 1) * width + 2 * edge]
            return i + 1, parts.write(i, spectrogram.logarithms(window)[0, beside : beside + frames])

        shape = (frames, spectrogram.num_mel_bins)
        parts = tf.TensorArray(tf.float32, windows, infer_shape=False, element_shape=shape)
        _, parts = tf.while_loop(lambda i, _: i < windows, step, (0, parts), parallel_iterations=1)
        features = tf.reshape(parts.stack(), (1, windows * frames, spectrogram.num_mel_bins))
        return tf.RaggedTensor.from_row_lengths(spectrogram.normalized(features)[0], [windows * frames])

    shape = (1, None, spectrogram.num_mel_bins)
    spec = tf.RaggedTensorSpec(shape, tf.float32, ragged_rank=1, row_splits_dtype=tf.int64)
    rows = tf.map_fn(of_row, (first_samples, lengths), fn_output_signature=spec, parallel_iterations=1)
    rows = rows.merge_dims(0, 1)
    return rows.values, tf.cast(rows.row_starts(), tf.int32)


def _wave(content, sampling_rate, max_samples):
    """Reads one WAV file: float32 `(samples,)`, and why it could not be read, a string scalar, or "".

    No operation of it fails, whatever the bytes are: an error would end the request with all its rows.

    Args:
        content: The bytes of the file, string scalar.
        sampling_rate: As for `waves`.
        max_samples: As for `waves`.
    """
    content = tf.io.decode_raw(content, tf.uint8)
    end = tf.size(content)
    form, data = _chunks(content)
    code, channels, rate, bits = (
        _number(content, form + at, n) for at, n in ((8, 2), (10, 2), (12, 4), (22, 2))
    )
    code = tf.where(code == EXTENSIBLE, _number(content, form + 32, 2), code)
    known = tf.reduce_all(tf.constant(FORMATS) == tf.stack([code, bits]), axis=1)
    size = _number(content, data + 4, 4)
    room = end - data - 8
    width = tf.maximum(bits // 8 * channels, 1)
    frames = tf.where(size < 0, room, size) // width
    count = tf.cast(frames, tf.float64) * sampling_rate / tf.cast(tf.maximum(rate, 1), tf.float64)
    is_wave = (_number(content, 0, 4) == RIFF) & (_number(content, 8, 4) == WAVE)
    # The first one that does not hold is the error.
    rules = {
        "be a WAV file, which begins with RIFF and WAVE": is_wave,
        f"have a chunk `fmt ` and a chunk `data` among its first {MOST_CHUNKS} chunks": (form > 0)
        & (data > 0),
        "hold integers of 8, 16, 24 or 32 bits, or floating point numbers of 32 or 64": tf.reduce_any(known),
        f"have from 1 to {MAX_CHANNELS} channels": (channels > 0) & (channels <= MAX_CHANNELS),
        f"have from {LOWEST_RATE} to {HIGHEST_RATE} samples a second": (rate >= LOWEST_RATE)
        & (rate <= HIGHEST_RATE),
        # The file of a stream has the largest size, which is negative here.
        "have as many bytes of samples as its header says: its end is missing": size <= room,
        f"be at most {max_samples / sampling_rate:g} seconds long": count
        <= tf.constant(max_samples, tf.float64),
    }
    error = tf.constant("")
    for rule, holds in reversed(rules.items()):
        error = tf.where(holds, error, f"`wav` must {rule}.")
    readable = error == ""
    frames = tf.where(readable, frames, 0)
    data = content[data + 8 : data + 8 + frames * width]
    readers = [_reader(data, *each) for each in FORMATS]
    samples = tf.switch_case(tf.argmax(known, output_type=tf.int32), readers)
    samples = tf.reduce_mean(tf.reshape(samples, (frames, tf.where(readable, channels, 1))), axis=1)
    error = tf.where(tf.reduce_all(tf.math.is_finite(samples)), error, "`wav` must hold finite numbers.")
    samples = resampled(samples, tf.where(error == "", rate, sampling_rate), sampling_rate)
    return samples[: tf.where(error == "", tf.size(samples), 0)], error


def _chunks(content):
    """Returns where the chunks "fmt " and "data" of a file begin, int32 scalars; 0 for one that is not there."""
    end = tf.size(content)

    def goes_on(place, _, data):
        return (place + 8 <= end) & (data == 0)

    def read(place, form, data):
        size = _number(content, place + 4, 4)
        form = tf.where(_number(content, place, 4) == FORM, place, form)
        data = tf.where(_number(content, place, 4) == DATA, place, data)
        # A size beyond the file ends the search, and so does a negative one.
        size = tf.where((size < 0) | (size > end - place), end - place, size)
        return place + 8 + size + size % 2, form, data

    return tf.while_loop(goes_on, read, (12, 0, 0), maximum_iterations=MOST_CHUNKS)[1:]


def _number(content, start, size):
    """Reads a little-endian integer of 2 or 4 bytes, an int32 scalar; bytes that are not there are 0."""
    found = tf.cast(content[start : start + size], tf.int32)
    return tf.reduce_sum(tf.bitwise.left_shift(found, 8 * tf.range(tf.size(found))))


def _reader(data, code, bits):
    """Returns a function that makes numbers of the bytes of samples, float32 in [-1, 1]."""
    kinds = {
        (INTEGERS, 16): (tf.int16, 2.0**15),
        (INTEGERS, 32): (tf.int32, 2.0**31),
        (FLOATS, 32): (tf.float32, 1.0),
        (FLOATS, 64): (tf.float64, 1.0),
    }
    size = bits // 8

    def read():
        numbers = tf.reshape(data[: tf.size(data) // size * size], (-1, size))
        if bits == 8:
            return (tf.cast(numbers[:, 0], tf.float32) - 128.0) / 128.0
        if bits == 24:
            # They are the three higher bytes of 32 bits.
            low = tf.zeros_like(numbers[:, :1])
            return tf.cast(tf.bitcast(tf.concat([low, numbers], axis=1), tf.int32), tf.float32) / 2.0**31
        kind, largest = kinds[code, bits]
        return tf.cast(tf.bitcast(numbers, kind), tf.float32) / largest

    return read


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
