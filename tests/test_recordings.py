"""Recordings as WAV files: what soundfile decodes has the samples that were written."""

import io
import sys

import numpy as np
import pytest
from contracts import refuses

from keras_transformer import recordings
from keras_transformer.recordings import wav_of

soundfile = pytest.importorskip("soundfile")
RATE = 8000
TONE = 0.5 * np.sin(np.arange(RATE // 4) * (2 * np.pi * 440 / RATE))
STEREO = np.stack([TONE, -0.5 * TONE], axis=1)


def encoded(kind, samples=TONE, **options):
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=kind, **options)
    return file.getvalue()


def samples_of(wav):
    samples, rate = soundfile.read(io.BytesIO(wav))
    assert rate == RATE
    return samples


@pytest.mark.parametrize("bits", [16, 24])
def test_flac_loses_nothing(bits):
    """Integers of 24 bits become those of 32."""
    whole = np.round(TONE * 2 ** (bits - 1)).astype("int32")
    stored = whole.astype("int16") if bits == 16 else whole * 2**8
    wav = wav_of(encoded("FLAC", stored, subtype=f"PCM_{bits}"))
    np.testing.assert_array_equal(samples_of(wav), whole / 2 ** (bits - 1))


def test_channels_are_averaged_while_they_are_decoded():
    np.testing.assert_allclose(samples_of(wav_of(encoded("FLAC", STEREO))), TONE / 4, atol=1e-4)


@pytest.mark.parametrize(
    ("samples", "rate", "named"),
    [
        (TONE, -1, "`sampling_rate`"),
        (TONE, 8000.5, "`sampling_rate`"),
        (np.zeros((5, 0)), RATE, "from 1 to 65535 channels"),
        (np.zeros((1, 70_000)), RATE, "from 1 to 65535 channels"),
    ],
)
def test_what_a_wav_file_cannot_say_is_refused(samples, rate, named):
    refuses(named, wav_of, samples, rate)


@pytest.mark.parametrize("kind", ["OGG", "MP3"])
def test_compressed_files_have_the_samples_that_soundfile_decodes(kind, tmp_path):
    file = encoded(kind)
    path = tmp_path / "tone"
    path.write_bytes(file)
    expected, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_allclose(samples_of(wav_of(path)), expected, atol=1e-6)
    assert np.abs(expected[: len(TONE)]).max() > 0.3


def test_other_files_stay_as_they_are():
    for file in (encoded("WAV"), b"", b"junk", b"\xff"):
        assert wav_of(file) is file


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_damaged_files_are_refused(kind, tmp_path):
    """Each begins as a file of its kind does."""
    for file in (encoded(kind)[:40], encoded(kind)[:4] + b"junk" * 20):
        refuses(r"^A recording must (be a whole|have samples)", wav_of, file)
        (tmp_path / "cut").write_bytes(file)
        refuses(r"/cut must (be a whole|have samples)", wav_of, tmp_path / "cut")


def test_a_file_is_decoded_up_to_the_largest_size(monkeypatch):
    """A few bytes of FLAC may hold hours of silence."""
    monkeypatch.setattr(recordings, "BLOCK", 100)
    monkeypatch.setattr(recordings, "LARGEST_DECODED", 2 * len(TONE))
    file = encoded("FLAC")
    assert samples_of(wav_of(file)).shape == TONE.shape
    monkeypatch.setattr(recordings, "LARGEST_DECODED", 2 * len(TONE) - 1)
    refuses("must have at most 3999 bytes when it is decoded", wav_of, file)


def test_without_soundfile_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert wav_of(encoded_wav := wav_of(TONE, RATE)) is encoded_wav
    with pytest.raises(ImportError, match="FLAC files are read with soundfile: pip install soundfile"):
        wav_of(b"fLaC")
