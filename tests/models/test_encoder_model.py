"""The encoder model: its states beside NumPy's, its heads, and what padding, pairs and choices change."""

import operator

import keras
import numpy as np
import pytest
import reference
from cases import CLASSES, TEXTS
from cases import ENCODERS as HEADS
from cases import LM_VOCAB as VOCAB
from cases import encoder_model as made
from contracts import as_numpy, assert_close, check_config, check_symbolic_shapes, normal, randomized, refuses
from reference import under, weights_of

from keras_transformer import layers
from keras_transformer.models import (
    ClassificationHead,
    EncoderModel,
    MaskedLanguageHead,
    MultipleChoiceHead,
    Pooler,
    ProjectedPooler,
    SpanHead,
    TaggingHead,
)

D_MODEL = 12
IDS, SEGMENTS = TEXTS.values()
REAL = IDS != 0
EACH_HEAD = pytest.mark.parametrize("head", HEADS)


def reference_states(model, ids=IDS, segments=SEGMENTS):
    """Section 3 and figure 2 of Devlin et al., 2019."""
    weights = weights_of(model)
    x = weights["embeddings/tokens/embeddings"][ids]
    added = under(weights, "embeddings")
    x = x + added["positions/embeddings"][: ids.shape[1]] + added["segments/embeddings"][segments]
    x = reference.layer_norm(under(added, "norm"), x, 1e-12)
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
    if head == "states":
        return states
    if head == "pooler":
        return np.tanh(reference.dense(under(own, "dense"), first))
    if head == "tagging":
        return reference.dense(under(own, "dense"), states)
    if head == "masked_language":
        y = reference.layer_norm(
            under(own, "norm"), gelu(reference.dense(under(own, "dense"), states)), 1e-12
        )
        return y @ weights["embeddings/tokens/embeddings"].T + weights["embeddings/tokens/bias"]
    logits = reference.dense(under(own, "dense"), first)
    return logits[:, 0] if head == "choice" else logits


@EACH_HEAD
def test_outputs_are_those_of_numpy(head):
    model = made(**HEADS[head]())
    assert_close(model(TEXTS), expected_of(model, head), 2e-5)


@pytest.mark.slow
def test_segments_may_be_left_out_and_matter():
    model = made()
    plain = model({"token_ids": IDS})
    assert_close(model(IDS), plain, 0)
    assert_close(plain, model({"token_ids": IDS, "segment_ids": np.zeros_like(IDS)}), 0)
    assert np.abs(as_numpy(plain) - as_numpy(model(TEXTS)))[0].max() > 0.1
    bare = made(segments=None)
    assert_close(bare(IDS), bare(TEXTS), 0)
    assert [[*signature] for signature in bare.input_signature()] == [["token_ids"]]


def test_pre_norm_parts_and_rotary_positions_make_an_encoder_too():
    attention = layers.MultiHeadAttention(3, 4, positions=layers.RotaryPositions())
    layer = layers.EncoderLayer(
        attention=attention, feed_forward=layers.GatedFeedForward(7), dropout=0.0, normalize_first=True,
        norm="rms",
    )  # fmt: skip
    encoder = layers.Encoder([layer])
    model = EncoderModel(layers.Embeddings(VOCAB, D_MODEL, norm=layers.RMSNormalization()), encoder)
    assert {type(model.embeddings.norm), type(model.encoder.norm)} == {layers.RMSNormalization}
    found = as_numpy(randomized(model)(IDS))
    apart = as_numpy(model(IDS[:1, [0, 2, 1, 3, 4, 5]]))
    assert np.abs(found[0, 0] - apart[0, 0]).max() > 1e-3  # the order matters


def test_choices_are_read_one_by_one():
    model = made(**HEADS["choice"]())
    pairs = {name: np.stack([ids, ids[::-1]], axis=1) for name, ids in TEXTS.items()}
    logits = as_numpy(model(pairs))
    assert logits.shape == (3, 2)
    one_by_one = as_numpy(model(TEXTS))
    np.testing.assert_allclose(logits, np.stack([one_by_one, one_by_one[::-1]], axis=1), atol=1e-5)
    tagged = made(**HEADS["tagging"]())(pairs)
    assert tagged.shape == (3, 2, 6, CLASSES)


def test_classes_are_scored_from_the_pooled_vector():
    model = made(**HEADS["classification"]())
    weights = under(weights_of(model), "head/dense")
    assert_close(model(TEXTS), reference.dense(weights, as_numpy(model.pooled(TEXTS))))
    refuses("needs a pooler", made().pooled, TEXTS)


@pytest.mark.slow
def test_a_pooler_may_read_the_mean_of_the_real_tokens_and_end_with_a_norm():
    pooler = Pooler("relu", use_bias=False, norm="layer_without_bias", layer_norm_epsilon=0.1, pooling="mean")
    model = made(head=ClassificationHead(CLASSES, 0.0), pooler=pooler)
    assert [weight.name for weight in pooler.weights] == ["kernel", "gamma"]
    hidden = np.maximum(as_numpy(model.embed(TEXTS)) @ as_numpy(pooler.dense.kernel), 0.0)
    gamma = as_numpy(pooler.norm.gamma)
    pooled = reference.layer_norm({"gamma": gamma, "beta": 0 * gamma}, hidden.astype("float64"), 0.1)
    assert_close(model.pooled(TEXTS), pooled)
    dense = model.head.dense
    assert_close(model(TEXTS), pooled @ as_numpy(dense.kernel) + as_numpy(dense.bias), 1e-5)
    more = {name: np.pad(ids, ((0, 0), (0, 2))) for name, ids in TEXTS.items()}
    assert_close(model(more), model(TEXTS), 1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "first", "last"])
def test_projected_vectors_are_dense_layers_over_the_pooled_states(pooling):
    pooler = ProjectedPooler([5, 7], ["tanh", "linear"], [True, False], pooling)
    model = made(pooler=pooler)
    first, second = pooler.layers
    assert second.bias is None
    first.bias.assign(normal(5))
    x = np.tanh(as_numpy(model.embed(TEXTS, pooling)) @ as_numpy(first.kernel) + as_numpy(first.bias))
    assert model.vector_width("projected") == 7
    assert_close(model.embed(TEXTS, "projected"), x @ as_numpy(second.kernel), 1e-5)
    more = {name: np.pad(ids, ((0, 0), (0, 2))) for name, ids in TEXTS.items()}
    assert_close(model.embed(more, "projected"), model.embed(TEXTS, "projected"), 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "of which there is one at least"),
        (([5], ["tanh", "tanh"], [True]), "must have a value for each of `units`"),
        (([0], ["tanh"], [True]), "`units` must be a positive integer"),
        (([5], ["tanh"], [True], "sum"), "pooling='sum'"),
    ],
)
def test_a_projected_pooler_refuses_lists_that_do_not_fit(arguments, message):
    refuses(message, ProjectedPooler, *arguments)


def test_a_causal_encoder_sees_no_later_token():
    layer = layers.EncoderLayer(2, 7, use_causal_mask=True)
    embeddings = layers.Embeddings(VOCAB, D_MODEL, layers.LearnedPositions(8))
    model = EncoderModel(embeddings, layers.Encoder([layer]))
    changed = IDS.copy()
    changed[:, 2] = 5
    found, before = as_numpy(model.encode(IDS)), as_numpy(model.encode(changed))
    np.testing.assert_array_equal(found[:, :2], before[:, :2])
    assert np.abs(found[:, 2:] - before[:, 2:]).max() > 1e-3


def test_vectors_are_projected_only_with_such_a_pooler():
    with pytest.raises(ValueError, match="needs a model whose pooler is a `ProjectedPooler`"):
        made(pooler=Pooler()).embed(TEXTS, "projected")


@pytest.mark.slow
def test_embeddings_are_means_over_real_tokens_or_the_first_state():
    model = made(**HEADS["classification"]())
    states = reference_states(model)
    means = [row[real].mean(axis=0) for row, real in zip(states, REAL, strict=True)]
    assert_close(model.embed(TEXTS), np.array(means), 2e-5)
    assert_close(model.embed(TEXTS, "first"), states[:, 0], 2e-5)
    last = [row[real][-1] for row, real in zip(states, REAL, strict=True)]
    assert_close(model.embed(TEXTS, "last"), np.array(last), 2e-5)
    highest = [row[real].max(axis=0) for row, real in zip(states, REAL, strict=True)]
    assert_close(model.embed(TEXTS, "max"), np.array(highest), 2e-5)
    for pooling in ("mean", "max", "first", "last"):
        assert_close(model.embed(np.zeros((2, 3), "int32"), pooling), np.zeros((2, D_MODEL)), 0)
    refuses("pooling='attention'", model.embed, TEXTS, "attention")


def test_a_pooling_is_a_pooler_and_heads_read_its_vector():
    for pooler in (layers.Pooling("max"), layers.Pooling("attention")):
        model = made(head=ClassificationHead(CLASSES, 0.0), pooler=pooler)
        vectors = as_numpy(model.pooled(TEXTS))
        assert_close(
            model(TEXTS), vectors @ as_numpy(model.head.dense.kernel) + as_numpy(model.head.dense.bias)
        )
        if pooler.pooling == "max":
            assert_close(vectors, model.embed(TEXTS, "max"))
        more = {name: np.pad(ids, ((0, 0), (0, 2))) for name, ids in TEXTS.items()}
        assert_close(model(more), model(TEXTS), 1e-5)
        assert_close(model.pooled(np.zeros((2, 3), "int32")), np.zeros((2, D_MODEL)), 0)


def test_a_head_has_the_width_of_its_pooler():
    projected = ProjectedPooler([7], ["tanh"], [True], "attention")
    model = made(head=ClassificationHead(CLASSES), pooler=projected)
    assert model.head.dense.kernel.shape == (7, CLASSES)
    refuses("`pooler` must make one vector", made, pooler=layers.FeedForward(5))


def test_a_pooler_as_the_head_leaves_padding_out():
    model = made(head=Pooler(pooling="mean"))
    more = {name: np.pad(ids, ((0, 0), (0, 2))) for name, ids in TEXTS.items()}
    assert_close(model(more), model(TEXTS), 1e-5)


def test_states_tell_a_pooling_of_a_functional_model_what_is_padding():
    inputs = keras.Input((None,), dtype="int32")
    model = made()
    found = keras.Model(inputs, layers.Pooling()(model(inputs)))(TEXTS["token_ids"])
    assert_close(found, model.embed(TEXTS["token_ids"]), 1e-5)


# Other heads.


@pytest.mark.slow
def test_another_head_keeps_what_was_learnt():
    pretrained = made(head=MaskedLanguageHead())
    model = pretrained.with_head(TaggingHead(CLASSES))
    assert_close(model.encode(TEXTS), pretrained.encode(TEXTS), 0)
    assert model(TEXTS).shape == (3, 6, CLASSES)
    pooling = pretrained.with_head(ClassificationHead(3), Pooler())
    again = pooling.with_head(None)
    assert_close(again.pooled(TEXTS), pooling.pooled(TEXTS), 0)
    assert_close(again(TEXTS), pretrained.encode(TEXTS), 0)
    model.head.dense.kernel.assign(0.0 * model.head.dense.kernel)
    assert np.abs(as_numpy(pretrained(TEXTS))).max() > 0.1


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
        (
            ProjectedPooler([5, 7], ["tanh", "linear"], [True, False], "first"),
            ProjectedPooler([3], ["relu"], [1]),
            (3, 7),
        ),
        (SpanHead(0.3), SpanHead(), (3, 6, 2)),
        (ClassificationHead(CLASSES, 0.3, list("abcde"), True), ClassificationHead(4), (3, CLASSES)),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: TaggingHead(2, labels=["a"]), r"num_classes=2. Received: labels=\['a'\]"),
        (lambda: TaggingHead(2, labels=[0, 1]), r"num_classes=2. Received: labels=\[0, 1\]"),
        (lambda: made(head=layers.FeedForward(3)), "`head` must be a `Head`. Received: head=<FeedForward"),
        (lambda: made(pooler=layers.FeedForward(3)), "`pooler` must make one vector .*FeedForward"),
        (lambda: made(encoder=layers.FeedForward(3)), "`encoder` must be .*`Encoder`"),
        (
            lambda: made(encoder=layers.Decoder(1, 3, 7)),
            "`encoder` must be of class `Encoder`. A `Decoder` is not.*Received: encoder=<Decoder",
        ),
        *(
            (lambda shape=shape: made()({**TEXTS, "segment_ids": np.zeros(shape)}), "`segment_ids` must have")
            for shape in [(6, 3), (3, 4), (18,)]
        ),
        (lambda: made(pad_id=VOCAB), f"pad_id={VOCAB}"),
        (lambda: made(pad_id=None), "pad_id=None"),
        (lambda: made(cls_id=-1), "cls_id=-1"),
        (lambda: EncoderModel(11, layers.Encoder(1, 3, 5)), "`embeddings` must be `Embeddings`"),
        (lambda: made(output_bias=False, head=MaskedLanguageHead()), "with `output_bias=True`"),
        (lambda: made()({"tokens": IDS}), r"Received: inputs=\['tokens'\]"),
        (lambda: made()({**TEXTS, "mask": IDS}), "'mask'"),
        (lambda: made()(np.ones((1, 10), "int32")), "max_length=9"),
    ],
)
def test_wrong_arguments_are_named(make, named):
    refuses(named, make)


def test_unset_ids_are_none():
    model = made(cls_id=None, sep_id=None)
    again = EncoderModel.from_config(model.get_config())
    assert (again.cls_id, again.sep_id) == (None, None)


def test_two_classes_may_have_one_name():
    head = TaggingHead(2, labels=["crane", "crane"])
    assert TaggingHead.from_config(head.get_config()).labels == ["crane", "crane"]


def test_embeddings_may_be_narrower_than_the_model():
    model = EncoderModel(
        layers.Embeddings(VOCAB, D_MODEL, embedding_dim=5, output_bias=True),
        layers.Encoder(1, 3, 7),
        head=MaskedLanguageHead(width=5),
        num_separators=2,
    )
    assert model.embeddings.tokens.embeddings.shape == (VOCAB, 5)
    assert model(TEXTS).shape == (3, 6, VOCAB)
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert_close(again(TEXTS), model(TEXTS), 0)
    bare = model.with_head(None)
    assert_close(bare(TEXTS), model.encode(TEXTS), 0)


@pytest.mark.parametrize("name", ["encoder", "embeddings", "embeddings.tokens"])
def test_another_head_leaves_frozen_what_is_frozen(name):
    model = EncoderModel(layers.Embeddings(11, 4, norm=layers.LayerNormalization()), layers.Encoder(2, 2, 8))
    operator.attrgetter(name)(model).trainable = False
    other = model.with_head(ClassificationHead(2))
    for part in ("encoder", "embeddings"):
        flags = [[w.trainable for w in getattr(each, part).weights] for each in (model, other)]
        assert flags[0] == flags[1] and all(flags[0]) != name.startswith(part)
    assert all(w.trainable for w in other.head.weights)


def test_another_head_has_the_numbers_of_a_quantized_model():
    model = EncoderModel(layers.Embeddings(11, 4), layers.Encoder(1, 2, 8))
    model.quantize("int8")
    ids = np.array([[5, 7, 3]])
    assert_close(model.with_head(ClassificationHead(2)).encode(ids), model.encode(ids))


def test_another_head_refuses_lora():
    model = EncoderModel(layers.Embeddings(11, 4), layers.Encoder(1, 2, 8))
    model.encoder.layers[0].feed_forward.inner.enable_lora(2)
    refuses(r"`with_head` cannot copy LoRA's weights", model.with_head, ClassificationHead(2))


def test_the_dropout_of_a_head_acts_in_training_alone():
    model = made(head=ClassificationHead(CLASSES, 0.5))
    assert_close(model(TEXTS), model(TEXTS), 0)
    first, second = (as_numpy(model(TEXTS, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
