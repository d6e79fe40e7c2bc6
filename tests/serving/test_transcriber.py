"""Transcribers: recordings of any length, times, errors of single rows, folders and exports, by a tiny model."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from contracts import refuses
from hearing import (
    EN,
    END,
    IDS,
    KO,
    LONGEST,
    NO_TIMES,
    RATE,
    SAY,
    SECONDS,
    START,
    TRANSLATE,
    sound,
    transcriber,
)

from keras_transformer import serving
from keras_transformer.decoding import Sample, SpeechIds
from keras_transformer.recordings import wav_of
from keras_transformer.serving.audio import spectrograms
from keras_transformer.serving.transcriber import Segment
from keras_transformer.serving.transcripts import DROPPED
from keras_transformer.serving.verify import Served

# All heads of its only layer follow the audio.
HEARING = dataclasses.replace(IDS, alignment_heads=((0, 1), (0, 0)))


@pytest.fixture(scope="module")
def given():
    return transcriber(max_seconds=10, ids=HEARING)


def test_a_recording_alone_is_as_beside_others(given):
    sounds = [sound(seconds, seed) for seed, seconds in enumerate((0.3, 1.7, 0.5, 0.1, 0.9))]
    together = given.transcribe(sounds)
    assert [given.transcribe([each])[0] for each in sounds] == together
    assert given.transcribe(sounds, batch_size=2) == together
    assert len({*together}) == len(together) and all(together)
    # A window longer has more windows, and so more text.
    assert len(together[1]) > len(together[0])


def test_the_spectrogram_of_a_long_recording_is_that_of_the_whole(given):
    """And a short one beside it takes no more memory than alone."""
    lengths = [6800, 1200]
    sounds = [sound(n / RATE) * np.linspace(1e-4, 1, n, dtype="float32") for n in lengths]
    begins = tf.constant([0, 6800], tf.int64)
    found, first = spectrograms(np.concatenate(sounds), begins, tf.constant(lengths), given.spectrogram, 50)
    # A window has 50 frames of 40 samples, and there is one more than the recording needs.
    assert first.numpy().tolist() == [0, 5 * 50] and len(found) == (5 + 2) * 50
    for each, begin in zip(sounds, first, strict=True):
        frames = len(each) // 40
        expected = given.spectrogram(np.pad(each, (0, 4000))[None])[0, :frames]
        np.testing.assert_allclose(found[begin : begin + frames], expected, atol=1e-5)
        assert np.ptp(expected) > 1


def test_silence_and_nothing_have_no_words(given):
    assert given.transcribe([np.zeros(n, "float32") for n in (0, 1, 2000, 9 * RATE)]) == [""] * 4
    files = [sound(0.3), np.pad(sound(0.3), (0, 2 * RATE))]
    once, again = given.transcribe(files, timestamps=True)
    assert once == again and once
    padded = given.answer(
        np.stack([np.pad(sound(0.3), (0, 9 * RATE)), np.zeros(9 * RATE + 1200)]).astype("float32")
    )
    assert padded["text"][0].decode(errors="replace") == given.transcribe([sound(0.3)])[0]
    assert padded["text"][1] == b""


def test_segments_have_the_words_of_the_text_and_rising_times(given):
    sounds = [sound(2.2), sound(0.4, 1)]
    found = given.transcribe(sounds, timestamps=True)
    assert len(found) == 2 and len(found[0]) > 2
    for segments, each in zip(found, sounds, strict=True):
        assert all(type(segment) is Segment and segment.text for segment in segments)
        times = [time for segment in segments for time in segment[:2]]
        assert all(segment.begin <= segment.end for segment in segments)
        begins = [segment.begin for segment in segments]
        assert begins == sorted(begins) and times[0] >= 0 and begins[-1] <= len(each) / RATE + SECONDS
    # A recording of several windows is written with times, whether they are asked for or not.
    text = given.transcribe(sounds[:1])[0]
    assert "".join(segment.text for segment in found[0]).replace(" ", "") == text.replace(" ", "")


def test_words_are_those_of_the_text_at_rising_times(given):
    sounds = [sound(seconds, seed) for seed, seconds in enumerate((0.3, 1.7, 0.5))]
    found = given.transcribe(sounds, "ko", timestamps="words")
    for words, each, text in zip(found, sounds, given.transcribe(sounds, "ko"), strict=True):
        joined, whole = ("".join("".join(part).split()) for part in ([word.text for word in words], text))
        assert joined == whole
        times = [time for word in words for time in word[:2]]
        assert times[0] >= 0 and times == sorted(times) and times[-1] <= len(each) / RATE + 0.02
    assert [given.transcribe([each], "ko", timestamps="words")[0] for each in sounds] == found
    assert given.transcribe([np.zeros(0, "float32")], timestamps="words") == [[]]


def test_times_of_words_need_heads_that_follow_the_audio(given):
    refuses("Times of words need the heads", transcriber().transcribe, [sound(0.3)], timestamps="words")
    refuses('`timestamps` must be False, True or "words"', given.transcribe, [sound(0.3)], timestamps="word")
    for heads in ((1, 0), (0, 2)):
        with pytest.raises(
            ValueError, match=r"must be pairs of a layer and one of its heads: the layers have \[2\]"
        ):
            transcriber(ids=dataclasses.replace(IDS, alignment_heads=(heads,)))


def test_the_language_is_heard_or_given(given):
    files = [wav_of(sound(0.4, seed), RATE) for seed in range(8)]
    none = [""] * len(files)
    heard = given.answer(files, none, none, signature="wav")
    assert {*heard["language"]} <= {b"en", b"ko"} and {*heard["error"]} == {b""}
    korean = given.answer(files, ["ko"] * len(files), none, signature="wav")
    assert {*korean["language"]} == {b"ko"}
    for i, language in enumerate(heard["language"]):
        if language == b"ko":
            assert korean["text"][i] == heard["text"][i]
    assert given.transcribe(files, "ko", "translate") != given.transcribe(files, "ko")


def test_a_transcriber_may_have_a_language_and_a_task_of_its_own(given):
    own = given.changed(language="ko", task="translate").signatures([8])
    (language, task), _ = own._chosen(tf.constant(["", "en", ""]), tf.constant(["", "", "transcribe"]))
    assert language.numpy().tolist() == [KO, EN, KO]
    assert task.numpy().tolist() == [TRANSLATE, TRANSLATE, SAY]


def test_an_error_is_that_of_its_row(given):
    good = wav_of(sound(0.4), RATE)
    files, languages, tasks = (
        [good, b"junk", good, good, good],
        ["", "", "xx", "", "en"],
        ["", "", "", "sing", ""],
    )
    alone = given.answer([good], [""], [""], signature="wav")["text"]
    for signature in ("wav", "segments"):
        found = given.answer(files, languages, tasks, signature=signature)
        errors = [error.decode() for error in found["error"]]
        assert errors[0] == errors[4] == "" and "`wav` must be a WAV file" in errors[1]
        assert errors[2] == "`language` must be one of en, ko."
        assert errors[3] == "`task` must be one of transcribe, translate."
        assert not any(np.any(found["text"][i]) for i in (1, 2, 3))
        if signature == "wav":
            assert found["text"][0] == alone[0]
    audio = np.stack([sound(0.4), sound(0.4) * np.nan, sound(0.4)])
    found = given.answer(audio)
    assert found["error"].tolist() == [b"", b"`audio` must hold finite numbers.", b""]
    assert found["text"].tolist() == [alone[0], b"", alone[0]]
    refuses("Row 1 of `audio`: `wav` must be a WAV file", given.transcribe, [sound(0.1), b"RIFF"])
    found = given.answer(np.stack([np.pad(sound(0.4), (0, 10 * RATE)), sound(10.4)]))
    assert found["error"].tolist() == [b"", b"`audio` must be at most 10 seconds long."]


def test_the_next_window_begins_where_the_last_segment_ended(given):
    first = NO_TIMES + 1
    rows = {
        # A segment, and the begin of the next: the latter is written again by the next window.
        (first, 65, first + 7, first + 7, 66): ([first, 65, first + 7], 7 * 2),
        # It ends with a time: nothing was said after it.
        (first, 65, first + 7): ([first, 65, first + 7], 50),
        (first, 65, first + 7, first + 7, 66, first + 9): (None, 50),
        # Two segments, and a third one that is not finished.
        (first, 65, first + 4, first + 4, 66, first + 9, first + 9, 67): (
            [first, 65, first + 4, first + 4, 66, first + 9],
            9 * 2,
        ),
        # No time at all.
        (65, 66): ([65, 66], 50),
        # A segment of no length would be read for ever.
        (first, 65, first, first, 66): (None, 50),
    }
    signatures = given.signatures([8])
    for ended in (False, True):
        tokens = [[*row, *([END] if ended else [])] for row in rows]
        lengths = [len(row) for row in tokens]
        tokens = [row + [START] * (LONGEST - len(row)) for row in tokens]
        silent, left = tf.zeros((len(rows),), tf.bool), tf.fill((len(rows),), 50)
        kept, steps = signatures._kept(tf.constant(tokens), tf.constant(lengths), silent, left)
        for row, found, step, (expected, frames) in zip(
            rows, kept.numpy(), steps.numpy(), rows.values(), strict=True
        ):
            found = [token for token in found.tolist() if token != DROPPED]
            assert found == (list(row) if expected is None else expected)
            assert step == frames
    kept, steps = signatures._kept(tf.constant(tokens), tf.constant(lengths), tf.ones_like(silent), left)
    assert (kept.numpy() == DROPPED).all() and (steps.numpy() == 50).all()


@pytest.mark.slow
def test_a_model_without_special_ids_reads_window_by_window(given):
    plain = given.changed(ids=SpeechIds())
    parts = [sound(0.5, seed) for seed in range(3)]
    (found,) = plain.transcribe([np.concatenate(parts)], timestamps=True)
    np.testing.assert_allclose(
        [segment[:2] for segment in found], [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)], atol=1e-6
    )
    assert plain.answer(parts)["language"].tolist() == [b""] * 3


@pytest.mark.slow
def test_a_folder_holds_all_of_it(given, tmp_path):
    given.changed(language="ko").save(tmp_path / "new")
    again = serving.load(tmp_path / "new")
    assert isinstance(again, serving.Transcriber) and again.language == "ko" and again.ids == HEARING
    sounds = [sound(0.4), sound(1.2)]
    assert again.transcribe(sounds) == given.transcribe(sounds, language="ko")
    assert json.loads((tmp_path / "new" / "transcriber.json").read_text())["format"] == 1


@pytest.mark.slow
def test_samples_depend_on_the_seed_and_on_the_recording_alone(given):
    sounds = [sound(seconds, seed) for seed, seconds in enumerate((0.3, 0.7, 0.5))]
    drawn = given.changed(strategy=Sample(3.0, seed=3))
    together = drawn.transcribe(sounds)
    assert [drawn.transcribe([each])[0] for each in sounds] == together != given.transcribe(sounds)
    others = given.changed(strategy=Sample(3.0))
    assert len({others.transcribe(sounds[:1])[0] for _ in range(3)}) > 1


def test_a_compiled_step_is_not_padded_beyond_its_eight_windows(given):
    assert given.signatures([2, 16, 32])._batch_sizes == [2, 8]


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_an_export_answers_as_in_python(xla, given, tmp_path):
    signatures = ["serving_default", "wav", "segments", "words"]
    path = given.export(tmp_path / "model", xla=xla, signatures=signatures, batch_sizes=[1, 2])
    warmup = [name for name, _ in given.warmup_requests([(1, None), (2, None), (99, None)])]
    # Each size of a step that XLA compiles is asked for once: a step has at most eight rows.
    assert warmup == ["serving_default"] * 3 + ["wav", "segments", "words"]
    files = [wav_of(sound(seconds, 3), RATE) for seconds in (0.3, 1.3)] + [b"junk"]
    none = np.array([""] * 3)
    served = Served(path)
    for signature in ("wav", "segments", "words"):
        expected = given.answer(files, none, none, signature=signature)
        found = served.answer(signature, {"wav": np.array(files), "language": none, "task": none})
        for key in expected:
            np.testing.assert_array_equal(found[key], expected[key])
    audio = np.stack([np.pad(sound(0.3, 3), (0, RATE)), np.pad(sound(0.9, 4), (0, 2 * RATE // 5))])
    found = served.answer("serving_default", {"audio": audio.astype("float32")})
    assert found["text"].tolist() == given.answer(audio)["text"].tolist() and all(found["text"])
    served.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, r"`language` must be one of en, ko\."),
        ({"task": "sing"}, "`task` must be one of"),
        ({"ids": {}}, "`ids` must be a `SpeechIds`"),
        ({"spectrogram": 3}, "`spectrogram` must be a `LogMelSpectrogram`"),
        ({"max_length": 41}, "`max_length` must be an integer at least 1, at most 40"),
        ({"window_seconds": 0}, "`window_seconds` must be"),
    ],
)
def test_unusable_arguments_are_refused(options, message):
    refuses(message, transcriber, **options)
