"""`keras-transformer transcribe`: a recording for each line in, and what is written of it."""

import dataclasses
import json

import pytest
from commands import assert_refused, run
from hearing import IDS, RATE, sound, transcriber

from keras_transformer.recordings import wav_of
from keras_transformer.serving import Transcriber


@pytest.fixture(scope="module")
def given():
    return transcriber()


@pytest.fixture(scope="module")
def folder(given, tmp_path_factory):
    base = tmp_path_factory.mktemp("hearing")
    given.save(base / "model")
    for name, seconds in (("short", 0.3), ("long 한", 1.4)):
        (base / f"{name}.wav").write_bytes(wav_of(sound(seconds), RATE))
    return base


def lines(*paths):
    return "".join(f"{path}\n" for path in paths).encode()


def test_each_recording_gets_a_line_and_a_bad_one_an_empty_line(folder, monkeypatch):
    made, changed = [], Transcriber.changed

    def kept(self, **changes):
        made.append(changed(self, **changes))
        return made[-1]

    # What is expected is computed in the graph that the command traced.
    monkeypatch.setattr(Transcriber, "changed", kept)
    files = [folder / "short.wav", folder / "missing.wav", folder / "long 한.wav"]
    code, out, err = run("transcribe", folder / "model", "--language", "ko", stdin=lines(*files))
    written = out.decode().split("\n")
    expected = made[0].transcribe([str(files[0]), str(files[2])])
    assert made[0].language == "ko"
    texts = [" ".join(each.split()) for each in expected]
    assert (code, written) == (4, [texts[0], "", texts[1], ""])
    assert err.count("missing.wav") == 1


@pytest.mark.slow
def test_json_has_the_times_of_words(folder, tmp_path):
    timed = transcriber(ids=dataclasses.replace(IDS, alignment_heads=((0, 1),)))
    timed.save(tmp_path / "timed")
    options = "--format", "json", "--words", "--language", "ko"
    code, out, _ = run("transcribe", tmp_path / "timed", *options, stdin=lines(folder / "short.wav"))
    found = [(each["begin"], each["text"]) for each in json.loads(out)["segments"]]
    (expected,) = timed.transcribe([str(folder / "short.wav")], "ko", timestamps="words")
    assert code == 0 and found == [(round(word.begin, 2), word.text) for word in expected]


@pytest.mark.slow
def test_json_has_the_language_and_the_times(folder, given):
    files = lines(folder / "long 한.wav", folder / "missing.wav") + b"no UTF-8: \xff.wav\n"
    code, out, err = run("transcribe", folder / "model", "--format", "json", stdin=files)
    found, missing, unnamed = map(json.loads, out.decode().splitlines())
    assert unnamed["file"] == r"no UTF-8: \xff.wav" and unnamed["error"].endswith(
        "must be a file that exists."
    )
    assert missing["error"].endswith("missing.wav must be a file that exists.") and missing["error"] in err
    (expected,) = given.transcribe([str(folder / "long 한.wav")], timestamps=True)
    assert code == 4 and found["file"].endswith("long 한.wav") and found["language"] in ("en", "ko")
    assert [(each["begin"], each["end"]) for each in found["segments"]] == [
        (round(each.begin, 2), round(each.end, 2)) for each in expected
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mark"), [("srt", ","), ("vtt", ".")])
def test_subtitles_have_a_number_and_a_clock(folder, given, kind, mark):
    code, out, _ = run("transcribe", folder / "model", "--format", kind, stdin=lines(folder / "long 한.wav"))
    (expected,) = given.transcribe([str(folder / "long 한.wav")], timestamps=True)
    blocks = out.decode().split("\n\n")
    blocks = blocks[1:] if kind == "vtt" else blocks
    assert (
        code == 0
        and len(blocks) == len(expected)
        and out.decode().startswith("WEBVTT" if kind == "vtt" else "1\n")
    )
    times = [line for line in out.decode().splitlines() if " --> " in line]
    first = f"00:00:00{mark}{round(1000 * expected[0].begin):03}"
    assert times[0].startswith(first) and times[0].count(mark) == 2


def test_subtitles_of_several_recordings_and_unknown_languages_are_refused(folder):
    stdin = lines(folder / "short.wav", folder / "short.wav")
    assert_refused("transcribe", folder / "model", "--format", "srt", named="Give one recording", stdin=stdin)
    assert_refused(
        "transcribe",
        folder / "model",
        "--language",
        "xx",
        named="--language must be one of en, ko",
        stdin=stdin,
    )
    assert_refused("transcribe", folder / "model", "--words", named="Give --words with --format", stdin=stdin)
    words = "--words", "--format", "json"
    assert_refused("transcribe", folder / "model", *words, named="Times of words need", stdin=stdin)
