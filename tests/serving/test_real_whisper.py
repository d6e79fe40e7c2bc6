"""OpenAI's Whisper base on real speech: the words that transformers writes from the same weights.

It needs two folders, which it does not fetch: WHISPER_BASE, the checkpoint of `openai/whisper-base`, and LIBRIVOX, the
five sentences of the Debian package pocketsphinx-testdata (usr/share/pocketsphinx/test/data/librivox).
"""

import os
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import huggingface, serving
from keras_transformer.recordings import wav_of

# What transformers 5.24 writes, greedily, by file.
EXPECTED = {
    "0870": "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his power to do "
    "for them.",
    "0880": "He was not an ill-disposed young man.",
    "0890": "Unless to be rather cold-hearted and rather selfish is to be ill-disposed.",
    "0920": "Had he married a more amiable woman, he might have been made still more respectable than he was.",
    "0930": "He might even have been made amiable himself.",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder():
    missing = [name for name in ("WHISPER_BASE", "LIBRIVOX") if name not in os.environ]
    if missing:
        pytest.skip(f"{' and '.join(missing)} must name the folders of real speech")
    return Path(os.environ["WHISPER_BASE"])


@pytest.fixture(scope="module")
def files():
    found = {path.stem[-4:]: path for path in Path(os.environ["LIBRIVOX"]).glob("*.wav")}
    return [found[name] for name in EXPECTED]


def transcriber_of(folder, **options):
    model = huggingface.from_huggingface(folder, **options)
    tokenizers = huggingface.tokenizers_from_huggingface(folder)
    return serving.Transcriber(model, *tokenizers, **huggingface.transcriber_options(folder))


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "int8"}, {"dtype": "bfloat16"}, {"dtype": "mixed_bfloat16"}],
    ids=["float32", "int8", "bfloat16", "mixed_bfloat16"],
)
def test_the_words_are_those_of_transformers(folder, files, options):
    """Narrow numbers change at most one word."""
    found = transcriber_of(folder, **options).transcribe(files)
    words, expected = (" ".join(texts).split() for texts in (found, EXPECTED.values()))
    wrong = sum(a != b for a, b in zip(words, expected, strict=True))
    assert wrong <= bool(options)


def test_words_are_said_when_transformers_says(folder, files):
    """Its own words end at a hyphen. It attends once more to the times that it writes between the words."""
    (found,) = transcriber_of(folder).transcribe(files[1:2], "en", timestamps="words")
    expected = [(0.0, "He"), (0.34, "was"), (0.52, "not"), (0.76, "an"), (1.3, "ill-disposed")]
    expected += [(1.98, "young"), (2.28, "man."), (2.96, "")]
    assert [word.text for word in found] == [text for _, text in expected[:-1]]
    times = [[word.begin for word in found], [word.end for word in found]]
    begins = [begin for begin, _ in expected]
    np.testing.assert_allclose(times, [begins[:-1], begins[1:]], atol=0.1)


def test_a_long_recording_has_the_words_of_its_parts_at_their_times(folder, files):
    import wave

    parts, begins, place = [], [], 0.0
    for path in files * 4:
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        begins.append(place)
        parts += [samples, np.zeros(8000, "<i2")]
        place += len(samples) / 16000 + 0.5
    (segments,) = transcriber_of(folder).transcribe(
        [wav_of(np.concatenate(parts), 16000)], "en", timestamps=True
    )
    words = " ".join(segment.text for segment in segments).lower()
    heard = [EXPECTED[path.stem[-4:]].split()[-1].strip(".").lower() in words for path in files]
    assert all(heard) and len(segments) >= 15
    nearest = [min(abs(segment.begin - begin) for begin in begins) for segment in segments]
    assert np.median(nearest) < 0.5
