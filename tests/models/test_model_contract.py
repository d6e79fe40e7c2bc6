"""What every model promises, for each of cases.py: files, compilation, precision, padding, and what it writes."""

import keras
import numpy as np
import pytest
from cases import CASES, PAD, TARGET_VOCAB, WRITERS, shared, transformer
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    check_refused,
    compilations,
    config_of,
    needs_half_precision,
    normal,
    policy,
    portable_first,
    refuses,
    slow_but,
)
from keras import ops, tree
from reference import log_softmax
from searches import PREFIX, STRATEGIES, assert_same

from keras_transformer import layers
from keras_transformer.decoding import (
    Beam,
    ForcedFirstToken,
    Greedy,
    MaxLength,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.execution import native
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy
from keras_transformer.models import T5, LanguageModel, RecurrentSeq2Seq, Transformer

PAIRS = [name for name, case in CASES.items() if isinstance(case.inputs, dict) and "source" in case.inputs]
CAUSAL = [*PAIRS, "gpt2", "llama"]
STATES = ("states", "pooler", "vision_states")  # the others give logits
ONE_OF_EACH_CLASS = ("transformer", "t5", "recurrent", "ensemble", "llama", "classification", "vision")
EACH = pytest.mark.parametrize("name", slow_but(ONE_OF_EACH_CLASS, CASES))


def of_ids(inputs, change):
    """The inputs of a call with every array of ids changed by `change(name, ids)`."""
    if isinstance(inputs, dict):
        return {name: change(name, ids) for name, ids in inputs.items()}
    return change("ids", inputs)


def tensors_of(inputs):
    return tree.map_structure(ops.convert_to_tensor, inputs)


# The forward pass


@pytest.mark.sampled
@EACH
def test_saved_model_is_the_same(name, tmp_path):
    case = CASES[name]
    model = case.make()
    model.compile("adam", MaskedCrossentropy(0.1), metrics=[MaskedAccuracy()])
    expected = as_numpy(model(case.inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.compiled and config_of(again) == config_of(model)
    assert len(again.weights) == len(model.weights)
    assert_close(again(case.inputs), expected, 1e-6)
    model.save_weights(tmp_path / "model.weights.h5")
    for weight in again.weights:
        weight.assign(0.0 * weight)
    again.load_weights(tmp_path / "model.weights.h5")
    assert_close(again(case.inputs), expected, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [
        (name, jit_compile)
        for name in CASES
        for jit_compile in compilations()
        if not jit_compile or name in ("transformer", "recurrent", "masked_language", "vision")
    ],
)
def test_compiled_is_eager(name, jit_compile):
    case = CASES[name]
    model, expected = shared(name)
    assert_close(native.compiled(model, model, jit_compile)(tensors_of(case.inputs)), expected, 1e-4)


@pytest.mark.slow
@EACH
def test_model_is_a_part_of_a_functional_model(name):
    case = CASES[name]
    model, expected = shared(name)
    if name.startswith("vision"):
        inputs = keras.Input(case.inputs.shape[1:])
    else:
        inputs = of_ids(case.inputs, lambda side, ids: keras.Input((None,), dtype="int32", name=side))
    around = keras.Model(inputs, model(inputs))
    sizes = zip(around.output_shape, expected.shape, strict=True)
    assert all(size in (None, exact) for size, exact in sizes)
    assert around.output_shape[-1] == expected.shape[-1] or expected.ndim == 1
    assert_close(around(case.inputs), expected, 1e-6)


@pytest.mark.slow
@needs_half_precision
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "mixed_bfloat16") for name in CASES), ("vision", "bfloat16")]
)
def test_half_precision_is_near_and_logits_are_float32(name, dtype):
    case = CASES[name]
    with policy(dtype):  # of the parts too, which are used as they are
        model = case.make()
    found = model(case.inputs)
    kept = "float32" if dtype.startswith("mixed") else dtype
    assert {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights} == {kept}
    expected_dtype = "bfloat16" if name in STATES else "float32"
    assert keras.backend.standardize_dtype(found.dtype) == expected_dtype
    expected = shared(name)[1][case.real]
    difference = np.abs(as_numpy(found)[case.real] - expected)
    assert difference.max() < 0.1 * np.abs(expected).max()


@pytest.mark.slow
@EACH
def test_dropout_acts_in_training_alone(name):
    case = CASES[name]
    dropping, expected = case.make(dropout=0.5), shared(name)[1]
    assert_close(dropping(case.inputs), expected, 0.0)
    assert np.abs(as_numpy(dropping(case.inputs, training=True)) - expected).max() > 0.01


@pytest.mark.parametrize(
    "name", slow_but(ONE_OF_EACH_CLASS, [name for name in CASES if not name.startswith("vision")])
)
@pytest.mark.sampled
def test_padding_changes_no_real_token(name):
    case = CASES[name]
    (model, expected), more = shared(name), {"source": 5, "segment_ids": 3}

    def widened(side, ids):
        return np.pad(ids, ((0, 0), (0, more.get(side, 3))), constant_values=int(side == "segment_ids"))

    found = as_numpy(model(of_ids(case.inputs, widened)))
    if expected.ndim == 3:
        found = found[:, : expected.shape[1]]
    assert_close(found[case.real], expected[case.real])
    nothing = model(of_ids(case.inputs, lambda side, ids: 0 * ids))
    assert np.all(np.isfinite(as_numpy(nothing)))


@pytest.mark.sampled
@EACH
def test_each_row_is_as_it_would_be_alone_and_without_padding(name):
    case = CASES[name]
    model, expected = shared(name)
    for row in range(1, len(expected) - (name in ("gpt2", "llama"))):

        def alone(side, ids, row=row):
            own = ids[row : row + 1]
            reading = reading_of(case.inputs, side)[row]
            return own if own.ndim > 2 else own[:, : len(np.trim_zeros(reading, "b"))]

        found = as_numpy(model(of_ids(case.inputs, alone)))
        of_row = expected[row : row + 1]
        of_tokens = expected.ndim == 3 and not name.startswith("vision")
        assert_close(found, of_row[:, : found.shape[1]] if of_tokens else of_row)


def reading_of(inputs, side):
    """The ids whose padding ends what a side of the inputs holds."""
    return inputs["token_ids" if side == "segment_ids" else side] if isinstance(inputs, dict) else inputs


@pytest.mark.sampled
@pytest.mark.parametrize("name", slow_but(ONE_OF_EACH_CLASS, CAUSAL))
def test_later_tokens_change_nothing_before(name):
    case = CASES[name]
    model, expected = shared(name)
    for position in (1, 4):

        def changed(side, ids, position=position):
            later = (ids + 1) % TARGET_VOCAB
            return ids if side == "source" else np.where(np.arange(ids.shape[1]) >= position, later, ids)

        found = as_numpy(model(of_ids(case.inputs, changed)))
        assert_close(found[:, :position], expected[:, :position], 1e-5)
        assert np.all(np.abs(found - expected)[:, position].max(axis=-1) > 1e-3)


def steps(model, source, targets, chunk):
    """The logits of targets `(batch, width, length)`, read a chunk at a time."""
    step, cache, *_ = model.start(source, targets.shape[1])
    cache = cache.grown(7) if hasattr(cache, "grown") else cache
    for start in range(0, targets.shape[2], chunk):
        logits, cache = step(targets[:, :, start : start + chunk], cache, start)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        yield start, as_numpy(logits)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_decoding_in_chunks_equals_one_pass(name, chunk):
    """In a recurrent model each hypothesis may read a target of its own from the first step on."""
    source, target = CASES[name].inputs.values()
    model, _ = shared(name)
    targets = [np.roll(target, turn, axis=0) for turn in range(3 if name == "recurrent" else 1)]
    at_once = np.stack([as_numpy(model({"source": source, "target": each})) for each in targets], axis=1)
    for start, logits in steps(model, source, np.stack(targets, axis=1), chunk):
        assert_close(logits, at_once[:, :, start : start + chunk])


@needs_half_precision
@pytest.mark.parametrize("name", slow_but(("recurrent",), ("transformer", "recurrent")))
def test_steps_under_mixed_bfloat16_stay_within_its_rounding(name):
    case, small = CASES[name], {"scale": 0.2 if name == "transformer" else 0.4}
    source, target = case.inputs.values()
    expected = as_numpy(case.make(**small)(case.inputs))
    model = case.make(dtype="mixed_bfloat16", **small)
    tolerance = 0.06 if name == "transformer" else 0.15
    for start, logits in steps(model, source, target[:, None], 1):
        assert_close(logits[:, 0], expected[:, start : start + 1], tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "states", "classification", "vision"])
def test_attention_scores_come_after_the_output(name):
    case = CASES[name]
    model, expected = shared(name)
    output, scores = model(case.inputs, return_attention_scores=True)
    assert_close(output, expected, 0.0)
    shape = {"gpt2": (4, 3, 5, 5), "llama": (4, 6, 5, 5), "vision": (2, 3, 7, 7)}.get(name, (3, 3, 6, 6))
    assert [each.shape for each in scores] == [shape] * 2
    for weights in map(as_numpy, scores):
        sums = weights.sum(-1)
        assert np.all(np.isclose(sums, 1, atol=1e-5) | (sums == 0))
        if name in ("states", "classification"):
            assert np.all(weights[2, :, :, 2:] == 0)  # padding


@pytest.mark.tensorflow
@pytest.mark.sampled
@EACH
def test_every_weight_has_a_gradient(name):
    import tensorflow as tf

    model, expected = shared(name)
    weights = [
        weight for weight in model.trainable_weights if "key/bias" not in weight.path
    ]  # softmax ignores them
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(CASES[name].inputs) * normal(*expected.shape))
    gradients = tape.gradient(total, [weight.value for weight in weights])
    without = [
        weight.path
        for weight, gradient in zip(weights, gradients, strict=True)
        if gradient is None or not np.abs(tf.convert_to_tensor(gradient)).max() > 0
    ]
    assert without == []


# What it writes


@pytest.fixture(scope="module", params=slow_but(("transformer", "gpt2"), WRITERS))
def written_by(request):
    """A model that writes, with its sources, and the tokens that its searches may begin with."""
    make, source = WRITERS[request.param]
    return make(), source


def log_probs_after(model, source, outputs):
    """What follows the tokens of each row's output, by one forward pass."""
    is_alone = isinstance(model, LanguageModel)
    prompts = [[int(token) for token in row if token] if is_alone else [] for row in source]
    ids = [[*(prompt or [model.bos_id]), *tokens] for prompt, tokens in zip(prompts, outputs, strict=True)]
    padded = np.array([row + [model.pad_id] * (16 - len(row)) for row in ids], "int32")
    logits = as_numpy(model(padded if is_alone else {"source": source, "target": padded}))
    return [log_softmax(logits[i, len(row) - 1]) for i, row in enumerate(ids)]


@pytest.mark.sampled
@pytest.mark.parametrize("prefixed", slow_but((False,), (False, True)))
@pytest.mark.parametrize("jit_compile", portable_first())
def test_generate_is_greedy_search_by_full_passes(written_by, jit_compile, prefixed):
    model, source = written_by
    if prefixed and isinstance(model, LanguageModel):
        pytest.skip("the sources of a language model are its prefixes")
    arguments = {"max_length": 9, "jit_compile": jit_compile, "prefix": PREFIX if prefixed else None}
    found = as_numpy(model.generate(source, Greedy(), **arguments))
    outputs, scores = [[] for _ in source], np.zeros(len(source))
    for step in range(9):
        for row, log_probs in enumerate(log_probs_after(model, source, outputs)):
            if model.eos_id not in outputs[row]:
                given = PREFIX[row, step] if prefixed and step < PREFIX.shape[1] else 0
                outputs[row].append(int(given or log_probs.argmax()))
                scores[row] += log_probs[outputs[row][-1]]
    assert found.tokens[:, 0].tolist() == [tokens + [PAD] * (9 - len(tokens)) for tokens in outputs]
    assert found.lengths[:, 0].tolist() == [len(tokens) for tokens in outputs]
    np.testing.assert_allclose(found.scores[:, 0], scores, rtol=1e-4)
    ends = len(set(found.lengths[:, 0].tolist()))
    assert ends > 1 or isinstance(model, LanguageModel), "the weights give rows of one length only"


@pytest.mark.tensorflow  # a compilation for each length is slow
@pytest.mark.slow
def test_wide_beam_finds_what_brute_force_finds(written_by):
    """Every output of up to two tokens with its log probability, by full passes."""
    model, source = written_by
    scored, (first,) = {}, log_probs_after(model, source[1:2], [[]])
    every = [[token] for token in range(len(first))]
    for token, second in enumerate(log_probs_after(model, np.repeat(source[1:2], len(every), axis=0), every)):
        if token == model.eos_id:
            scored[token,] = first[token]
        else:
            scored |= {(token, after): first[token] + second[after] for after in range(len(second))}
    best = sorted(scored, key=lambda tokens: -scored[tokens] / ((5 + len(tokens)) / 6) ** 0.6)[:5]
    beam = Beam(len(first) ** 2, n_best=5)
    found = as_numpy(model.generate(source[1:2], beam, max_length=2, jit_compile=False))
    assert [tuple(t[:n]) for t, n in zip(found.tokens[0].tolist(), found.lengths[0], strict=True)] == best
    np.testing.assert_allclose(found.scores[0], [scored[tokens] for tokens in best], rtol=1e-4)


CONSTRAINED = (
    MinLength(4), MaxLength(3, ratio=2.0), RepetitionPenalty(1.3), NoRepeatNgram(3), SuppressTokens((10,)),
    ForcedFirstToken(8),
)  # fmt: skip
SEARCHES = {"greedy": "free", "beam": "free", "diverse": "all", "cut sample": "all"}
SOME = pytest.mark.parametrize("strategy", slow_but(("greedy",), SEARCHES))


def arguments_of(model, strategy):
    """Constraints, and a prefix where the model takes one."""
    constraints = (*(CONSTRAINED if SEARCHES[strategy] == "all" else ()), SuppressTokens((PAD,)))
    return {"constraints": constraints, **({} if isinstance(model, LanguageModel) else {"prefix": PREFIX})}


@pytest.mark.slow
@SOME
def test_scores_are_what_score_gives(written_by, strategy):
    model, source = written_by
    arguments = {"max_length": 9, "jit_compile": False, **arguments_of(model, strategy)}
    found = model.generate(source, STRATEGIES[strategy], **arguments)
    assert_close(model.score(source, found.tokens, jit_compile=False).scores, found.scores, 1e-4)
    if "prefix" in arguments:
        best = as_numpy(found.tokens)[:, 0, : PREFIX.shape[1]]
        np.testing.assert_array_equal(best[PREFIX > 0], PREFIX[PREFIX > 0])


@SOME
@pytest.mark.slow
@pytest.mark.tensorflow
def test_compiled_portable_and_eager_write_the_same(written_by, strategy):
    model, source = written_by
    arguments = {"max_length": 9, **arguments_of(model, strategy)}
    strategy = STRATEGIES[strategy]
    eager = model.search(source, strategy, **arguments)
    for jit_compile in (False, True):
        assert_same(model.generate(source, strategy, jit_compile=jit_compile, **arguments), eager)


@SOME
@pytest.mark.slow
def test_rows_depend_on_no_other_row_no_order_and_no_padding(written_by, strategy):
    model, source = written_by
    arguments = {"max_length": 9, "jit_compile": False, **arguments_of(model, strategy)}
    prefix = arguments.pop("prefix", None)

    def search(source, prefix):
        return as_numpy(model.generate(source, STRATEGIES[strategy], prefix=prefix, **arguments))

    together = search(source, prefix)
    backwards = search(source[::-1].copy(), None if prefix is None else prefix[::-1].copy())
    assert_same([part[::-1] for part in backwards], together)
    assert_same(search(np.pad(source, ((0, 0), (0, 4))), prefix), together)
    for row, ids in enumerate(source):
        own = None if prefix is None else np.trim_zeros(prefix[row], "b")[None]
        own = None if own is None or own.size == 0 else own
        alone = search(ids[None, : max(1, len(np.trim_zeros(ids, "b")))], own)
        assert_same(alone, [part[row : row + 1] for part in together])


# Training


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda: Transformer(9, num_layers=1, d_model=32, num_heads=2, d_ff=32, dropout=0.0, normalize_first=True),
    lambda: RecurrentSeq2Seq(9, num_layers=1, d_model=32, dropout=0.1),
    lambda: T5(9, num_layers=1, d_model=32, num_heads=2, key_dim=16, d_ff=32, dropout=0.0),
], ids=["transformer", "recurrent", "t5"])  # fmt: skip
def test_fit_learns_to_copy(make):
    """The loss falls far below chance, 1.2, and `generate` copies, greedily and with a beam."""
    keras.utils.set_random_seed(1)
    model = make()
    source = np.random.default_rng(0).integers(4, 9, (256, 3)).astype("int32")
    expected = np.pad(source, ((0, 0), (0, 1)), constant_values=model.eos_id)
    shifted = np.pad(expected[:, :-1], ((0, 0), (1, 0)), constant_values=model.bos_id)
    optimizer = keras.optimizers.Adam(0.005)
    model.compile(optimizer, MaskedCrossentropy(), metrics=[MaskedAccuracy()], jit_compile=STEP_IN_XLA)
    inputs = {"source": source, "target": shifted}
    history = model.fit(inputs, expected, epochs=30, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.2 and history["accuracy"][-1] > 0.9
    for strategy in (Greedy(), Beam(2)):
        found = as_numpy(model.generate(source[:7], strategy, max_length=6, jit_compile=False).tokens)[:, 0]
        right = np.all(found[:, :4] == expected[:7], axis=1)
        assert right.sum() >= 4 and np.all(found[right, 4:] == PAD)  # by chance 1 of 125


# Errors


def causal(**arguments):
    return LanguageModel(
        **{"embeddings": layers.Embeddings(29, 12), "decoder": layers.Decoder(1, 3, 17), **arguments}
    )


def relative(**arguments):
    return T5(**{"vocab_size": 13, "num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 5, **arguments})


def lstm(vocabularies=(13, 11), **arguments):
    return RecurrentSeq2Seq(*vocabularies, **{"num_layers": 1, "d_model": 6, **arguments})


def test_wrong_arguments_are_named():
    check_refused(
        transformer,
        {"num_heads": 4, "d_model": 6},
        *({name: 11} for name in ("pad_id", "bos_id", "eos_id")),
        {"pad_id": 5, "eos_id": 5},
    )
    check_refused(lstm, {"eos_id": 11})
    check_refused(relative, {"eos_id": 13}, {"num_buckets": 7})
    decoders = [{"decoder": other} for other in (None, layers.FeedForward(5), layers.Encoder(1, 3, 17))]
    check_refused(causal, {"pad_id": 29}, {"eos_id": -1}, {"stop_ids": 3}, *decoders)


@pytest.mark.parametrize(("make", "arguments", "message"), [
    (transformer, {"share_embeddings": True}, "source_vocab_size=13, target_vocab_size=11"),
    (transformer, {"attention": layers.MultiHeadAttention(3, 2)}, "All layers would share one `attention`"),
    (transformer, {"feed_forward": layers.FeedForward(3)}, "All layers would share one `feed_forward`"),
    (transformer, {"positions": layers.RotaryPositions()}, r"acts inside.*attention=MultiHeadAttention\("),
])  # fmt: skip
def test_arguments_that_do_not_fit_together_are_refused(make, arguments, message):
    refuses(message, make, **arguments)
