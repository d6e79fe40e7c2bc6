"""Sampling from known distributions: frequencies, supports, seeds."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
from contracts import as_numpy, compilations
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers, ops
from reference import log_softmax

from keras_transformer.decoding import (
    Greedy,
    MinLength,
    RepetitionPenalty,
    Sample,
    Search,
    SuppressTokens,
    decode,
    row_keys,
    sample,
)
from keras_transformer.decoding.sample import _draw
from keras_transformer.execution import native

BOS, VOCAB, ROWS, DRAWS = 2, 11, 41, 53
LOGITS = np.array([0.3, -1.0, 0.2, 1.5, 0.9, -0.4, 0.0, 2.0, -2.5, 1.1, 0.5], "float32")


def drawn(strategy, logits=LOGITS, rows=ROWS, **arguments):
    """First tokens `(rows, num_samples)` drawn from one distribution, each row with a key of its own.

    `logits` may be `(rows, vocab)`, for a distribution for each row.
    """
    return found_by(strategy, logits, rows, **arguments).tokens[:, :, 0]


def found_by(strategy, logits=LOGITS, rows=ROWS, length=1, keys=None, eos_id=-1, **arguments):
    """As `drawn`, with all that is found: `Hypotheses` of `length` tokens, each from the same distribution."""

    def step(tokens, cache, index):
        shape = (*tokens.shape[:2], 1, logits.shape[-1])
        return ops.broadcast_to(ops.convert_to_tensor(np.atleast_2d(logits)[:, None, None]), shape), cache

    search = Search(length, keys=keys, eos_ids=(eos_id,))
    return as_numpy(decode(step, (), strategy, np.full((rows,), BOS, "int32"), search, **arguments))


def probabilities(logits, strategy):
    """What is left of a distribution after the cuts, by NumPy, one token after the other."""
    p = np.exp(log_softmax(logits.astype("float64") / strategy.temperature))
    order = np.argsort(-p, kind="stable")

    def keep(p, order, share):
        total, kept = 0.0, np.zeros(len(p), bool)
        for token in order:
            if total >= share:
                break
            kept[token], total = True, total + p[token]
        return np.where(kept, p, 0.0) / p[kept].sum()

    if strategy.top_k:
        p = np.where(np.isin(np.arange(len(p)), order[: strategy.top_k]), p, 0.0)
        p /= p.sum()
    if strategy.top_p < 1:
        p = keep(p, order, strategy.top_p)
    if strategy.min_p:
        p = np.where(p >= strategy.min_p * p.max(), p, 0.0)
        p /= p.sum()
    if strategy.typical_p < 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            information = -np.log(p)
            entropy = np.nansum(p * information)
            distance = np.where(p > 0, np.abs(information - entropy), np.inf)
        p = keep(p, np.argsort(distance, kind="stable"), strategy.typical_p)
    return p


CUTS = [
    Sample(seed=1, num_samples=DRAWS),
    Sample(0.5, seed=2, num_samples=DRAWS),
    Sample(3.0, seed=3, num_samples=DRAWS),
    Sample(top_k=4, seed=4, num_samples=DRAWS),
    Sample(top_p=0.7, seed=5, num_samples=DRAWS),
    Sample(min_p=0.2, seed=6, num_samples=DRAWS),
    Sample(typical_p=0.6, seed=7, num_samples=DRAWS),
    Sample(1.5, top_k=8, top_p=0.8, seed=8, min_p=0.3, typical_p=0.8, num_samples=DRAWS),
]


@pytest.mark.parametrize("strategy", CUTS, ids=str)
def test_frequencies_are_those_of_the_remaining_tokens(strategy):
    tokens = drawn(strategy)
    expected = probabilities(LOGITS, strategy)
    assert 1 < (expected > 0).sum() <= VOCAB
    counts = np.bincount(tokens.ravel().astype(int), minlength=VOCAB)
    assert np.all(counts[expected == 0] == 0), "something was drawn from beyond the cuts"
    total = ROWS * DRAWS
    deviation = np.sqrt(total * expected * (1 - expected)) + 1e-9
    assert np.all(np.abs(counts - total * expected) <= 4.5 * deviation)


def test_of_equals_the_lowest_ids_are_kept():
    logits = np.array([0.0, 1.0, 1.0, 1.0, 1.0, 0.0], "float32")
    assert set(drawn(Sample(top_k=2, seed=1, num_samples=DRAWS), logits).ravel()) == {1, 2}
    assert set(drawn(Sample(top_p=0.5, seed=1, num_samples=DRAWS), logits).ravel()) == {1, 2, 3}


any_cuts = st.builds(
    Sample, temperature=st.sampled_from([0.7, 1.0, 2.0]), top_k=st.integers(0, 9), top_p=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**31 - 1), min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    typical_p=st.one_of(st.just(1.0), st.floats(0.05, 1.0)), num_samples=st.just(1009),
)  # fmt: skip


def support(logits, strategy):
    """The ids that may be drawn; None where rounding decides."""
    found = set()
    for nearly in (1 - 1e-4, 1, 1 + 1e-4):
        parts = {
            name: getattr(strategy, name) * nearly for name in ("temperature", "top_p", "min_p", "typical_p")
        }
        parts |= {name: min(parts[name], 1.0) for name in ("top_p", "min_p", "typical_p")}
        left = probabilities(logits, dataclasses.replace(strategy, **parts))
        found.add(tuple(np.flatnonzero(left).tolist()))
    return set(*found) if len(found) == 1 else None


@settings(max_examples=40 if keras.backend.backend() == "tensorflow" else 7, deadline=None, derandomize=True)
@given(strategy=any_cuts, seed=st.integers(0, 2**32))
@pytest.mark.slow
def test_all_that_the_cuts_leave_is_drawn_and_nothing_else(strategy, seed):
    """Distributions with ties and without, likely enough to show every token among a thousand draws."""
    rng = np.random.default_rng(seed)
    tied, free = rng.integers(-1, 3, (5, 7)) / 2, rng.uniform(-0.5, 1.0, (6, 7))
    logits = np.concatenate([tied, free]).astype("float32")
    tokens = drawn(strategy, logits, rows=11)
    for row in range(11):
        expected = support(logits[row], strategy)
        assert expected is None or set(tokens[row].tolist()) == expected


TENTHS = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuts", "left"),
    [
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_p": 0.69}, {0, 1}),
        ({"min_p": 0.51}, {0, 1}),
        ({"min_p": 0.49}, {0, 1, 2}),
        # The information is 0.92, 1.20, 1.61 and 2.30, the entropy 1.28.
        ({"typical_p": 0.29}, {1}),
        ({"typical_p": 0.49}, {1, 2}),
        ({"typical_p": 0.51}, {0, 1, 2}),
        # `top_k` first: 4/7 is more than half. After `top_p` it would find two tokens and keep both.
        ({"top_k": 2, "top_p": 0.5}, {0}),
        # `top_p` before `min_p`: 0.7 is too little. Of the three that `min_p` leaves, two hold 7/9.
        ({"top_p": 0.72, "min_p": 0.45}, {0, 1, 2}),
        # `min_p` before `typical_p`: of 4/7 and 3/7 the first is nearer to the entropy. Before it, 1 and 2 are.
        ({"min_p": 0.6, "typical_p": 0.45}, {0}),
        # The temperature before all: 0.33, 0.28, 0.23, 0.16.
        ({"temperature": 2.0, "top_p": 0.65}, {0, 1, 2}),
        ({"temperature": 2.0, "min_p": 0.65}, {0, 1, 2}),
    ],
    ids=str,
)
def test_cuts_by_hand(cuts, left):
    assert set(drawn(Sample(seed=3, num_samples=DRAWS, **cuts), TENTHS).ravel().tolist()) == left


def test_of_equals_in_a_large_vocabulary_the_lowest_ids_are_kept():
    logits = np.zeros(2048, "float32")
    logits[[5, 77, 1029, 1031, 2047]] = 1.0
    strategy = Sample(top_k=4, seed=1, num_samples=DRAWS)
    assert set(drawn(strategy, logits).ravel().tolist()) == {5, 77, 1029, 1031}
    strategy = Sample(top_k=7, seed=1, num_samples=DRAWS)
    assert set(drawn(strategy, logits).ravel().tolist()) == {0, 1, 5, 77, 1029, 1031, 2047}


def test_cuts_come_after_the_constraints():
    suppressed = [SuppressTokens((0,))]
    for cuts in ({"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.6}, {"typical_p": 0.7}):
        strategy = Sample(seed=3, num_samples=DRAWS, **cuts)
        assert set(drawn(strategy, TENTHS, constraints=suppressed).ravel().tolist()) == {1, 2}
    logits, penalty = np.array([1.9, 2.0], "float32"), [RepetitionPenalty(1.2)]
    found = found_by(Sample(top_k=1, seed=3), logits, rows=1, length=2, constraints=penalty)
    assert found.tokens.tolist() == [[[1, 0]]]


@pytest.mark.slow
def test_draws_of_other_seeds_rows_steps_and_samples_are_independent():
    """Neighbours along each axis agree as often as two independent draws do."""
    total = ROWS * DRAWS
    one, other = (found_by(Sample(seed=seed), rows=total, length=3).tokens[:, 0] for seed in (7, 8))
    samples = drawn(Sample(seed=9, num_samples=2), rows=total)
    pairs = [(one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (samples[:, 0], samples[:, 1])]
    share = (probabilities(LOGITS, Sample()) ** 2).sum()
    for some, others in pairs:
        deviation = np.sqrt(share * (1 - share) / some.size)
        assert abs((some == others).mean() - share) < 4.5 * deviation


@pytest.mark.slow
def test_forbidden_tokens_are_never_drawn():
    """Half of a large vocabulary is forbidden; a running sum in blocks is not quite monotone there."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 32000)).astype("float32")
    logits[:, ::2] = -np.inf
    uniform = rng.uniform(size=(200, 8, 1)).astype("float32")
    for jit_compile in compilations():
        run = native.compiled(lambda u: _draw(ops.convert_to_tensor(logits), u), layers.Layer(), jit_compile)
        for numbers in uniform:
            assert np.all(as_numpy(run(ops.convert_to_tensor(numbers))) % 2 == 1)


def test_the_ends_of_the_interval_stay_in_the_support():
    logits = ops.convert_to_tensor(np.array([[-np.inf, 0.0, 0.0, -np.inf]], "float32"))
    assert as_numpy(_draw(logits, ops.zeros((1, 1)))).tolist() == [[1]]
    assert as_numpy(_draw(logits, ops.full((1, 1), 1 - 2.0**-24))).tolist() == [[2]]
    assert as_numpy(_draw(logits, ops.ones((1, 1)))).tolist() == [[2]]


def test_a_row_without_a_key_goes_by_its_number_and_equal_keys_draw_equal_samples():
    strategy = Sample(seed=5, num_samples=3)
    numbers = ops.cast(ops.arange(ROWS, dtype="int32"), "uint32")
    np.testing.assert_array_equal(drawn(strategy), drawn(strategy, keys=numbers))
    same = drawn(strategy, keys=ops.full((ROWS,), 13, "uint32"))
    assert len(np.unique(same, axis=0)) == 1


# Options of five rows: greedy, sampled, cut, cut and cold, short.
MAX_LENGTHS, MIN_LENGTHS = np.array([9, 7, 9, 8, 2]), np.array([0, 5, 9, 0, 9])
DRAWN_WITH = {
    "temperature": np.array([0.0, 1.5, 1.0, 0.3, 0.0]),
    "top_p": np.array([0.5, 1.0, 0.8, 0.6, 1.0]),
    "top_k": np.array([2, 0, 5, 3, 1]),
    "min_p": np.array([0.0, 0.3, 0.0, 0.9, 0.1]),
    "seed": np.array([1, 2**31 - 1, 3, 4, 5]),
}


@pytest.mark.parametrize(
    "cuts", [{}, {"top_p": 0.7}, {"typical_p": 0.7, "most_k": 6}], ids=["by row", "one top_p", "cut"]
)
def test_options_of_a_row_are_those_of_a_search_of_its_own(cuts):
    keys = np.array([11, 12, 13, 14, 15], "uint32")
    arguments = {"target_len": 9, "eos_id": 7}  # the likeliest token ends a row
    rows = [3, 0, 4, 2, 1]
    mixed = found_by(
        Sample(**{name: values[rows] for name, values in DRAWN_WITH.items()} | cuts), rows=5, keys=keys[rows],
        constraints=[MinLength(MIN_LENGTHS[rows])], length=MAX_LENGTHS[rows], **arguments,
    )  # fmt: skip
    for place, row in enumerate(rows):
        own = {name: values[row].item() for name, values in DRAWN_WITH.items()}
        alone = found_by(
            Sample(**own | {"top_k": own["top_k"] or cuts.get("most_k", 0)} | cuts)
            if own["temperature"]
            else Greedy(),
            rows=1,
            keys=keys[row : row + 1],
            constraints=[MinLength(MIN_LENGTHS[row])] if MIN_LENGTHS[row] else [],
            length=MAX_LENGTHS[row],
            **arguments,
        )
        np.testing.assert_array_equal(mixed.tokens[place], alone.tokens[0])
        np.testing.assert_array_equal(mixed.lengths[place], alone.lengths[0])
        np.testing.assert_allclose(mixed.scores[place], alone.scores[0], rtol=1e-6)
    assert mixed.lengths[:, 0].tolist()[1:4] == [1, 2, 9]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_log_probs_are_the_models_own(count):
    """Of the tokens and of the likeliest ones, whatever the temperature and the cuts; nothing else changes."""
    strategy = Sample(temperature=2.0, top_k=9, seed=5, num_samples=7)
    arguments = {"length": 3, "target_len": 4, "constraints": [RepetitionPenalty(2.0)]}
    found = found_by(dataclasses.replace(strategy, log_probs=count), **arguments)
    for name, expected in found_by(strategy, **arguments)._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), expected)
    expected = log_softmax(LOGITS.astype("float64"))
    np.testing.assert_allclose(found.log_probs[:, :, :3, 0], expected[found.tokens[:, :, :3]], rtol=1e-5)
    np.testing.assert_allclose(found.log_probs[..., 0].sum(-1), found.scores, rtol=1e-5)
    likeliest = np.argsort(-expected)[:count]
    shape = ROWS, 7, 3, len(likeliest)
    np.testing.assert_array_equal(found.likeliest[:, :, :3, :VOCAB], np.broadcast_to(likeliest, shape))
    best = found.log_probs[:, :, :3, 1 : 1 + VOCAB]
    np.testing.assert_allclose(best, np.broadcast_to(expected[likeliest], shape), rtol=1e-5)
    assert not found.likeliest[:, :, 3].any() and not found.log_probs[:, :, 3].any()


def test_scores_are_the_models_own_and_the_likeliest_sample_comes_first():
    strategy = Sample(temperature=2.0, top_k=9, seed=5, num_samples=7)
    tokens, lengths, scores = found_by(strategy, length=3)
    assert np.all(lengths == 3)
    np.testing.assert_allclose(scores, log_softmax(LOGITS.astype("float64"))[tokens].sum(axis=-1), rtol=1e-5)
    assert np.all(np.diff(scores, axis=1) <= 0) and np.any(np.diff(scores, axis=1) < 0)


@pytest.mark.parametrize(("scale", "sorted_whole"), [(1, True), (3, False)])
def test_few_sorted_tokens_are_enough_where_the_cuts_keep_fewer(scale, sorted_whole, monkeypatch):
    rng, vocab_size, rows = np.random.default_rng(0), 2311, 14
    logits = ops.convert_to_tensor((scale * rng.normal(size=(rows, vocab_size))).astype("float32"))
    cuts = [
        np.resize([0, 3, 64, 0, 7, 0, 0], (rows, 1)).astype("int32"),
        np.resize([0.4, 1, 1, 1, 0.8, 0.45, 1], (rows, 1)).astype("float32"),
        np.resize([0, 0, 0.01, 0.3, 0, 0.2, 0], (rows, 1)).astype("float32"),
    ]
    cuts = sample._Cuts(*map(ops.convert_to_tensor, cuts))
    has_cut = ops.convert_to_tensor(np.arange(rows)[:, None] % 7 < 6)
    sizes = []

    def counted(x, k):
        sizes.append(k)
        return sample_top_k(x, k)

    sample_top_k = sample.top_k
    monkeypatch.setattr(sample, "top_k", counted)
    few = Sample()._cut_few(logits, cuts, has_cut)
    if keras.backend.backend() == "tensorflow":
        assert sizes == [sample.FEW, vocab_size][: 1 + sorted_whole]
    whole = Sample()._cut(*sample_top_k(logits, vocab_size), cuts)
    for (ids, left), (expected, expected_left) in zip(
        zip(*map(as_numpy, few), strict=True), zip(*map(as_numpy, whole), strict=True), strict=True
    ):
        np.testing.assert_array_equal(ids[left > -np.inf][:64], expected[expected_left > -np.inf][:64])
        np.testing.assert_array_equal(left[:64], expected_left[:64])
    assert (as_numpy(few[1])[has_cut[:, 0]] > -np.inf).sum(-1).max() < (vocab_size if sorted_whole else 65)


def test_short_rows_have_different_keys_at_any_place():
    rows = [row for length in range(5) for row in itertools.product(range(1, 7), repeat=length)]
    keys = [
        as_numpy(row_keys(np.array([(0,) * left + row + (0,) * (6 - left - len(row)) for row in rows]), 0))
        for left in range(3)
    ]
    assert keys[0].dtype == "uint32" and len(set(keys[0].tolist())) == len(rows)
    np.testing.assert_array_equal(keys[0], keys[1])
    np.testing.assert_array_equal(keys[0], keys[2])
    other_pad = np.array([row + (9,) * (4 - len(row)) for row in rows])
    np.testing.assert_array_equal(as_numpy(row_keys(other_pad, 9)), keys[0])


@pytest.mark.slow
def test_samples_are_the_same_on_every_backend():
    """Read off once."""
    keys = row_keys(np.array([[5, 6, 7, 0], [7, 6, 5, 0]]), 0)
    assert as_numpy(keys).tolist() == [3315974154, 3998417236]
    found = found_by(Sample(top_p=0.95, seed=11, num_samples=2), rows=2, length=7, keys=keys)
    assert found.tokens.tolist() == [
        [[3, 7, 7, 7, 7, 7, 4], [3, 0, 3, 7, 0, 10, 3]],
        [[7, 0, 7, 10, 7, 10, 4], [0, 7, 7, 6, 4, 6, 7]],
    ]


@pytest.mark.parametrize("top_k", [0, 41])
def test_one_top_k_beyond_the_largest_of_the_rows_is_refused(top_k):
    with pytest.raises(ValueError, match=rf"`top_k` must be from 1 to `most_k`.*top_k={top_k}, most_k=40"):
        Sample(top_k=top_k, most_k=40)
    assert Sample(top_k=40, most_k=40).most_k == 40
    assert Sample(top_k=np.array([0, 41]), most_k=40).most_k == 40
