import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, mask_of, normal, randomized, with_mask
from keras import ops
from reference import encoder, encoder_layer, weights_of

from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionalEncoding,
    TokenEmbedding,
)

BATCH, LENGTH, D_MODEL, HEADS, D_FF, LAYERS = 2, 7, 6, 3, 11, 2
REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])
X = normal(BATCH, LENGTH, D_MODEL)
BOTH_NORMS = pytest.mark.parametrize("normalize_first", [False, True], ids=["post_norm", "pre_norm"])


def layer(**arguments):
    made = EncoderLayer(HEADS, D_FF, **{"dropout": 0.0, **arguments})
    made.build(X.shape)
    return randomized(made)


def stack(**arguments):
    made = Encoder(LAYERS, HEADS, D_FF, **{"dropout": 0.0, **arguments})
    made.build(X.shape)
    return randomized(made)


@BOTH_NORMS
@pytest.mark.parametrize("real", [None, REAL], ids=["full", "padded"])
def test_layer_agrees_with_numpy(normalize_first, real):
    made = layer(normalize_first=normalize_first)
    expected = encoder_layer(weights_of(made), X, real, normalize_first)
    assert_close(made(X, padding_mask=real), expected, 3e-5)


def test_the_first_layer_may_leave_its_input_as_it_is():
    made = layer(normalize_first=True, attention_norm=False)
    assert len(made.weights) == len(layer(normalize_first=True).weights) - 2
    attended = X + as_numpy(made.self_attention(X, X))
    expected = attended + as_numpy(made.feed_forward(made.feed_forward_residual.norm(attended)))
    assert_close(made(X), expected)
    assert type(made).from_config(made.get_config()).attention_norm is False
    with pytest.raises(ValueError, match="`attention_norm=False` needs `normalize_first=True`"):
        layer(attention_norm=False)


@BOTH_NORMS
def test_stack_agrees_with_numpy(normalize_first):
    made = stack(normalize_first=normalize_first)
    expected = encoder(weights_of(made), X, LAYERS, REAL, normalize_first)
    assert_close(made(X, padding_mask=REAL), expected, 3e-5)


@BOTH_NORMS
@pytest.mark.parametrize("make", [layer, stack])
def test_padding_does_not_change_real_tokens(make, normalize_first):
    made = make(normalize_first=normalize_first)
    expected = as_numpy(made(X[1:, :4]))
    for more in (1, 3, 5):
        padded = np.concatenate([X[1:, :4], normal(1, more, D_MODEL, seed=1, scale=100.0)], axis=1)
        real = np.arange(4 + more)[None] < 4
        assert_close(made(padded, padding_mask=real)[:, :4], expected)


@pytest.mark.parametrize("make", [layer, stack])
def test_every_real_token_reaches_every_other(make):
    made = make()
    for position in range(LENGTH):
        changed = X.copy()
        changed[:, position] = normal(BATCH, D_MODEL, seed=2)
        assert np.all(np.abs(as_numpy(made(changed)) - as_numpy(made(X))).max(axis=-1) > 1e-4)


@pytest.mark.parametrize("make", [layer, stack])
def test_implicit_mask_is_the_explicit_one(make):
    made = make()
    masked = with_mask(ops.convert_to_tensor(X), REAL)
    output = made(masked)
    assert_close(output, made(X, padding_mask=REAL), 0.0)
    np.testing.assert_array_equal(as_numpy(mask_of(output)), REAL)
    assert np.abs(as_numpy(output) - as_numpy(made(X))).max() > 1e-3


@pytest.mark.parametrize("make", [layer, stack])
def test_explicit_mask_wins_over_the_implicit_one(make):
    made = make()
    other = np.array([[True] * 2 + [False] * 5, [True] * 6 + [False]])
    masked = with_mask(ops.convert_to_tensor(X), REAL)
    assert_close(made(masked, padding_mask=other), made(X, padding_mask=other), 0.0)


@pytest.mark.parametrize("make", [layer, stack])
def test_attention_mask_acts_beside_the_padding_mask(make):
    made = make()
    causal = np.tril(np.ones((1, LENGTH, LENGTH), bool))
    both = causal & REAL[:, None, :] & REAL[:, :, None]
    expected = made(X, attention_mask=both)
    assert_close(made(X, padding_mask=REAL, attention_mask=causal), expected, 0.0)
    assert_close(made(with_mask(ops.convert_to_tensor(X), REAL), attention_mask=causal), expected, 0.0)


@pytest.mark.parametrize("make", [layer, stack])
def test_attention_scores_are_distributions_over_real_tokens(make):
    output, scores = make()(X, padding_mask=REAL, return_attention_scores=True)
    assert_close(output, make()(X, padding_mask=REAL), 0.0)
    scores = scores if isinstance(scores, list) else [scores]
    assert len(scores) == (LAYERS if make is stack else 1)
    for of_layer in map(as_numpy, scores):
        assert of_layer.shape == (BATCH, HEADS, LENGTH, LENGTH)
        sums = np.repeat(REAL[:, None], HEADS, axis=1)  # a masked query attends to nothing
        np.testing.assert_allclose(of_layer.sum(axis=-1), sums, rtol=1e-5)
        assert np.all(of_layer[1, :, :, 4:] == 0)


IDS = np.array([[5, 3, 2, 4, 1, 3, 2], [4, 2, 6, 1, 0, 0, 0]], "int32")


class Subclassed(keras.Model):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def call(self, ids):
        x = ids
        for part in self.parts:
            x = part(x)
        return x


def test_sequential_functional_and_subclassed_models_mask_alike():
    parts = [
        TokenEmbedding(7, D_MODEL, pad_id=0),
        PositionalEncoding(),
        Encoder(LAYERS, HEADS, D_FF, dropout=0.0),
    ]
    sequential = keras.Sequential(parts)
    sequential(IDS)
    randomized(sequential)
    embedding, positions, encoder_stack = parts
    expected = as_numpy(encoder_stack(ops.copy(positions(embedding(IDS))), padding_mask=IDS != 0))
    ids = keras.Input((None,), dtype="int32")
    functional = keras.Model(ids, encoder_stack(positions(embedding(ids))))
    for model in (sequential, functional, Subclassed(parts)):
        assert_close(model(IDS), expected)
        assert_close(model.predict(IDS, verbose=0), expected)


def test_dropouts_act_in_training_alone():
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        made, plain = layer(**{name: 0.5}), layer()
        assert_close(made(X), plain(X), 0.0)
        assert np.abs(as_numpy(made(X, training=True)) - as_numpy(plain(X))).max() > 1e-3, name


def test_layers_of_a_stack_start_apart():
    made = Encoder(LAYERS, HEADS, D_FF)
    made.build(X.shape)
    first, second = (part.self_attention.query_dense.kernel for part in made.layers)
    assert np.abs(as_numpy(first) - as_numpy(second)).max() > 0.01


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError) as error:
        EncoderLayer(4, D_FF).build((None, None, 6))
    assert "must be divisible by `num_heads`. Received: d_model=6, num_heads=4." in str(error.value)


def test_a_stack_has_at_least_one_layer():
    with pytest.raises(ValueError, match=r"must be a positive integer. Received: num_layers=0\."):
        Encoder(0, HEADS, D_FF)


def test_wrappers_find_the_output_shapes():
    frames = keras.Input((None, 5, 6))
    layer = EncoderLayer(2, 7, dropout=0.0)
    assert keras.layers.TimeDistributed(layer)(frames).shape == (None, None, 5, 6)
    assert MultiHeadAttention(2, 3, output_shape=7).compute_output_shape((None, 5, 6), (None, 4, 6)) == (
        None,
        5,
        7,
    )
    assert Decoder(2, 3, 8).compute_output_shape((None, 5, 6), (None, 4, 11)) == (None, 5, 6)


@pytest.mark.parametrize(
    ("x", "masks", "message"),
    [
        (X[0], {}, "expected min_ndim=3, found ndim=2"),
        (np.concatenate([X, X], axis=-1), {}, "expected axis -1 of input shape to have value 6"),
        (X, {"padding_mask": REAL[:, 1:]}, r"`padding_mask` must fit .* \(2, 7\).* shape=\(2, 6\)"),
        (X, {"padding_mask": np.ones((3, 7), bool)}, r"`padding_mask` must fit .* shape=\(3, 7\)"),
        (X, {"attention_mask": REAL}, r"`attention_mask` must fit .* \(7, 7\).* shape=\(2, 7\)"),
        (X, {"attention_mask": np.ones((2, 5, 7, 7), bool)}, r"`attention_mask` must fit .* \(2, 3, 7, 7\)"),
    ],
    ids=["no batch", "width", "length", "batch", "padding mask", "heads"],
)
def test_inputs_that_do_not_fit_are_refused(x, masks, message):
    with pytest.raises(ValueError, match=message):
        layer()(x, **masks)


def test_the_width_must_be_known():
    with pytest.raises(ValueError, match=r"`d_model`, the last axis of `x`, must be known"):
        EncoderLayer(HEADS, D_FF)(keras.Input((None, None)))


@pytest.mark.parametrize(
    "feed_forward",
    [keras.layers.Dense(1), keras.layers.Dense(5), keras.layers.GlobalAveragePooling1D()],
    ids=["one channel", "other channels", "no length"],
)
def test_a_sublayer_must_keep_the_shape(feed_forward):
    with pytest.raises(ValueError, match="must have the shape of its input"):
        EncoderLayer(HEADS, feed_forward=feed_forward)(X)


def test_ints_are_numbers_too():
    made = layer()
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


@pytest.mark.parametrize("dropout", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("base", [EncoderLayer, DecoderLayer, Encoder, Decoder])
def test_a_subclass_may_drop_outside_of_training(base, dropout):
    """As in Gal and Ghahramani, 2016, "Dropout as a Bayesian Approximation": `training=True` reaches each dropout."""

    class AlwaysDropping(base):
        def call(self, x, memory=None, **kwargs):
            return super().call(x, **{**kwargs, "training": True})

    sizes = (1, HEADS, D_FF) if issubclass(base, Encoder) else (HEADS, D_FF)
    made = AlwaysDropping(*sizes, **{"dropout": 0.0, dropout: 0.5})
    assert np.any(as_numpy(made(X)) != as_numpy(made(X)))
