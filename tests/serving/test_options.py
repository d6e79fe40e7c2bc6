"""The signature `options`: each row has a prefix, lengths, draws, penalties and stop strings of its own."""

import numpy as np
import pytest
import tensorflow as tf
from alone import answers
from mirrors import call

from keras_transformer.decoding import Greedy, MinLength, PresencePenalty, RepetitionPenalty, Sample
from keras_transformer.request_options import OPTIONS, columns

# Rows that differ in one option or in all of them; the last asks for nothing.
ROWS = [
    {"prefix": "the"},
    {"max_length": 3},
    {"min_length": 30},
    {"temperature": 1.5, "seed": 7},
    {"temperature": 1.5, "seed": 8},
    {"temperature": 1.5, "seed": 2**40 + 7},
    {"temperature": 2.0, "top_p": 0.7, "seed": 7},
    {"temperature": 0.5, "top_p": 0.9, "seed": -7, "prefix": "I", "max_length": 12, "min_length": 12},
    {"temperature": 2.0, "top_k": 3, "seed": 7},
    {"temperature": 2.0, "min_p": 0.2, "seed": 7},
    {"repetition_penalty": 1.7, "max_length": 20, "min_length": 20},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "max_length": 20, "min_length": 20},
    {"stop": (" go", "not"), "logprobs": 2},
    {},
]


def inputs_of(rows, text):
    chosen = {name: [row.get(name, OPTIONS[name].neutral) for row in rows] for name in OPTIONS}
    return {"text": [text] * len(rows), **columns(len(rows), **chosen)}


@pytest.fixture(scope="module")
def text(pairs):
    return pairs[3][0]


@pytest.fixture(scope="module")
def function(translator):
    """Six rows are a batch, so fourteen rows are three."""
    return translator.signatures([6]).functions()["options"]


@pytest.fixture(scope="module")
def mixed(function, text):
    return call(function, **inputs_of(ROWS, text))


@pytest.mark.slow
def test_a_row_alone_is_the_row_in_a_mixed_batch(function, mixed, text):
    assert mixed["error"].tolist() == [b""] * len(ROWS)
    for row, options in enumerate(ROWS):
        alone = call(function, **inputs_of([options], text))
        assert alone["translation"][0] == mixed["translation"][row]
        np.testing.assert_allclose(alone["score"][0], mixed["score"][row], rtol=1e-4)
    backwards = call(function, **inputs_of(ROWS[::-1], text))
    assert backwards["translation"][::-1].tolist() == mixed["translation"].tolist()


@pytest.mark.slow
def test_each_option_does_what_the_same_search_in_python_does(translator, mixed, text):
    def searched(strategy, constraints=(), **limits):
        changed = translator.changed(strategy=strategy, constraints=constraints, **limits)
        return changed.translate([text])[0].encode()

    found = mixed["translation"]
    assert found[0].startswith(b"the") and found[0] != found[-1]
    assert found[1] == searched(Greedy(), max_length=3)
    assert found[2] == searched(Greedy(), [MinLength(30)])
    assert found[3] == searched(Sample(1.5, seed=7))
    assert found[4] == searched(Sample(1.5, seed=8))
    assert found[6] == searched(Sample(2.0, top_p=0.7, seed=7))
    assert found[7].startswith(b"I")
    assert found[8] == searched(Sample(2.0, top_k=3, seed=7))
    assert found[9] == searched(Sample(2.0, min_p=0.2, seed=7))
    assert found[10] == searched(Greedy(), [RepetitionPenalty(1.7), MinLength(20)], max_length=20)
    assert found[11] == searched(Greedy(), [PresencePenalty(1.5, 0.5), MinLength(20)], max_length=20)
    assert found[13] == searched(Greedy())
    first = min(found[13].find(text) % 10**6 for text in (b" go", b"not"))
    assert found[12] == found[13][:first] and len(set(found)) >= 12
    assert len(set(found[3:6])) == 3 and found[3] != found[13]


def test_logprobs_are_those_of_the_tokens_of_the_answer(mixed):
    """They are as wide as the row needs that wants most; the other rows have none."""
    length, values, texts = mixed["length"][12], mixed["logprobs"], mixed["logprob_tokens"]
    assert values.shape == texts.shape == (len(ROWS), length, 3)
    np.testing.assert_allclose(values[12, :, 0].sum(), mixed["score"][12], rtol=1e-4)
    assert b"".join(texts[12, :, 0]).strip().startswith(mixed["translation"][12])
    # A greedy search takes the likeliest token.
    assert texts[12, :, 0].tolist() == texts[12, :, 1].tolist()
    assert (values[12, :, 1] > values[12, :, 2]).all()
    others = [row for row in range(len(ROWS)) if row != 12]
    assert not values[others].any() and not texts[others].any()


WRONG = {
    "prefix": "word " * 300, "max_length": 10_000, "min_length": 10_000, "temperature": float("nan"), "top_p": 0.0,
    "top_k": 10**6, "min_p": 1.5, "repetition_penalty": 0.0, "presence_penalty": float("nan"), "stop": ("a",) * 5,
}  # fmt: skip


def test_unusable_option_empties_its_row_alone(function, mixed, text):
    bad = [{name: value} for name, value in WRONG.items()]
    bad += [
        {"temperature": -1},
        {"top_p": 1.1},
        {"max_length": 3, "min_length": 4},
        {"prefix": "the \N{PARTY POPPER}"},
    ]
    assert len(bad) == len(ROWS)
    rows = [row for pair in zip(ROWS, bad, strict=True) for row in pair]
    found = call(function, **inputs_of(rows, text))
    assert found["translation"][::2].tolist() == mixed["translation"].tolist()
    assert found["translation"][1::2].tolist() == [b""] * len(bad)
    assert found["score"][1::2].tolist() == [0.0] * len(bad)
    named = [error.decode().split("`")[1] for error in found["error"][1::2]]
    assert named == [*WRONG, "temperature", "top_p", "min_length", "prefix"]
    assert b"must be a text that the vocabulary can" in found["error"][-1]
    assert not any(found["error"][::2])
    assert found["ended"][::2].tolist() == mixed["ended"].tolist() and not found["ended"][1::2].any()


def test_ended_output_gains_no_token_from_a_longer_limit(function, text):
    rows = [{"max_length": length} for length in range(1, 17)]
    found = call(function, **inputs_of(rows, text))
    # A token of this model adds at least 0.006; sums of 17 tokens may differ by the rounding of another batch.
    unchanged = np.isclose(found["score"][1:], found["score"][:-1], rtol=0, atol=1e-3)
    assert found["ended"][:-1].tolist() == unchanged.tolist() and len(set(unchanged)) == 2


def test_length_options_stay_within_the_limit_of_the_row(function, translator, text):
    """Or a short request would cost as much as the longest text, hundreds of steps."""
    limit = 2 * (int(translator.source_tokenizer.tokenize(text).shape[0]) + 1) + 16
    assert translator.max_length is None and limit < translator.longest_output
    rows = [{name: limit + more} for name in ("max_length", "min_length") for more in (0, 1)]
    found = call(function, **inputs_of(rows, text))
    errors = [error.decode() for error in found["error"]]
    assert errors[0] == errors[2] == "" and found["translation"][1] == found["translation"][3] == b""
    assert errors[1].startswith(
        "`max_length` must be from 1 to the limit of the row, or 0 for it: the `max_length` of"
    )
    assert errors[3] == "`min_length` must be from 0 to the largest length of the row."
    empty = call(function, **inputs_of([{"max_length": 18, "min_length": 3}, {"max_length": 19}], ""))
    assert [bool(error) for error in empty["error"]] == [False, True]


@pytest.mark.slow
def test_the_limit_of_the_export_is_the_limit_of_every_row(translator, text):
    limited = translator.changed(strategy=Greedy(), max_length=300)
    rows = [{"max_length": 300}, {"max_length": 301}, {"min_length": 301}]
    found = call(limited.signatures([3]).functions()["options"], **inputs_of(rows, text))
    assert [bool(error) for error in found["error"]] == [False, True, True]
    assert limited.longest_output == 300


def test_a_text_without_a_token_gets_its_prefix_back(function):
    found = call(function, **inputs_of([{"prefix": "the"}, {}, {"max_length": 5}], " "))
    assert found["translation"].tolist() == [b"the", b"", b""] and not any(found["error"])
    assert found["ended"].all()


def test_too_few_options_are_refused_by_name(function, text):
    inputs = inputs_of(ROWS[:2], text)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`top_p` must have a value for each text"):
        call(function, **{**inputs, "top_p": np.ones(1, "float32")})


def test_stop_strings_are_texts_and_no_patterns(function, mixed, text):
    whole = mixed["translation"][-1].decode()
    rows = [
        {"stop": stop}
        for stop in (".*", "(", ("\\", "[a"), whole[-3:], (b"", whole[4:6].encode(), b""), b"\xff")
    ]
    found = call(function, **inputs_of(rows, text))
    place = whole.find(whole[-3:])
    expected = [whole, whole, whole, whole[:place], whole[: whole.find(whole[4:6])], whole]
    assert [each.decode() for each in found["translation"]] == expected
    assert found["ended"].tolist() == [bool(mixed["ended"][-1]) or each != whole for each in expected]
    assert not any(found["error"])


def test_text_of_a_prefix_is_no_stop_string(function, text):
    whole = call(function, **inputs_of([{"prefix": "the a"}], text))["translation"][0].decode()
    (found,) = call(function, **inputs_of([{"prefix": "the a", "stop": ("the", " a", "he")}], text))[
        "translation"
    ]
    assert whole.startswith(found.decode()) and found.startswith(b"the a")


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_the_export_answers_as_python_does_where_python_is_not(
    xla, exported, translator, mixed, text, tmp_path
):
    if xla:
        options = {"batch_sizes": [4], "source_lengths": [256], "signatures": ["serving_default", "options"]}
        exported = translator.export(tmp_path / "model", xla=True, check=False, **options)
    inputs = {name: np.asarray(each).tolist() for name, each in inputs_of(ROWS, text).items()}
    found = answers(exported, tmp_path, "options", xla=xla, **inputs)
    assert found["translation"] == [each.decode() for each in mixed["translation"]]
    np.testing.assert_allclose(found["score"], mixed["score"], rtol=1e-4)
    assert found["error"] == [""] * len(ROWS)
