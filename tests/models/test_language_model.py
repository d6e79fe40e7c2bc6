"""The language model: every position scores its next token, and prompts of any lengths are gone on with."""

import keras
import numpy as np
import pytest
from cases import EOS, PRE_NORM, PROMPTS, gpt2, llama
from cases import LM_VOCAB as VOCAB
from contracts import STEP_IN_XLA, as_numpy, assert_close, portable_first, randomized, refuses
from keras import ops
from reference import imbalance, log_softmax, under, weights_of

from keras_transformer import layers
from keras_transformer.decoding import Beam, Greedy, MinLength
from keras_transformer.execution import native
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import LanguageModel

D_MODEL = 12
EACH_MODEL = pytest.mark.parametrize("make", [gpt2, llama])


@pytest.mark.slow
def test_the_default_limit_is_each_prompts_own():
    lengths = as_numpy(llama().generate(PROMPTS, Greedy(), jit_compile=False).lengths)[:, 0]
    assert all(lengths <= 2 * np.array([5, 2, 1, 0]) + 16)


# Given continuations

TARGETS = np.array([[5, 9, 3, 0], [8, 3, 0, 0], [4, 4, 12, 28], [0, 0, 0, 0]], "int32")


@pytest.mark.slow
@EACH_MODEL
@pytest.mark.parametrize("jit_compile", portable_first())
def test_continuations_score_as_each_would_alone(make, jit_compile):
    model = make()
    found = model.score(PROMPTS, TARGETS, jit_compile=jit_compile)
    assert found.alignments is None
    for row, (prompt, target) in enumerate(zip(PROMPTS, TARGETS, strict=True)):
        prompt = [int(token) for token in prompt if token] or [model.bos_id]
        target = [int(token) for token in target if token]
        log_probs = log_softmax(as_numpy(model(np.array([prompt + target], "int32")))[0])
        expected = [log_probs[len(prompt) - 1 + i, token] for i, token in enumerate(target)]
        expected += [0.0] * (4 - len(target))
        np.testing.assert_allclose(as_numpy(found.token_scores)[row], expected, atol=1e-4)
        np.testing.assert_allclose(as_numpy(found.scores)[row], sum(expected), atol=2e-4)


def embeddings(positions=None, **options):
    return layers.Embeddings(VOCAB, D_MODEL, positions, dropout=0.0, **options)


# Positions that end


@pytest.mark.parametrize("jit_compile", portable_first())
def test_a_generation_ends_with_the_last_position(jit_compile):
    """Of 16 positions 5 are the first prompt's: 12 tokens, the last of which needs none."""
    decoder = layers.Decoder(1, 3, 17, dropout=0.0, normalize_first=True)
    model = randomized(LanguageModel(embeddings(layers.LearnedPositions(16)), decoder), seed=5)
    never_end = [MinLength(12)]
    found = model.generate(PROMPTS[:2], Greedy(), 12, jit_compile, constraints=never_end)
    assert as_numpy(found.lengths)[:, 0].tolist() == [12, 12]
    refuses(r"16 positions.*max_length=13, room=12", model.generate, PROMPTS, Greedy(), 13)
    refuses("at least 13 and at most 12", model.generate, PROMPTS, Greedy(), constraints=[MinLength(13)])
    refuses(r"16 positions\. Received: source_len=17", model.generate, np.full((1, 17), 5, "int32"))
    with pytest.raises(ValueError, match=r"target_lengths=\[12, 13\], room=\[12, 12\]"):
        targets = np.full((2, 13), 7, "int32")
        targets[0, 12] = 0
        model.score(np.repeat(PROMPTS[:1], 2, axis=0), targets)
    model.score(PROMPTS[:1], np.full((1, 12), 7, "int32"), jit_compile=False)


@pytest.mark.slow
def test_in_a_graph_each_row_ends_with_its_last_position():
    decoder = layers.Decoder(1, 3, 17, dropout=0.0, normalize_first=True)
    model = randomized(LanguageModel(embeddings(layers.LearnedPositions(8)), decoder), seed=5)
    search = native.compiled(
        lambda source: model.search(source, Greedy(), 20, constraints=(MinLength(20),)), model, False
    )
    found = search(ops.convert_to_tensor(PROMPTS))
    assert as_numpy(found.lengths)[:, 0].tolist() == [4, 7, 8, 8]
    default = native.compiled(lambda source: model.search(source, Greedy()), model, False)
    assert as_numpy(default(ops.convert_to_tensor(PROMPTS)).lengths).max() <= 8


# Several texts in a row

IN_ROWS = {
    "learned": lambda: (layers.LearnedPositions(64), {}),
    "sinusoidal": lambda: (layers.PositionalEncoding(), {}),
    "rotary": lambda: (None, {"positions": layers.RotaryPositions(), "num_key_value_heads": 2}),
    "alibi": lambda: (None, {"positions": layers.ALiBi()}),
    "relative": lambda: (None, {"positions": layers.RelativePositionBias(6, 8, 5, bidirectional=False)}),
    "window": lambda: (layers.LearnedPositions(64), {"sliding_window": 2}),
}
TEXTS = [[5, 7, 11, 4], [8], [13, 6, 21], [9, 9, 4, 5, 28, 17]]
PACKED = {
    "token_ids": np.array([[5, 7, 11, 4, 8, 13, 6, 21], [9, 9, 4, 5, 28, 17, 0, 0]], "int32"),
    "segment_ids": np.array([[1, 1, 1, 1, 2, 3, 3, 3], [1, 1, 1, 1, 1, 1, 0, 0]], "int32"),
}


def of_parts(added=None, feed_forward=lambda: layers.GatedFeedForward(17), **arguments):
    """Two layers; a position scheme in `arguments` is one object for both."""
    stack = [
        layers.DecoderLayer(
            attention=layers.MultiHeadAttention(6, 4, **arguments),
            feed_forward=feed_forward(),
            name=f"layer_{i}",
            **PRE_NORM,
        )
        for i in range(2)
    ]
    return LanguageModel(embeddings(added), layers.Decoder(stack, name="decoder"))


@pytest.mark.slow
@pytest.mark.parametrize("parts", IN_ROWS)
def test_texts_in_a_row_are_each_as_alone(parts):
    positions, arguments = IN_ROWS[parts]()
    model = randomized(of_parts(positions, **arguments), seed=5)
    found = as_numpy(model(PACKED))
    segments = iter([found[0, :4], found[0, 4:5], found[0, 5:], found[1, :6]])
    for text, logits in zip(TEXTS, segments, strict=True):
        np.testing.assert_allclose(logits, as_numpy(model(np.array([text], "int32")))[0], atol=1e-5)
    refuses(r"Received: inputs=\['token_ids'\]", model, {"token_ids": PACKED["token_ids"]})


def test_attention_of_texts_in_a_row_stays_inside_each():
    _, scores = llama()(PACKED, return_attention_scores=True)
    same = PACKED["segment_ids"][:, :, None] == PACKED["segment_ids"][:, None]
    for layer in scores:
        np.testing.assert_array_equal(as_numpy(layer)[:, 0] > 0, same & np.tri(8, dtype=bool))


# A mixture of experts


def mixture(balance=0.7):
    experts = [layers.GatedFeedForward(5, name=f"expert_{i}") for i in range(3)]
    return layers.MixtureOfExperts(experts, balance=balance, name="feed_forward")


@pytest.mark.parametrize("inputs", [PROMPTS[:3], PACKED], ids=["padded", "packed"])
def test_experts_are_balanced_over_real_tokens(inputs):
    """The mixture of the first layer has the embeddings, normalised, for its inputs: attention gives nothing."""
    model = randomized(of_parts(layers.LearnedPositions(64), mixture), seed=5)
    for layer in model.decoder.layers:
        for weight in layer.self_attention.output_dense.weights:
            weight.assign(np.zeros(weight.shape))
    model.decoder.layers[1].feed_forward.balance = 0.0
    packed_ = isinstance(inputs, dict)
    ids = inputs["token_ids"] if packed_ else inputs
    real = inputs["segment_ids"] > 0 if packed_ else ids > 0
    positions = np.array([[0, 1, 2, 3, 0, 0, 1, 2], range(8)]) if packed_ else np.arange(5)[None]
    x = (
        as_numpy(model.embeddings.tokens.embeddings)[ids]
        + as_numpy(model.embeddings.positions.embeddings)[positions]
    )
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    first = model.decoder.layers[0]
    x = x * as_numpy(first.feed_forward_residual.norm.scale)
    expected = 0.7 * imbalance(under(weights_of(model), "decoder/layer_0/feed_forward"), x, 2, real)
    model(inputs, training=True)
    np.testing.assert_allclose(float(sum(model.losses)), expected, rtol=1e-4)


@pytest.mark.slow
def test_a_step_is_traced_once():
    traced = []

    class Watched(LanguageModel):
        def call(self, inputs, **options):
            traced.append(1)
            return super().call(inputs, **options)

    model = Watched(embeddings(), layers.Decoder(1, 3, 17))
    model.compile("adam", MaskedCrossentropy(), jit_compile=STEP_IN_XLA)
    model.fit(PROMPTS[:2], PROMPTS[:2], epochs=3, verbose=0)
    assert len(traced) <= 1 + (keras.backend.backend() == "jax")


@pytest.mark.slow
def test_score_follows_an_overridden_decode():
    class Sevens(LanguageModel):
        def decode(self, token_ids, cache=None, index=None, **options):
            results = super().decode(token_ids, cache, index, **options)
            sevens = 100.0 * keras.ops.one_hot(7, VOCAB)
            return (results[0] + sevens, *results[1:]) if isinstance(results, tuple) else results + sevens

    model = Sevens(layers.Embeddings(VOCAB, 4), layers.Decoder(1, 2, 8))
    found = model.generate(PROMPTS[:1], Beam(2), max_length=3)
    assert_close(model.score(PROMPTS[:1], found.tokens).scores, found.scores, 1e-4)


def test_embeddings_are_used_as_they_are_unless_scaled():
    expected, scaled = gpt2()(PROMPTS), gpt2(scale=3.0)
    assert_close(gpt2(scale=1.0)(PROMPTS), expected, 0.0)
    assert np.abs(as_numpy(scaled(PROMPTS)) - as_numpy(expected)).max() > 0.1


def test_prompts_padded_on_the_left_are_refused():
    model = gpt2()
    for ask in (lambda ids: model.generate(ids, max_length=2), lambda ids: model.score(ids, [[5]])):
        refuses(r"`source` must be padded on the right", ask, np.array([[0, 0, 5, 7]]))
    ids = {"pad_id": EOS, "eos_id": EOS, "bos_id": EOS}
    padded_with_eos = LanguageModel(layers.Embeddings(VOCAB, 4), layers.Decoder(1, 2, 8), **ids)
    padded_with_eos.generate(np.array([[EOS, 5, 7]]), max_length=2)  # GPT-2's texts may begin so


@pytest.mark.parametrize(("arguments", "message"), [
    ({"decoder": None}, "`decoder` must be of class `Decoder`"),
    ({"decoder": layers.Decoder(1, 2, 8, use_causal_mask=False)}, "must be causal.*use_causal_mask=False"),
    ({"embeddings": 29}, "`embeddings` must be `Embeddings`. Received: embeddings=29"),
    ({"output": keras.layers.Dense(VOCAB)}, "`output` must be a `TokenEmbedding`"),
    ({"output": layers.TokenEmbedding(VOCAB, 5)}, "`output` must have the sizes"),
    ({"stop_ids": 3}, "`stop_ids` must be a list of ids"),
])  # fmt: skip
def test_parts_and_stop_ids_that_do_not_fit_are_refused(arguments, message):
    parts = {"embeddings": layers.Embeddings(VOCAB, 4), "decoder": layers.Decoder(1, 2, 8)}
    refuses(message, LanguageModel, **{**parts, **arguments})


@pytest.mark.parametrize(
    "attention", [keras.layers.MultiHeadAttention(2, 4), keras.layers.GroupQueryAttention(4, 2, 1)]
)
def test_attention_of_keras_does_not_decode(attention):
    decoder = layers.Decoder([layers.DecoderLayer(attention=attention, d_ff=8)])
    model = LanguageModel(layers.Embeddings(VOCAB, 8), decoder)
    refuses("Decoding needs this library's `MultiHeadAttention`", model.generate, PROMPTS, max_length=2)


@pytest.mark.slow
def test_experts_in_mixed_precision_learn_to_repeat_a_token():
    keras.utils.set_random_seed(0)
    policy = "mixed_bfloat16"
    experts = [layers.GatedFeedForward(5, dtype=policy) for _ in range(3)]
    layer = layers.DecoderLayer(
        attention=layers.MultiHeadAttention(3, 4, positions=layers.RotaryPositions(), dtype=policy),
        feed_forward=layers.MixtureOfExperts(experts, dtype=policy),
        normalize_first=True,
        dtype=policy,
    )
    decoder = layers.Decoder([layer], dtype=policy)
    model = LanguageModel(embeddings(dtype=policy), decoder, dtype=policy)
    texts = np.random.default_rng(0).integers(4, VOCAB, size=(64, 1)) + np.zeros((1, 6), "int32")
    texts = texts.astype("int32")
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), jit_compile=STEP_IN_XLA)
    losses = model.fit(texts[:, :-1], texts[:, 1:], epochs=25, verbose=0, batch_size=16).history["loss"]
    assert losses[-1] < losses[0] / 2
    assert {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights} == {"float32"}
