"""Beam search over tables of logits: worked by hand, then against every sequence there is."""

import itertools

import numpy as np
import pytest
from contracts import as_numpy
from keras import ops
from reference import log_softmax

from keras_transformer.decoding import Beam, DiverseBeam, Greedy, Search, decode

PAD, BOS, EOS, VOCAB, LENGTH = 0, 2, 3, 7, 4
EVERY = 1600  # wider than the number of sequences: 1 + 6 + 36 + 216 * 7 = 1555


def table(seed, batch=1, length=LENGTH, vocab=VOCAB):
    """Logits `(batch, length, vocab, vocab)`: of each row at each position after each token."""
    return np.random.default_rng(seed).normal(size=(batch, length, vocab, vocab), scale=1.5).astype("float32")


def step_over(logits):
    """The step of a model that looks at the position and the last token."""
    logits = ops.convert_to_tensor(logits)
    batch, _, vocab, _ = logits.shape

    def step(tokens, cache, index):
        here = ops.take(logits, index, axis=1)  # (batch, vocab, vocab)
        rows = ops.arange(batch, dtype="int32")[:, None] * vocab
        width = tokens.shape[1]
        flat = ops.take(ops.reshape(here, (-1, vocab)), ops.reshape(tokens[:, :, 0] + rows, (-1,)), axis=0)
        return ops.reshape(flat, (batch, width, 1, vocab)), cache

    return step


def found_by(strategy, logits, max_length=None, **arguments):
    length = logits.shape[1] if max_length is None else max_length
    start = np.full((len(logits),), BOS, "int32")
    search = Search(length, eos_ids=(EOS,), pad_id=PAD)
    return as_numpy(decode(step_over(logits), (), strategy, start, search, **arguments))


# Worked by hand


def probabilities(*by_position):
    """A table from probabilities that depend on the position alone."""
    likely = np.full((1, len(by_position), VOCAB, VOCAB), 1e-9)
    for position, chances in enumerate(by_position):
        for token, chance in chances.items():
            likely[0, position, :, token] = chance
    return np.log(likely).astype("float32")


def test_ended_hypothesis_that_is_best_stays_best():
    """`[EOS]` has 0.6; what goes on has 0.4 and then certainty: 0.4 is all it can get."""
    logits = probabilities({EOS: 0.6, 4: 0.4}, {5: 1.0}, {6: 1.0}, {EOS: 1.0})
    for width in (1, 2, 4):
        found = found_by(Beam(width, length_penalty=0.0), logits)
        assert found.tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD]
        np.testing.assert_allclose(found.scores, [[np.log(0.6)]], rtol=1e-5)
    both = found_by(Beam(2, length_penalty=0.0, n_best=2), logits)
    assert both.tokens[0].tolist() == [[EOS, PAD, PAD, PAD], [4, 5, 6, EOS]]
    np.testing.assert_allclose(both.scores, np.log([[0.6, 0.4]]), rtol=1e-5)


def test_length_penalty_may_let_the_longer_win():
    """ln 0.6 / 1 = -0.51 against ln 0.4 / 4 = -0.23, by length; by Wu's, -0.51 against -0.92 / 1.5."""
    logits = probabilities({EOS: 0.6, 4: 0.4}, {5: 1.0}, {6: 1.0}, {EOS: 1.0})
    by_length = found_by(Beam(2, length_penalty=1.0, normalization="length"), logits)
    assert by_length.tokens[0, 0].tolist() == [4, 5, 6, EOS]
    np.testing.assert_allclose(by_length.scores, [[np.log(0.4)]], rtol=1e-5)  # orders, and changes no score
    assert found_by(Beam(2, length_penalty=1.0), logits).tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD]


def test_next_best_hypotheses_go_on_when_the_best_end():
    """After step 2 both best extensions end; 4 6 (.15) and 4 1 (.1, the first of three) take their places."""
    chances = {BOS: {4: 0.5, 5: 0.5}, 4: {EOS: 0.5, 6: 0.3, 1: 0.2}, 5: {EOS: 0.6, 6: 0.2, 1: 0.2}}
    likely = np.full((1, 3, VOCAB, VOCAB), 1e-9)
    for before, after in chances.items():
        for token, chance in after.items():
            likely[0, :, before, token] = chance
    likely[0, 2, 6], likely[0, 2, 1] = np.eye(VOCAB)[EOS], np.eye(VOCAB)[EOS]
    found = found_by(
        Beam(2, length_penalty=5.0, n_best=2), np.log(np.maximum(likely, 1e-9)).astype("float32")
    )
    assert found.tokens[0].tolist() == [[4, 6, EOS], [4, 1, EOS]]
    np.testing.assert_allclose(found.scores, np.log([[0.15, 0.1]]), rtol=1e-3)


def test_groups_take_different_first_tokens_by_hand():
    """Group two pays 1 nat for the first group's 4 (0.5), so 5 (0.3) is better for it."""
    logits = probabilities({4: 0.5, 5: 0.3, 6: 0.2}, {EOS: 1.0})
    diverse = found_by(DiverseBeam(2, n_best=2, groups=2, diversity=1.0), logits)
    assert diverse.tokens[0, :, 0].tolist() == [4, 5]
    np.testing.assert_allclose(diverse.scores, np.log([[0.5, 0.3]]), rtol=1e-4)  # the price is no part of it
    alike = found_by(DiverseBeam(2, n_best=2, groups=2, diversity=0.1), logits)
    assert alike.tokens[0, :, 0].tolist() == [4, 4]


# Against every sequence


def every_sequence(logits, length):
    """All hypotheses of one row and their log probabilities, in float64: those that end, those cut at `length`."""
    log_p = log_softmax(logits.astype("float64"))
    others = [token for token in range(logits.shape[-1]) if token != EOS]
    for n in range(1, length + 1):
        for body in itertools.product(others, repeat=n - 1):
            for last in [EOS] if n < length else range(logits.shape[-1]):
                tokens = (*body, last)
                before = (BOS, *tokens[:-1])
                yield tokens, sum(log_p[i, b, t] for i, (b, t) in enumerate(zip(before, tokens, strict=True)))


def divisor(length, penalty, normalization):
    return ((5 + length) / 6 if normalization == "wu" else length) ** penalty


def best_of(logits, n, penalty, normalization, length=LENGTH):
    ranked = sorted(
        every_sequence(logits, length),
        key=lambda found: -found[1] / divisor(len(found[0]), penalty, normalization),
    )
    return ranked[:n]


def assert_found(found, row, expected):
    """The hypotheses of a row are these, in this order."""
    tokens, lengths, scores = (part[row] for part in found)
    for rank, (ids, score) in enumerate(expected):
        assert tokens[rank].tolist() == [*ids, *[PAD] * (tokens.shape[1] - len(ids))], rank
        assert lengths[rank] == len(ids)
        np.testing.assert_allclose(scores[rank], score, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalization", "penalty"), [("wu", 0.0), ("wu", 2.0), ("length", 0.6), ("length", 1.0)]
)
def test_wide_beam_finds_what_brute_force_finds(normalization, penalty):
    logits = table(5, batch=2)
    strategy = Beam(EVERY, length_penalty=penalty, n_best=11, normalization=normalization)
    found = found_by(strategy, logits)
    assert found.tokens.shape == (2, 11, LENGTH)
    for row in range(2):
        assert_found(found, row, best_of(logits[row], 11, penalty, normalization))


def test_n_best_may_be_the_number_of_all_hypotheses():
    logits = table(7, length=2)
    found = found_by(Beam(60, n_best=60), logits)
    expected = best_of(logits[0], 60, 0.6, "wu", length=2)
    assert len(expected) == 1 + 6 * 7
    assert_found(found, 0, expected)
    assert np.all(found.scores[0, len(expected) :] == -np.inf)
    assert np.all(found.tokens[0, len(expected) :] == PAD) and np.all(found.lengths[0, len(expected) :] == 0)


def test_each_row_has_its_own_limit():
    logits = table(3, batch=3)
    limits = np.array([2, 4, 0], "int32")
    found = found_by(Beam(EVERY, n_best=2), logits, max_length=limits)
    for row in range(2):
        assert_found(found, row, best_of(logits[row], 2, 0.6, "wu", length=int(limits[row])))
    assert found.lengths[2].tolist() == [0, 0] and found.scores[2].tolist() == [0.0, -np.inf]


# Where a search begins and ends


@pytest.mark.parametrize(("normalization", "penalty"), [("wu", 0.6), ("length", 3.0)])
def test_a_beam_of_one_is_greedy(normalization, penalty):
    logits = table(1, batch=31, length=9)
    greedy = found_by(Greedy(), logits)
    found = found_by(Beam(1, length_penalty=penalty, normalization=normalization), logits)
    for part, expected in zip(found, greedy, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-5)


def counted(step):
    """The step, and the list of positions it was called at; for eager runs on a backend that has them."""
    calls = []

    def counting(tokens, cache, index):
        calls.append(int(index))
        return step(tokens, cache, index)

    return counting, calls


@pytest.mark.slow
@pytest.mark.tensorflow
def test_search_stops_when_no_open_hypothesis_can_win_and_not_before():
    likely = [{EOS: 0.6, 4: 0.4}] + [{5: 0.9, 6: 0.1}] * 8
    logits = probabilities(*likely)
    # Without a penalty 0.4 can never beat 0.6: one step. By length ln 0.4 / 9 could have.
    for strategy, turns in ((Beam(2, length_penalty=0.0), 1), (Beam(2, 1.0, normalization="length"), 9)):
        step, calls = counted(step_over(logits))
        decode(step, (), strategy, [BOS], Search(9, eos_ids=(EOS,), pad_id=PAD))
        assert calls == list(range(turns))


@pytest.mark.parametrize(
    "strategy", [Beam(4, n_best=4), DiverseBeam(4, groups=2, n_best=4)], ids=["beam", "diverse"]
)
def test_a_row_that_ended_before_its_first_step_is_one_result(strategy):
    logits = np.repeat(table(3), 2, axis=0)
    search = Search(np.array([2, LENGTH], "int32"), eos_ids=(EOS,), pad_id=PAD)
    prompt = np.array([[BOS, 5, 6], [BOS, 5, 6]], "int32")
    with_width = step_over(logits)

    def step(tokens, cache, index):
        if tokens.shape[-1] == 1:
            return with_width(tokens, cache, index)
        return ops.concatenate(
            [with_width(tokens[:, :, i : i + 1], cache, i)[0] for i in (0, 1)], axis=2
        ), cache

    found = as_numpy(decode(step, (), strategy, prompt, search))
    assert found.tokens[0].tolist() == [[5, 6, PAD, PAD], *[[PAD] * LENGTH] * 3]
    assert found.lengths[0].tolist() == [2, 0, 0, 0]
    assert np.isfinite(found.scores[0, 0]) and np.all(found.scores[0, 1:] == -np.inf)
    assert np.all(np.isfinite(found.scores[1]))


# Diverse beam search


def diverse_reference(logits, width, groups, diversity, length, penalty):
    """Vijayakumar et al., 2018, algorithm 1, on one row, in plain Python; each group as `Beam` does it."""
    log_p, size = log_softmax(logits.astype("float64")), width // groups
    opened = [[((), 0.0)] for _ in range(groups)]
    finished = [[] for _ in range(groups)]
    for position in range(length):
        taken = np.zeros(logits.shape[-1])
        for group in range(groups):
            candidates = []
            for tokens, total in opened[group]:
                last = tokens[-1] if tokens else BOS
                for token in range(logits.shape[-1]):
                    new = total + log_p[position, last, token]
                    candidates.append((new - diversity * taken[token], new, (*tokens, token)))
            candidates.sort(key=lambda c: -c[0])
            best, opened[group] = candidates[: 2 * size], []
            for rank, (_, total, tokens) in enumerate(best):
                if tokens[-1] == EOS or len(tokens) == length:
                    if rank < size:
                        finished[group].append((total / divisor(len(tokens), penalty, "wu"), tokens))
                elif len(opened[group]) < size:
                    opened[group].append((tokens, total))
            for tokens, _ in opened[group]:
                taken[tokens[-1]] += 1
    return [max(of_group)[1] for of_group in finished]


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_groups_agree_with_a_plain_reference(seed):
    logits = table(seed + 40, length=5)
    found = found_by(DiverseBeam(6, length_penalty=0.6, n_best=3, groups=3, diversity=0.8), logits)
    expected = diverse_reference(logits[0], 6, 3, 0.8, 5, 0.6)
    of_groups = [tuple(t for t in row if t != PAD) for row in found.tokens[0].tolist()]
    # PAD is a token of the table too, so rows are compared by what is left of it.
    assert sorted(of_groups) == sorted(tuple(t for t in tokens if t != PAD) for tokens in expected)
