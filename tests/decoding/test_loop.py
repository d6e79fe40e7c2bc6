"""The loop over a table of logits: no model, every pick can be read off."""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest
from contracts import as_numpy, check_refused, refuses
from keras import ops
from reference import log_softmax

from keras_transformer.decoding import (
    STRATEGIES,
    Beam,
    DiverseBeam,
    Greedy,
    Sample,
    Search,
    SuppressTokens,
    decode,
)

PAD, BOS, EOS, A, B, C, VOCAB = 0, 2, 3, 4, 5, 6, 7
START = np.array([BOS, BOS, BOS], "int32")


def logits_for(*rows):
    """`(batch, length, vocab)`: noise, with the wanted id on top at each position of each row."""
    noise = np.random.default_rng(0).uniform(-1, 1, (len(rows), len(rows[0]), VOCAB)).astype("float32")
    for row, ids in enumerate(rows):
        for position, token in enumerate(ids):
            noise[row, position, token] = 2.0 + row
    return noise


# What each row would say, were it never to end.
TABLE = logits_for([A, B, EOS, C, C, C, C], [B, EOS, A, A, A, A, A], [C, C, A, B, EOS, A, A])


class Step:
    """Reads the table at the position it is asked for, and keeps what it was called with."""

    def __init__(self, table=TABLE):
        self.table = table
        self.calls = []

    def __call__(self, tokens, cache, index):
        self.calls.append((as_numpy(tokens)[:, 0, 0].tolist(), int(index)))
        return self.of_position(tokens, cache, index)

    def of_position(self, tokens, cache, index):
        logits = ops.take(ops.convert_to_tensor(self.table), index, axis=1)
        return logits[:, None, None, :], cache + 1


def eager(step, limits=7, start=START, **ids):
    found = decode(step, ops.zeros((), "int32"), Greedy(), start, Search(limits, **ids))
    return [as_numpy(part) for part in found]


def quiet(table=TABLE):
    """The same step without a record, for graphs."""
    return Step(table).of_position


def test_greedy_takes_the_likeliest_until_the_end():
    tokens, lengths, scores = eager(quiet())
    assert tokens[:, 0].tolist() == [
        [A, B, EOS, PAD, PAD, PAD, PAD],
        [B, EOS, PAD, PAD, PAD, PAD, PAD],
        [C, C, A, B, EOS, PAD, PAD],
    ]
    assert lengths[:, 0].tolist() == [3, 2, 5]
    log_p = log_softmax(TABLE.astype("float64")).max(axis=-1)
    np.testing.assert_allclose(
        scores[:, 0], [log_p[0, :3].sum(), log_p[1, :2].sum(), log_p[2, :5].sum()], rtol=1e-5
    )


def test_probabilities_by_hand():
    """Half, then two thirds, then certainty of the end: ln 1/2 + ln 2/3 = ln 1/3."""
    likely = np.full((1, 3, VOCAB), 1e-30)
    likely[0, 0, [A, B, C]] = 0.5, 0.25, 0.25
    likely[0, 1, [A, B]] = 1 / 3, 2 / 3
    likely[0, 2, EOS] = 1.0
    tokens, lengths, scores = eager(quiet(np.log(likely).astype("float32")), start=START[:1])
    assert tokens[0, 0].tolist() == [A, B, EOS, PAD, PAD, PAD, PAD]
    assert lengths.tolist() == [[3]]
    np.testing.assert_allclose(scores, [[np.log(1 / 3)]], rtol=1e-5)


def test_of_equals_the_lowest_id_is_taken():
    logits = np.zeros((1, 2, VOCAB), "float32")
    logits[0, 0, [B, C]] = 1.0
    logits[0, 1, [EOS, A]] = 1.0
    tokens, _, scores = eager(quiet(logits), start=START[:1], limits=2)
    assert tokens.tolist() == [[[B, EOS]]]
    np.testing.assert_allclose(scores, [[2 * (1 - np.log(2 * np.e + 5))]], rtol=1e-5)


def interpreted():
    """Runs each turn of a loop as Python, so that calls can be counted; TensorFlow does so when eager."""
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.disable_jit()


def test_loop_ends_with_its_longest_row():
    step = Step()
    with interpreted():
        eager(step)
    assert [index for _, index in step.calls] == [0, 1, 2, 3, 4]
    assert [tokens for tokens, _ in step.calls] == [
        [BOS, BOS, BOS],
        [A, B, C],
        [B, PAD, C],
        [PAD, PAD, A],
        [PAD, PAD, B],
    ]


def test_cache_goes_from_step_to_step_and_counts_them():
    """The cache is a counter; the table is read at its value, so a cache lost or kept too long shows."""

    def step(tokens, cache, index):
        return ops.take(ops.convert_to_tensor(TABLE), cache, axis=1)[:, None, None, :], cache + 1

    expected = eager(quiet())
    found = eager(step)
    np.testing.assert_array_equal(found[0], expected[0])


def test_each_token_is_fed_to_the_next_step():
    """A step that says the successor of what it is given: 4, 5, 6 from 3, whatever the position."""

    def step(tokens, cache, index):
        return ops.one_hot(tokens + 1, 13), cache

    tokens, lengths, _ = eager(step, limits=4, start=np.array([4, 7], "int32"), eos_ids=(10,))
    assert tokens[:, 0].tolist() == [[5, 6, 7, 8], [8, 9, 10, PAD]]
    assert lengths.tolist() == [[4], [3]]


def test_each_row_has_its_own_limit():
    tokens, lengths, scores = eager(quiet(), limits=np.array([1, 7, 3], "int32"))
    assert tokens[:, 0].tolist() == [
        [A, PAD, PAD, PAD, PAD, PAD, PAD],
        [B, EOS, PAD, PAD, PAD, PAD, PAD],
        [C, C, A, PAD, PAD, PAD, PAD],
    ]
    assert lengths[:, 0].tolist() == [1, 2, 3]
    log_p = log_softmax(TABLE.astype("float64")).max(axis=-1)
    np.testing.assert_allclose(scores[:, 0], [log_p[0, 0], log_p[1, :2].sum(), log_p[2, :3].sum()], rtol=1e-5)


def test_other_ids_for_the_end_and_for_padding():
    tokens, lengths, _ = eager(quiet(), eos_ids=(C,), pad_id=1)
    assert tokens[:, 0].tolist() == [[A, B, EOS, C, 1, 1, 1], [B, EOS, A, A, A, A, A], [C, 1, 1, 1, 1, 1, 1]]
    assert lengths[:, 0].tolist() == [4, 7, 1]


def test_bfloat16_logits_are_summed_in_float32():
    def step(tokens, cache, index):
        return ops.zeros((1, 1, 1, 1009), "bfloat16"), cache

    _, _, scores = eager(step, limits=5, start=START[:1], eos_ids=(-1,))
    np.testing.assert_allclose(scores, [[-5 * np.log(1009)]], rtol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_are_frozen_values(name):
    strategy = STRATEGIES[name]()
    assert strategy == STRATEGIES[name]() and hash(strategy) == hash(STRATEGIES[name]())
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(strategy))
    assert again == strategy
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy.width = 2


def level(tokens, cache, index):
    """A step after which all of nine tokens are equally likely."""
    return ops.zeros((*tokens.shape, 9)), cache


def test_constraints_may_come_from_a_generator():
    constraints = (c for c in [SuppressTokens([0])])
    assert 0 not in as_numpy(decode(level, (), Greedy(), [1], Search(3), constraints=constraints).tokens)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"top_p": 1e-6}, {"temperature": 0.0}])
def test_one_option_of_sampling_is_enough(options):
    for given in (options, {name: np.array([value]) for name, value in options.items()}):
        found = decode(level, (), Sample(seed=1, **given), [1], Search(4))
        assert as_numpy(found.tokens).tolist() == [[[0, 0, 0, 0]]]


def test_sample_at_a_temperature_of_0_is_greedy_and_needs_no_seed():
    expected, found = (
        decode(quiet(), ops.zeros((), "int32"), strategy, START, Search(7))
        for strategy in (Greedy(), Sample(0, top_p=0.9))
    )
    for part, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(part, other)


def test_a_sample_without_a_seed_and_ids_that_the_vocabulary_lacks_are_refused():
    without = "`search` and `decode` need a `Sample` with a `seed`.*seed=None"
    refuses(without, decode, level, (), Sample(), [1], Search(4))
    for wrong in (9, -9):
        refuses("`prompt` must hold ids from 0 to 8", decode, level, (), Greedy(), [[1, wrong, 2]], Search(4))


@pytest.mark.parametrize("strategy", [Greedy(), Beam(2), Sample(seed=1)], ids=["greedy", "beam", "sample"])
def test_logits_of_nan_give_the_score_nan(strategy):
    """-inf would say that the constraints allowed nothing."""

    def broken(tokens, cache, index):
        return ops.full((*tokens.shape, 9), float("nan")), cache

    found = decode(broken, (), strategy, [1], Search(3))
    assert np.isnan(as_numpy(found.scores)).all()


WRONG = {
    Beam: [{"width": 0}, {"n_best": 5, "width": 4}, {"length_penalty": -0.5}, {"normalization": "none"}],
    DiverseBeam: [{"groups": 0}, {"groups": 3, "width": 4}, {"n_best": 5}, {"diversity": -1}],
    Sample: [
        *({"temperature": wrong} for wrong in (-0.5, float("inf"))),
        *({"top_k": wrong} for wrong in (-1, 2.5)),
        *({"top_p": wrong} for wrong in (0.0, 1.5)),
        *({"seed": wrong} for wrong in (1.5, 2**40)),
        *({"min_p": 1.1}, {"typical_p": 0}, {"num_samples": 0}),
    ],
}


@pytest.mark.parametrize("strategy", WRONG)
def test_unusable_arguments_are_refused(strategy):
    check_refused(strategy, *WRONG[strategy])
