"""WAV files, read in a graph: their formats, their rates, and files that are none."""

import struct
import wave

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.recordings import wav_of
from keras_transformer.serving.audio import waves

RATE, LONGEST = 16000, 100_000
NOISE = np.random.default_rng(0).uniform(-0.99, 0.99, 1000)


def wav(code, bits, data, channels=1, rate=RATE, extra=b""):
    """A file with a chunk of an odd size before its samples."""
    form = struct.pack(
        "<HHIIHH", code, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits
    )
    chunks = [(b"fmt ", form + extra), (b"LIST", b"abc"), (b"data", data)]
    body = b"".join(name + struct.pack("<I", len(x)) + x + b"\0" * (len(x) % 2) for name, x in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


@pytest.fixture(scope="module")
def read():
    def padded(files):
        audio, errors = waves(files, RATE, LONGEST)
        return audio.to_tensor(), audio.row_lengths(), errors

    function = tf.function(padded, input_signature=[tf.TensorSpec((None,), tf.string)])
    return lambda *files: [x.numpy() for x in function(tf.constant(files))]


def as_integers(bits):
    return np.round(NOISE * 2 ** (bits - 1)).astype(int)


FORMATS = {
    "8 bits": wav(1, 8, (as_integers(8) + 128).astype("u1").tobytes()),
    "16 bits": wav(1, 16, as_integers(16).astype("<i2").tobytes()),
    "24 bits": wav(1, 24, b"".join(struct.pack("<i", x)[:3] for x in as_integers(24))),
    "32 bits": wav(1, 32, as_integers(32).astype("<i4").tobytes()),
    "float32": wav(3, 32, NOISE.astype("<f4").tobytes()),
    "float64": wav(3, 64, NOISE.astype("<f8").tobytes()),
    "extensible": wav(
        0xFFFE,
        16,
        as_integers(16).astype("<i2").tobytes(),
        extra=struct.pack("<HHIHH", 22, 16, 4, 1, 0) + bytes(12),
    ),
    "a stream": wav(1, 16, as_integers(16).astype("<i2").tobytes()).replace(
        b"data" + struct.pack("<I", 2000), b"data" + b"\xff" * 4
    ),
    "stereo": wav(3, 32, np.stack([2 * NOISE, 0 * NOISE], axis=1).astype("<f4").tobytes(), channels=2),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read(name, read):
    audio, lengths, errors = read(FORMATS[name])
    assert errors.tolist() == [b""] and lengths.tolist() == [1000]
    np.testing.assert_allclose(audio[0], NOISE, atol=2.0**-8 if name == "8 bits" else 2.0**-16)


def test_python_reads_what_is_written(tmp_path):
    for samples in (NOISE.astype("float32"), as_integers(16).astype("int16")):
        (tmp_path / "a.wav").write_bytes(wav_of(samples, 8000))
        if samples.dtype == "int16":  # the standard library reads no floating point numbers
            with wave.open(str(tmp_path / "a.wav")) as file:
                assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8000, 1, 1000)
                assert file.readframes(1000) == samples.tobytes()


def tones(rate, *frequencies):
    return sum(np.sin(2 * np.pi * each * np.arange(rate) / rate) for each in frequencies).astype("float32")


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 192_000])
def test_tones_stay_what_they_are_at_another_rate(rate, read):
    audio, lengths, _ = read(wav_of(tones(rate, 440, 3000), rate))
    assert lengths.tolist() == [RATE]
    # At its ends a tone begins and stops suddenly.
    np.testing.assert_allclose(audio[0, 200:-200], tones(RATE, 440, 3000)[200:-200], atol=5e-4)


def test_tones_above_half_of_the_rate_are_left_out(read):
    audio, _, _ = read(wav_of(tones(48000, 12000), 48000))
    assert np.abs(audio[0, 200:-200]).max() < 1e-3


# Files by the rule that each breaks.
BAD = {
    "be a WAV file, which begins with RIFF and WAVE": [b"", b"a text that is no recording", b"RIFF"],
    "have a chunk `fmt ` and a chunk `data` among its first 100 chunks": [
        FORMATS["16 bits"][:40],
        wav(1, 16, b"1234").replace(b"LIST", (b"junk" + bytes(4)) * 1000 + b"LIST"),
        # A size beyond the file.
        wav(1, 16, b"1234").replace(b"LIST" + struct.pack("<I", 3), b"LIST\xff\xff\xff\x7f"),
    ],
    "hold integers of 8, 16, 24 or 32 bits, or floating point numbers of 32 or 64": [
        wav(1, 12, b"123"),
        wav(6, 8, b"123"),
    ],
    "have from 1 to 32 channels": [
        wav(1, 16, b"1234", channels=0),
        wav(1, 16, bytes(2000), channels=100),
    ],
    "have from 1000 to 192000 samples a second": [
        wav(1, 16, b"1234", rate=0),
        wav(1, 16, b"1234", rate=10**9),
    ],
    "have as many bytes of samples as its header says: its end is missing": [FORMATS["16 bits"][:900]],
    "be at most 6.25 seconds long": [
        wav_of(np.zeros(LONGEST + 1, "float32"), RATE),
        wav_of(np.zeros(LONGEST // 2 + 1, "float32"), RATE // 2),
    ],
    "hold finite numbers": [wav_of(np.full(10, value, "float32"), RATE) for value in (np.nan, np.inf)],
}


def test_a_bad_file_has_no_samples_and_changes_no_other_row(read):
    rules, bad = zip(*((rule, file) for rule, files in BAD.items() for file in files), strict=True)
    audio, lengths, errors = read(FORMATS["16 bits"], *bad, FORMATS["float32"], wav(1, 16, b""))
    expected = ["", *(f"`wav` must {rule}." for rule in rules), "", ""]
    assert [error.decode() for error in errors] == expected
    assert lengths.tolist() == [1000, *[0] * len(bad), 1000, 0]
    np.testing.assert_allclose(audio[[0, -2]], [NOISE, NOISE], atol=2.0**-15)
    assert not audio[1:-2].any() and not audio[-1].any()


@pytest.mark.parametrize(
    "samples", [np.zeros((2, 3, 4)), np.array(["a"]), np.zeros(3, "int64"), np.zeros(3, bool)]
)
def test_other_arrays_are_refused(samples):
    with pytest.raises(ValueError, match=r"`audio` must|Ints of `audio`"):
        wav_of(samples, RATE)
