from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    config_of,
    portable_first,
    randomized,
    slow_but,
)
from keras import ops
from reference import log_softmax, transformer, weights_of

from keras_transformer import layers
from keras_transformer.decoding import Greedy, MinLength
from keras_transformer.execution.compiled import compiled
from keras_transformer.layers import PositionalEncoding
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy
from keras_transformer.models import EncoderDecoder, Transformer
from keras_transformer.models.transformer import PRESETS

SOURCE_VOCAB, TARGET_VOCAB, LAYERS, D_MODEL, HEADS, D_FF = 13, 11, 2, 6, 3, 17
PAD, BOS, EOS = 0, 2, 3
SOURCE = np.array([[5, 7, 12, 4, 1, 9, 3], [8, 4, 11, 3, 0, 0, 0], [6, 3, 0, 0, 0, 0, 0]], "int32")
TARGET = np.array([[2, 5, 9, 10, 4], [2, 7, 3, 0, 0], [2, 4, 6, 3, 0]], "int32")
BOTH_NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post_norm", "pre_norm"])


def small(seed=0, scale=0.4, vocabularies=(SOURCE_VOCAB, TARGET_VOCAB), **arguments):
    sizes = {"num_layers": LAYERS, "d_model": D_MODEL, "num_heads": HEADS, "d_ff": D_FF, "dropout": 0.0}
    return randomized(Transformer(*vocabularies, **{**sizes, **arguments}), seed, scale)


def logits_of(model, source=SOURCE, target=TARGET):
    return as_numpy(model({"source": source, "target": target}))


# The forward pass


@BOTH_NORMS
def test_logits_agree_with_numpy(normalize_first):
    model = small(normalize_first=normalize_first)
    expected = transformer(weights_of(model), SOURCE, TARGET, LAYERS, normalize_first)
    assert_close(logits_of(model), expected, 1e-4)


def test_one_vocabulary_has_one_embedding():
    model = small(vocabularies=(SOURCE_VOCAB,))
    assert model.share_embeddings
    assert model.source_embedding is model.target_embedding
    assert_close(logits_of(model), transformer(weights_of(model), SOURCE, TARGET, LAYERS), 1e-4)
    twin = small(vocabularies=(SOURCE_VOCAB, SOURCE_VOCAB), share_embeddings=True)
    assert twin.count_params() == model.count_params()
    assert small(vocabularies=(13, 13)).count_params() == model.count_params() + 13 * D_MODEL


def test_embeddings_are_scaled_as_asked():
    model, expected = small(embedding_scale=1.0), small()
    for side in ("source_embedding", "target_embedding"):
        table = as_numpy(getattr(expected, side).embeddings)
        getattr(model, side).embeddings.assign(table * D_MODEL**0.5)
    assert_close(logits_of(model), logits_of(expected) * D_MODEL**0.5, 1e-4)


def test_a_models_variant_is_saved(tmp_path):
    """Marian's: the other order of positions, embeddings as they are, a bias for each id, fewer decoder layers."""
    positions = PositionalEncoding(interleaved=False)
    model = small(positions=positions, embedding_scale=1.0, output_bias=True, num_decoder_layers=1)
    plain = small(num_decoder_layers=1)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(logits_of(again), logits_of(model), 1e-6)
    assert config_of(again) == config_of(model)
    assert len(model.weights) == len(plain.weights) + 1


def test_another_pad_id_is_padding():
    model, expected = small(pad_id=1), small()
    renamed = np.select([SOURCE == 0, SOURCE == 1], [1, 0], SOURCE)
    table = as_numpy(expected.source_embedding.embeddings)
    model.source_embedding.embeddings.assign(table[[1, 0, *range(2, SOURCE_VOCAB)]])
    assert_close(logits_of(model, renamed), logits_of(expected))


@BOTH_NORMS
def test_padding_of_the_source_changes_nothing(normalize_first):
    model = small(normalize_first=normalize_first)
    expected = logits_of(model)
    assert_close(logits_of(model, np.pad(SOURCE, ((0, 0), (0, 5)))), expected)
    assert_close(logits_of(model, SOURCE[1:2, :4], TARGET[1:2]), expected[1:2])


def test_padding_of_the_target_changes_no_real_token():
    model = small()
    assert_close(logits_of(model, target=np.pad(TARGET, ((0, 0), (0, 3))))[:, :5], logits_of(model))
    assert_close(logits_of(model, SOURCE[1:2], TARGET[1:2, :3]), logits_of(model)[1:2, :3])


def test_later_targets_change_nothing_before():
    model, expected = small(), logits_of(small())
    for position in range(1, 5):
        changed = TARGET.copy()
        changed[:, position:] = (changed[:, position:] + 1) % TARGET_VOCAB
        found = logits_of(model, target=changed)
        assert_close(found[:, :position], expected[:, :position], 1e-6)
        assert np.all(np.abs(found - expected)[:, position].max(axis=-1) > 1e-3)


def test_attention_scores_of_every_layer():
    model = small()
    logits, scores = model({"source": SOURCE, "target": TARGET}, return_attention_scores=True)
    assert_close(logits, logits_of(model), 0.0)
    lengths = {"encoder": (7, 7), "decoder": (5, 5), "cross": (5, 7)}
    assert scores.keys() == lengths.keys()
    for name, (target_len, source_len) in lengths.items():
        assert len(scores[name]) == LAYERS
        for weights in map(as_numpy, scores[name]):
            assert weights.shape == (3, HEADS, target_len, source_len)
            # A query that is padding attends to nothing.
            attends = np.ones(weights.shape[:3]) * ((SOURCE != PAD)[:, None] if name == "encoder" else 1.0)
            np.testing.assert_allclose(weights.sum(axis=-1), attends, rtol=1e-5)
            if name != "decoder":
                assert np.all(weights[1, :, :, 4:] == 0) and np.all(weights[2, :, :, 2:] == 0)


@pytest.mark.parametrize(
    "padded", [pytest.param(False, marks=pytest.mark.slow), True], ids=["full", "padded"]
)
@pytest.mark.parametrize("chunk", slow_but((1, 2), (1, 2, 3, 5)))
@BOTH_NORMS
def test_chunk_by_chunk_is_all_at_once(normalize_first, chunk, padded):
    model = small(normalize_first=normalize_first)
    source = SOURCE if padded else np.repeat(SOURCE[:1], 3, axis=0)
    at_once = logits_of(model, source)
    step, cache, *_ = model.start(source)
    cache = cache.grown(7)
    for start in range(0, 5, chunk):
        logits, cache = step(TARGET[:, None, start : start + chunk], cache, start)
        assert_close(logits[:, 0], at_once[:, start : start + chunk])


@pytest.mark.slow
def test_steps_under_mixed_bfloat16_stay_within_its_rounding():
    model = small(scale=0.2, dtype="mixed_bfloat16")
    at_once = logits_of(model)
    step, cache, *_ = model.start(SOURCE)
    cache = cache.grown(5)
    for i in range(5):
        logits, cache = step(TARGET[:, None, i : i + 1], cache, i)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        assert_close(logits[:, 0], at_once[:, i : i + 1], 0.06)
    assert_close(at_once, logits_of(small(scale=0.2)), 0.06)


@pytest.mark.parametrize("jit_compile", portable_first())
def test_compiled_is_eager(jit_compile):
    model = small()
    inputs = {"source": ops.convert_to_tensor(SOURCE), "target": ops.convert_to_tensor(TARGET)}
    assert_close(compiled(model, model, jit_compile)(inputs), logits_of(model))


def test_model_is_a_part_of_a_functional_model():
    model = small()
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}
    around = keras.Model(inputs, model(inputs))
    assert around.output_shape == (None, None, TARGET_VOCAB)
    assert_close(around({"source": SOURCE, "target": TARGET}), logits_of(model), 1e-6)


# Sizes


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("tiny", (4, 128, 4, 256, 0.3)), ("base", (6, 512, 8, 2048, 0.1)), ("big", (6, 1024, 16, 4096, 0.3))],
)
def test_presets_have_the_published_sizes(preset, sizes):
    names = ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
    assert tuple(PRESETS[preset][name] for name in names) == sizes
    config = Transformer.from_preset(
        preset, 7, num_layers=1
    ).get_config()  # all its layers would take their time
    assert tuple(config[name] for name in names) == (1, *sizes[1:])


def test_tiny_has_the_parameters_of_the_published_model():
    """Transformer-Tiny on Multi30k, one vocabulary of 9,712: 2,568,192 (Wu et al., ACL 2021)."""
    d, ff, vocab, layers = 128, 256, 9712, 4
    attention, feed_forward, norm = 4 * (d * d + d), d * ff + ff + ff * d + d, 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    by_hand = vocab * d + layers * (encoder_layer + decoder_layer)
    assert by_hand == 2_568_192
    assert Transformer.from_preset("tiny", vocab).count_params() == by_hand


def test_preset_arguments_can_be_overridden():
    model = Transformer.from_preset(
        "tiny", 7, 5, num_layers=1, dropout=0.2, normalize_first=True, name="mine"
    )
    config = model.get_config()
    assert (config["num_layers"], config["dropout"], config["normalize_first"]) == (1, 0.2, True)
    assert (config["d_model"], config["target_vocab_size"], model.name) == (128, 5, "mine")


# Files


ARGUMENTS = {
    "activation": "gelu",
    "normalize_first": True,
    "layer_norm_epsilon": 1e-3,
    "attention_dropout": 0.2,
    "activation_dropout": 0.4,
    "kernel_initializer": "he_normal",
    "dropout": 0.3,
    "pad_id": 1,
    "bos_id": 4,
    "eos_id": 5,
    "name": "mine",
    "dtype": "mixed_bfloat16",
}


def test_config_keeps_every_argument():
    model = small(**ARGUMENTS)
    config = model.get_config()
    again = Transformer.from_config(config)
    assert again.get_config() == config
    for name in ("pad_id", "bos_id", "eos_id", "dropout", "normalize_first", "layer_norm_epsilon", "name"):
        assert config[name] == ARGUMENTS[name]
    layer = again.encoder.layers[0]
    attention, feed_forward = layer.self_attention, layer.feed_forward
    assert (attention.dropout, feed_forward.dropout) == (0.2, 0.4)
    assert feed_forward.activation is keras.activations.gelu
    assert isinstance(feed_forward.kernel_initializer, keras.initializers.HeNormal)
    assert again.dtype_policy.name == layer.dtype_policy.name == "mixed_bfloat16"
    assert (again.drop.rate, again.pad_id) == (0.3, 1)


@pytest.mark.parametrize(
    "arguments",
    [pytest.param({}, marks=pytest.mark.slow), ARGUMENTS, {"share_embeddings": True}],
    ids=["plain", "all", "shared"],
)
@pytest.mark.slow
def test_saved_model_gives_the_same(arguments, tmp_path):
    vocabularies = (SOURCE_VOCAB,) if arguments.get("share_embeddings") else (SOURCE_VOCAB, TARGET_VOCAB)
    model = small(vocabularies=vocabularies, **arguments)
    model.compile("adam", MaskedCrossentropy(0.1), metrics=[MaskedAccuracy()])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert config_of(again) == config_of(model)
    assert_close(logits_of(again), logits_of(model), 1e-6)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = small(seed=1, vocabularies=vocabularies, **arguments)
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_close(logits_of(fresh), logits_of(model), 1e-6)


class NotRegistered(keras.layers.Layer):
    def call(self, x):
        return x + 1


@pytest.mark.parametrize("layer", ["lambda", "unregistered"])
def test_file_that_needs_foreign_code_is_refused(layer, tmp_path, monkeypatch):
    foreign = keras.layers.Lambda(lambda x: x + 1) if layer == "lambda" else NotRegistered()
    x = keras.Input((None, D_MODEL))
    keras.Model(x, foreign(x)).save(tmp_path / "model.keras")
    monkeypatch.delattr(f"{__name__}.NotRegistered")
    with pytest.raises((ValueError, TypeError), match=r"[Ll]ambda|NotRegistered"):
        keras.models.load_model(tmp_path / "model.keras")


# Training


@pytest.mark.slow  # a language model's step has a quick test
@pytest.mark.tensorflow  # JAX makes the optimizer's variables beforehand of itself
def test_fit_traces_its_step_once(monkeypatch):
    traced = []
    real = Transformer.train_step
    monkeypatch.setattr(Transformer, "train_step", lambda self, data: traced.append(1) or real(self, data))
    model = Transformer(9, num_layers=1, d_model=8, num_heads=2, d_ff=8)
    model.compile("adam", MaskedCrossentropy(), metrics=[MaskedAccuracy()], jit_compile=False)
    ids = np.full((4, 3), 5, "int32")
    model.fit({"source": ids, "target": ids}, ids, batch_size=2, verbose=0)
    assert len(traced) == 1


def test_fit_learns_to_copy():
    """Real tokens of the source, once more: the loss falls far below chance, 1.2, and `generate` copies.

    With three seeds the last loss was at most 0.016, so no rounding reaches the limit.
    """
    rng = np.random.default_rng(0)
    source = rng.integers(4, 9, (256, 3)).astype("int32")
    bos, eos = np.full((256, 1), BOS, "int32"), np.full((256, 1), EOS, "int32")
    target = np.concatenate([bos, source], axis=1)
    expected = np.concatenate([source, eos], axis=1)
    keras.utils.set_random_seed(1)
    model = Transformer(9, num_layers=1, d_model=32, num_heads=2, d_ff=32, dropout=0.0, normalize_first=True)
    optimizer = keras.optimizers.Adam(0.005)
    model.compile(optimizer, MaskedCrossentropy(), metrics=[MaskedAccuracy()], jit_compile=STEP_IN_XLA)
    inputs = {"source": source, "target": target}
    history = model.fit(inputs, expected, epochs=30, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.2 and history["accuracy"][-1] > 0.9
    found = as_numpy(model.generate(source[:7], max_length=6).tokens)[:, 0]
    right = np.all(found[:, :4] == expected[:7], axis=1)
    assert right.sum() >= 6
    assert np.all(found[right, 4:] == PAD)


def test_dropout_acts_in_training_alone():
    plain, dropping = small(), small(dropout=0.5)
    assert_close(logits_of(dropping), logits_of(plain), 0.0)
    inputs = {"source": SOURCE, "target": TARGET}
    assert np.abs(as_numpy(dropping(inputs, training=True)) - logits_of(plain)).max() > 0.01


# Writing


MAX_LENGTH = 11


def writer(**arguments):
    """Weights whose greedy outputs end early, late and not at all (checked below)."""
    model = small(seed=532, scale=0.7, **arguments)
    # With a large tied embedding each token would only be followed by itself.
    model.target_embedding.embeddings.assign(0.3 * model.target_embedding.embeddings)
    return model


def written(model, source=SOURCE, **arguments):
    """Hypotheses without the axis of the best: tokens, lengths and scores of each row."""
    arguments = {"max_length": MAX_LENGTH, "jit_compile": False, **arguments}
    return [as_numpy(part)[:, 0] for part in model.generate(source, **arguments)]


def step_by_full_passes(model, source, max_length):
    """Greedy search without a cache or a loop of ours: one whole forward pass for each token of each row."""
    rows = []
    for row in source:
        target, length, score = np.full((1, 1 + max_length), PAD, "int32"), 1, 0.0
        target[0, 0] = BOS
        while length <= max_length and target[0, length - 1] != EOS:
            log_p = log_softmax(logits_of(model, row[None], target)[0, length - 1])
            target[0, length] = log_p.argmax()
            length += 1
            score += log_p.max()
        rows.append((target[0, 1:length].tolist(), score))
    return rows


def test_generate_is_greedy_search_by_full_passes():
    model = writer()
    tokens, lengths, scores = written(model)
    expected = step_by_full_passes(model, SOURCE, MAX_LENGTH)
    assert tokens.shape == (3, MAX_LENGTH)
    for row, (ids, score) in enumerate(expected):
        assert tokens[row].tolist() == ids + [PAD] * (MAX_LENGTH - len(ids))
        assert lengths[row] == len(ids)
        np.testing.assert_allclose(scores[row], score, rtol=1e-4)
    ends = [EOS in ids for ids, _ in expected]
    assert any(ends) and not all(ends), "the weights no longer give both kinds of rows"
    assert len(set(lengths.tolist())) == 3


def test_generate_gives_the_dtypes_of_the_contract():
    found = writer().generate(SOURCE, max_length=5)
    dtypes = [keras.backend.standardize_dtype(part.dtype) for part in found]
    assert dtypes == ["int32", "int32", "float32"]
    assert [tuple(part.shape) for part in found] == [(3, 1, 5), (3, 1), (3, 1)]


@pytest.mark.parametrize("jit_compile", portable_first())
def test_limit_of_a_row_is_its_own_and_does_not_know_its_batch(jit_compile):
    """Twice its real tokens plus 16, whatever its neighbours and its padding; a model that never ends shows it."""
    model = small()
    table = as_numpy(model.target_embedding.embeddings)
    table[EOS] = 0.0  # a logit of 0 is never the largest
    model.target_embedding.embeddings.assign(table)
    tokens, lengths, _ = written(model, max_length=None, jit_compile=jit_compile)
    assert lengths.tolist() == [2 * 7 + 16, 2 * 4 + 16, 2 * 2 + 16]
    assert tokens.shape == (3, 2 * 7 + 16)
    assert np.all(tokens[2, 2 * 2 + 16 :] == PAD)


@pytest.mark.slow
def test_max_length_cuts_and_changes_nothing_before():
    model = writer()
    tokens, lengths, _ = written(model)
    for max_length in (1, 3):
        cut = written(model, max_length=max_length)
        np.testing.assert_array_equal(cut[0], tokens[:, :max_length])
        np.testing.assert_array_equal(cut[1], np.minimum(lengths, max_length))


@pytest.mark.parametrize("jit_compile", portable_first())
@pytest.mark.slow
def test_weights_changed_after_generate_are_seen_by_the_next(jit_compile):
    model, other = writer(), small(seed=7, scale=0.7)
    before = written(model, jit_compile=jit_compile)[2]
    model.set_weights(other.get_weights())
    after = written(model, jit_compile=jit_compile)
    expected = written(other, jit_compile=jit_compile)
    np.testing.assert_array_equal(after[0], expected[0])
    np.testing.assert_allclose(after[2], expected[2], rtol=1e-4)
    assert np.abs(after[2] - before).max() > 1e-3


@pytest.mark.slow
def test_another_eos_id_ends_a_row():
    model = writer()
    first = int(written(model)[0][0, 0])
    tokens, lengths, _ = written(writer(eos_id=first))
    assert tokens[0].tolist() == [first] + [PAD] * (MAX_LENGTH - 1)
    assert lengths[0] == 1


# Errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 4}, "Received: d_model=6, num_heads=4."),
        ({"num_layers": 0}, "Received: num_layers=0."),
        ({"num_decoder_layers": 0}, "Received: num_decoder_layers=0."),
        ({"d_ff": 0}, "Received: d_ff=0."),
        ({"vocabularies": (0, 5)}, "vocab_size=0."),
        ({"vocabularies": (5, -1)}, "vocab_size=-1."),
        ({"vocabularies": (13, 11), "share_embeddings": True}, "13"),
        ({"vocabularies": (13, 11), "share_embeddings": True}, "11"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arguments, said):
    with pytest.raises(ValueError) as error:
        small(**arguments)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["pad_id", "bos_id", "eos_id"])
def test_ids_outside_the_vocabulary_are_refused(name):
    with pytest.raises(
        ValueError, match=rf"`{name}` must be an id of the vocabulary, from 0 to 10. Received: {name}=11\."
    ):
        small(**{name: TARGET_VOCAB})


def test_the_end_of_a_text_is_no_padding():
    with pytest.raises(ValueError, match=r"`eos_id` must not be `pad_id`.* Received: pad_id=5, eos_id=5\."):
        small(pad_id=5, eos_id=5)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
def test_ids_of_another_rank_are_refused_in_a_forward_pass(shape):
    ids = np.ones(shape, "int32")
    with pytest.raises(
        ValueError, match=r"`token_ids` must have shape `\(batch, source_len\)`\. Received: shape="
    ):
        small()({"source": ids, "target": ids})


def test_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"\['base', 'big', 'tiny'\]. Received: preset='huge'\."):
        Transformer.from_preset("huge", 7)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (0, 3), (3, 0)])
def test_sources_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError) as error:
        small().generate(np.ones(shape, "int32"))
    assert str(error.value).endswith(f"Received: shape={shape}.")


@pytest.mark.tensorflow
def test_a_ragged_source_is_refused():
    import tensorflow as tf

    with pytest.raises(ValueError, match=r"`source` must be dense.*ragged"):
        small().generate(tf.ragged.constant([[5, 7], [8]]))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_fresh_model_can_be_exported(tmp_path):
    import tensorflow as tf

    model = small()
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    assert_close(exported.serve({"source": SOURCE, "target": TARGET}), logits_of(model))


@pytest.mark.parametrize("max_length", [0, -3])
def test_max_length_must_be_positive(max_length):
    with pytest.raises(
        ValueError, match=rf"`max_length` must be a positive integer. Received: max_length={max_length}\."
    ):
        small().generate(SOURCE, max_length=max_length)


def test_source_of_padding_alone_gives_numbers():
    model = small()
    logits = logits_of(model, np.zeros((3, 7), "int32"))
    assert np.all(np.isfinite(logits))
    assert_close(logits, logits_of(model, np.zeros((3, 2), "int32")))


def test_what_is_no_pair_of_inputs_is_named():
    model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    for wrong in (np.ones((1, 2), "int32"), {"source": np.ones((1, 2), "int32")}):
        with pytest.raises(ValueError, match="`inputs` must be a dict with `source` and `target`"):
            model(wrong)


def test_the_summary_names_the_parts():
    lines = []
    model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    model.summary(print_fn=lines.append)
    assert "PositionalEncoding" in "".join(lines)


# Parts


@pytest.mark.parametrize("name", ["attention", "cross_attention", "feed_forward"])
def test_one_layer_for_all_layers_is_refused(name):
    with pytest.raises(ValueError, match=f"All layers would share one `{name}`"):
        small(**{name: layers.MultiHeadAttention(3, 2)})


def test_parts_handed_in_are_used_as_they_are():
    """Not copied: a model of another attention in one layer is made of exactly these layers."""
    attention = layers.MultiHeadAttention(3, 2, positions=layers.RotaryPositions())
    first = layers.EncoderLayer(attention=attention, d_ff=5, dropout=0.0)
    encoder = layers.Encoder([first, layers.EncoderLayer(2, 7, dropout=0.0)])
    decoder = layers.Decoder(1, 2, 8, dropout=0.0)
    model = randomized(EncoderDecoder(SOURCE_VOCAB, TARGET_VOCAB, D_MODEL, encoder, decoder))
    assert model.encoder is encoder and model.decoder is decoder
    assert model.encoder.layers[0] is first and first.self_attention is attention
    expected = logits_of(model)
    attention.output_dense.kernel.assign(-2.0 * attention.output_dense.kernel)
    assert np.abs(logits_of(model) - expected).max() > 0.01


def of_experts(balance=0.7):
    def experts():
        return layers.MixtureOfExperts([layers.FeedForward(5) for _ in range(3)], balance=balance)

    encoder = layers.Encoder([layers.EncoderLayer(HEADS, feed_forward=experts(), dropout=0.0)])
    decoder = layers.Decoder([layers.DecoderLayer(HEADS, feed_forward=experts(), dropout=0.0)])
    model = EncoderDecoder(
        SOURCE_VOCAB, TARGET_VOCAB, D_MODEL, encoder, decoder, PositionalEncoding(), dropout=0.0
    )
    return randomized(model)


@pytest.mark.parametrize("jit_compile", portable_first())
@pytest.mark.slow
def test_fit_balances_experts_over_real_tokens_alone(jit_compile):
    """More padding, on either side, changes no loss."""
    found = []
    for source, target in (
        (SOURCE, TARGET),
        (np.pad(SOURCE, ((0, 0), (0, 4))), np.pad(TARGET, ((0, 0), (0, 3)))),
    ):
        model = of_experts()
        model.compile(
            keras.optimizers.SGD(0.0), lambda y, found: 0.0 * found[..., 0], jit_compile=jit_compile
        )
        inputs = {"source": source, "target": target}
        found.append(model.fit(inputs, target, batch_size=3, verbose=0).history["loss"][0])
    assert found[0] > 0.5
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", portable_first())
@pytest.mark.slow
def test_what_goes_beyond_learned_positions_is_refused(jit_compile):
    model = small(positions=layers.LearnedPositions(16))
    never_end = [MinLength(16)]
    found = model.generate(SOURCE, Greedy(), None, jit_compile, constraints=never_end)
    assert as_numpy(found.lengths)[:, 0].tolist() == [16, 16, 16]
    assert as_numpy(model.generate(np.full((1, 15), 5, "int32"), Greedy(), 3, jit_compile).lengths) <= 3
    with pytest.raises(ValueError, match=r"16 positions.*max_length=17, room=16"):
        model.generate(SOURCE, Greedy(), 17)
    with pytest.raises(ValueError, match="at least 17 and at most 16"):
        model.generate(SOURCE, Greedy(), constraints=[MinLength(17)])
    with pytest.raises(ValueError, match=r"target_lengths=\[17\], room=16"):
        model.score(SOURCE[:1], np.full((1, 17), 7, "int32"))


@pytest.mark.parametrize(
    "arguments", [{}, {"normalize_first": True, "share_embeddings": True}], ids=["default", "other"]
)
def test_weights_keep_their_names(arguments):
    """A change would break the checkpoints of users."""
    attention = [
        f"{name}/{kind}"
        for name in ("query", "key", "value", "attention_output")
        for kind in ("kernel", "bias")
    ]
    norm = ["norm/gamma", "norm/beta"]
    feed_forward = [f"{name}/{kind}" for name in ("inner", "outer") for kind in ("kernel", "bias")]
    parts = {"self_attention": attention, "self_attention_residual": norm}
    parts |= {"feed_forward": feed_forward, "feed_forward_residual": norm}
    cross = {"cross_attention": attention, "cross_attention_residual": norm}
    expected = ["target_embedding/embeddings"]
    expected += [] if arguments else ["source_embedding/embeddings"]
    for stack, more in (("encoder", {}), ("decoder", cross)):
        for i in range(2):
            for part, names in {**parts, **more}.items():
                expected += [f"{stack}/layer_{i}/{part}/{name}" for name in names]
        expected += [f"{stack}/{name}" for name in norm] if arguments else []
    model = Transformer(
        SOURCE_VOCAB, 13, num_layers=2, d_model=D_MODEL, num_heads=HEADS, d_ff=D_FF, **arguments
    )
    found = [weight.path.removeprefix(f"{model.name}/") for weight in model.weights]
    assert sorted(found) == sorted(expected)


def test_positions_of_the_attention_are_sent_there():
    with pytest.raises(
        ValueError, match=r"`RotaryPositions` acts inside attention.*attention=MultiHeadAttention\("
    ):
        Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8, positions=layers.RotaryPositions())


def small_model(**arguments):
    return EncoderDecoder(
        TARGET_VOCAB, None, 4, layers.Encoder(1, 2, 8), layers.Decoder(1, 2, 8), **arguments
    )


def test_sources_beyond_the_positions_are_refused_whatever_came_before():
    model, target = small_model(positions=layers.LearnedPositions(10)), np.array([[5, 6]])
    for length in (5, 6):
        model.score(np.full((1, length), 5), target)
    for ask in (lambda ids: model.score(ids, target), lambda ids: model.generate(ids, max_length=2)):
        with pytest.raises(
            ValueError, match=r"`source` must be within the model's 10 positions.*source_len=12"
        ):
            ask(np.full((1, 12), 5))


def test_padding_for_xla_stays_within_the_positions_of_the_source():
    tables = (layers.LearnedPositions(10), layers.LearnedPositions(40))
    model = small_model(positions=tables[0], target_positions=tables[1])
    assert model.generate(np.full((1, 5), 5), max_length=2, jit_compile=True).tokens.shape == (1, 1, 2)


@pytest.mark.parametrize("target", [[[5, -1]], [[5, 99]], [[5.9, 4.2]]])
def test_score_refuses_what_are_no_ids(target):
    with pytest.raises(ValueError, match=r"`target` must hold ids"):
        small_model().score([[5, 7]], target)


@pytest.mark.parametrize(
    ("encoder", "decoder", "wrong"),
    [
        (lambda: layers.Decoder(1, 2, 8), lambda: layers.Decoder(1, 2, 8), "encoder"),
        (lambda: None, lambda: layers.Decoder(1, 2, 8), "encoder"),
        (lambda: layers.Encoder(1, 2, 8), lambda: layers.Encoder(1, 2, 8), "decoder"),
        (lambda: layers.Encoder(1, 2, 8), lambda: None, "decoder"),
    ],
)
def test_stacks_of_another_class_are_refused(encoder, decoder, wrong):
    with pytest.raises(ValueError, match=rf"`{wrong}` must be (a|of class) `{wrong.title()}`"):
        EncoderDecoder(11, None, 4, encoder(), decoder())


def test_generate_keeps_what_a_subclass_adds_to_the_memory():
    class Marked(NamedTuple):
        states: Any
        mask: Any
        shift: Any

    class Mine(Transformer):
        def encode(self, source, training=None, **options):
            memory = super().encode(source, training, **options)
            return Marked(*memory, 100.0 * ops.one_hot(source[:, :1], TARGET_VOCAB))

        def decode(self, target, memory, **options):
            results = super().decode(target, memory, **options)
            return (
                (results[0] + memory.shift, *results[1:])
                if isinstance(results, tuple)
                else results + memory.shift
            )

    model = Mine(TARGET_VOCAB, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    found = model.generate(np.array([[5, 7], [8, 6]]), max_length=2, jit_compile=False)
    assert as_numpy(found.tokens)[:, 0].tolist() == [[5, 5], [8, 8]]
