"""Constraints: each by hand on tiny tables, and all of them at once against a checker in plain Python."""

import dataclasses
import itertools
import json
import math

import keras
import numpy as np
import pytest
from contracts import as_numpy, check_refused, compilations
from hypothesis import event, given, settings
from hypothesis import strategies as st
from keras import ops
from reference import log_softmax

from keras_transformer.decoding import (
    CONSTRAINTS,
    Beam,
    DiverseBeam,
    ExcludeTokens,
    ForbidWords,
    ForcedFirstToken,
    Greedy,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    Sample,
    Search,
    StopStrings,
    SuppressFirstTokens,
    SuppressTokens,
    TimestampRules,
    decode,
)
from keras_transformer.decoding.words import BETWEEN
from keras_transformer.execution import native

PAD, UNKNOWN, BOS, EOS, A, B, C, VOCAB = 0, 1, 2, 3, 4, 5, 6, 7
JUNK = C  # stands left of where a prompt starts, and must not be seen

EXAMPLES = [
    MinLength(5),
    MinLength(ratio=0.5),
    MaxLength(7, 1.5),
    RepetitionPenalty(1.3),
    PresencePenalty(0.3, 0.2),
    NoRepeatNgram(2),
    SuppressTokens((A, C)),
    ExcludeTokens((A, C)),
    ForcedFirstToken(B),
    SuppressFirstTokens((A, EOS), begin=1),
    TimestampRules(B, EOS, 1),
    ForbidWords(("ab",), BETWEEN.join(["", "", "", "", " a", "b", "c"])),
    StopStrings(("cb",), BETWEEN.join(["", "", "", "", " a", "b", "c"])),
]
STRATEGIES = [Greedy(), Beam(3, n_best=2), Sample(temperature=1.5, seed=0, num_samples=3)]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)


class Tables:
    """A model of two tables: its logits follow from the last token and from the position.

    after: float32 `(batch, vocab, vocab)`, the logits after each token.
    at: float32 `(batch, length, vocab)`, what is added at each position.
    """

    def __init__(self, after, at):
        self.after, self.at = np.asarray(after, "float32"), np.asarray(at, "float32")

    @classmethod
    def random(cls, seed, rows=1, scale=1.0, length=9):
        rng = np.random.default_rng(seed)
        after = rng.normal(size=(rows, VOCAB, VOCAB), scale=scale)
        return cls(after, rng.normal(size=(rows, length, VOCAB), scale=scale))

    @classmethod
    def ranked(cls, *rows):
        """What is likeliest at each position of each row, from the first on; no matter what came before."""
        at = np.empty((len(rows), max(map(len, rows)), VOCAB))
        at[:] = -4.0 - 0.1 * np.arange(VOCAB)
        for row, positions in enumerate(rows):
            for position, ids in enumerate(positions):
                at[row, position, ids] = 3.0 - np.arange(len(ids))
        return cls(np.zeros((len(rows), VOCAB, VOCAB)), at)

    def rows(self, rows):
        return Tables(self.after[rows], self.at[rows])

    def step(self, tokens, cache, index):
        """The step function; the cache says where each row starts."""
        batch, length, vocab = self.at.shape
        rows = ops.arange(batch, dtype="int32")[:, None, None]
        after = ops.take(
            ops.reshape(ops.convert_to_tensor(self.after), (-1, vocab)), tokens + rows * vocab, axis=0
        )
        place = index + ops.arange(ops.shape(tokens)[2], dtype="int32") - cache[:, :1, None]
        place = ops.clip(place, 0, length - 1) + rows * length
        at = ops.take(ops.reshape(ops.convert_to_tensor(self.at), (-1, vocab)), place, axis=0)
        return after + at, cache

    def logits(self, row, tokens):
        """What may follow `tokens`, which follow `BOS`: float64 `(vocab,)`."""
        last = (BOS, *tokens)[-1]
        logits = self.after[row, last] + self.at[row, min(len(tokens), self.at.shape[1] - 1)]
        return logits.astype("float64")

    def score(self, row, tokens):
        return sum(log_softmax(self.logits(row, tokens[:i]))[token] for i, token in enumerate(tokens))


def search(
    tables,
    constraints=(),
    strategy=STRATEGIES[0],
    max_length=8,
    prompts=None,
    run=decode,
    target_len=None,
    **of_rows,
):
    """For each row its hypotheses, lists of ids without what fills them up; and the scores `(batch, n_best)`.

    `prompts` gives, for each row, what follows `BOS`.
    """
    batch = len(tables.at)
    prompts = [[]] * batch if prompts is None else prompts
    prompt_len = 1 + max(map(len, prompts))
    starts = np.array([prompt_len - 1 - len(prompt) for prompt in prompts], "int32")
    rows = [[JUNK] * start + [BOS, *prompt] for start, prompt in zip(starts, prompts, strict=True)]
    found = run(
        tables.step, ops.convert_to_tensor(np.repeat(starts[:, None], strategy.width, axis=1)), strategy,
        np.array(rows, "int32"), Search(max_length, eos_ids=(EOS,), pad_id=PAD, **of_rows),
        target_len=target_len, starts=starts, constraints=constraints,
    )  # fmt: skip
    tokens, lengths, scores = as_numpy(found)
    assert tokens.shape == (batch, strategy.n_best, target_len or np.max(max_length))
    assert np.all(tokens[np.arange(tokens.shape[-1]) >= lengths[..., None]] == PAD)
    hypotheses = [
        [ids[:length].tolist() for ids, length in zip(*row, strict=True)]
        for row in zip(tokens, lengths, strict=True)
    ]
    return hypotheses, scores


def best(*arguments, **keywords):
    """The best hypothesis of each row."""
    return [row[0] for row in search(*arguments, **keywords)[0]]


# Lengths


def test_least_length_follows_the_source_and_is_rounded_down():
    tables = Tables.ranked(*[[[EOS, A]]] * 4)
    source_lengths = np.array([1, 3, 5, 11], "int32")  # 0.75, 2.25, 3.75 and 8.25
    found = best(tables, [MinLength(ratio=0.75)], max_length=13, source_lengths=source_lengths)
    assert found == [[EOS], [A, EOS], [A, A, EOS], [*[A] * 7, EOS]]
    found = best(tables, [MinLength(2, 0.75)], max_length=13, source_lengths=source_lengths)
    assert found == [[A, EOS], [*[A] * 3, EOS], [*[A] * 4, EOS], [*[A] * 9, EOS]]


def test_the_lowest_limit_of_a_row_holds():
    tables = Tables.ranked(*[[[A]]] * 5)
    constraints = [MaxLength(5), MaxLength(ratio=0.5), MaxLength(1, 0.75)]
    source_lengths = np.array([1, 3, 7, 11, 13], "int32")  # 0, 1, 3, 5, 6 and 1, 3, 6, 9, 10
    found = best(tables, constraints, source_lengths=source_lengths)
    assert [len(ids) for ids in found] == [0, 1, 3, 5, 5]
    limits = np.array([5, 5, 2, 3, 7], "int32")
    found = best(tables, constraints, source_lengths=source_lengths, max_length=limits)
    assert [len(ids) for ids in found] == [0, 1, 2, 3, 5]
    found = best(tables, constraints, source_lengths=source_lengths, max_length=4)
    assert [len(ids) for ids in found] == [0, 1, 3, 4, 4]


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7, 1.1, 1.3, 2.2])
def test_whole_shares_of_the_source_are_not_rounded_down(ratio):
    tens = np.arange(101)
    limits = MaxLength(ratio=ratio).limits(ops.convert_to_tensor(10 * tens, "int32"))
    assert as_numpy(limits).tolist() == (round(ratio * 10) * tens).tolist()


@pytest.mark.parametrize("constraint", [MinLength(ratio=0.5), MaxLength(2, 1.5)])
def test_a_share_of_the_source_needs_a_source(constraint):
    with pytest.raises(ValueError) as caught:
        search(Tables.ranked([[A]]), [constraint])
    assert str(caught.value) == f"{constraint} needs `source_lengths`. Received: source_lengths=None."


# Tokens


@pytest.mark.slow
def test_penalty_by_hand():
    """Divided where positive, multiplied where negative, once however often a token occurs."""
    logits = np.array([-9.0, -9.0, -9.0, -9.0, 2.0, 1.5, -1.0])
    positive = Tables(np.zeros((1, VOCAB, VOCAB)), [[logits]])
    assert best(positive, [RepetitionPenalty(1.3)], max_length=4) == [[A, A, A, A]]  # 2 / 1.3 = 1.54
    assert best(positive, [RepetitionPenalty(1.4)], max_length=4) == [[A, B, A, A]]  # 1.43, and B has 1.07
    assert best(positive, [RepetitionPenalty(0.5)], max_length=4) == [[A, A, A, A]]
    negative = Tables(np.zeros((1, VOCAB, VOCAB)), [[logits - 3.0]])
    assert best(negative, [RepetitionPenalty(1.4)], max_length=4) == [[A, A, A, A]]  # -1.4, and B has -1.5
    assert best(negative, [RepetitionPenalty(1.6)], max_length=4) == [[A, B, A, A]]  # -1.6, and then B -2.4
    assert best(negative, [RepetitionPenalty(1.3), RepetitionPenalty(1.2)], max_length=2) == [[A, B]]  # -1.56


def test_presence_and_frequency_by_hand():
    logits = np.array([-9.0, -9.0, -9.0, -9.0, 2.0, 1.5, 1.0])
    tables = Tables(np.zeros((1, VOCAB, VOCAB)), [[logits]])
    assert best(tables, [PresencePenalty(0.4)], max_length=4) == [[A, A, A, A]]
    assert best(tables, [PresencePenalty(0.6)], max_length=4) == [[A, B, A, A]]  # then 1.4, 0.9 and 1.0
    assert best(tables, [PresencePenalty(frequency=0.3)], max_length=5) == [[A, A, B, A, B]]
    assert best(tables, [PresencePenalty(0.6, 0.3)], max_length=4) == [[A, B, A, C]]  # 1.1, 0.6 and 1.0
    assert best(tables, [PresencePenalty(-5)], max_length=4, prompts=[[C]]) == [[C, C, C, C]]


@pytest.mark.parametrize(
    ("make", "values", "neutral"),
    [
        (RepetitionPenalty, [1.0, 1.4, 3.0, 0.5], 1.0),
        (PresencePenalty, [0.0, 0.6, 2.0, -1.0], 0.0),
        (lambda x: PresencePenalty(0.0, x), [0.0, 0.6, 2.0, -1.0], 0.0),
    ],
)
def test_penalties_of_rows_are_those_of_a_search_of_its_own(make, values, neutral):
    tables = Tables.random(13, rows=4)
    found, scores = search(tables, [make(np.array(values))])
    for row, value in enumerate(values):
        alone, own_scores = search(tables.rows([row]), [make(value)])
        assert alone[0] == found[row]
        np.testing.assert_allclose(own_scores[0], scores[row], rtol=1e-6)
    assert search(tables, [make(np.full(4, neutral))])[0] == search(tables)[0] != found


def test_earlier_tokens_count_as_tokens_of_the_hypothesis():
    tables = Tables.ranked([[A, B, C]], [[A, B, C]])
    earlier = np.array([[A, B], [B, -1]], "int32")
    for make in (RepetitionPenalty, PresencePenalty):
        assert best(tables, [make(9.0, earlier=earlier)], max_length=1) == [[C], [A]]


def ngrams(tokens, size):
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


@pytest.mark.slow
def test_no_ngram_occurs_twice_by_hand():
    tables = Tables.ranked([[A, B, C]])  # A for ever; where that may not be, B; where neither may, C
    assert best(tables, [NoRepeatNgram(1)], max_length=3) == [[A, B, C]]
    assert best(tables, [NoRepeatNgram(2)], max_length=7) == [[A, A, B, A, C, A, PAD]]
    assert best(tables, [NoRepeatNgram(3)], max_length=7) == [[A, A, A, B, A, A, C]]
    assert best(tables, [NoRepeatNgram(8)], max_length=8) == [[A] * 8]


def test_suppressed_tokens_never_occur():
    tables = Tables.ranked([[A, B, C], [C, B, A], [A, EOS]])
    assert best(tables, [SuppressTokens((A,))]) == [[B, C, EOS]]
    assert best(tables, [SuppressTokens([C, A])]) == [[B, B, EOS]]
    assert best(tables, [SuppressTokens((EOS,))], max_length=5) == [[A, C, A, A, A]]


@pytest.mark.parametrize("strategy", [Greedy(), Beam(4, n_best=2)])
def test_excluded_tokens_have_no_probability(strategy):
    tables = Tables.random(7, rows=9, scale=2.0)
    without = Tables(tables.after.copy(), tables.at)
    without.after[:, :, [A, UNKNOWN]] = -1e9
    found, scores = search(tables, [ExcludeTokens((A, UNKNOWN))], strategy, max_length=6)
    expected, _ = search(without, [], strategy, max_length=6)
    assert found == expected
    for row, n in np.ndindex(*scores.shape):
        np.testing.assert_allclose(scores[row, n], tables.score(row, found[row][n]), rtol=1e-5)
    suppressed, _ = search(tables, [SuppressTokens((A, UNKNOWN))], strategy, max_length=6)
    assert (found == suppressed) is isinstance(strategy, Greedy)


def test_the_first_token_is_forced_and_no_other():
    tables = Tables.ranked([[A, B], [A, B], [EOS]])
    assert best(tables, [ForcedFirstToken(UNKNOWN)]) == [[UNKNOWN, A, EOS]]
    assert best(tables, [ForcedFirstToken(EOS)]) == [[EOS]]


# Nothing left


@pytest.mark.slow
@each_strategy
def test_row_with_nothing_left_is_empty_and_disturbs_no_neighbour(strategy):
    """Three words that may each come once, and a row that wants at least seven."""
    tables = Tables.ranked([[A], [EOS]], [[B, C, A]], [[C], [A], [EOS]])
    constraints = [NoRepeatNgram(1), SuppressTokens((PAD, UNKNOWN, BOS)), MinLength(ratio=1.0)]
    source_lengths, keys = np.array([2, 7, 3], "int32"), np.array([5, 11, 13], "uint32")
    same = {"constraints": constraints, "strategy": strategy}
    hypotheses, scores = search(
        tables, source_lengths=source_lengths, keys=ops.convert_to_tensor(keys), **same
    )
    assert np.all(scores[1] == -np.inf)
    assert hypotheses[1] == [[]] * strategy.n_best
    own = {"source_lengths": source_lengths[[0, 2]], "keys": ops.convert_to_tensor(keys[[0, 2]])}
    without, own_scores = search(tables.rows([0, 2]), **own, **same)
    assert without == [hypotheses[0], hypotheses[2]]
    assert np.all(np.isfinite(own_scores))
    np.testing.assert_allclose(own_scores, scores[[0, 2]], rtol=1e-6)


def test_missing_hypotheses_are_empty():
    tables = Tables.ranked([[A, EOS]])
    only = [SuppressTokens((PAD, UNKNOWN, BOS, B, C)), NoRepeatNgram(1)]  # "A end" and "end"
    hypotheses, scores = search(tables, only, Beam(3, n_best=3))
    assert hypotheses[0][2] == [] and sorted(hypotheses[0][:2]) == [[EOS], [A, EOS]]
    assert np.isfinite(scores[0]).tolist() == [True, True, False]
    hypotheses, scores = search(tables, [*only, MinLength(2)], Beam(3, n_best=3))
    assert hypotheses == [[[A, EOS], [], []]]
    assert scores[0, 1:].tolist() == [-np.inf, -np.inf]


@each_strategy
def test_output_without_an_allowed_token_is_empty(strategy):
    tables = Tables.random(0, rows=2)
    hypotheses, scores = search(tables, [ForcedFirstToken(A), SuppressTokens((A,))], strategy)
    assert hypotheses == [[[]] * strategy.n_best] * 2
    assert np.all(scores == -np.inf)


# Prompts


def test_output_begins_with_the_prompt_without_its_first_token():
    tables = Tables.ranked([[EOS], [EOS], [A], [EOS]])
    hypotheses, scores = search(tables, prompts=[[C, B]])
    assert hypotheses == [[[C, B, A, EOS]]]
    np.testing.assert_allclose(scores, [[tables.score(0, [C, B, A, EOS])]], rtol=1e-6)
    assert best(tables, prompts=[[C, B]], max_length=3) == [[C, B, A]]


def test_constraints_see_the_prompt():
    tables = Tables.ranked([[EOS], [EOS], [EOS, A, C, B], [EOS, C, B], [EOS]])
    prompts = [[A, B]]
    assert best(tables, [MinLength(4)], prompts=prompts) == [[A, B, A, EOS]]
    assert best(tables, [MinLength(4), NoRepeatNgram(1)], prompts=prompts) == [[A, B, C, EOS]]
    assert best(tables, [MinLength(4), NoRepeatNgram(2)], prompts=prompts) == [[A, B, A, EOS]]
    assert best(tables, [MinLength(4), RepetitionPenalty(9.0)], prompts=prompts) == [[A, B, C, EOS]]
    assert best(tables, [MaxLength(3), MinLength(3)], prompts=prompts) == [[A, B, EOS]]
    assert best(tables, [ForcedFirstToken(C)], prompts=prompts) == [[A, B, EOS]]
    tables, prompts = Tables.ranked([[EOS, A, C]]), [[A, B, A, B]]
    assert best(tables, [NoRepeatNgram(3), MinLength(6)], prompts=prompts) == [[A, B, A, B, C, EOS]]


def test_prompt_may_break_the_constraints():
    tables = Tables.ranked([[A, B, EOS]])
    constraints = [NoRepeatNgram(1), SuppressTokens((C,)), ForcedFirstToken(B)]
    hypotheses, scores = search(tables, constraints, prompts=[[C, C, EOS, C]])
    assert hypotheses == [[[C, C, EOS, C, A, B, PAD, UNKNOWN]]]
    np.testing.assert_allclose(scores[0, 0], tables.score(0, hypotheses[0][0]), rtol=1e-6)


def test_a_prompt_that_has_ended_or_fills_its_row_is_the_output():
    tables = Tables.ranked(*[[[A]]] * 3)
    prompts = [[B, EOS], [B, C, A], [B]]
    for strategy in STRATEGIES:
        hypotheses, scores = search(tables, [MaxLength(3)], strategy, prompts=prompts)
        assert [row[0] for row in hypotheses][:2] == prompts[:2]
        assert len(hypotheses[2][0]) == 3 and hypotheses[2][0][0] == B
        for row in range(3):
            np.testing.assert_allclose(scores[row, 0], tables.score(row, hypotheses[row][0]), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=0)], ids=["Greedy", "Sample"])
def test_an_output_goes_on_the_same_from_any_place_in_it(strategy):
    tables = Tables.random(11)
    constraints = [NoRepeatNgram(2), RepetitionPenalty(1.5), MinLength(5), ForcedFirstToken(C)]
    hypotheses, scores = search(tables, constraints, strategy)
    (whole,) = hypotheses[0]
    assert len(whole) > 4
    for kept in (1, 3, len(whole)):
        again, own_scores = search(tables, constraints, strategy, prompts=[whole[:kept]])
        assert again == [[whole]]
        np.testing.assert_allclose(own_scores, scores, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [
    Sample(1.5, top_k=5, top_p=0.8, seed=0, min_p=0.1, typical_p=0.9, num_samples=2),
    Greedy(),
    Beam(4, n_best=3),
    DiverseBeam(4, n_best=3),
], ids=lambda s: type(s).__name__)  # fmt: skip
def test_compiled_search_is_the_eager_one_and_takes_lengths_as_tensors(strategy):
    tables = Tables.random(5, rows=3)
    keywords = {
        "constraints": EXAMPLES,
        "strategy": strategy,
        "prompts": [[A, B], [], [C]],
        "source_lengths": ops.convert_to_tensor([3, 7, 5], "int32"),
        "max_length": ops.convert_to_tensor([7, 5, 8], "int32"),
        "target_len": 8,
    }
    expected, expected_scores = search(tables, **keywords)
    for jit_compile in compilations():

        def run(step, cache, strategy, prompt, search, *, starts, jit_compile=jit_compile, **rest):
            def of_tensors(cache, prompt, limits, source_lengths, starts):
                settings = search._replace(limits=limits, source_lengths=source_lengths)
                return decode(step, cache, strategy, prompt, settings, starts=starts, **rest)

            tensors = cache, prompt, search.limits, search.source_lengths, starts
            run_compiled = native.compiled(of_tensors, keras.layers.Layer(), jit_compile)
            return run_compiled(*map(ops.convert_to_tensor, tensors))

        found, scores = search(tables, run=run, **keywords)
        assert found == expected
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)


# Constraints as values


def test_every_constraint_has_its_example_here():
    assert {type(constraint).__name__ for constraint in EXAMPLES} == set(CONSTRAINTS)


@pytest.mark.parametrize("constraint", EXAMPLES, ids=str)
def test_constraints_are_frozen_values_that_survive_a_file(constraint):
    config = constraint.get_config()
    again = type(constraint).from_config(json.loads(json.dumps(config)))
    assert again == constraint and hash(again) == hash(constraint) and again.get_config() == config
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(constraint)))
    assert saved["registered_name"] == f"keras_transformer>{type(constraint).__name__}"
    assert keras.saving.deserialize_keras_object(saved) == constraint
    with pytest.raises(AttributeError, match="cannot assign"):
        setattr(constraint, next(iter(config)), 1)


def test_constraints_of_other_values_or_kinds_are_not_equal():
    others = [
        *EXAMPLES, MaxLength(5), MinLength(7), NoRepeatNgram(3), SuppressTokens((A,)), ForcedFirstToken(A),
    ]  # fmt: skip
    assert len(set(others)) == len(others)
    assert SuppressTokens([A, C]) == SuppressTokens((A, C))


def test_wrong_arguments_are_named():
    check_refused(MinLength, {"length": -1}, {"length": 2.5}, {"length": True}, {"length": 0}, length=1)
    check_refused(MaxLength, {"ratio": -0.5}, {"ratio": math.inf}, {"length": 0, "ratio": 0}, length=3)
    check_refused(RepetitionPenalty, {"penalty": 0}, {"penalty": "2"}, penalty=2)
    check_refused(PresencePenalty, {"presence": math.nan}, {"frequency": "2"}, presence=2)
    check_refused(NoRepeatNgram, {"size": 0}, {"size": 2.0}, size=1)
    check_refused(SuppressTokens, {"token_ids": ()}, {"token_ids": 5}, {"token_ids": "56"}, token_ids=(5,))
    check_refused(SuppressTokens, {"token_ids": (5, -2)}, token_ids=(5,))
    check_refused(ForcedFirstToken, {"token_id": -3}, {"token_id": 4.0}, token_id=3)


@pytest.mark.parametrize(("constraint", "message"), [
    (SuppressTokens((A, VOCAB)), "`token_ids` must be an integer at least 0, at most 6. Received: token_ids=7."),
    (ForcedFirstToken(11), "`token_id` must be an integer at least 0, at most 6. Received: token_id=11."),
])  # fmt: skip
def test_ids_beyond_the_vocabulary_are_refused(constraint, message):
    with pytest.raises(ValueError) as caught:
        search(Tables.ranked([[A]]), [constraint])
    assert str(caught.value) == message


# All of them at once


def least_length(constraint, source_length):
    return constraint.length + math.floor(constraint.ratio * source_length)


def forbids(constraint, tokens, token, source_length):
    """Whether `token` may not follow `tokens`, in plain Python."""
    match constraint:
        case MinLength():
            return token == EOS and len(tokens) + 1 < least_length(constraint, source_length)
        case NoRepeatNgram(size=size):
            longer = [*tokens, token]
            return len(longer) >= size and ngrams(longer, size).count(tuple(longer[-size:])) > 1
        case SuppressTokens(token_ids=token_ids):
            return token in token_ids
        case ForcedFirstToken(token_id=token_id):
            return not tokens and token != token_id
    return False


def may_follow(tokens, constraints, source_length):
    return [
        token
        for token in range(VOCAB)
        if not any(forbids(c, tokens, token, source_length) for c in constraints)
    ]


def limit_of(constraints, max_length, source_length):
    lengths = [least_length(c, source_length) for c in constraints if isinstance(c, MaxLength)]
    return min([max_length, *lengths])


def penalised(logits, tokens, constraints):
    logits = logits.copy()
    for constraint in constraints:
        if isinstance(constraint, RepetitionPenalty):
            for token in set(tokens):
                logits[token] *= constraint.penalty if logits[token] < 0 else 1 / constraint.penalty
    return logits


def rank(tables, row, tokens, prompt, constraints, beam):
    """What a beam search orders its hypotheses by."""
    total = tables.score(row, prompt)
    for i in range(len(prompt), len(tokens)):
        before = tokens[:i]
        total += log_softmax(penalised(tables.logits(row, before), before, constraints))[tokens[i]]
    length = (5 + len(tokens)) / 6 if beam.normalization == "wu" else max(len(tokens), 1)
    return total / length**beam.length_penalty


def greedy(tables, row, prompt, constraints, limit, source_length):
    """The likeliest allowed token at each step; None where nothing is left to say."""
    tokens = list(prompt)
    while len(tokens) < limit and not (tokens and tokens[-1] == EOS):
        allowed = may_follow(tokens, constraints, source_length)
        if not allowed:
            return None
        logits = penalised(tables.logits(row, tokens), tokens, constraints)
        tokens.append(max(allowed, key=lambda token, logits=logits: logits[token]))
    return tokens


def check_hypothesis(tokens, score, tables, row, prompt, constraints, limit, source_length):
    """Every promise about one hypothesis."""
    if score == -np.inf:
        assert tokens == []
        event("nothing left")
        return
    assert tokens[: len(prompt)] == prompt
    assert len(tokens) <= max(limit, len(prompt))
    for i in range(len(prompt), len(tokens)):
        assert tokens[i] in may_follow(tokens[:i], constraints, source_length)
        assert tokens[i] != EOS or i == len(tokens) - 1
    assert tokens[-1:] == [EOS] or len(tokens) >= limit
    np.testing.assert_allclose(score, tables.score(row, tokens), rtol=1e-4, atol=1e-5)


def lengths_of(cls):
    ratios = st.sampled_from([0.0, 0.5, 0.75])
    return st.tuples(st.integers(0, 5), ratios).filter(any).map(lambda arguments: cls(*arguments))


any_constraint = st.one_of(
    lengths_of(MinLength),
    lengths_of(MaxLength),
    st.sampled_from([0.5, 1.2, 3.0]).map(RepetitionPenalty),
    st.integers(1, 3).map(NoRepeatNgram),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(SuppressTokens),
    st.sampled_from([A, B, C, EOS]).map(ForcedFirstToken),
)


@st.composite
def any_beam(draw):
    width = draw(st.integers(1, 4))
    arguments = {
        "length_penalty": draw(st.sampled_from([0.0, 0.6, 2.0])),
        "n_best": draw(st.integers(1, width)),
        "normalization": draw(st.sampled_from(["wu", "length"])),
    }
    if draw(st.booleans()):
        return Beam(width, **arguments)
    groups = draw(st.sampled_from([n for n in range(1, width + 1) if width % n == 0]))
    return DiverseBeam(width, groups, draw(st.sampled_from([0.0, 0.5, 3.0])), **arguments)


any_sample = st.builds(
    Sample, temperature=st.sampled_from([0.5, 1.0, 2.0]), top_k=st.integers(0, VOCAB + 1),
    top_p=st.sampled_from([0.3, 0.9, 1.0]), min_p=st.sampled_from([0.0, 0.2, 1.0]),
    typical_p=st.sampled_from([0.3, 0.9, 1.0]), num_samples=st.integers(1, 4),
)  # fmt: skip
any_strategy = st.one_of(st.just(Greedy()), any_beam(), any_sample)
any_seed = st.integers(0, 2**31 - 1)


def seeded(strategy, seed):
    return dataclasses.replace(strategy, seed=seed) if isinstance(strategy, Sample) else strategy


ROWS = 5
many = settings(
    max_examples=12 if keras.backend.backend() == "tensorflow" else 10, deadline=None, derandomize=True
)


@pytest.mark.slow
@pytest.mark.tensorflow  # JAX compiles each case
@many
@given(
    data=st.data(),
    strategy=any_strategy,
    constraints=st.lists(any_constraint, max_size=5),
    max_length=st.integers(1, 8),
    scale=st.sampled_from([0.5, 2.0]),
    seed=any_seed,
)
def test_nothing_found_breaks_a_promise(data, strategy, constraints, max_length, scale, seed):
    tables = Tables.random(seed, ROWS, scale)
    lengths = st.lists(st.integers(1, 11), min_size=ROWS, max_size=ROWS)
    prompt = st.lists(st.integers(0, VOCAB - 1), max_size=min(max_length, 4))
    prompts = data.draw(st.one_of(st.none(), st.lists(prompt, min_size=ROWS, max_size=ROWS)), "prompts")
    source_lengths = np.array(data.draw(lengths, "source_lengths"), "int32")
    arguments = {"source_lengths": source_lengths, "prompts": prompts}
    hypotheses, scores = search(tables, constraints, seeded(strategy, seed), max_length, **arguments)
    for row in range(ROWS):
        source_length = int(source_lengths[row])
        prompt = prompts[row] if prompts else []
        limit = limit_of(constraints, max_length, source_length)
        for tokens, score in zip(hypotheses[row], scores[row], strict=True):
            check_hypothesis(tokens, score, tables, row, prompt, constraints, limit, source_length)
        ordered = scores[row]
        if isinstance(strategy, (Beam, DiverseBeam)):
            finite = [
                tokens for tokens, score in zip(hypotheses[row], scores[row], strict=True) if score > -np.inf
            ]
            ordered = [rank(tables, row, tokens, prompt, constraints, strategy) for tokens in finite]
            assert np.all(scores[row][len(finite) :] == -np.inf)
            if isinstance(strategy, Beam):
                assert len(set(map(tuple, finite))) == len(finite)
        elif isinstance(strategy, Greedy):
            expected = greedy(tables, row, prompt, constraints, limit, source_length)
            assert hypotheses[row] == [expected or []] and np.isinf(scores[row, 0]) == (expected is None)
        assert all(b <= a + 1e-4 for a, b in itertools.pairwise(ordered))


@pytest.mark.slow
@settings(many, max_examples=many.max_examples // 3)
@given(
    strategy=any_strategy,
    constraints=st.lists(any_constraint, max_size=3),
    prompts=st.lists(st.lists(st.integers(A, C), max_size=4), min_size=ROWS, max_size=ROWS),
    row=st.integers(0, ROWS - 1),
    seed=any_seed,
)
def test_no_row_depends_on_its_neighbours(strategy, constraints, prompts, row, seed):
    tables = Tables.random(seed, ROWS)
    source_lengths, keys = np.array([2, 11, 5, 3, 7], "int32"), np.array([2, 3, 5, 7, 11], "uint32")

    def of(tables, rows):
        own = {"source_lengths": source_lengths[rows], "keys": ops.convert_to_tensor(keys[rows])}
        own["prompts"] = [prompts[i] for i in rows]
        return search(tables, constraints, seeded(strategy, seed), **own)

    hypotheses, scores = of(tables, list(range(ROWS)))
    alone, own_scores = of(tables.rows([row]), [row])
    assert alone == [hypotheses[row]]
    np.testing.assert_allclose(own_scores[0], scores[row], rtol=1e-5)


@pytest.mark.parametrize(
    ("constraints", "seed"),
    [
        ([MinLength(3), NoRepeatNgram(1)], 0),
        ([RepetitionPenalty(2.5), SuppressTokens((B,))], 1),
        ([ForcedFirstToken(A), RepetitionPenalty(0.4), NoRepeatNgram(2), MaxLength(2)], 2),
        ([MinLength(2), RepetitionPenalty(3.0), NoRepeatNgram(1)], 3),
    ],
)
def test_wide_beam_finds_the_best_allowed_outputs(constraints, seed):
    """As wide as there are sequences; of each, the model's probabilities after penalties alone count."""
    tables, beam = Tables.random(seed), Beam(260, n_best=5, length_penalty=1.0)
    limit = limit_of(constraints, 3, 0)
    whole, unfinished = [], [[]]
    for _ in range(limit):
        longer = [[*tokens, token] for tokens in unfinished for token in may_follow(tokens, constraints, 0)]
        whole += [tokens for tokens in longer if tokens[-1] == EOS or len(tokens) == limit]
        unfinished = [tokens for tokens in longer if tokens[-1] != EOS]
    whole.sort(key=lambda tokens: -rank(tables, 0, tokens, [], constraints, beam))
    assert len(whole) > 5
    hypotheses, scores = search(tables, constraints, beam, max_length=3)
    assert hypotheses[0] == whole[:5]
    np.testing.assert_allclose(scores[0], [tables.score(0, tokens) for tokens in whole[:5]], rtol=1e-5)
