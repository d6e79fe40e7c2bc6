"""Beam search for outputs that hold phrases, over tables of logits, against every sequence there is."""

import numpy as np
import pytest
from contracts import as_numpy, refuses
from test_beam import (
    BOS,
    EOS,
    EVERY,
    LENGTH,
    PAD,
    assert_found,
    counted,
    divisor,
    every_sequence,
    found_by,
    probabilities,
    step_over,
    table,
)

from keras_transformer.decoding import Beam, PhraseBeam, Search, SuppressTokens, decode
from keras_transformer.layers import Decoder, Embeddings
from keras_transformer.models import LanguageModel, Transformer


def phrases_of(*rows):
    """The phrases of rows as an array, padded on the right."""
    number, length = max(map(len, rows)), max(1, *(len(ids) for row in rows for ids in row))
    array = np.full((len(rows), number, length), PAD, "int32")
    for i, row in enumerate(rows):
        for j, ids in enumerate(row):
            array[i, j, : len(ids)] = ids
    return array


def holds(tokens, phrase):
    """Whether a sequence holds the tokens of a phrase, one after the other."""
    return any(list(tokens[i : i + len(phrase)]) == list(phrase) for i in range(len(tokens)))


def best_with(logits, phrases, n, penalty=0.6):
    ranked = sorted(
        (each for each in every_sequence(logits, LENGTH) if all(holds(each[0], ids) for ids in phrases)),
        key=lambda found: -found[1] / divisor(len(found[0]), penalty, "wu"),
    )
    return ranked[:n]


ROWS = [[(4, 5)], [(6,), (4,)], [(5, 5, 1)], [(4, 5), (5, 6)], [()]]


@pytest.mark.slow
def test_a_wide_beam_finds_the_best_outputs_that_hold_the_phrases():
    logits = table(3, batch=len(ROWS))
    found = found_by(PhraseBeam(EVERY, n_best=3, phrases=phrases_of(*ROWS)), logits)
    for row, phrases in enumerate(ROWS):
        assert_found(found, row, best_with(logits[row], [ids for ids in phrases if ids], 3))


def follower(tokens, phrase):
    """The token after the first place of a phrase in a sequence; None at its end."""
    rest = [
        tokens[i + len(phrase) :] for i in range(len(tokens)) if holds(tokens[i : i + len(phrase)], phrase)
    ]
    return next(iter(rest[0]), None)


@pytest.mark.slow
@pytest.mark.parametrize("phrase, inner_ids", [((4,), (5, 6)), ((6, 4), (1, 4))])
def test_no_phrase_goes_on_inside_a_word(phrase, inner_ids):
    logits = table(3, batch=1)
    ranked = best_with(logits[0], [phrase], None)
    outside = [each for each in ranked if follower(each[0], phrase) not in inner_ids]
    assert outside[:3] != ranked[:3], "the likeliest outputs go on"
    found = found_by(PhraseBeam(EVERY, n_best=3, inner_ids=inner_ids, phrases=phrases_of([phrase])), logits)
    assert_found(found, 0, outside[:3])


@pytest.mark.slow
def test_any_token_may_follow_a_phrase_that_ends_with_a_closed_id():
    logits, phrases, inner_ids = table(3, batch=1), [(4,), (5,)], (1, 4, 6)
    ranked = best_with(logits[0], phrases, None)
    allowed = [each for each in ranked if follower(each[0], (5,)) not in inner_ids]
    assert any(follower(tokens, (4,)) in inner_ids for tokens, _ in allowed[:3]) and allowed[:3] != ranked[:3]
    options = {"inner_ids": inner_ids, "closed_ids": (4,), "phrases": phrases_of(phrases)}
    assert_found(found_by(PhraseBeam(EVERY, n_best=3, **options), logits), 0, allowed[:3])


@pytest.mark.parametrize("name", ["inner_ids", "closed_ids"])
@pytest.mark.parametrize("ids, message", [((-1,), "must hold ids"), ((999,), "below the number of ids")])
def test_ids_that_the_vocabulary_lacks_are_refused(name, ids, message):
    with pytest.raises(ValueError, match=f"`{name}`.*{message}"):
        options = {"inner_ids": (5,), name: ids}
        found_by(PhraseBeam(2, **options, phrases=phrases_of([(4,)])), table(3, batch=1))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_any_width_finds_an_output_with_every_phrase(width, seed):
    rng = np.random.default_rng(seed)
    rows = [
        [rng.integers(4, 12, size=rng.integers(1, 5)).tolist() for _ in range(rng.integers(1, 4))]
        for _ in range(17)
    ]
    logits = table(seed, batch=17, length=12, vocab=13)
    found = found_by(PhraseBeam(width, phrases=phrases_of(*rows)), logits)
    for row, phrases in enumerate(rows):
        tokens = found.tokens[row, 0, : found.lengths[row, 0]].tolist()
        assert sum(map(len, phrases)) <= 12 and found.scores[row, 0] > -np.inf
        for ids in phrases:
            assert holds(tokens, ids), (tokens, phrases)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 4, 8])
def test_without_phrases_it_is_a_beam(width):
    logits = table(11, batch=9, length=9)
    expected = found_by(Beam(width, n_best=2), logits)
    none = np.full((9, 2, 3), PAD)
    for found in (found_by(PhraseBeam(width, n_best=2, phrases=phrases), logits) for phrases in (None, none)):
        for part, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-5)


@pytest.mark.slow
def test_the_phrases_of_a_row_change_no_other_row():
    logits = table(4, batch=3, length=9)
    rows = [[(4, 5, 6)], [()], [(6,), (5, 5)]]
    together = found_by(PhraseBeam(4, phrases=phrases_of(*rows)), logits)
    for row, phrases in enumerate(rows):
        alone = found_by(PhraseBeam(4, phrases=phrases_of(phrases)), logits[row : row + 1])
        assert alone.tokens[0].tolist() == together.tokens[row : row + 1][0].tolist()


def test_phrases_that_are_longer_than_a_row_may_be_are_left_out():
    logits = table(4, batch=2, length=9)
    found = found_by(PhraseBeam(4, phrases=phrases_of([(4, 5, 6, 4, 5, 6)], [(4, 5)])), logits, max_length=5)
    expected = found_by(PhraseBeam(4), logits[:1], max_length=5)
    assert found.tokens[0].tolist() == expected.tokens[0].tolist()
    assert holds(found.tokens[1, 0], (4, 5))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_search_with_unlikely_phrases_ends_soon_after_the_best_output():
    """A phrase costs 41 nats. An open hypothesis without it is likelier up to the limit, but never with it."""
    logits = probabilities(*[{4: 0.9, EOS: 0.1}] * 4, *[{EOS: 0.99, 5: 0.01}] * 36)
    steps = {}
    for name, strategy in {
        "with": PhraseBeam(8, phrases=phrases_of([(6, 6)])),
        "none": PhraseBeam(8, phrases=phrases_of([()])),
        "beam": Beam(8),
    }.items():
        step, calls = counted(step_over(logits))
        found = as_numpy(decode(step, (), strategy, [BOS], Search(40, eos_ids=(EOS,), pad_id=PAD)))
        steps[name] = len(calls)
        assert name != "with" or found.tokens[0, 0, :8].tolist() == [4, 4, 4, 4, 6, 6, EOS, PAD]
    assert steps["none"] == steps["beam"]
    assert 7 <= steps["with"] < 12


@pytest.mark.slow
def test_a_phrase_that_the_prefix_holds_is_written_already():
    model = Transformer(40, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    source = np.array([[5, 9, 7, 3], [11, 6, 8, 3], [4, 4, 8, 3]])
    prefix = np.array([[30, 20, 21, 8], [20, 21, 0, 0], [20, 0, 0, 0]])
    phrases = phrases_of([(20, 21)], [(20, 21), (22, 33)], [(20, 21)])
    strategies = PhraseBeam(6, phrases=phrases), PhraseBeam(6)
    found, free = (
        as_numpy(model.generate(source, strategy, prefix=prefix, jit_compile=False)).tokens[:, 0]
        for strategy in strategies
    )
    assert found[0].tolist() == free[0].tolist()
    assert holds(found[1][2:], (22, 33)) and not holds(found[1][2:], (20, 21))
    assert found[2][:2].tolist() == [20, 21] or holds(found[2][1:], (20, 21))
    # The first row has one token of room: enough, as it lacks no phrase.
    found = as_numpy(model.generate(source, strategies[0], 5, prefix=prefix, jit_compile=False))
    assert found.lengths[0, 0] <= 5 and found.scores[0, 0] > -np.inf


@pytest.mark.slow
def test_a_phrase_of_a_forbidden_token_leaves_no_output():
    logits = table(4, batch=1, length=9)
    found = found_by(PhraseBeam(4, phrases=phrases_of([(4, 5)])), logits, constraints=[SuppressTokens([5])])
    assert found.scores[0, 0] == -np.inf and found.lengths[0, 0] == 0


@pytest.mark.slow
def test_a_model_writes_phrases_in_every_mode():
    model = Transformer(40, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    source = np.array([[5, 9, 7, 3, 0], [11, 6, 8, 4, 3]])
    strategy = PhraseBeam(5, phrases=phrases_of([(20, 21), (30,)], [(31, 32, 33)]))
    runs = [as_numpy(model.generate(source, strategy, jit_compile=jit)) for jit in (False, True)]
    for found in runs:
        assert holds(found.tokens[0, 0], (20, 21)) and holds(found.tokens[0, 0], (30,))
        assert holds(found.tokens[1, 0], (31, 32, 33))
    np.testing.assert_array_equal(runs[0].tokens[:, 0, :20], runs[1].tokens[:, 0, :20])
    continuing = LanguageModel(Embeddings(40, 8), Decoder(1, 2, 16))
    found = as_numpy(continuing.generate(source, strategy, jit_compile=False))
    assert holds(found.tokens[0, 0], (20, 21)) and holds(found.tokens[1, 0], (31, 32, 33))


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones((2, 3), "int32"),
        np.ones((1, 1, 2), "int32"),
        np.ones((2, 0, 2), "int32"),
        np.full((2, 1, 1), 0.5),
        np.full((2, 1, 1), 40),
        np.full((2, 1, 1), -1),
        np.array([[[0, 5]], [[5, 6]]]),  # padded on the left
        np.array([[[5, 3]], [[5, 6]]]),  # with the id that ends an output
    ],
)
def test_wrong_phrases_are_refused(wrong):
    model = Transformer(40, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    refuses("`phrases` must", lambda: model.generate(np.ones((2, 3), "int32"), PhraseBeam(4, phrases=wrong)))


@pytest.mark.parametrize("token_id", [9, -1])
def test_phrases_outside_of_the_vocabulary_are_refused_by_the_loop_too(token_id):
    with pytest.raises(ValueError, match="`phrases` must have ids from 0 to 6"):
        found_by(PhraseBeam(2, phrases=phrases_of([(token_id,)])), table(3, batch=1))


@pytest.mark.slow
def test_logits_of_nan_end_their_row_with_the_score_nan():
    logits = table(5, batch=2, length=9)
    logits[0, 2:] = np.nan
    found = found_by(PhraseBeam(4, phrases=phrases_of([(6, 6)], [(4,), (5, 1)])), logits)
    assert np.isnan(found.scores[0, 0]) and found.scores[1, 0] > -np.inf
    tokens = found.tokens[1, 0, : found.lengths[1, 0]].tolist()
    assert holds(tokens, (4,)) and holds(tokens, (5, 1))
