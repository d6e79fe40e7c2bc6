"""The encoder model: its states beside NumPy's, its heads, and what padding, pairs and choices change."""

import keras
import numpy as np
import pytest
import reference
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    check_config,
    check_symbolic_shapes,
    compilations,
    config_of,
    needs_bfloat16,
    normal,
    policy,
    randomized,
)
from reference import under, weights_of

from keras_transformer import layers
from keras_transformer.execution.compiled import compiled
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    SpanHead,
    TaggingHead,
)

VOCAB, D_MODEL, CLASSES = 29, 12, 5
IDS = np.array([[2, 7, 11, 3, 9, 3], [2, 6, 3, 8, 3, 0], [2, 3, 0, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]], "int32")
INPUTS = {"token_ids": IDS, "segment_ids": SEGMENTS}
REAL = IDS != 0
HEADS = {
    "none": dict,
    "masked_language": lambda: {"head": MaskedLanguageHead(name="head")},
    "classification": lambda: {
        "head": ClassificationHead(CLASSES, name="head"),
        "pooler": Pooler(name="pooler"),
    },
    "unpooled": lambda: {"head": ClassificationHead(CLASSES, name="head")},
    "choice": lambda: {"head": MultipleChoiceHead(name="head"), "pooler": Pooler(name="pooler")},
    "tagging": lambda: {"head": TaggingHead(CLASSES, name="head")},
    "pooler": lambda: {"head": Pooler(name="head")},
}
EACH_HEAD = pytest.mark.parametrize("head", HEADS)


def made(seed=5, **kwargs):
    """A model of two post-norm layers, with weights that hide nothing."""
    encoder = layers.Encoder(2, 3, 17, dropout=0.0, activation="relu", name="encoder")
    positions = layers.LearnedPositions(9, name="positions")
    arguments = {"dropout": 0.0, "encoder": encoder, "positions": positions, **kwargs}
    model = EncoderModel(VOCAB, D_MODEL, **arguments)
    return randomized(model, seed)


def reference_states(model, ids=IDS, segments=SEGMENTS):
    """Section 3 and figure 2 of Devlin et al., 2019."""
    weights = weights_of(model)
    x = weights["token_embedding/embeddings"][ids]
    x = x + weights["positions/embeddings"][: ids.shape[1]] + weights["segments/embeddings"][segments]
    x = reference.layer_norm(under(weights, "norm"), x, 1e-12)
    return reference.encoder(under(weights, "encoder"), x, 2, ids != 0)


def gelu(x):
    import math

    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def expected_of(model, head):
    """What a head gives, in NumPy."""
    weights, states = weights_of(model), reference_states(model)
    own = under(weights, "head")
    first = states[:, 0]
    if "pooler/dense/kernel" in weights:
        first = np.tanh(reference.dense(under(weights, "pooler/dense"), first))
    if head == "none":
        return states
    if head == "pooler":
        return np.tanh(reference.dense(under(own, "dense"), first))
    if head == "tagging":
        return reference.dense(under(own, "dense"), states)
    if head == "masked_language":
        y = reference.layer_norm(
            under(own, "norm"), gelu(reference.dense(under(own, "dense"), states)), 1e-12
        )
        return y @ weights["token_embedding/embeddings"].T + weights["token_embedding/bias"]
    logits = reference.dense(under(own, "dense"), first)
    return logits[:, 0] if head == "choice" else logits


@EACH_HEAD
def test_outputs_are_those_of_numpy(head):
    model = made(**HEADS[head]())
    assert_close(model(INPUTS), expected_of(model, head), 2e-5)


@EACH_HEAD
def test_padding_changes_no_real_token(head):
    model = made(**HEADS[head]())
    wider = {name: np.pad(ids, ((0, 0), (0, 3))) for name, ids in INPUTS.items()}
    wider["segment_ids"][:, 6:] = 1
    expected, found = as_numpy(model(INPUTS)), as_numpy(model(wider))
    if head in ("none", "masked_language", "tagging"):
        np.testing.assert_allclose(found[:, :6][REAL], expected[REAL], atol=1e-5)
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_row_of_padding_gives_numbers():
    model = made()
    assert np.isfinite(as_numpy(model(np.zeros((2, 4), "int32")))).all()


def test_segments_may_be_left_out_and_matter():
    model = made()
    plain = model({"token_ids": IDS})
    assert_close(model(IDS), plain, 0)
    assert_close(plain, model({"token_ids": IDS, "segment_ids": np.zeros_like(IDS)}), 0)
    assert np.abs(as_numpy(plain) - as_numpy(model(INPUTS)))[0].max() > 0.1
    bare = made(num_segments=0)
    assert bare.segments is None
    assert_close(bare(IDS), bare(INPUTS), 0)


def test_pre_norm_parts_and_rotary_positions_make_an_encoder_too():
    attention = layers.MultiHeadAttention(3, 4, positions=layers.RotaryPositions())
    layer = layers.EncoderLayer(
        attention=attention,
        feed_forward=layers.GatedFeedForward(7),
        dropout=0.0,
        normalize_first=True,
        norm="rms",
    )
    encoder = layers.Encoder([layer])
    model = EncoderModel(VOCAB, D_MODEL, encoder, num_segments=0, norm=layers.RMSNormalization())
    assert {type(model.norm), type(model.encoder.norm)} == {layers.RMSNormalization}
    found = as_numpy(randomized(model)(IDS))
    apart = as_numpy(model(IDS[:1, [0, 2, 1, 3, 4, 5]]))
    assert np.abs(found[0, 0] - apart[0, 0]).max() > 1e-3  # the order matters


def test_choices_are_read_one_by_one():
    model = made(**HEADS["choice"]())
    pairs = {name: np.stack([ids, ids[::-1]], axis=1) for name, ids in INPUTS.items()}
    logits = as_numpy(model(pairs))
    assert logits.shape == (3, 2)
    one_by_one = as_numpy(model(INPUTS))
    np.testing.assert_allclose(logits, np.stack([one_by_one, one_by_one[::-1]], axis=1), atol=1e-5)
    tagged = made(**HEADS["tagging"]())(pairs)
    assert tagged.shape == (3, 2, 6, CLASSES)


def test_the_pooled_vector_is_what_the_classes_are_scored_from():
    model = made(**HEADS["classification"]())
    weights = under(weights_of(model), "head/dense")
    assert_close(model(INPUTS), reference.dense(weights, as_numpy(model.pooled(INPUTS))))
    with pytest.raises(ValueError, match="needs a pooler"):
        made().pooled(INPUTS)


def test_a_pooler_may_read_the_mean_of_the_real_tokens_and_end_with_a_norm():
    pooler = Pooler("relu", use_bias=False, norm="layer_without_bias", layer_norm_epsilon=0.1, pooling="mean")
    model = made(head=ClassificationHead(CLASSES, 0.0), pooler=pooler)
    assert [weight.name for weight in pooler.weights] == ["kernel", "gamma"]
    hidden = np.maximum(as_numpy(model.embed(INPUTS)) @ as_numpy(pooler.dense.kernel), 0.0)
    gamma = as_numpy(pooler.norm.gamma)
    pooled = reference.layer_norm({"gamma": gamma, "beta": 0 * gamma}, hidden.astype("float64"), 0.1)
    assert_close(model.pooled(INPUTS), pooled)
    dense = model.head.dense
    assert_close(model(INPUTS), pooled @ as_numpy(dense.kernel) + as_numpy(dense.bias), 1e-5)
    more = {name: np.pad(ids, ((0, 0), (0, 2))) for name, ids in INPUTS.items()}
    assert_close(model(more), model(INPUTS), 1e-5)


def test_embeddings_are_means_over_real_tokens_or_the_first_state():
    model = made(**HEADS["classification"]())
    states = reference_states(model)
    means = [row[real].mean(axis=0) for row, real in zip(states, REAL, strict=True)]
    assert_close(model.embed(INPUTS), np.array(means), 2e-5)
    assert_close(model.embed(INPUTS, "first"), states[:, 0], 2e-5)
    for pooling in ("mean", "first"):
        assert_close(model.embed(np.zeros((2, 3), "int32"), pooling), np.zeros((2, D_MODEL)), 0)
    with pytest.raises(ValueError, match="pooling='last'"):
        model.embed(INPUTS, "last")


def test_attention_scores_come_after_the_output():
    logits, scores = made(**HEADS["classification"]())(INPUTS, return_attention_scores=True)
    assert logits.shape == (3, CLASSES)
    assert [s.shape for s in scores] == [(3, 3, 6, 6)] * 2
    assert np.all(as_numpy(scores[0])[2, :, :, 2:] == 0)  # padding


def test_it_is_part_of_other_models():
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    model = made(**HEADS["tagging"]())
    outputs = model(inputs)
    assert outputs.shape == (None, None, CLASSES)
    assert_close(keras.Model(inputs, outputs)(INPUTS), model(INPUTS), 0)
    choices = keras.Input((2, 6), dtype="int32")
    assert made(**HEADS["choice"]())(choices).shape == (None, 2)


@EACH_HEAD
def test_it_saves_and_loads(head, tmp_path):
    model = made(**HEADS[head]())
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(INPUTS), model(INPUTS), 1e-6)
    assert config_of(again) == config_of(model)


# XLA for one head
@pytest.mark.parametrize(
    ("head", "jit_compile"),
    [(h, x) for h in HEADS for x in compilations() if not x or h == "masked_language"],
)
def test_compiled_it_is_the_same(head, jit_compile):
    model = made(**HEADS[head]())
    function = compiled(
        lambda ids, segments: model({"token_ids": ids, "segment_ids": segments}), model, jit_compile
    )
    assert_close(function(IDS, SEGMENTS), model(INPUTS), 1e-4)


@EACH_HEAD
@needs_bfloat16
def test_mixed_precision_stays_near_and_logits_are_float32(head):
    model = made(**HEADS[head]())
    with policy("mixed_bfloat16"):  # of the parts too, which are used as they are
        mixed = made(**HEADS[head]())
    found = mixed(INPUTS)
    is_state = head in ("none", "pooler")
    assert keras.backend.standardize_dtype(found.dtype) == ("bfloat16" if is_state else "float32")
    expected = as_numpy(model(INPUTS))
    where = REAL if head in ("none", "masked_language", "tagging") else slice(None)
    difference = np.abs(as_numpy(found) - expected)[where]
    assert difference.max() < 0.1 * np.abs(expected[where]).max()


def test_dropout_is_in_training_alone():
    for arguments in ({"dropout": 0.5}, {"head": ClassificationHead(CLASSES, 0.5)}):
        encoder = layers.Encoder(1, 3, 17, dropout=0.0)
        model = EncoderModel(VOCAB, D_MODEL, encoder, **{"dropout": 0.0, **arguments})
        assert_close(model(IDS), model(IDS), 0)
        first, second = (as_numpy(model(IDS, training=True)) for _ in range(2))
        assert np.abs(first - second).max() > 1e-3


# Training.


@pytest.mark.slow
def test_masked_language_modelling_learns():
    """Each text repeats one token: what is masked stands beside itself."""
    rng, mask_id = np.random.default_rng(0), 4
    texts = rng.integers(5, VOCAB, (96, 1)) + np.zeros((1, 7), int)
    hidden = np.arange(7) == rng.integers(0, 7, (96, 1))
    model = EncoderModel(
        VOCAB,
        24,
        layers.Encoder(1, 3, 32, dropout=0.0, activation="gelu"),
        layers.LearnedPositions(7),
        dropout=0.0,
        head=MaskedLanguageHead(),
    )
    model.compile(
        keras.optimizers.Adam(0.01), MaskedCrossentropy(), metrics=[MaskedAccuracy()], jit_compile=STEP_IN_XLA
    )
    inputs, targets = np.where(hidden, mask_id, texts), np.where(hidden, texts, 0)
    history = model.fit(inputs, targets, batch_size=16, epochs=12, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 4
    assert history["accuracy"][-1] > 0.9


@pytest.mark.slow
def test_pairs_are_classified_by_a_rule():
    """What the second text says decides: both texts hold the same words."""
    keras.utils.set_random_seed(0)
    first, second = np.random.default_rng(1).integers(4, 9, (2, 384))
    mark = np.full(384, 3)
    ids = np.stack([mark - 1, first, mark, second, mark], axis=1)
    inputs = {"token_ids": ids, "segment_ids": np.tile([0, 0, 0, 1, 1], (384, 1))}
    model = EncoderModel(
        9,
        16,
        layers.Encoder(1, 2, 32, dropout=0.0, activation="gelu"),
        dropout=0.0,
        pooler=Pooler(),
        head=ClassificationHead(2, 0.0),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=STEP_IN_XLA)
    history = model.fit(inputs, (second > 6).astype("int32"), batch_size=32, epochs=8, verbose=0).history
    assert history["accuracy"][-1] > 0.95


def test_another_head_keeps_what_was_learnt():
    pretrained = made(head=MaskedLanguageHead())
    model = pretrained.with_head(TaggingHead(CLASSES))
    assert_close(model.encode(INPUTS), pretrained.encode(INPUTS), 0)
    assert model(INPUTS).shape == (3, 6, CLASSES)
    pooling = pretrained.with_head(ClassificationHead(3), Pooler())
    again = pooling.with_head(None)
    assert_close(again.pooled(INPUTS), pooling.pooled(INPUTS), 0)
    assert_close(again(INPUTS), pretrained.encode(INPUTS), 0)
    model.head.dense.kernel.assign(0.0 * model.head.dense.kernel)
    assert np.abs(as_numpy(pretrained(INPUTS))).max() > 0.1


# Parts.


@pytest.mark.parametrize(
    ("head", "default", "shape"),
    [
        (
            Pooler("gelu", 0.3, use_bias=False, norm="rms", layer_norm_epsilon=1e-3, pooling="mean"),
            Pooler(),
            (3, D_MODEL),
        ),
        (
            MaskedLanguageHead("relu", 1e-3, 3, use_bias=False, norm="layer_without_bias"),
            MaskedLanguageHead(),
            (3, 6, 3),
        ),
        (SpanHead(0.3), SpanHead(), (3, 6, 2)),
        (ClassificationHead(CLASSES, 0.3, list("abcde")), ClassificationHead(4), (3, CLASSES)),
        (MultipleChoiceHead(0.3), MultipleChoiceHead(), (3,)),
        (TaggingHead(CLASSES, 0.3, list("abcde")), TaggingHead(4), (3, 6, CLASSES)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_head_keeps_its_arguments_and_says_its_shape(head, default, shape):
    check_config(head)
    if default is not None:  # what was lost on the way would come back as the default
        own = set(head.get_config()) - set(keras.layers.Layer().get_config())
        assert own
        assert not [key for key in own if head.get_config()[key] == default.get_config()[key]]
    states = normal(3, 6, D_MODEL)
    output = head(states)
    assert tuple(output.shape) == shape
    if type(head) is not MultipleChoiceHead:  # whose output has no last axis to be known
        check_symbolic_shapes(lambda: type(head).from_config(head.get_config()), [states], output)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ClassificationHead(0), "num_classes=0"),
        (lambda: ClassificationHead(2, 1.0), "dropout=1.0"),
        (lambda: TaggingHead(2, labels=["a"]), r"num_classes=2. Received: labels=\['a'\]"),
        (lambda: TaggingHead(2, labels=[0, 1]), r"num_classes=2. Received: labels=\[0, 1\]"),
        (
            lambda: made(head=layers.FeedForward(3)),
            "`head` must be a `Head`. Received: head=<FeedForward",
        ),
        (lambda: made(pooler=layers.FeedForward(3)), "`pooler` must be a `Head`"),
        (lambda: made(encoder=layers.FeedForward(3)), "`encoder` must be .*`Encoder`"),
        (lambda: made(pad_id=VOCAB), f"pad_id={VOCAB}"),
        (lambda: made(pad_id=None), "pad_id=None"),
        (lambda: made(cls_id=-1), "cls_id=-1"),
        (lambda: made(num_segments=-1), "num_segments=-1"),
        (lambda: EncoderModel(0, 3, layers.Encoder(1, 3, 5)), "vocab_size=0"),
        (lambda: made()({"tokens": IDS}), r"Received: inputs=\['tokens'\]"),
        (lambda: made()({**INPUTS, "mask": IDS}), "'mask'"),
        (lambda: made()(np.ones((1, 10), "int32")), "max_length=9"),
    ],
)
def test_wrong_arguments_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_ids_that_nobody_said_are_none():
    model = made(cls_id=None, sep_id=None)
    again = EncoderModel.from_config(model.get_config())
    assert (again.cls_id, again.sep_id) == (None, None)


def test_two_classes_may_have_one_name():
    head = TaggingHead(2, labels=["crane", "crane"])
    assert TaggingHead.from_config(head.get_config()).labels == ["crane", "crane"]


def test_a_causal_stack_is_no_encoder():
    with pytest.raises(
        ValueError, match=r"`encoder` must be of class `Encoder`, in which.*Received: encoder=<Decoder"
    ):
        made(encoder=layers.Decoder(1, 3, 7))


@pytest.mark.parametrize("kind", [layers.RotaryPositions, layers.ALiBi])
def test_positions_of_the_attention_are_sent_there(kind):
    with pytest.raises(
        ValueError, match=rf"`{kind.__name__}` acts inside attention.*attention=MultiHeadAttention\("
    ):
        EncoderModel(VOCAB, D_MODEL, layers.Encoder(1, 3, 7), kind())


def test_embeddings_may_be_narrower_than_the_model():
    model = EncoderModel(
        VOCAB,
        D_MODEL,
        layers.Encoder(1, 3, 7),
        embedding_dim=5,
        head=MaskedLanguageHead(width=5),
        num_separators=2,
    )
    assert model.token_embedding.embeddings.shape == (VOCAB, 5)
    assert model(INPUTS).shape == (3, 6, VOCAB)
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert_close(again(INPUTS), model(INPUTS), 0)
    bare = model.with_head(None)
    assert_close(bare(INPUTS), model.encode(INPUTS), 0)


@pytest.mark.parametrize("name", ["encoder", "token_embedding"])
def test_another_head_leaves_frozen_what_is_frozen(name):
    model = EncoderModel(11, 4, layers.Encoder(2, 2, 8))
    getattr(model, name).trainable = False
    other = model.with_head(ClassificationHead(2))
    for part in ("encoder", "token_embedding", "norm"):
        flags = [[w.trainable for w in getattr(each, part).weights][:2] for each in (model, other)]
        assert flags[0] == flags[1]
    assert all(w.trainable for w in other.head.weights)


def test_another_head_has_the_numbers_of_a_quantized_model():
    model = EncoderModel(11, 4, layers.Encoder(1, 2, 8), dropout=0.0)
    model.quantize("int8")
    ids = np.array([[5, 7, 3]])
    assert_close(model.with_head(ClassificationHead(2)).encode(ids), model.encode(ids))


def test_another_head_refuses_lora():
    model = EncoderModel(11, 4, layers.Encoder(1, 2, 8))
    model.encoder.layers[0].feed_forward.inner.enable_lora(2)
    with pytest.raises(ValueError, match=r"`with_head` cannot copy LoRA's weights"):
        model.with_head(ClassificationHead(2))


@pytest.mark.parametrize("shape", [(6, 2), (3, 4), (12,)])
def test_segments_of_another_shape_are_refused(shape):
    model = EncoderModel(11, 4, layers.Encoder(1, 2, 8), num_segments=2)
    inputs = {"token_ids": np.ones((2, 6), "int32"), "segment_ids": np.zeros(shape, "int32")}
    with pytest.raises(ValueError, match=r"`segment_ids` must have the shape of `token_ids`"):
        model(inputs)
