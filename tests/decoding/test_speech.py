"""The rules of transcripts, against rules that are written token by token; and the ids of prompts."""

import math

import numpy as np
import pytest
from contracts import as_numpy, refuses

from keras_transformer.decoding import SpeechIds, SuppressFirstTokens, TimestampRules
from keras_transformer.decoding.hypotheses import Beams, Search

# Ids below 6 are text, 6 ends a transcript, 7 to 10 are special, 10 says that there are no times, 11 to 19 are times.
EOS, NO_TIMES, FIRST, VOCAB = 6, 10, 11, 20
PROMPT = [7, 8]


def allowed_by_hand(logits, written, latest):
    """Returns the logits after the rules of section 4.5, for the tokens after the prompt."""
    allowed = {i: logits[i] for i in range(VOCAB) if i != NO_TIMES}
    times = [token for token in written if token >= FIRST]
    if not written:
        allowed = {i: x for i, x in allowed.items() if FIRST <= i <= FIRST + latest}
    elif written[-1] >= FIRST:
        if len(written) == 1 or written[-2] >= FIRST:  # a segment has begun: text follows, or the end
            allowed = {i: x for i, x in allowed.items() if i < FIRST}
        else:  # one has ended: the next one begins, or the transcript ends
            allowed = {i: x for i, x in allowed.items() if i >= EOS}
    if times:
        closes = written[-1] >= FIRST and len(written) > 1 and written[-2] < FIRST
        lowest = times[-1] if closes else times[-1] + 1
        allowed = {i: x for i, x in allowed.items() if not FIRST <= i < lowest}
    mass = sum(math.exp(x) for i, x in allowed.items() if i >= FIRST)
    text = [x for i, x in allowed.items() if i < FIRST]
    if mass and (not text or math.log(mass) > max(text)):
        allowed = {i: x for i, x in allowed.items() if i >= FIRST}
    return [allowed.get(i, -math.inf) for i in range(VOCAB)]


def beams_of(rows, width=12):
    tokens = np.array([row + [0] * (width - len(row)) for row in rows], "int32")[:, None]
    lengths = np.array([len(row) for row in rows], "int32")[:, None]
    return Beams(tokens, lengths, np.zeros(lengths.shape, "float32"), np.zeros(lengths.shape, bool))


WRITTEN = [
    [], [11], [12, 3], [12, 3, 14], [12, 3, 14, 14], [12, 3, 14, 15, 2, 2], [12, 3, 14, 14, 1, 19],
    [11, 11, 2], [3, 3],
]  # fmt: skip


@pytest.mark.parametrize("latest", [0, 3])
def test_the_rules_of_timestamps_are_those_by_hand(latest):
    logits = np.random.default_rng(0).normal(size=(40, len(WRITTEN), 1, VOCAB), scale=2).astype("float32")
    rules = TimestampRules(FIRST, EOS, latest, begin=len(PROMPT))
    beams = beams_of([PROMPT + row for row in WRITTEN])
    seen = set()
    for drawn in logits:
        found = as_numpy(rules.adjusted(drawn, beams, Search(9)))[:, 0]
        expected = [allowed_by_hand(row[0], own, latest) for row, own in zip(drawn, WRITTEN, strict=True)]
        np.testing.assert_array_equal(found, np.array(expected, "float32"))
        seen |= {tuple(np.isfinite(row)) for row in expected}
    assert len(seen) > 12


def test_rows_without_timestamps_and_other_prompts_stay_as_they_are():
    logits = np.zeros((2, 1, VOCAB), "float32")
    rules = TimestampRules(FIRST, EOS, begin=np.array([2, 3], "int32"), rows=np.array([True, False]))
    found = as_numpy(rules.adjusted(logits, beams_of([PROMPT, [*PROMPT, NO_TIMES]]), Search(9)))
    assert np.isinf(found[0, 0, :FIRST]).all() and not found[1].any()


def test_a_first_token_is_suppressed_after_the_prompt_alone():
    logits = np.zeros((3, 1, VOCAB), "float32")
    rule = SuppressFirstTokens((4, EOS), begin=np.array([2, 2, 1], "int32"))
    found = as_numpy(rule.adjusted(logits, beams_of([PROMPT, [*PROMPT, 1], PROMPT[:1]]), Search(9)))[:, 0]
    assert [np.flatnonzero(np.isinf(row)).tolist() for row in found] == [[4, EOS], [], [4, EOS]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimestampRules(5, 6), "`eos_id` must be below `first_id`. Received: eos_id=6, first_id=5."),
        (lambda: TimestampRules(5, -1), "`eos_id` must be an integer at least 0"),
        (lambda: SuppressFirstTokens((1,), begin=-1), "`begin` must be an integer at least 0"),
        (lambda: SpeechIds({"ko": -1}), "`languages` must be an integer at least 0"),
        (lambda: SpeechIds({1: 1}), "`languages` must be a dict from a str to an id"),
        (lambda: SpeechIds({"ko": 1}, language="en"), r"`language` must be one of ko\."),
        (lambda: SpeechIds(suppressed=(1.5,)), "`suppressed` must be an integer"),
    ],
)
def test_unusable_numbers_are_refused(make, message):
    refuses(message, make)


def test_prompts_have_the_ids_that_the_model_has():
    ids = SpeechIds({"ko": 7, "en": 8}, {"transcribe": 5, "translate": 4}, no_timestamps_id=10)
    assert ids.prompt("ko") == [7, 5, 10]
    assert ids.prompt("en", "translate", timestamps=True) == [8, 4]
    assert (ids.first_timestamp_id, ids.no_speech_id) == (11, 9)
    assert SpeechIds(no_timestamps_id=10).prompt() == [10] and SpeechIds().first_timestamp_id is None
    assert SpeechIds.from_config(ids.get_config()) == ids
