"""Encoder and decoder layers and their stacks: a layer worked by hand, NumPy's numbers, masks, and decoding."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, mask_of, normal, randomized, refuses, with_mask
from keras import ops, tree
from reference import decoder, decoder_layer, encoder, encoder_layer, weights_of

from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEncoding,
    Residual,
    TokenEmbedding,
)

BATCH, LENGTH, SOURCE_LEN, D_MODEL, FEATURES, HEADS, D_FF, LAYERS = 2, 5, 7, 6, 13, 3, 11, 2
X, MEMORY = normal(BATCH, LENGTH, D_MODEL), normal(BATCH, SOURCE_LEN, FEATURES)
REAL = np.array([[True] * 5, [True] * 3 + [False] * 2])
MEMORY_REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])
MASKS = {"padding_mask": REAL, "memory_padding_mask": MEMORY_REAL}
KINDS = {EncoderLayer: encoder_layer, Encoder: encoder, DecoderLayer: decoder_layer, Decoder: decoder}
BOTH_NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post_norm", "pre_norm"])
EACH = pytest.mark.parametrize("kind", KINDS)
ENCODING = pytest.mark.parametrize("kind", [EncoderLayer, Encoder])
DECODING = pytest.mark.parametrize("kind", [DecoderLayer, Decoder])


def is_stack(kind):
    return issubclass(kind, Encoder)


def is_decoder(kind):
    return kind in (DecoderLayer, Decoder)


def sizes_of(kind):
    return (LAYERS, HEADS, D_FF) if is_stack(kind) else (HEADS, D_FF)


def inputs_of(kind, masked=True):
    """The tensors of a call, and the masks of each."""
    if is_decoder(kind):
        return (X, MEMORY), MASKS if masked else {}
    return (X,), {"padding_mask": REAL} if masked else {}


def built(kind, **arguments):
    made = kind(*sizes_of(kind), **{"dropout": 0.0, **arguments})
    made.build(*(x.shape for x in inputs_of(kind)[0]))
    return randomized(made)


# Worked by hand


@pytest.mark.parametrize(
    ("layer_class", "normalize_first", "expected"),
    [
        # The mean (2, 2) is added: (5, 3), (3, 5), normalised (1, -1), (-1, 1). Then (0, 3) is added to the first.
        (EncoderLayer, False, [[-1, 1], [-1, 1]]),
        # The mean of (1, -1) and (-1, 1) is 0. The network adds (0, 3) to the first.
        (EncoderLayer, True, [[3, 4], [1, 3]]),
        # The first token attends to itself alone: (6, 2), (3, 5), and the same as above after the norm.
        (DecoderLayer, False, [[-1, 1], [-1, 1]]),
        # The first token attends to itself alone: (3, 1) + (1, -1) = (4, 0). The network adds (0, 3).
        (DecoderLayer, True, [[4, 3], [1, 3]]),
    ],
)
def test_encoder_layer_of_two_tokens_worked_by_hand(layer_class, normalize_first, expected):
    """Tokens (3, 1), (1, 3). Attention is the mean of what is seen, the network gives 3 max(0, first) in the second."""
    layer = layer_class(1, 2, dropout=0.0, normalize_first=normalize_first)
    x = np.array([[[3, 1], [1, 3]]], "float32")
    layer.build(x.shape)
    attention, network = layer.self_attention, layer.feed_forward
    for weight in (*attention.weights, *network.weights):
        weight.assign(ops.zeros(weight.shape))
    attention.value_dense.kernel.assign(np.eye(2)[:, None])
    attention.output_dense.kernel.assign(np.eye(2)[None])
    network.inner.kernel.assign(np.eye(2))
    network.outer.kernel.assign([[0, 3], [0, 0]])
    assert_close(layer(x), np.array([expected], "float64"))


# The numbers of NumPy


@BOTH_NORMS
@pytest.mark.parametrize("masked", [False, True], ids=["full", "padded"])
@EACH
@pytest.mark.sampled
def test_agrees_with_numpy(kind, masked, normalize_first):
    made, (inputs, masks) = built(kind, normalize_first=normalize_first), inputs_of(kind, masked)
    real = [masks.get(name) for name in list(MASKS)[: len(inputs)]]
    layers = (LAYERS,) if is_stack(kind) else ()
    expected = KINDS[kind](weights_of(made), *inputs, *layers, *real, normalize_first)
    assert_close(made(*inputs, **masks), expected, 3e-5)


@EACH
def test_heads_of_a_size_of_their_own_agree_with_numpy(kind):
    """Four heads do not divide the width, 6. A decoder attends to its memory with heads of that size too."""
    sizes = (LAYERS, 4, D_FF) if is_stack(kind) else (4, D_FF)
    made, (inputs, masks) = kind(*sizes, dropout=0.0, key_dim=5), inputs_of(kind)
    made.build(*(x.shape for x in inputs))
    layers = (LAYERS,) if is_stack(kind) else ()
    expected = KINDS[kind](weights_of(randomized(made)), *inputs, *layers, *masks.values(), False)
    assert_close(made(*inputs, **masks), expected, 3e-5)
    assert {w.shape[1:] for w in made.weights if "query/kernel" in w.path} == {(4, 5)}


def test_attention_norm_false_leaves_the_input_without_a_norm():
    made = built(EncoderLayer, normalize_first=True, attention_norm=False)
    assert len(made.weights) == len(built(EncoderLayer, normalize_first=True).weights) - 2
    attended = X + as_numpy(made.self_attention(X, X))
    expected = attended + as_numpy(made.feed_forward(made.feed_forward_residual.norm(attended)))
    assert_close(made(X), expected)
    assert type(made).from_config(made.get_config()).attention_norm is False


# Masks


@EACH
def test_implicit_masks_are_read_and_passed_on_and_explicit_ones_win(kind):
    made, (inputs, masks) = built(kind), inputs_of(kind)
    marked = [with_mask(ops.convert_to_tensor(x), m) for x, m in zip(inputs, masks.values(), strict=True)]
    output = made(*marked)
    assert_close(output, made(*inputs, **masks), 0.0)
    for tensor, mask in zip((output, *marked), (REAL, *masks.values()), strict=True):
        np.testing.assert_array_equal(as_numpy(mask_of(tensor)), mask)
    assert np.abs(as_numpy(output) - as_numpy(made(*inputs))).max() > 1e-3
    others = {
        name: np.roll(~mask, 1, axis=1) | (np.arange(mask.shape[1]) == 2) for name, mask in masks.items()
    }
    assert_close(made(*marked, **others), made(*inputs, **others), 0.0)


@EACH
def test_padding_changes_no_real_token(kind):
    """Padding on the left: no causal mask hides it. Of a decoder, the memory's padding too."""
    made, noise = built(kind), normal(BATCH, 3, D_MODEL, seed=1, scale=100.0)
    padded, real = np.concatenate([noise, X], axis=1), np.tile(np.arange(3 + LENGTH) >= 3, (BATCH, 1))
    if is_decoder(kind):
        more = np.concatenate([MEMORY, normal(BATCH, 2, FEATURES, seed=1, scale=100.0)], axis=1)
        memory_real = np.tile(np.arange(SOURCE_LEN + 2) < SOURCE_LEN, (BATCH, 1))
        found = made(padded, more, padding_mask=real, memory_padding_mask=memory_real)
    else:
        found = made(padded, padding_mask=real)
    assert_close(found[:, 3:], made(*inputs_of(kind)[0]))


@pytest.mark.slow
@ENCODING
def test_attention_mask_and_padding_mask_act_together(kind):
    made, causal = built(kind), np.tril(np.ones((1, LENGTH, LENGTH), bool))
    expected = made(X, attention_mask=causal & REAL[:, None, :] & REAL[:, :, None])
    assert_close(made(X, padding_mask=REAL, attention_mask=causal), expected, 0.0)
    assert_close(made(with_mask(ops.convert_to_tensor(X), REAL), attention_mask=causal), expected, 0.0)


@EACH
def test_attention_scores_are_distributions_over_visible_tokens(kind):
    """A masked query attends to nothing. The scores of a decoder come in pairs, before the cache."""
    made, (inputs, masks) = built(kind), inputs_of(kind)
    output, scores = made(*inputs, **masks, return_attention_scores=True)
    assert_close(output, made(*inputs, **masks), 0.0)
    scores = scores if is_stack(kind) else [scores]
    assert len(scores) == (LAYERS if is_stack(kind) else 1)
    hidden = [~REAL[:, None, None]]
    if is_decoder(kind):
        hidden = [hidden[0] | ~np.tri(LENGTH, dtype=bool), ~MEMORY_REAL[:, None, None]]
    for of_layer in tree.flatten(scores):
        never = hidden[of_layer.shape[-1] == SOURCE_LEN]
        of_layer = as_numpy(of_layer)
        assert of_layer.shape == (BATCH, HEADS, LENGTH, never.shape[-1])
        np.testing.assert_allclose(of_layer.sum(-1), np.repeat(REAL[:, None], HEADS, axis=1), rtol=1e-5)
        assert np.all(of_layer[np.broadcast_to(never, of_layer.shape)] == 0)
    if is_decoder(kind):
        cache = made.empty_cache(BATCH, 7)
        options = {"memory_padding_mask": MEMORY_REAL, "cache": cache, "index": 0}
        output, scores, new_cache = made(X, MEMORY, **options, return_attention_scores=True)
        assert_close(output, made(X, MEMORY, memory_padding_mask=MEMORY_REAL))
        tree.assert_same_structure(new_cache, cache)
        later = np.arange(7) > np.arange(LENGTH)[:, None]
        own, of_memory = scores[-1] if is_stack(kind) else scores
        assert np.all(as_numpy(own)[:, :, later] == 0) and of_memory.shape[-1] == SOURCE_LEN


# Decoding


@pytest.mark.slow
@BOTH_NORMS
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("chunk", [1, 3])
@DECODING
def test_decoding_in_chunks_equals_one_pass(kind, chunk, padded, normalize_first):
    made, slots = built(kind, normalize_first=normalize_first), 7
    real = np.array([[True] * slots, [False, True, False] + [True] * (slots - 3)]) if padded else None
    options = {"memory_padding_mask": MEMORY_REAL if padded else None}
    at_once = as_numpy(made(X, MEMORY, padding_mask=real[:, :LENGTH] if padded else None, **options))
    cache, memory = made.empty_cache(BATCH, slots), made.project_memory(MEMORY)
    for start in range(0, LENGTH, chunk):
        x = X[:, start : start + chunk]
        output, cache = made(x, memory, padding_mask=real, cache=cache, index=start, **options)
        # The output of padding has no meaning: only without a cache does it attend to nothing.
        now = slice(start, start + x.shape[1])
        kept = np.ones((BATCH, x.shape[1]), bool) if real is None else real[:, now]
        assert_close(as_numpy(output)[kept], at_once[:, now][kept])


@DECODING
def test_projected_memory_gives_the_output_of_the_memory(kind):
    made = built(kind)
    expected = made(X, MEMORY, memory_padding_mask=MEMORY_REAL)
    assert_close(made(X, made.project_memory(MEMORY), memory_padding_mask=MEMORY_REAL), expected, 1e-6)


# A memory without causality


def test_a_decoder_that_is_not_causal_is_an_encoder_with_a_memory():
    made = built(Decoder, use_causal_mask=False)
    assert type(made).from_config(made.get_config()).get_config()["use_causal_mask"] is False
    last_changed = np.concatenate([X[:, :-1], X[:, -1:] + 1], axis=1)
    assert np.abs(as_numpy(made(last_changed, MEMORY) - made(X, MEMORY))[:, 0]).max() > 1e-3
    alone = Decoder(*sizes_of(Decoder), dropout=0.0, use_causal_mask=False)
    encoder = Encoder(*sizes_of(Encoder), dropout=0.0)
    for each in (alone, encoder):
        each.build(X.shape)
    encoder.set_weights(randomized(alone).get_weights())
    assert_close(alone(X, padding_mask=REAL), encoder(X, padding_mask=REAL))
    refuses("`cache` needs `use_causal_mask=True`", alone, X, cache=alone.empty_cache(BATCH, LENGTH))


def test_one_row_of_queries_serves_all_memories():
    """Known sizes, open ones, and queries that are no input of the model."""
    made, queries = built(Decoder, use_causal_mask=False), X[:1]
    expected = made(np.repeat(queries, BATCH, axis=0), MEMORY, memory_padding_mask=MEMORY_REAL)
    assert_close(made(queries, MEMORY, memory_padding_mask=MEMORY_REAL), expected)
    memory, mask = keras.Input(MEMORY.shape[1:]), keras.Input((SOURCE_LEN,), dtype="bool")
    for x in (keras.Input(X.shape[1:]), queries):
        output, scores = made(x, memory, memory_padding_mask=mask, return_attention_scores=True)
        assert output.shape == made.compute_output_shape(x.shape, memory.shape) == (None, LENGTH, D_MODEL)
        assert scores[-1][1].shape == (None, HEADS, LENGTH, SOURCE_LEN)
        given = [queries] if x is not queries else []
        inputs = [x, memory, mask][1 - len(given) :]
        assert_close(keras.Model(inputs, output)([*given, MEMORY, MEMORY_REAL]), expected)
    assert made.compute_output_shape((1, LENGTH, D_MODEL), MEMORY.shape) == (BATCH, LENGTH, D_MODEL)


# Training


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["dropout", "attention_dropout", "activation_dropout"])
@EACH
def test_dropout_follows_the_training_argument(kind, dropout):
    """As in Gal and Ghahramani, 2016, "Dropout as a Bayesian Approximation": `training=True` reaches each dropout."""

    class AlwaysDropping(kind):
        def call(self, x, memory=None, **kwargs):
            return super().call(x, **{**kwargs, "training": True})

    made, plain = built(kind, **{dropout: 0.5}), built(kind)
    inputs, _ = inputs_of(kind)
    assert_close(made(*inputs), plain(*inputs), 0.0)
    assert np.abs(as_numpy(made(*inputs, training=True)) - as_numpy(plain(*inputs))).max() > 1e-3
    always = AlwaysDropping(*sizes_of(kind), **{"dropout": 0.0, dropout: 0.5})
    assert np.any(as_numpy(always(X)) != as_numpy(always(X)))


def test_stochastic_depth_rises_to_the_last_layer_of_a_stack():
    made, plain = (Decoder(4, HEADS, D_FF, dropout=0.0, **each) for each in ({"stochastic_depth": 0.8}, {}))
    assert [layer.stochastic_depth for layer in made.layers] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    for each in (made, plain):
        each.build(X.shape, MEMORY.shape)
    names = ("self_attention_residual", "cross_attention_residual", "feed_forward_residual")
    assert [getattr(made.layers[1], name).drop_rows.rate for name in names] == pytest.approx([0.4] * 3)
    assert [getattr(plain.layers[1], name).drop_rows for name in names] == [None] * 3
    for weight, own in zip(plain.trainable_weights, made.trainable_weights, strict=True):
        own.assign(weight)
    assert_close(made(X, MEMORY), plain(X, MEMORY), 0.0)
    assert np.abs(as_numpy(made(X, MEMORY, training=True) - plain(X, MEMORY))).max() > 0.1
    with pytest.raises(
        ValueError, match=r"`stochastic_depth` must be in \[0, 1\)\. Received: stochastic_depth=1\.5"
    ):
        Encoder(3, HEADS, D_FF, stochastic_depth=1.5)


def test_layers_of_a_stack_have_different_initial_weights():
    made = Encoder(LAYERS, HEADS, D_FF)
    made.build(X.shape)
    first, second = (part.self_attention.query_dense.kernel for part in made.layers)
    assert np.abs(as_numpy(first) - as_numpy(second)).max() > 0.01


# Models


IDS = (
    np.array([[2, 5, 3, 1, 4], [2, 6, 1, 0, 0]], "int32"),
    np.array([[5, 3, 2, 4, 1, 3, 2], [4, 2, 6, 1, 0, 0, 0]], "int32"),
)


class Subclassed(keras.Model):
    def __init__(self, embed, stack):
        super().__init__()
        self.embed = embed
        self.stack = stack

    def call(self, inputs):
        return self.stack(*map(self.embed, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_sequential_functional_and_subclassed_models_mask_alike(kind):
    embed = keras.Sequential([TokenEmbedding(7, D_MODEL, pad_id=0), PositionalEncoding()])
    stack = kind(LAYERS, HEADS, D_FF, dropout=0.0)
    ids = IDS[: 1 + is_decoder(kind)]
    inputs = [keras.Input((None,), dtype="int32") for _ in ids]
    functional = keras.Model(inputs, stack(*map(embed, inputs)))
    randomized(functional)
    masks = {name: each != 0 for name, each in zip(MASKS, ids, strict=False)}
    expected = as_numpy(stack(*(ops.copy(embed(each)) for each in ids), **masks))
    for model in (functional, Subclassed(embed, stack)):
        assert_close(model(list(ids)), expected)
        assert_close(model.predict(list(ids), verbose=0), expected)
    if kind is Encoder:
        sequential = keras.Sequential([*embed.layers, stack])
        assert_close(sequential(IDS[0]), expected)
        assert_close(sequential.predict(IDS[0], verbose=0), expected)


def test_scores_of_a_decoder_without_a_memory_are_outputs_of_a_functional_model():
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, Decoder(2, 2, 8)(inputs, return_attention_scores=True))
    output, scores = model(np.ones((1, 3, 4)))
    assert tuple(output.shape) == (1, 3, 4) and [tuple(each.shape) for each in scores] == [(1, 2, 3, 3)] * 2


def test_summary_shows_every_layer_inside_a_stack():
    inputs, lines = keras.Input((3, 4)), []
    model = keras.Model(inputs, Encoder(1, 2, 8, normalize_first=True)(inputs))
    model.summary(expand_nested=True, print_fn=lambda text, **_: lines.append(text), line_length=120)
    text = "\n".join(lines)
    for name in ("layer_0", "self_attention ", "query", "feed_forward ", "inner", "self_attention_residual"):
        assert text.count(name) == 1, name


def test_output_shapes_follow_from_those_of_the_inputs():
    attention = MultiHeadAttention(2, 3, output_shape=7)
    assert attention.compute_output_shape((None, 5, 6), (None, 4, 6)) == (None, 5, 7)
    assert Decoder(2, 3, 8).compute_output_shape((None, 5, 6), (None, 4, 11)) == (None, 5, 6)


def test_int_inputs_are_accepted():
    made = built(EncoderLayer)
    numbers = np.arange(BATCH * LENGTH * D_MODEL).reshape(X.shape) % 5
    assert_close(made(numbers), made(numbers.astype("float32")))


# Layers of your own in a stack


def test_a_layer_of_a_stack_may_take_the_rest_as_kwargs():
    class TakesTheRest(EncoderLayer):
        def call(self, x, **kwargs):
            return super().call(x, **kwargs)

    plain, taking = Encoder(1, HEADS, D_FF), Encoder([TakesTheRest(HEADS, D_FF)])
    x, mask = keras.Input((LENGTH, D_MODEL)), keras.Input((LENGTH,), dtype="bool")
    model = keras.Model([x, mask], taking(x, padding_mask=mask))
    plain.build(X.shape)
    plain.set_weights(taking.get_weights())
    assert_close(model([X, REAL]), plain(X, padding_mask=REAL, training=False))


@pytest.mark.parametrize("stack_class", [Encoder, Decoder])
def test_a_layer_of_a_stack_takes_the_arguments_of_its_call(stack_class):
    class Narrow(stack_class.layer_class):
        def call(self, x, padding_mask=None, training=None):
            return super().call(x, padding_mask=padding_mask, training=training)

    class Wide(Narrow):
        def call(self, x, padding_mask=None, **kwargs):
            return super().call(x, padding_mask)

    assert stack_class([Wide(HEADS, D_FF)])(X).shape == X.shape
    with pytest.raises(ValueError, match=r"`call` of `num_layers\[1\]` .* Narrow\.call\(x.*without \['"):
        stack_class([Wide(HEADS, D_FF), Narrow(HEADS, D_FF)])


@keras.saving.register_keras_serializable("test_stacks")
class _Shallow(EncoderLayer):
    """Its norms have an option that the constructor sets after `super().__init__`."""

    def __init__(self, *args, epsilon, **kwargs):
        super().__init__(*args, **kwargs)
        self.epsilon = epsilon

    def make_residual(self, name):
        return Residual(self.dropout, self.normalize_first, self.epsilon, name=name)


@BOTH_NORMS
def test_make_residual_reads_attributes_of_the_subclass(normalize_first):
    stack = Encoder([_Shallow(2, 8, epsilon=0.5, normalize_first=normalize_first)])
    stack(X[:, :, :4])
    layer = Encoder.from_config(stack.get_config()).layers[0]
    norms = stack.layers[0].feed_forward_residual.norm, layer.self_attention_residual.norm, stack.norm
    assert {norm.epsilon for norm in norms if norm is not None} == {0.5}


# Refusals


def changed_feed_forward(layer):
    return lambda: EncoderLayer(HEADS, feed_forward=layer)(X)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: EncoderLayer(4, D_FF).build((None, None, 6)), r"divisible.*Received: d_model=6, num_heads=4\."),
    (lambda: DecoderLayer(5, D_FF).build((None, None, 6), (None, None, 13)), r"d_model=6, num_heads=5\."),
    (lambda: built(EncoderLayer, attention_norm=False), "`attention_norm=False` needs `normalize_first=True`"),
    (lambda: EncoderLayer(HEADS, D_FF)(keras.Input((None, None))), "`d_model`, the last axis of `x`, must be"),
    (changed_feed_forward(keras.layers.Dense(5)), "must have the shape of its input"),
    (changed_feed_forward(keras.layers.GlobalAveragePooling1D()), "must have the shape of its input"),
    (lambda: DecoderLayer(HEADS, D_FF)(X, memory_padding_mask=MEMORY_REAL), "needs a `memory`"),
])  # fmt: skip
def test_wrong_arguments_are_named(make, message):
    refuses(message, make)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "x", "masks", "message"), [
    (EncoderLayer, X[0], {}, "expected min_ndim=3, found ndim=2"),
    (EncoderLayer, np.tile(X, 2), {}, "expected axis -1 of input shape to have value 6"),
    (EncoderLayer, X, {"padding_mask": REAL[:, 1:]}, r"`padding_mask` must fit .* \(2, 5\).* shape=\(2, 4\)"),
    (EncoderLayer, X, {"attention_mask": REAL}, r"`attention_mask` must fit .* \(5, 5\).* shape=\(2, 5\)"),
    (DecoderLayer, X, {"memory_padding_mask": REAL}, r"must fit .* \(2, 7\).* shape=\(2, 5\)"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(kind, x, masks, message):
    refuses(message, built(kind), x, *inputs_of(kind)[0][1:], **masks)
