"""The recurrent model behind the interface of the Transformer: the same searches, scores and files."""

import keras
import numpy as np
import pytest
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    compilations,
    config_of,
    needs_bfloat16,
    randomized,
    slow_but,
)
from keras import ops
from reference import log_softmax, softmax, under, weights_of
from searches import CONSTRAINTS, PREFIX, STRATEGIES

from keras_transformer.decoding import Beam, Greedy, SuppressTokens
from keras_transformer.execution.compiled import compiled
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy
from keras_transformer.models import RecurrentSeq2Seq

SOURCE_VOCAB, TARGET_VOCAB, LAYERS, D_MODEL = 13, 11, 2, 6
PAD, BOS, EOS = 0, 2, 3
SOURCE = np.array([[5, 7, 12, 4, 1, 9, 3], [8, 4, 11, 3, 0, 0, 0], [6, 3, 0, 0, 0, 0, 0]], "int32")
TARGET = np.array([[2, 5, 9, 10, 4], [2, 7, 3, 0, 0], [2, 4, 6, 3, 0]], "int32")
SOME = {name: STRATEGIES[name] for name in ("greedy", "diverse", "cut sample")}
EACH_STRATEGY = pytest.mark.parametrize(
    "strategy",
    [pytest.param(s, id=n, marks=[pytest.mark.slow] if n == "cut sample" else []) for n, s in SOME.items()],
)


def small(seed=0, scale=0.8, vocabularies=(SOURCE_VOCAB, TARGET_VOCAB), **arguments):
    sizes = {"num_layers": LAYERS, "d_model": D_MODEL, "dropout": 0.0}
    return randomized(RecurrentSeq2Seq(*vocabularies, **{**sizes, **arguments}), seed, scale)


def logits_of(model, source=SOURCE, target=TARGET):
    return as_numpy(model({"source": source, "target": target}))


def lstm(weights, x, hidden, cell):
    """A layer over one row, gate by gate: input, forget, candidate, output."""
    states = []
    for token in x:
        gates = token @ weights["kernel"] + hidden @ weights["recurrent_kernel"] + weights["bias"]
        i, f, g, o = np.split(gates, 4)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        cell = f * cell + i * np.tanh(g)
        hidden = o * np.tanh(cell)
        states.append(hidden)
    return np.array(states), (hidden, cell)


def reference(weights, source, target):
    """The model of one row without padding, from the paper: logits and attention weights."""
    target_table = weights["target_embedding/embeddings"]
    tables = weights.get("source_embedding/embeddings", target_table), target_table
    scale = np.sqrt(D_MODEL)
    h, s = (table[ids] * scale for table, ids in zip(tables, (source, target), strict=True))
    for i in range(LAYERS):
        of_encoder, of_decoder = (
            under(weights, f"{side}/layer_{i}/lstm_cell") for side in ("encoder", "decoder")
        )
        h, last = lstm(of_encoder, h, np.zeros(D_MODEL), np.zeros(D_MODEL))
        s, _ = lstm(of_decoder, s, *last)
    shares = softmax(s @ h.T, np.ones((len(s), len(h)), bool))
    attended = np.tanh(np.concatenate([shares @ h, s], axis=1) @ weights["attention/projection/kernel"])
    return attended @ target_table.T, shares


# The forward pass


def test_logits_and_attention_agree_with_numpy():
    model = small()
    logits, scores = model({"source": SOURCE, "target": TARGET}, return_attention_scores=True)
    assert_close(logits, logits_of(model), 0.0)
    (cross,) = scores.pop("cross")
    assert scores == {"encoder": [], "decoder": []}
    assert cross.shape == (3, 1, 5, 7)
    for row in range(3):
        n, m = (SOURCE[row] != PAD).sum(), (TARGET[row] != PAD).sum()
        expected, shares = reference(weights_of(model), SOURCE[row, :n], TARGET[row, :m])
        np.testing.assert_allclose(as_numpy(logits)[row, :m], expected, atol=1e-5)
        np.testing.assert_allclose(as_numpy(cross)[row, 0, :m, :n], shares, atol=1e-5)
        assert np.all(as_numpy(cross)[row, 0, :, n:] == 0)


def test_one_vocabulary_has_one_embedding():
    model = small(vocabularies=(SOURCE_VOCAB,))
    assert model.share_embeddings
    assert model.source_embedding is model.target_embedding
    expected, _ = reference(weights_of(model), SOURCE[0], TARGET[0])
    np.testing.assert_allclose(logits_of(model)[0], expected, atol=1e-5)
    assert small(vocabularies=(13, 13), share_embeddings=True).count_params() == model.count_params()


def test_padding_changes_nothing():
    model = small()
    expected = logits_of(model)
    assert_close(logits_of(model, np.pad(SOURCE, ((0, 0), (0, 5)))), expected)
    assert_close(logits_of(model, SOURCE[1:2, :4], TARGET[1:2]), expected[1:2])
    assert_close(logits_of(model, target=np.pad(TARGET, ((0, 0), (0, 3))))[:, :5], expected)
    nothing = logits_of(model, np.zeros((3, 7), "int32"))
    assert np.all(np.isfinite(nothing))
    assert_close(nothing, logits_of(model, np.zeros((3, 2), "int32")))


def test_later_targets_change_nothing_before():
    model, expected = small(), logits_of(small())
    for position in range(1, 5):
        changed = TARGET.copy()
        changed[:, position:] = (changed[:, position:] + 1) % TARGET_VOCAB
        found = logits_of(model, target=changed)
        assert_close(found[:, :position], expected[:, :position], 1e-6)
        assert np.all(np.abs(found - expected)[:, position].max(axis=-1) > 1e-3)


@pytest.mark.parametrize("width", slow_but((3,), (1, 3)))
@pytest.mark.parametrize("chunk", slow_but((1, 2), (1, 2, 3, 5)))
def test_chunk_by_chunk_is_all_at_once(chunk, width):
    """Each hypothesis reads a target of its own."""
    model = small()
    targets = [np.roll(TARGET, turn, axis=0) for turn in range(width)]
    at_once = [logits_of(model, target=target) for target in targets]
    step, cache, *_ = model.start(SOURCE, width)
    for start in range(0, 5, chunk):
        piece = slice(start, start + chunk)
        logits, cache = step(np.stack(targets, axis=1)[:, :, piece], cache, start)
        for branch in range(width):
            assert_close(logits[:, branch], at_once[branch][:, piece])


@pytest.mark.slow
def test_compiled_is_eager():
    model = small()
    inputs = {"source": ops.convert_to_tensor(SOURCE), "target": ops.convert_to_tensor(TARGET)}
    for jit_compile in compilations():
        assert_close(compiled(model, model, jit_compile)(inputs), logits_of(model))


@needs_bfloat16
def test_steps_under_mixed_bfloat16_stay_within_its_rounding():
    model, expected = small(scale=0.4, dtype="mixed_bfloat16"), logits_of(small(scale=0.4))
    assert_close(logits_of(model), expected, 0.15)
    step, cache, *_ = model.start(SOURCE)
    for i in range(5):
        logits, cache = step(TARGET[:, None, i : i + 1], cache, i)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        assert_close(logits[:, 0], expected[:, i : i + 1], 0.15)


# Files and training


ARGUMENTS = {
    "num_layers": 1,
    "dropout": 0.3,
    "output_bias": True,
    "pad_id": 1,
    "bos_id": 4,
    "eos_id": 5,
    "name": "mine",
    "dtype": "mixed_bfloat16",
}


@pytest.mark.parametrize(
    "arguments",
    [{}, pytest.param(ARGUMENTS, marks=needs_bfloat16), {"share_embeddings": True}],
    ids=["plain", "all", "shared"],
)
def test_saved_model_gives_the_same(arguments, tmp_path):
    vocabularies = (SOURCE_VOCAB,) if arguments.get("share_embeddings") else (SOURCE_VOCAB, TARGET_VOCAB)
    model = small(vocabularies=vocabularies, **arguments)
    model.compile("adam", MaskedCrossentropy(0.1), metrics=[MaskedAccuracy()])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert config_of(again) == config_of(model)
    assert model.get_config().items() >= {k: v for k, v in arguments.items() if k != "dtype"}.items()
    assert again.dtype_policy.name == again.encoder.layers[0].dtype_policy.name == model.dtype_policy.name
    assert_close(logits_of(again), logits_of(model), 1e-6)


@pytest.mark.slow
def test_fit_learns_to_copy():
    rng = np.random.default_rng(0)
    source = rng.integers(4, 9, (256, 3)).astype("int32")
    bos, eos = np.full((256, 1), BOS, "int32"), np.full((256, 1), EOS, "int32")
    keras.utils.set_random_seed(1)
    model = RecurrentSeq2Seq(9, num_layers=1, d_model=32, dropout=0.1)
    model.compile(
        keras.optimizers.Adam(0.01), MaskedCrossentropy(), metrics=[MaskedAccuracy()], jit_compile=STEP_IN_XLA
    )
    inputs = {"source": source, "target": np.concatenate([bos, source], axis=1)}
    expected = np.concatenate([source, eos], axis=1)
    history = model.fit(inputs, expected, epochs=16, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.2  # chance is 1.2; with two seeds it was 0.003
    for strategy in (Greedy(), Beam(2)):
        found = as_numpy(model.generate(source[:7], strategy, max_length=6).tokens)[:, 0]
        assert np.all(found[:, :4] == expected[:7], axis=1).sum() >= 6


def test_dropout_acts_in_training_alone():
    plain, dropping = small(), small(dropout=0.5)
    assert_close(logits_of(dropping), logits_of(plain), 0.0)
    inputs = {"source": SOURCE, "target": TARGET}
    assert np.abs(as_numpy(dropping(inputs, training=True)) - logits_of(plain)).max() > 0.01


# Writing


MAX_LENGTH = 9


def writer():
    """Weights whose greedy outputs end early, late and not at all (checked below)."""
    model = small(seed=7, scale=0.6, vocabularies=(23,), d_model=12)
    embeddings = as_numpy(model.target_embedding.embeddings)
    embeddings[EOS] *= 1.6
    model.target_embedding.embeddings.assign(embeddings)
    return model


@pytest.fixture(scope="module")
def model():
    return writer()


def assert_same(found, expected):
    """Equal tokens and lengths, scores within rounding."""
    for part, other in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(part, other)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4)


@pytest.mark.slow
def test_generate_is_greedy_search_by_full_passes(model):
    found = as_numpy(model.generate(SOURCE, max_length=MAX_LENGTH, jit_compile=False))
    for row in range(3):
        target, score = [BOS], 0.0
        while len(target) <= MAX_LENGTH and target[-1] != EOS:
            padded = np.array([target + [PAD] * (MAX_LENGTH - len(target))])  # one shape for all
            log_p = log_softmax(logits_of(model, SOURCE[row : row + 1], padded)[0, len(target) - 1])
            target.append(int(log_p.argmax()))
            score += log_p.max()
        assert found.tokens[row, 0].tolist() == target[1:] + [PAD] * (MAX_LENGTH + 1 - len(target))
        np.testing.assert_allclose(found.scores[row, 0], score, rtol=1e-4)
    assert len(set(found.lengths[:, 0].tolist())) == 3, "the weights no longer give rows of different lengths"


@pytest.mark.slow
@pytest.mark.tensorflow
def test_compiled_portable_and_eager_write_the_same(model):
    strategy = SOME["diverse"]  # the others are searched in test_generation.py
    arguments = {"max_length": MAX_LENGTH, "constraints": CONSTRAINTS["all"], "prefix": PREFIX}
    eager = as_numpy(model.search(SOURCE, strategy, **arguments))
    for jit_compile in (False, True):
        assert_same(as_numpy(model.generate(SOURCE, strategy, jit_compile=jit_compile, **arguments)), eager)


@pytest.mark.slow
def test_rows_depend_on_no_other_row_no_order_and_no_padding(model):
    def search(source, prefix=None):
        return as_numpy(model.generate(source, SOME["diverse"], max_length=MAX_LENGTH, prefix=prefix))

    together = search(SOURCE)
    assert_same([part[::-1] for part in search(SOURCE[::-1].copy())], together)
    assert_same(search(np.pad(SOURCE, ((0, 0), (0, 4)))), together)
    prefixed = search(SOURCE, PREFIX)
    for row in range(3):
        source = SOURCE[row : row + 1, : int((SOURCE[row] != PAD).sum())]
        assert_same(search(source), [part[row : row + 1] for part in together])
        length = int((PREFIX[row] != PAD).sum())
        prefix = PREFIX[row : row + 1, :length] if length else None
        assert_same(search(source, prefix), [part[row : row + 1] for part in prefixed])


@pytest.mark.slow
@pytest.mark.tensorflow  # a compilation for each length is slow
def test_wide_beam_finds_what_brute_force_finds(model):
    """Every target of up to three tokens with its log probability, by full passes."""
    open_targets, scored = [((), 0.0)], {}
    for n in range(3):
        targets = np.array([[BOS, *tokens] for tokens, _ in open_targets], "int32")
        log_p = log_softmax(logits_of(model, np.repeat(SOURCE[:1], len(targets), axis=0), targets)[:, -1])
        longer = {
            (*tokens, token): total + of_next[token]
            for (tokens, total), of_next in zip(open_targets, log_p, strict=True)
            for token in range(23)
        }
        ended = {tokens: score for tokens, score in longer.items() if tokens[-1] == EOS or n == 2}
        scored |= ended
        open_targets = [item for item in longer.items() if item[0] not in ended]
    best = sorted(scored, key=lambda tokens: -scored[tokens] / ((5 + len(tokens)) / 6) ** 0.6)[:5]
    found = as_numpy(model.generate(SOURCE[:1], Beam(600, n_best=5), max_length=3))
    assert [tuple(t[:n]) for t, n in zip(found.tokens[0].tolist(), found.lengths[0], strict=True)] == best
    np.testing.assert_allclose(found.scores[0], [scored[tokens] for tokens in best], rtol=1e-4)


@EACH_STRATEGY
@pytest.mark.slow
def test_scores_are_what_score_gives(model, strategy):
    constraints = (*CONSTRAINTS["all"], SuppressTokens((PAD,)))
    found = model.generate(SOURCE, strategy, constraints=constraints, prefix=PREFIX)
    scores = model.score(SOURCE, found.tokens)
    assert_close(scores.scores, found.scores, 1e-4)


def test_alignments_are_the_attention(model):
    target = np.array([[5, 9, 10, EOS], [7, EOS, PAD, PAD], [4, 6, 8, 11]], "int32")
    shifted = np.pad(target, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]
    _, attention = model({"source": SOURCE, "target": shifted}, return_attention_scores=True)
    expected = np.where(target[..., None] == PAD, 0.0, as_numpy(attention["cross"][0])[:, 0])
    assert_close(model.score(SOURCE, target).alignments, expected)


# Text


@pytest.mark.slow
@pytest.mark.tensorflow
def test_it_trains_on_batches_and_an_export_translates_as_it_does(tmp_path):
    import tensorflow as tf

    from keras_transformer.data import Batches
    from keras_transformer.serving import Translator
    from keras_transformer.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    pairs = [(word, word[::-1]) for word in ("ab", "abc", "bca", "cab", "a", "ca")] * 20
    batches = Batches(pairs, tokenizer, batch_tokens=64, max_length=8)
    keras.utils.set_random_seed(2)
    model = RecurrentSeq2Seq(tokenizer.vocab_size, num_layers=1, d_model=24, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.02), MaskedCrossentropy())
    model.fit(batches.dataset(), steps_per_epoch=batches.steps, epochs=8, verbose=0)
    texts = ["abc", "", "ca", "a", "bca"]
    for strategy, precision in ((Greedy(), "int8"), (Beam(3), "float32")):
        translator = Translator(model, tokenizer, strategy=strategy, max_source_length=16)
        expected = translator.translate(texts)
        assert expected[1] == "" and expected[0] == "cba"
        translator.export(tmp_path / precision, precision=precision)
        served = tf.saved_model.load(str(tmp_path / precision / "1")).signatures["serving_default"]
        found = [text.decode() for text in served(text=tf.constant(texts))["translation"].numpy()]
        assert precision == "int8" or found == expected
        assert found[:2] == ["cba", ""]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_layers": 0}, "num_layers=0"),
        ({"d_model": 0}, "d_model=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"eos_id": 11}, "eos_id=11"),
        ({"vocabularies": (13, 11), "share_embeddings": True}, "source_vocab_size=13, target_vocab_size=11"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    with pytest.raises(ValueError) as error:
        small(**arguments)
    assert said in str(error.value)
