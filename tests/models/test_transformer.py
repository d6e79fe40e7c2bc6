"""The Transformer: the sizes of the paper, NumPy's logits, what it writes, its parts and refusals."""

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from cases import D_FF, D_MODEL, EOS, HEADS, PAD, PAIR, SOURCE, SOURCE_VOCAB, TARGET, TARGET_VOCAB, writer
from cases import transformer as small
from contracts import as_numpy, assert_close, portable_first, randomized, refuses
from keras import ops
from reference import transformer, weights_of

from keras_transformer import layers
from keras_transformer.decoding import Greedy, MinLength
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import EncoderDecoder, Transformer
from keras_transformer.models.transformer import PRESETS

BOTH_NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post_norm", "pre_norm"])


def logits_of(model, source=SOURCE, target=TARGET):
    return as_numpy(model({"source": source, "target": target}))


# Worked by hand


def test_greedy_search_writes_i_am_a_student():
    """I am a student: the input of the decoder is the output, shifted right, and each word gives the next."""
    bos, eos, student, am, i, a = 2, 3, 4, 5, 6, 7
    after = {bos: i, i: am, am: a, a: student, student: eos}

    class Table(Transformer):
        def decode(self, target, memory, **options):
            results = super().decode(target, memory, **options)
            following = ops.take(np.array([after.get(word, eos) for word in range(8)]), target, axis=0)
            logits = 100.0 * ops.one_hot(following, 8)
            return (logits, *results[1:]) if isinstance(results, tuple) else logits

    model = Table(8, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    found = model.generate(np.array([[5, 7]]), Greedy(), 7, jit_compile=False)
    dtypes = [keras.backend.standardize_dtype(part.dtype) for part in found]
    assert dtypes == ["int32", "int32", "float32"]
    found = as_numpy(found)
    assert found.tokens[0, 0].tolist() == [i, am, a, student, eos, PAD, PAD]
    assert found.lengths[0, 0] == 5
    np.testing.assert_allclose(found.scores, [[0.0]], atol=1e-4)


@pytest.mark.slow
def test_tiny_has_the_parameters_of_the_published_model():
    """Transformer-Tiny on Multi30k, one vocabulary of 9,712: 2,568,192 (Wu et al., ACL 2021)."""
    d, ff, vocab, layers = 128, 256, 9712, 4
    attention, feed_forward, norm = 4 * (d * d + d), d * ff + ff + ff * d + d, 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    by_hand = vocab * d + layers * (encoder_layer + decoder_layer)
    assert by_hand == 2_568_192
    assert Transformer.from_preset("tiny", vocab).count_params() == by_hand


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("tiny", (4, 128, 4, 256, 0.3)), ("base", (6, 512, 8, 2048, 0.1)), ("big", (6, 1024, 16, 4096, 0.3))],
)
def test_presets_have_the_published_sizes(preset, sizes):
    names = ("num_layers", "d_model", "num_heads", "d_ff", "dropout")
    assert tuple(PRESETS[preset][name] for name in names) == sizes


def test_preset_arguments_can_be_overridden():
    model = Transformer.from_preset(
        "tiny", 7, 5, num_layers=1, dropout=0.2, normalize_first=True, name="mine"
    )
    config = model.get_config()
    assert (config["num_layers"], config["dropout"], config["normalize_first"]) == (1, 0.2, True)
    assert (config["d_model"], config["target_vocab_size"], model.name) == (128, 5, "mine")


# The forward pass


@pytest.mark.sampled
@BOTH_NORMS
def test_logits_agree_with_numpy(normalize_first):
    model = small(normalize_first=normalize_first)
    expected = transformer(weights_of(model), SOURCE, TARGET, 2, normalize_first)
    assert_close(logits_of(model), expected, 1e-4)


@pytest.mark.slow
def test_one_vocabulary_has_one_embedding():
    model = small(vocabularies=(SOURCE_VOCAB,))
    assert model.source is model.target
    assert_close(logits_of(model), transformer(weights_of(model), SOURCE, TARGET, 2), 1e-4)
    twin = small(vocabularies=(SOURCE_VOCAB, SOURCE_VOCAB), share_embeddings=True)
    assert twin.count_params() == model.count_params()
    assert small(vocabularies=(13, 13)).count_params() == model.count_params() + 13 * D_MODEL


@pytest.mark.slow
def test_embedding_scale_multiplies_the_embeddings():
    model, expected = small(embedding_scale=1.0), small()
    for side in ("source", "target"):
        table = as_numpy(getattr(expected, side).tokens.embeddings)
        getattr(model, side).tokens.embeddings.assign(table * D_MODEL**0.5)
    assert_close(logits_of(model), logits_of(expected) * D_MODEL**0.5, 1e-4)


@pytest.mark.slow
def test_another_pad_id_is_padding():
    model, expected = small(pad_id=1), small()
    renamed = np.select([SOURCE == 0, SOURCE == 1], [1, 0], SOURCE)
    table = as_numpy(expected.source.tokens.embeddings)
    model.source.tokens.embeddings.assign(table[[1, 0, *range(2, SOURCE_VOCAB)]])
    assert_close(logits_of(model, renamed), logits_of(expected))


@pytest.mark.slow
def test_attention_scores_of_every_layer():
    model = small()
    logits, scores = model({"source": SOURCE, "target": TARGET}, return_attention_scores=True)
    assert_close(logits, logits_of(model), 0.0)
    lengths = {"encoder": (7, 7), "decoder": (5, 5), "cross": (5, 7)}
    assert scores.keys() == lengths.keys()
    for name, (target_len, source_len) in lengths.items():
        assert len(scores[name]) == 2
        for weights in map(as_numpy, scores[name]):
            assert weights.shape == (3, HEADS, target_len, source_len)
            # A query that is padding attends to nothing.
            attends = np.ones(weights.shape[:3]) * ((SOURCE != PAD)[:, None] if name == "encoder" else 1.0)
            np.testing.assert_allclose(weights.sum(axis=-1), attends, rtol=1e-5)
            if name != "decoder":
                assert np.all(weights[1, :, :, 4:] == 0) and np.all(weights[2, :, :, 2:] == 0)


@pytest.mark.slow
def test_arguments_reach_every_layer():
    arguments = {
        "attention_dropout": 0.2, "activation_dropout": 0.4, "dropout": 0.3, "layer_norm_epsilon": 1e-3,
    }  # fmt: skip
    model = small(**arguments, activation="gelu", kernel_initializer="he_normal", dtype="mixed_bfloat16")
    model = Transformer.from_config(model.get_config())
    assert model.source.drop.rate == model.target.drop.rate == 0.3
    for layer in (*model.encoder.layers, *model.decoder.layers):
        attention, feed_forward = layer.self_attention, layer.feed_forward
        assert (attention.dropout, feed_forward.dropout, layer.dropout) == (0.2, 0.4, 0.3)
        assert feed_forward.activation is keras.activations.gelu
        assert isinstance(feed_forward.kernel_initializer, keras.initializers.HeNormal)
        assert layer.self_attention_residual.norm.epsilon == 1e-3
        assert layer.dtype_policy.name == "mixed_bfloat16"


def test_a_pair_may_be_the_inputs():
    model = small()
    expected = model({"source": SOURCE, "target": TARGET})
    assert_close(model((SOURCE, TARGET)), expected, 0)
    model.compile("sgd", "mse", jit_compile=False)
    logits = np.zeros(expected.shape, "float32")
    loss = model.evaluate((SOURCE, TARGET), logits, verbose=0)
    np.testing.assert_allclose(loss, (as_numpy(expected) ** 2).mean(), rtol=1e-4)
    refuses(r"or the tuple `\(source, target\)`", model, (SOURCE, TARGET, TARGET))


# Writing


MAX_LENGTH = 11


def written(model, source=SOURCE, **arguments):
    """Hypotheses without the axis of the best: tokens, lengths and scores of each row."""
    arguments = {"max_length": MAX_LENGTH, "jit_compile": False, **arguments}
    return [as_numpy(part)[:, 0] for part in model.generate(source, **arguments)]


@pytest.mark.slow
def test_a_row_ends_at_any_eos_id():
    model = small()
    first = int(written(model)[0][0, 0])
    other = small(eos_id=first)
    other.set_weights(model.get_weights())
    tokens, lengths, _ = written(other)
    assert (tokens[0].tolist(), lengths[0]) == ([first] + [PAD] * (MAX_LENGTH - 1), 1)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", portable_first())
def test_default_limit_is_each_rows_own(jit_compile):
    """Twice its real tokens plus 16, whatever its neighbours and its padding; a model that never ends shows it."""
    model = small()
    table = as_numpy(model.target.tokens.embeddings)
    table[EOS] = 0.0  # a logit of 0 is never the largest
    model.target.tokens.embeddings.assign(table)
    tokens, lengths, _ = written(model, max_length=None, jit_compile=jit_compile)
    assert lengths.tolist() == [2 * 7 + 16, 2 * 4 + 16, 2 * 2 + 16]
    assert tokens.shape == (3, 2 * 7 + 16)
    assert np.all(tokens[2, 2 * 2 + 16 :] == PAD)


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


@pytest.mark.tensorflow
@pytest.mark.slow
def test_outputs_end_with_the_last_learned_position():
    model = small(positions=layers.LearnedPositions(16))
    never_end = [MinLength(16)]
    found = model.generate(SOURCE, Greedy(), jit_compile=False, constraints=never_end)
    assert as_numpy(found.lengths)[:, 0].tolist() == [16, 16, 16]
    assert as_numpy(model.generate(np.full((1, 15), 5, "int32"), Greedy(), 3, False).lengths) <= 3
    refuses(r"16 positions.*max_length=17, room=16", model.generate, SOURCE, Greedy(), 17)
    refuses("at least 17 and at most 16", model.generate, SOURCE, Greedy(), constraints=[MinLength(17)])
    refuses(r"target_lengths=\[17\], room=16", model.score, SOURCE[:1], np.full((1, 17), 7, "int32"))


def test_padding_for_xla_stays_within_the_positions_of_the_source():
    source, target = (layers.Embeddings(TARGET_VOCAB, 4, layers.LearnedPositions(size)) for size in (10, 40))
    model = EncoderDecoder(source, layers.Encoder(1, 2, 8), target, layers.Decoder(1, 2, 8))
    assert model.generate(np.full((1, 5), 5), Greedy(), 1, jit_compile=True).tokens.shape == (1, 1, 1)


@pytest.mark.slow
def test_generate_keeps_a_field_that_a_subclass_adds_to_the_memory():
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


# Parts


def embeddings(*sizes):
    return [layers.Embeddings(size, D_MODEL, PositionalEncoding(), dropout=0.0) for size in sizes]


@pytest.mark.slow
def test_parts_handed_in_are_used_as_they_are():
    """Not copied: a model of another attention in one layer is made of exactly these layers."""
    attention = layers.MultiHeadAttention(3, 2, positions=layers.RotaryPositions())
    first = layers.EncoderLayer(attention=attention, d_ff=5, dropout=0.0)
    encoder = layers.Encoder([first, layers.EncoderLayer(2, 7, dropout=0.0)])
    decoder = layers.Decoder(1, 2, 8, dropout=0.0)
    source, target = embeddings(SOURCE_VOCAB, TARGET_VOCAB)
    model = randomized(EncoderDecoder(source, encoder, target, decoder))
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
    source, target = embeddings(SOURCE_VOCAB, TARGET_VOCAB)
    return randomized(EncoderDecoder(source, encoder, target, decoder))


def test_padding_does_not_count_in_the_balance_of_experts():
    model, found = of_experts(), []
    for more in (0, 3):
        padded = {side: np.pad(ids, ((0, 0), (0, more))) for side, ids in PAIR.items()}
        model(padded, training=True)
        found.append(sum(map(float, model.losses)))
    assert found[0] > 0.5
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


# Files


@pytest.mark.slow
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
    expected = ["target/tokens/embeddings"]
    expected += [] if arguments else ["source/tokens/embeddings"]
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


@pytest.mark.tensorflow
@pytest.mark.slow
def test_an_untrained_model_can_be_exported(tmp_path):
    import tensorflow as tf

    model = small()
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    assert_close(exported.serve({"source": SOURCE, "target": TARGET}), logits_of(model))


def test_an_output_in_two_places_is_one_in_a_file_or_refused(tmp_path):
    tokens, stacks = layers.TokenEmbedding(11, 4), (layers.Encoder(1, 2, 8), layers.Decoder(1, 2, 8))
    source, target = layers.Embeddings(tokens=tokens), layers.Embeddings(11, 4)
    model = EncoderDecoder(source, stacks[0], target, stacks[1], output=tokens)
    model.save(tmp_path / "model.keras")
    for again in (keras.models.clone_model(model), keras.models.load_model(tmp_path / "model.keras")):
        assert again.output_embedding is again.source.tokens and len(again.weights) == len(model.weights)
    with pytest.raises(ValueError, match="`output` must not be made by `Embeddings`"):
        EncoderDecoder(target, stacks[0], source, stacks[1], output=target.tokens)
    model = EncoderDecoder(source, stacks[0], target, stacks[1], output=target.tokens)
    assert model.output_embedding is target.tokens


def test_the_summary_names_the_parts():
    lines = []
    model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    model.summary(print_fn=lines.append, expand_nested=True)
    assert "PositionalEncoding" in "".join(lines)


# Refusals


def small_model(positions=None, **arguments):
    shared = layers.Embeddings(TARGET_VOCAB, 4, positions)
    return EncoderDecoder(shared, layers.Encoder(1, 2, 8), shared, layers.Decoder(1, 2, 8), **arguments)


@pytest.mark.slow
def test_sources_beyond_the_positions_are_refused_after_any_call():
    model, target = small_model(positions=layers.LearnedPositions(10)), np.array([[5, 6]])
    for length in (5, 6):
        model.score(np.full((1, length), 5), target)
    for ask in (lambda ids: model.score(ids, target), lambda ids: model.generate(ids, max_length=2)):
        refuses(r"`source` must be within the model's 10 positions.*source_len=12", ask, np.full((1, 12), 5))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
def test_ids_of_another_rank_are_refused_in_a_forward_pass(shape):
    ids = np.ones(shape, "int32")
    with pytest.raises(
        ValueError, match=r"`token_ids` must have shape `\(batch, source_len\)`\. Received: shape="
    ):
        small()({"source": ids, "target": ids})


def test_unknown_preset_is_refused():
    refuses(r"\['base', 'big', 'tiny'\]. Received: preset='huge'\.", Transformer.from_preset, "huge", 7)


def test_inputs_without_source_and_target_are_refused():
    model = Transformer(11, num_layers=1, d_model=4, num_heads=2, d_ff=8)
    for wrong in (np.ones((1, 2), "int32"), {"source": np.ones((1, 2), "int32")}):
        refuses("`inputs` must be a dict with `source` and `target`", model, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("target", [[[5, -1]], [[5, 99]], [[5.9, 4.2]]])
def test_score_refuses_targets_that_are_not_ids(target):
    refuses(r"`target` must hold ids", small_model().score, [[5, 7]], target)


@pytest.mark.parametrize(
    ("encoder", "decoder", "wrong"),
    [
        (layers.Decoder, layers.Decoder, "encoder"),
        (None, layers.Decoder, "encoder"),
        (layers.Encoder, layers.Encoder, "decoder"),
        (layers.Encoder, None, "decoder"),
    ],
)
def test_stacks_of_another_class_are_refused(encoder, decoder, wrong):
    with pytest.raises(ValueError, match=rf"`{wrong}` must be (a|of class) `{wrong.title()}`"):
        encoder, decoder = (kind and kind(1, 2, 8) for kind in (encoder, decoder))
        EncoderDecoder(layers.Embeddings(11, 4), encoder, layers.Embeddings(11, 4), decoder)


def test_embeddings_with_another_padding_are_refused():
    stacks = layers.Encoder(1, 2, 8), layers.Decoder(1, 2, 8)
    for source, target, wrong in ((7, 0, "source"), (0, 7, "target")):
        parts = layers.Embeddings(11, 4, pad_id=source), layers.Embeddings(11, 4, pad_id=target)
        with pytest.raises(ValueError, match=f"`pad_id` of the `{wrong}` must be that of the model, 0"):
            EncoderDecoder(parts[0], stacks[0], parts[1], stacks[1])


@pytest.mark.parametrize(("source", "target", "message"), [
    (11, layers.Embeddings(11, 4), "`source` must be a layer that gives"),
    (layers.Embeddings(11, 4), keras.layers.Embedding(11, 4), "`target` must be `Embeddings`"),
    (layers.Embeddings(11, 6), layers.Embeddings(11, 4), "must have one `output_dim`.*source=6, target=4"),
])  # fmt: skip
def test_embeddings_that_do_not_fit_are_refused(source, target, message):
    refuses(message, EncoderDecoder, source, layers.Encoder(1, 2, 8), target, layers.Decoder(1, 2, 8))
