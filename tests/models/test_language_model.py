"""The language model: every position scores its next token, and prompts of any lengths are gone on with."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, compilations, randomized
from reference import log_softmax

from keras_transformer import layers
from keras_transformer.decoding import Beam, Greedy, MinLength, NoRepeatNgram, Sample
from keras_transformer.models import LanguageModel

VOCAB, D_MODEL, EOS = 29, 12, 3
PROMPTS = np.array([[5, 7, 11, 4, 9], [8, 6, 0, 0, 0], [13, 0, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")


def gpt2(**kwargs):
    """Learned positions, plain heads, pre-norm, tied embeddings."""
    decoder = layers.Decoder(2, 3, 17, 0.0, "gelu", normalize_first=True)
    return finished(LanguageModel(VOCAB, D_MODEL, decoder, layers.LearnedPositions(64), **kwargs))


def llama(**kwargs):
    """Rotary positions, grouped queries, RMS norms, a gated network, an output projection of its own."""
    attention = layers.MultiHeadAttention(
        6, 4, num_key_value_heads=2, use_bias=False, positions=layers.RotaryPositions()
    )
    decoder = layers.Decoder(
        2,
        attention=attention,
        feed_forward=layers.GatedFeedForward(17),
        residual=layers.Residual(0.0, True, norm=layers.RMSNormalization(1e-5)),
    )
    return finished(LanguageModel(VOCAB, D_MODEL, decoder, tie_embeddings=False, **kwargs))


def finished(model):
    """With weights for which texts end at different lengths."""
    return randomized(model, seed=5)


EACH_MODEL = pytest.mark.parametrize("make", [gpt2, llama])


def continued(model, prompt, length=9):
    """The greedy continuation of one prompt, each token from a forward pass over all before it."""
    prompt = [int(token) for token in prompt if token] or [model.bos_id]
    tokens, score = [], 0.0
    while len(tokens) < length and EOS not in tokens:
        log_probs = log_softmax(as_numpy(model(np.array([prompt + tokens], "int32")))[0, -1])
        tokens.append(int(log_probs.argmax()))
        score += log_probs.max()
    return tokens, score


@EACH_MODEL
@pytest.mark.parametrize("jit_compile", compilations())
def test_each_prompt_goes_on_as_it_would_alone(make, jit_compile):
    model = make()
    found = model.generate(PROMPTS, Greedy(), max_length=9, jit_compile=jit_compile)
    for row, prompt in enumerate(PROMPTS):
        tokens, score = continued(model, prompt)
        assert as_numpy(found.tokens)[row, 0].tolist() == tokens + [0] * (9 - len(tokens))
        assert as_numpy(found.lengths)[row, 0] == len(tokens)
        np.testing.assert_allclose(as_numpy(found.scores)[row, 0], score, rtol=1e-4)


@EACH_MODEL
@pytest.mark.parametrize(
    ("strategy", "constraints"),
    [
        (Beam(3, n_best=3), ()),
        (Beam(4), (NoRepeatNgram(2), MinLength(3))),
        (Sample(0.8, top_k=7, seed=4), ()),
    ],
    ids=["beam", "constrained", "sample"],
)
def test_a_batch_changes_no_row_under_any_strategy(make, strategy, constraints):
    model = make()
    together = model.generate(PROMPTS, strategy, max_length=7, jit_compile=False, constraints=constraints)
    for row, prompt in enumerate(PROMPTS):
        prompt = prompt[prompt > 0][None] if prompt.any() else prompt[None]
        alone = model.generate(prompt, strategy, max_length=7, jit_compile=False, constraints=constraints)
        np.testing.assert_array_equal(as_numpy(together.tokens)[row], as_numpy(alone.tokens)[0])
        np.testing.assert_allclose(as_numpy(together.scores)[row], as_numpy(alone.scores)[0], rtol=1e-4)


def test_a_wide_enough_beam_finds_the_best_of_all_continuations():
    model = llama()
    found = model.generate(PROMPTS[1:2], Beam(VOCAB**2, length_penalty=0.0), max_length=2, jit_compile=False)
    first = log_softmax(as_numpy(model(PROMPTS[1:2, :2]))[0, -1])
    both = np.concatenate([np.repeat(PROMPTS[1:2, :2], VOCAB, 0), np.arange(VOCAB)[:, None]], 1)
    second = log_softmax(as_numpy(model(both.astype("int32")))[:, -1])
    totals = first[:, None] + second
    totals[EOS] = -np.inf
    best = max(totals.max(), first[EOS])
    np.testing.assert_allclose(as_numpy(found.scores)[0, 0], best, rtol=1e-5)


def test_the_default_limit_is_each_prompts_own():
    found = llama().generate(PROMPTS, Greedy(), jit_compile=False, constraints=[MinLength(500)])
    assert as_numpy(found.lengths).max() >= 500
    lengths = as_numpy(llama().generate(PROMPTS, Greedy(), jit_compile=False).lengths)[:, 0]
    assert all(lengths <= 2 * np.array([5, 2, 1, 0]) + 16)


@EACH_MODEL
def test_it_trains_saves_and_loads(make, tmp_path):
    model = make(dropout=0.1)
    rng = np.random.default_rng(0)
    texts = rng.integers(4, VOCAB, size=(64, 1)) + np.zeros((1, 6), "int32")  # each repeats one token
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(texts[:, :-1].astype("int32"), texts[:, 1:], epochs=12, verbose=0, batch_size=16)
    assert history.history["loss"][-1] < history.history["loss"][0] / 4
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(PROMPTS), model(PROMPTS), 1e-6)
    assert again.get_config() == model.get_config()


def test_attention_scores_come_with_the_logits():
    logits, scores = llama()(PROMPTS, return_attention_scores=True)
    assert logits.shape == (4, 5, VOCAB)
    assert [s.shape for s in scores] == [(4, 6, 5, 5)] * 2
    np.testing.assert_allclose(as_numpy(scores[0]).sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"pad_id": 29}, "pad_id=29"),
        ({"eos_id": -1}, "eos_id=-1"),
        ({"decoder": layers.FeedForward(5)}, "`decoder` must be a `Decoder`"),
    ],
)
def test_wrong_arguments_are_named(change, named):
    arguments = {"vocab_size": VOCAB, "d_model": 12, "decoder": layers.Decoder(1, 3, 17), **change}
    with pytest.raises(ValueError, match=named):
        LanguageModel(**arguments)
