"""Stop strings: against Python's `in`, in any pieces, for each row its own, and with each strategy."""

import numpy as np
import pytest
from contracts import as_numpy, check_refused, refuses
from keras import ops

from keras_transformer.decoding import (
    Beam,
    DiverseBeam,
    Greedy,
    PhraseBeam,
    Sample,
    Search,
    StopStrings,
    decode,
)

PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aab", b" ", b"\xea\xb0", b"\x80", b"x a", b"", b"bb a"]
TEXTS = ["ab", "b a", "\uac00", "aabb", "a"]
VOCAB, LENGTH = len(PIECES), 7


class Written:
    def written(self):
        return PIECES


def backwards(rows, count, length):
    """The strings of rows as the constraint takes them: int32 `(batch, count, length)`."""
    found = np.zeros((len(rows), count, length), "int32")
    for row, texts in enumerate(rows):
        for i, text in enumerate(texts):
            found[row, i, : len(text.encode())] = list(text.encode()[::-1])
    return found


def stops(tokens, texts):
    """The number of tokens after which one of the texts is written, or all of them."""
    for count in range(1, len(tokens) + 1):
        if any(text.encode() in b"".join(PIECES[i] for i in tokens[:count]) for text in texts):
            return count
    return len(tokens)


def spoken(tokens):
    """A step whose likeliest tokens are given, `(rows, length)`."""
    table = ops.one_hot(ops.convert_to_tensor(tokens), VOCAB) * 9.0

    def step(newest, cache, index):
        logits = ops.take(table, ops.minimum(index, LENGTH - 1), axis=1)[:, None, None]
        return ops.broadcast_to(logits, (*ops.shape(newest), VOCAB)), cache

    return step


def search(tokens, constraint, strategy=Greedy(), length=LENGTH):  # noqa: B008
    settings = Search(length, keys=ops.zeros((len(tokens),), "uint32"), eos_ids=(VOCAB,))
    prompt = np.ones((len(tokens),), "int32")
    found = decode(spoken(tokens), (), strategy, prompt, settings, constraints=[constraint])
    return as_numpy(found)


def test_an_output_ends_with_the_token_that_completes_a_string():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (60, LENGTH)).astype("int32")
    rows = [list(rng.choice(TEXTS, rng.integers(0, 4), replace=False)) for _ in tokens]
    found = search(tokens, StopStrings.of(backwards(rows, 3, 5), Written()))
    expected = [stops(row, texts) for row, texts in zip(tokens.tolist(), rows, strict=True)]
    assert found.lengths[:, 0].tolist() == expected and len(set(expected)) > 4
    for row, length, written in zip(tokens, expected, found.tokens[:, 0], strict=True):
        assert written[:length].tolist() == row[:length].tolist()
    same = search(tokens, StopStrings.of(["b a", "\uac00"], Written()))
    assert same.lengths[:, 0].tolist() == [stops(row, ["b a", "\uac00"]) for row in tokens.tolist()]


@pytest.mark.parametrize("strategy", [
    Sample(seed=1),
    pytest.param(Beam(3, n_best=2), marks=pytest.mark.slow),
    pytest.param(DiverseBeam(4), marks=pytest.mark.slow),
    PhraseBeam(4, phrases=np.array([[[1]]] * 2, "int32")),
], ids=lambda strategy: type(strategy).__name__)  # fmt: skip
def test_every_strategy_ends_there(strategy):
    tokens = np.array([[1, 6, 2, 6, 1, 2, 2], [1, 2, 1, 1, 1, 1, 1]], "int32")
    found = search(tokens, StopStrings.of(["b a"], Written()), strategy)
    assert found.lengths[:, 0].tolist() == [5, 7]
    assert found.tokens[0, 0, :5].tolist() == [1, 6, 2, 6, 1]


def test_a_prompt_counts_with_the_token_that_follows_it():
    tokens = np.array([[1, 2, 3, 1, 1, 1, 1]], "int32")
    settings = Search(LENGTH, eos_ids=(VOCAB,))
    constraint = StopStrings.of(["ab"], Written())
    for prompt, length in (([1, 1], 2), ([1, 1, 2], 3), ([1, 2], 3)):
        found = decode(spoken(tokens), (), Greedy(), np.array([prompt]), settings, constraints=[constraint])
        assert as_numpy(found).lengths.tolist() == [[length]]


def test_a_string_within_the_prompt_ends_nothing():
    tokens = np.array([[1, 2, 6, 1, 1, 1, 1]], "int32")
    settings, constraint = Search(LENGTH, eos_ids=(VOCAB,)), StopStrings.of(["ab"], Written())
    found = decode(spoken(tokens), (), Greedy(), np.array([[1, 1, 2]]), settings, constraints=[constraint])
    assert as_numpy(found).lengths.tolist() == [[LENGTH]]


def test_ids_that_the_tokenizer_lacks_have_no_bytes():
    class Fewer:
        def written(self):
            return PIECES[:6]

    tokens = np.array([[1, 9, 2, 11, 5, 1, 1]], "int32")
    assert search(tokens, StopStrings.of(["bb"], Fewer())).lengths.tolist() == [[7]]
    assert search(tokens, StopStrings.of(["ba"], Fewer())).lengths.tolist() == [[5]]


def test_wrong_strings_are_refused():
    check_refused(
        StopStrings, {"texts": ()}, {"texts": ["a", ""]}, {"texts": [5]}, {"written": 3}, texts=["a"]
    )
    refuses("must be a list of str", StopStrings.of, "ab", Written())
