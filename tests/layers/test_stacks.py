"""Encoder and decoder layers and their stacks: NumPy's numbers, masks, dropout, and decoding step by step."""

import keras
import numpy as np
import pytest
from contracts import STEP_IN_XLA, as_numpy, assert_close, mask_of, normal, randomized, slow_but, with_mask
from keras import ops, tree
from reference import decoder, decoder_layer, encoder, encoder_layer, weights_of

from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEncoding,
    TokenEmbedding,
)


class TakesTheRest(EncoderLayer):
    def call(self, x, **kwargs):
        return super().call(x, **kwargs)


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


def test_the_first_layer_may_leave_its_input_as_it_is():
    made = built(EncoderLayer, normalize_first=True, attention_norm=False)
    assert len(made.weights) == len(built(EncoderLayer, normalize_first=True).weights) - 2
    attended = X + as_numpy(made.self_attention(X, X))
    expected = attended + as_numpy(made.feed_forward(made.feed_forward_residual.norm(attended)))
    assert_close(made(X), expected)
    assert type(made).from_config(made.get_config()).attention_norm is False


# Masks


@EACH
def test_implicit_masks_are_the_explicit_ones(kind):
    made, (inputs, masks) = built(kind), inputs_of(kind)
    marked = [with_mask(ops.convert_to_tensor(x), m) for x, m in zip(inputs, masks.values(), strict=True)]
    output = made(*marked)
    assert_close(output, made(*inputs, **masks), 0.0)
    for tensor, mask in zip((output, *marked), (REAL, *masks.values()), strict=True):
        np.testing.assert_array_equal(as_numpy(mask_of(tensor)), mask)
    assert np.abs(as_numpy(output) - as_numpy(made(*inputs))).max() > 1e-3


@EACH
def test_explicit_masks_win_over_the_implicit_ones(kind):
    made, (inputs, masks) = built(kind), inputs_of(kind)
    marked = [with_mask(ops.convert_to_tensor(x), m) for x, m in zip(inputs, masks.values(), strict=True)]
    others = {
        name: np.roll(~mask, 1, axis=1) | (np.arange(mask.shape[1]) == 2) for name, mask in masks.items()
    }
    assert_close(made(*marked, **others), made(*inputs, **others), 0.0)


@BOTH_NORMS
@EACH
@pytest.mark.sampled
def test_padding_changes_no_real_token(kind, normalize_first):
    """Of the source; of a decoder the memory's, and padding on the left, which the causal mask does not hide."""
    made = built(kind, normalize_first=normalize_first)
    for more in (1, 3, 5):
        noise = [normal(1, more, n, seed=1, scale=100.0) for n in (D_MODEL, FEATURES)]
        if is_decoder(kind):
            padded = np.concatenate([MEMORY[1:, :4], noise[1]], axis=1)
            found = made(X[1:], padded, memory_padding_mask=np.arange(4 + more)[None] < 4)
            assert_close(found, made(X[1:], MEMORY[1:, :4]))
            left = np.concatenate([noise[0], X[1:]], axis=1)
            found = made(left, MEMORY[1:], padding_mask=np.arange(LENGTH + more)[None] >= more)
            assert_close(found[:, more:], made(X[1:], MEMORY[1:]))
        else:
            padded = np.concatenate([X[1:, :4], noise[0]], axis=1)
            found = made(padded, padding_mask=np.arange(4 + more)[None] < 4)
            assert_close(found[:, :4], made(X[1:, :4]))


@ENCODING
def test_every_real_token_reaches_every_other(kind):
    made = built(kind)
    for position in range(LENGTH):
        changed = X.copy()
        changed[:, position] = normal(BATCH, D_MODEL, seed=2)
        assert np.all(np.abs(as_numpy(made(changed)) - as_numpy(made(X))).max(axis=-1) > 1e-4)


@BOTH_NORMS
@DECODING
@pytest.mark.sampled
def test_later_tokens_changed_change_nothing_before(kind, normalize_first):
    made = built(kind, normalize_first=normalize_first)
    expected = as_numpy(made(X, MEMORY))
    for position in range(1, LENGTH):
        changed = X.copy()
        changed[:, position:] = normal(BATCH, LENGTH - position, D_MODEL, seed=position, scale=10.0)
        found = as_numpy(made(changed, MEMORY))
        assert_close(found[:, :position], expected[:, :position], 1e-6)
        assert np.all(np.abs(found - expected)[:, position:].max(axis=-1) > 1e-3)


@pytest.mark.slow
@ENCODING
def test_attention_mask_acts_beside_the_padding_mask(kind):
    made, causal = built(kind), np.tril(np.ones((1, LENGTH, LENGTH), bool))
    expected = made(X, attention_mask=causal & REAL[:, None, :] & REAL[:, :, None])
    assert_close(made(X, padding_mask=REAL, attention_mask=causal), expected, 0.0)
    assert_close(made(with_mask(ops.convert_to_tensor(X), REAL), attention_mask=causal), expected, 0.0)


@EACH
def test_attention_scores_are_distributions_over_what_may_be_seen(kind):
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
@pytest.mark.parametrize("chunk", slow_but((1, 2), (1, 2, 3, LENGTH)))
@DECODING
@pytest.mark.sampled
def test_chunk_by_chunk_is_all_at_once(kind, chunk, padded, normalize_first):
    made, slots = built(kind, normalize_first=normalize_first), 7
    real = np.array([[True] * slots, [False, True, False] + [True] * (slots - 3)]) if padded else None
    options = {"memory_padding_mask": MEMORY_REAL if padded else None}
    at_once = as_numpy(made(X, MEMORY, padding_mask=real[:, :LENGTH] if padded else None, **options))
    cache, memory = made.empty_cache(BATCH, slots), made.project_memory(MEMORY)
    for start in range(0, LENGTH, chunk):
        x = X[:, start : start + chunk]
        output, cache = made(x, memory, padding_mask=real, cache=cache, index=start, **options)
        # What padding becomes is nobody's: only without a cache does it attend to nothing.
        now = slice(start, start + x.shape[1])
        kept = np.ones((BATCH, x.shape[1]), bool) if real is None else real[:, now]
        assert_close(as_numpy(output)[kept], at_once[:, now][kept])


@DECODING
def test_projected_memory_is_the_memory(kind):
    made = built(kind)
    expected = made(X, MEMORY, memory_padding_mask=MEMORY_REAL)
    assert_close(made(X, made.project_memory(MEMORY), memory_padding_mask=MEMORY_REAL), expected, 1e-6)


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
@pytest.mark.parametrize("kind", [Encoder, pytest.param(Decoder, marks=pytest.mark.slow)])
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


@keras.saving.register_keras_serializable("test_stacks")
class OverMemory(keras.layers.Layer):
    """A decoder over one memory for every row."""

    def __init__(self):
        super().__init__()
        self.decoder = Decoder(LAYERS, HEADS, D_FF, dropout=0.0)

    def build(self, x_shape):
        self.decoder.build(x_shape, MEMORY.shape)

    def call(self, x):
        return self.decoder(x, ops.broadcast_to(MEMORY[:1], (ops.shape(x)[0], *MEMORY.shape[1:])))


@pytest.mark.slow
def test_decoder_works_in_a_sequential_model():
    model = keras.Sequential([keras.Input((None, D_MODEL)), OverMemory()])
    randomized(model)
    expected = model.layers[-1].decoder(X, np.repeat(MEMORY[:1], BATCH, axis=0))
    assert_close(model(X), expected)


@pytest.mark.slow
def test_later_tokens_reach_nothing_through_the_gradient():
    """A step of training on the first two positions is the same whatever comes after them."""
    inputs = [keras.Input((None, D_MODEL)), keras.Input((None, FEATURES))]
    made = built(DecoderLayer)
    model = keras.Model(inputs, made(*inputs)[:, :2])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=STEP_IN_XLA)
    before, results = made.get_weights(), []
    for later in (X, np.concatenate([X[:, :2], 10 * X[:, 2:]], axis=1)):
        made.set_weights(before)
        model.fit([later, MEMORY], np.ones((BATCH, 2, D_MODEL)), verbose=0)
        results.append(made.get_weights())
    assert_close(results[0], results[1])
    assert np.abs(results[0][0] - before[0]).max() > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["dropout", "attention_dropout", "activation_dropout"])
@EACH
@pytest.mark.sampled
def test_dropouts_act_in_training_alone_or_wherever_a_subclass_wants_them(kind, dropout):
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


def test_layers_of_a_stack_start_apart():
    made = Encoder(LAYERS, HEADS, D_FF)
    made.build(X.shape)
    first, second = (part.self_attention.query_dense.kernel for part in made.layers)
    assert np.abs(as_numpy(first) - as_numpy(second)).max() > 0.01


def test_output_shapes_follow_from_those_of_the_inputs():
    attention = MultiHeadAttention(2, 3, output_shape=7)
    assert attention.compute_output_shape((None, 5, 6), (None, 4, 6)) == (None, 5, 7)
    assert Decoder(2, 3, 8).compute_output_shape((None, 5, 6), (None, 4, 11)) == (None, 5, 6)


def test_ints_are_numbers_too():
    made = built(EncoderLayer)
    numbers = np.arange(BATCH * LENGTH * D_MODEL).reshape(X.shape) % 5
    assert_close(made(numbers), made(numbers.astype("float32")))


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


# Errors


def changed_feed_forward(layer):
    return lambda: EncoderLayer(HEADS, feed_forward=layer)(X)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EncoderLayer(4, D_FF).build((None, None, 6)),
            r"divisible.*Received: d_model=6, num_heads=4\.",
        ),
        (lambda: DecoderLayer(5, D_FF).build((None, None, 6), (None, None, 13)), r"d_model=6, num_heads=5\."),
        (lambda: Encoder(0, HEADS, D_FF), r"must be a positive integer. Received: num_layers=0\."),
        (
            lambda: built(EncoderLayer, attention_norm=False),
            "`attention_norm=False` needs `normalize_first=True`",
        ),
        (
            lambda: EncoderLayer(HEADS, D_FF)(keras.Input((None, None))),
            "`d_model`, the last axis of `x`, must be",
        ),
        (changed_feed_forward(keras.layers.Dense(1)), "must have the shape of its input"),
        (changed_feed_forward(keras.layers.Dense(5)), "must have the shape of its input"),
        (changed_feed_forward(keras.layers.GlobalAveragePooling1D()), "must have the shape of its input"),
        (lambda: DecoderLayer(HEADS, D_FF)(X, memory_padding_mask=MEMORY_REAL), "needs a `memory`"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "x", "masks", "message"),
    [
        (EncoderLayer, X[0], {}, "expected min_ndim=3, found ndim=2"),
        (EncoderLayer, np.tile(X, 2), {}, "expected axis -1 of input shape to have value 6"),
        (
            EncoderLayer,
            X,
            {"padding_mask": REAL[:, 1:]},
            r"`padding_mask` must fit .* \(2, 5\).* shape=\(2, 4\)",
        ),
        (
            EncoderLayer,
            X,
            {"padding_mask": np.ones((3, 5), bool)},
            r"`padding_mask` must fit .* shape=\(3, 5\)",
        ),
        (
            EncoderLayer,
            X,
            {"attention_mask": REAL},
            r"`attention_mask` must fit .* \(5, 5\).* shape=\(2, 5\)",
        ),
        (EncoderLayer, X, {"attention_mask": np.ones((2, 4, 5, 5), bool)}, r"must fit .* \(2, 3, 5, 5\)"),
        (DecoderLayer, X, {"memory_padding_mask": REAL}, r"must fit .* \(2, 7\).* shape=\(2, 5\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(kind, x, masks, message):
    with pytest.raises(ValueError, match=message):
        built(kind)(x, *inputs_of(kind)[0][1:], **masks)


def test_a_layer_may_take_the_arguments_of_its_stack_as_kwargs():
    plain, taking = Encoder(1, HEADS, D_FF), Encoder([TakesTheRest(HEADS, D_FF)])
    x, mask = keras.Input((LENGTH, D_MODEL)), keras.Input((LENGTH,), dtype="bool")
    model = keras.Model([x, mask], taking(x, padding_mask=mask))
    plain.build(X.shape)
    plain.set_weights(taking.get_weights())
    assert_close(model([X, REAL]), plain(X, padding_mask=REAL, training=False))
