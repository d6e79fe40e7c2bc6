"""T5: relative positions in self-attention alone, and targets that begin with padding."""

import math

import keras
import numpy as np
import pytest
from contracts import STEP_IN_XLA, as_numpy, assert_close, compilations, config_of, needs_bfloat16, randomized
from reference import log_softmax, softmax, under, weights_of

from keras_transformer.decoding import Beam, Greedy
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.models import T5

VOCAB, D_MODEL, HEADS, KEY_DIM, D_FF = 13, 10, 3, 4, 17
BUCKETS, DISTANCE = 8, 6
PAD = START = 0
EOS = 1
SOURCE = np.array([[5, 7, 12, 4, 9, 3, 1], [8, 4, 11, 1, 0, 0, 0], [6, 1, 0, 0, 0, 0, 0]], "int32")
TARGET = np.array([[0, 5, 9, 10, 4], [0, 7, 3, 0, 0], [0, 4, 6, 3, 0]], "int32")
GATED = {"activation": "gelu_tanh", "gated": True, "tie_embeddings": False}


def small(seed=0, scale=0.4, **arguments):
    sizes = {
        "num_layers": 2,
        "num_decoder_layers": 3,
        "d_model": D_MODEL,
        "num_heads": HEADS,
        "key_dim": KEY_DIM,
    }
    sizes |= {"d_ff": D_FF, "dropout": 0.0, "num_buckets": BUCKETS, "max_distance": DISTANCE}
    return randomized(T5(VOCAB, **{**sizes, **arguments}), seed, scale)


EACH_MODEL = pytest.mark.parametrize("arguments", [{}, GATED], ids=["1.0", "1.1"])


def logits_of(model, source=SOURCE, target=TARGET):
    return as_numpy(model({"source": source, "target": target}))


class Reference:
    """The model in NumPy, from section 2.1 of the paper and the code that it points to."""

    def __init__(self, model, gated):
        self.weights, self.gated = weights_of(model), gated

    def logits(self, source, target):
        embeddings = self.weights["token_embedding/embeddings"]
        real = (source != PAD)[:, None, None]
        past = np.tril(np.ones((1, 1, target.shape[1], target.shape[1]), bool))
        states = self.stack("encoder", embeddings[source], real)
        x = self.stack("decoder", embeddings[target], past, states, real)
        if self.gated:
            return x @ self.weights["output_embedding/embeddings"].T
        return x * D_MODEL**-0.5 @ embeddings.T

    def stack(self, name, x, allowed, memory=None, memory_allowed=None):
        weights = under(self.weights, name)
        # The layers share one table, which the first of them made.
        (table,) = (value for path, value in weights.items() if value.shape == (BUCKETS, HEADS))
        buckets = [[bucket(k - q, name == "encoder") for k in range(x.shape[1])] for q in range(x.shape[1])]
        bias = np.moveaxis(table[np.array(buckets)], -1, 0)[None]
        for i in range(2 if name == "encoder" else 3):
            layer = under(weights, f"layer_{i}")
            h = normed(x, under(layer, "self_attention_residual/norm"))
            x = x + attended(under(layer, "self_attention"), h, h, allowed, bias)
            if memory is not None:
                h = normed(x, under(layer, "cross_attention_residual/norm"))
                x = x + attended(under(layer, "cross_attention"), h, memory, memory_allowed, 0.0)
            h = normed(x, under(layer, "feed_forward_residual/norm"))
            inner = h @ layer["feed_forward/inner/kernel"]
            if self.gated:
                gate = h @ layer["feed_forward/gate/kernel"]
                inner = (
                    inner * 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
                )
            else:
                inner = np.maximum(inner, 0)
            x = x + inner @ layer["feed_forward/outer/kernel"]
        return normed(x, under(weights, "norm"))


def normed(x, weights):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * weights["scale"]


def attended(weights, query, memory, allowed, bias):
    q, k, v = (
        np.einsum("btf,fhd->bhtd", x, weights[f"{name}/kernel"])
        for x, name in ((query, "query"), (memory, "key"), (memory, "value"))
    )
    scores = np.einsum("bhtd,bhsd->bhts", q, k) + bias
    shares = softmax(scores, np.broadcast_to(allowed, scores.shape))
    context = np.einsum("bhts,bhsd->bthd", shares, v)
    return np.tensordot(context, weights["attention_output/kernel"], axes=([2, 3], [0, 1]))


def bucket(distance, both_sides):
    """Half of a side's buckets for single distances, the others for ranges that grow to the largest distance."""
    count = BUCKETS // 2 if both_sides else BUCKETS
    far = abs(distance) if both_sides else max(-distance, 0)
    if far >= count // 2:
        share = math.log(far / (count // 2)) / math.log(DISTANCE / (count // 2))
        far = min(count // 2 + int(share * (count - count // 2) + 1e-9), count - 1)
    return far + (count if both_sides and distance > 0 else 0)


@EACH_MODEL
def test_logits_agree_with_numpy(arguments):
    model = small(**arguments)
    expected = Reference(model, bool(arguments)).logits(SOURCE, TARGET)
    assert np.ptp(expected) > 1
    assert_close(logits_of(model), expected, 1e-4)


def test_a_stack_has_one_table_of_biases_and_cross_attention_none():
    model = small()
    tables = [path for path, value in weights_of(model).items() if value.shape == (BUCKETS, HEADS)]
    assert sorted(path.partition("/")[0] for path in tables) == ["decoder", "encoder"]
    for stack, both_sides in ((model.encoder, True), (model.decoder, False)):
        (bias,) = {layer.self_attention.positions for layer in stack.layers}
        assert bias.bidirectional is both_sides
    assert {layer.cross_attention.positions for layer in model.decoder.layers} == {None}


def test_heads_need_not_fill_the_model():
    assert HEADS * KEY_DIM != D_MODEL
    query = small().encoder.layers[0].self_attention.query_dense
    assert (query.kernel.shape, query.bias) == ((D_MODEL, HEADS, KEY_DIM), None)


def test_the_first_scores_and_logits_are_of_order_one():
    """Nothing scales the scores and the embeddings: their initial weights do."""
    keras.utils.set_random_seed(0)
    model = T5(97, num_layers=1, d_model=128, num_heads=4, key_dim=64, d_ff=64)
    ids = np.random.default_rng(0).integers(2, 97, (4, 16))
    assert 0.3 < logits_of(model, ids, ids).std() < 3
    layer = model.encoder.layers[0]
    h = layer.self_attention_residual.before(model.source_embedding(ids))
    query, memory = layer.self_attention.query_dense(h), layer.self_attention.project_memory(h)
    scores = np.einsum("bthd,bhsd->bhts", *map(as_numpy, (query, memory.key)))
    assert 0.3 < scores.std() < 3


@EACH_MODEL
def test_padding_of_the_source_changes_nothing(arguments):
    model = small(**arguments)
    more = np.pad(SOURCE, ((0, 0), (0, 4)))
    assert_close(logits_of(model, more), logits_of(model), 1e-5)


def test_no_position_sees_what_comes_after_it():
    model, changed = small(), TARGET.copy()
    changed[:, 3:] = 7
    assert_close(logits_of(model, target=changed)[:, :3], logits_of(model)[:, :3], 1e-6)


def written(model, source, prefix=(), length=9):
    """The greedy target of one source, each token from a forward pass over all before it."""
    tokens, score = list(prefix), 0.0
    while len(tokens) < length and EOS not in tokens:
        log_probs = log_softmax(logits_of(model, source[None], np.array([[START, *tokens]], "int32")))[0, -1]
        tokens.append(int(log_probs.argmax()))
        score += log_probs.max()
    return tokens, score


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", compilations())
def test_each_source_is_answered_as_it_would_be_alone(jit_compile):
    model = small(seed=9)  # whose targets differ in length
    found = model.generate(SOURCE, Greedy(), max_length=9, jit_compile=jit_compile)
    for row, source in enumerate(SOURCE):
        tokens, score = written(model, source)
        assert as_numpy(found.tokens)[row, 0].tolist() == tokens + [PAD] * (9 - len(tokens))
        np.testing.assert_allclose(as_numpy(found.scores)[row, 0], score, rtol=1e-4)
    assert len(set(as_numpy(found.lengths)[:, 0])) > 1


@pytest.mark.slow
def test_prefixes_are_gone_on_with_though_targets_begin_with_padding():
    model = small(seed=6)
    prefix = np.array([[5, 0, 0], [7, 9, 4], [0, 0, 0]], "int32")
    found = model.generate(SOURCE, Greedy(), max_length=9, jit_compile=False, prefix=prefix)
    for row, source in enumerate(SOURCE):
        tokens, _ = written(model, source, prefix[row][prefix[row] > 0])
        assert as_numpy(found.tokens)[row, 0].tolist() == tokens + [PAD] * (9 - len(tokens))


@pytest.mark.slow
def test_scores_are_those_of_the_search():
    model = small(seed=2)  # whose hypotheses hold no padding, which `score` would not count
    found = model.generate(SOURCE, Beam(3, n_best=3), max_length=7, jit_compile=False)
    scored = model.score(SOURCE, found.tokens, jit_compile=False)
    assert_close(scored.scores, found.scores, 1e-4)


@pytest.mark.slow
def test_a_wide_enough_beam_finds_the_best_of_all_targets():
    model = small(seed=4)
    found = model.generate(SOURCE[:1], Beam(VOCAB**2, length_penalty=0.0), max_length=2, jit_compile=False)
    both = np.array([[START, token] for token in range(VOCAB)], "int32")
    log_probs = log_softmax(logits_of(model, np.repeat(SOURCE[:1], VOCAB, 0), both))
    totals = log_probs[0, 0][:, None] + log_probs[:, 1]
    totals[EOS] = -np.inf
    best = max(totals.max(), log_probs[0, 0, EOS])
    np.testing.assert_allclose(as_numpy(found.scores)[0, 0], best, rtol=1e-5)


@EACH_MODEL
@pytest.mark.slow
def test_a_saved_model_is_the_same_model(arguments, tmp_path):
    model = small(**arguments, layer_norm_epsilon=1e-3, output_scale=0.7)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(logits_of(again), logits_of(model), 1e-6)
    assert config_of(again) == config_of(model)
    assert len(again.weights) == len(model.weights)


@needs_bfloat16
def test_mixed_precision_rounds_little():
    model, mixed = small(), small(dtype="mixed_bfloat16")
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    assert_close(logits_of(mixed), logits_of(model), 0.2)


@pytest.mark.slow
def test_it_learns_to_copy():
    keras.utils.set_random_seed(0)
    model = T5(VOCAB, num_layers=1, d_model=32, num_heads=2, key_dim=16, d_ff=32, dropout=0.0)
    rng = np.random.default_rng(0)
    texts = np.array([rng.permutation(np.arange(2, VOCAB))[:4] for _ in range(2048)], "int32")
    source = target = np.pad(texts, ((0, 0), (0, 1)), constant_values=EOS)
    shifted = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    model.compile(keras.optimizers.Adam(0.005), MaskedCrossentropy(pad_id=PAD), jit_compile=STEP_IN_XLA)
    model.fit({"source": source, "target": shifted}, target, batch_size=128, epochs=15, verbose=0)
    new = np.array([rng.permutation(np.arange(2, VOCAB))[:4] for _ in range(32)], "int32")
    found = model.generate(
        np.pad(new, ((0, 0), (0, 1)), constant_values=EOS), max_length=6, jit_compile=False
    )
    copied = (as_numpy(found.tokens)[:, 0, :4] == new).all(axis=1)
    assert copied.mean() > 0.8


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 0}, "source_vocab_size=0"),
        ({"key_dim": 0}, "key_dim=0"),
        ({"eos_id": VOCAB}, f"eos_id={VOCAB}"),
        ({"num_buckets": 7}, "num_buckets=7"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_wrong_arguments_are_named(change, named):
    arguments = {"vocab_size": VOCAB, "num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 5, **change}
    with pytest.raises(ValueError, match=named):
        T5(**arguments)
