"""Attention on inputs of higher rank: what it is on inputs of rank 3, whatever the masks."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized

from keras_transformer.layers import (
    ALiBi,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    RotaryPositions,
    TokenEmbedding,
)

BATCH, ROWS, COLUMNS, FEATURES = 2, 3, 5, 7
X = normal(BATCH, ROWS, COLUMNS, FEATURES)
REAL = np.random.default_rng(3).uniform(size=(BATCH, ROWS, COLUMNS)) < 0.7
REAL[:, 0, 0] = True


def attention(axes=None, **options):
    layer = MultiHeadAttention(2, 4, attention_axes=axes, **options)
    layer.build(X.shape, X.shape)
    return randomized(layer)


def folded(x, axes):
    """The attended axes side by side as one, the other axes as rows."""
    if axes == (2,):
        return x.reshape(BATCH * ROWS, COLUMNS, *x.shape[3:])
    if axes == (1,):
        return np.swapaxes(x, 1, 2).reshape(BATCH * COLUMNS, ROWS, *x.shape[3:])
    return x.reshape(BATCH, ROWS * COLUMNS, *x.shape[3:])


def expected_of(layer, axes, x=X, **arguments):
    """What the same weights give on the folded inputs, folded."""
    flat = MultiHeadAttention.from_config({**layer.get_config(), "attention_axes": None})
    flat.build((None, None, FEATURES), (None, None, FEATURES))
    flat.set_weights(layer.get_weights())
    rows = folded(x, axes)
    return as_numpy(flat(rows, rows, **{name: folded(mask, axes) for name, mask in arguments.items()}))


@pytest.mark.parametrize("axes", [None, (1,), (2,), (1, 2), (-2,)])
@pytest.mark.parametrize(
    "names", [("query_mask", "value_mask"), ("value_mask",), ("key_mask",), ("query_mask",)]
)
def test_token_masks_hold(axes, names):
    layer = attention(axes)
    axes = {(-2,): (2,)}.get(axes, axes)
    masks = dict.fromkeys(names, REAL)
    assert_close(folded(as_numpy(layer(X, X, **masks)), axes), expected_of(layer, axes, **masks))


@pytest.mark.parametrize("axes", [None, (1,), (2,)])
def test_implicit_masks_hold(axes):
    """`keras.layers.Masking` marks tokens of any rank."""
    x = np.where(REAL[..., None], X, 0.0)
    layer = attention(axes)
    marked = keras.layers.Masking()(x)
    assert_close(
        folded(as_numpy(layer(marked, marked)), axes),
        expected_of(layer, axes, x, query_mask=REAL, value_mask=REAL),
    )


@pytest.mark.parametrize(("axes", "axis"), [((1,), 1), ((2,), 2)])
def test_later_tokens_of_the_attended_axis_are_hidden(axes, axis):
    layer = attention(axes)
    changed = np.array(X)
    changed.swapaxes(axis, 0)[-1] += 1.0
    before, after = (as_numpy(layer(x, x, use_causal_mask=True)) for x in (X, changed))
    moved = np.abs(before - after).max(axis=-1).swapaxes(axis, 0)
    assert moved[:-1].max() == 0.0 and moved[-1].min() > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 2},
        {"positions": RotaryPositions()},
        {"positions": ALiBi()},
        {"num_key_value_heads": 1},
    ],
)
def test_what_the_layer_adds_holds_along_one_axis(options):
    layer = attention((2,), **options)
    assert_close(folded(as_numpy(layer(X, X)), (2,)), expected_of(layer, (2,)))


@pytest.mark.parametrize("rank", [4, 5, 6])
def test_attention_masks_have_the_axes_that_keras_gives_them(rank):
    """Queries and keys, then the batch before them, then the heads."""
    shape = (BATCH, 2, ROWS, COLUMNS, ROWS, COLUMNS)
    shape = {4: shape[2:], 5: (BATCH, *shape[2:]), 6: shape}[rank]
    mask = np.random.default_rng(5).uniform(size=shape) < 0.6
    mask.reshape(-1, ROWS * COLUMNS, ROWS * COLUMNS)[:, range(15), range(15)] = True
    layer = attention()
    plain = keras.layers.MultiHeadAttention(2, 4)
    plain.build(X.shape, X.shape)
    plain.set_weights(layer.get_weights())
    options = {"attention_mask": mask, "return_attention_scores": True}
    assert_close(layer(X, X, **options), plain(X, X, **options))


def test_scores_have_the_axes_of_keras():
    for axes in (None, (1,), (2,), (1, 2)):
        layer = attention(axes)
        plain = keras.layers.MultiHeadAttention(2, 4, attention_axes=axes)
        plain.build(X.shape, X.shape)
        plain.set_weights(layer.get_weights())
        assert_close(layer(X, X, return_attention_scores=True), plain(X, X, return_attention_scores=True))


def test_queries_and_keys_of_other_lengths():
    query, layer = normal(BATCH, 4, COLUMNS, FEATURES, seed=2), attention((1,))
    plain = keras.layers.MultiHeadAttention(2, 4, attention_axes=(1,))
    plain.build(query.shape, X.shape)
    plain.set_weights(layer.get_weights())
    assert_close(layer(query, X, X), plain(query, X, X))


def test_free_axes_that_differ_raise():
    with pytest.raises(ValueError, match="`query` and `value` must agree on all axes but the attended ones"):
        attention((2,))(X, normal(BATCH, ROWS + 1, COLUMNS, FEATURES))


def test_a_token_mask_of_another_shape_raises():
    with pytest.raises(ValueError, match="`value_mask` must have the shape of its input"):
        attention()(X, X, value_mask=REAL[:, 0])


def test_encoder_layers_take_grids():
    layer = EncoderLayer(2, 8, dropout=0.0, attention=None)
    x = normal(BATCH, ROWS, COLUMNS, 6)
    layer.build(x.shape)
    randomized(layer)
    flat = layer(x.reshape(BATCH, -1, 6), padding_mask=REAL.reshape(BATCH, -1))
    found = layer(x, padding_mask=REAL)
    real = REAL.reshape(BATCH, -1)
    assert_close(as_numpy(found).reshape(BATCH, -1, 6)[real], as_numpy(flat)[real])
    functional = keras.Input((ROWS, COLUMNS, 6))
    assert keras.Model(functional, layer(functional))(x).shape == x.shape


def test_a_decoder_layer_needs_one_axis():
    with pytest.raises(ValueError, match="`use_causal_mask` needs one attended axis"):
        DecoderLayer(2, 8)(normal(BATCH, ROWS, COLUMNS, 6))
    axial = DecoderLayer(attention=MultiHeadAttention(2, attention_axes=(2,)), d_ff=8)
    assert axial(normal(BATCH, ROWS, COLUMNS, 6)).shape == (BATCH, ROWS, COLUMNS, 6)


@pytest.mark.parametrize("mode", [None, "int8"])
def test_a_layer_that_was_built_takes_any_rank(mode):
    layer, x = FeedForward(8), normal(2, 3, 5, 4)
    layer(x[0, 0])
    randomized(layer)
    for part in (layer.inner, layer.outer) if mode else ():
        part.quantize(mode)
    expected = as_numpy(layer(x)).reshape(-1, 4)
    for shape in ((30, 4), (6, 5, 4), (2, 3, 5, 4)):
        assert_close(as_numpy(layer(x.reshape(shape))).reshape(-1, 4), expected, 1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_masked_token_may_be_anything(value):
    """Padding of numeric series is often NaN."""
    layer, real = attention_of_series(), np.array([[True, True, False], [True, False, True]])
    x = normal(2, 3, 6)
    expected = as_numpy(layer(x, x, query_mask=real, value_mask=real))
    broken = np.where(real[..., None], x, value)
    assert_close(as_numpy(layer(broken, broken, query_mask=real, value_mask=real))[real], expected[real])
    memory = as_numpy(layer(x, broken, value_mask=real))
    assert_close(memory, layer(x, x, value_mask=real))


def attention_of_series():
    layer = MultiHeadAttention(2, 4)
    layer.build((None, None, 6), (None, None, 6))
    return randomized(layer)


@pytest.mark.tensorflow  # JAX's gradients of `fit` go the same way
def test_a_masked_token_that_is_nan_does_not_reach_a_gradient():
    import tensorflow as tf

    layer, real = attention_of_series(), np.array([[True, True, False], [True, False, True]])
    x = tf.constant(np.where(real[..., None], normal(2, 3, 6), np.nan))
    with tf.GradientTape() as tape:
        y = layer(x, x, query_mask=real, value_mask=real)
        loss = tf.reduce_sum(tf.boolean_mask(y, real) ** 2)
    gradients = tape.gradient(loss, layer.trainable_variables)
    assert all(np.isfinite(gradient.numpy()).all() for gradient in gradients)


def test_the_embedding_of_a_grid_of_ids_is_marked():
    ids = np.array([[[5, 0], [7, 3]]])
    embedded = TokenEmbedding(11, 6, pad_id=0)(ids)
    layer = EncoderLayer(2, 8, dropout=0.0)
    assert_close(layer(embedded), layer(keras.ops.copy(embedded), padding_mask=ids != 0))


@pytest.mark.parametrize("axes", [None, (1,), (2,), (1, 2)])
def test_every_size_may_be_open(axes):
    layer = attention(axes)
    x = keras.Input((None, None, FEATURES))
    model = keras.Model(x, layer(x, x))
    assert_close(model(X), layer(X, X))


def test_the_order_of_the_axes_is_that_of_the_mask():
    x, mask = normal(2, 3, 3, 6), np.random.default_rng(1).uniform(size=(3, 3, 3, 3)) < 0.7
    layer, plain = (
        cls(2, 4, attention_axes=(2, 1)) for cls in (MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    for each in (layer, plain):
        each.build(x.shape, x.shape)
    plain.set_weights(layer.get_weights())
    options = {"attention_mask": mask, "return_attention_scores": True}
    assert_close(layer(x, x, **options), plain(x, x, **options))


def test_a_layer_that_was_built_on_rank_3_attends_over_all_axes_of_rank_4():
    layer = MultiHeadAttention(2, 4)
    layer(X[:, 0], X[:, 0])
    flat = X.reshape(BATCH, -1, FEATURES)
    assert_close(as_numpy(layer(X, X)).reshape(flat.shape), layer(flat, flat))


@pytest.mark.parametrize(("axes", "rank"), [((0,), 3), ((5,), 3), ((1, 2), 3), ((3,), 4), ((1, 1), 4)])
def test_axes_that_cannot_be_attended_raise(axes, rank):
    with pytest.raises(ValueError, match="`attention_axes` must be different axes between"):
        MultiHeadAttention(2, 4, attention_axes=axes).build(
            (2, 3, 5, 7)[4 - rank :], (2, 3, 5, 7)[4 - rank :]
        )


def test_keys_and_values_of_other_lengths_raise():
    with pytest.raises(ValueError, match="must be equal"):
        attention((2,))(X, X, normal(BATCH, COLUMNS, ROWS, FEATURES))


def test_the_hook_of_keras_gives_a_masked_query_no_scores():
    class Hooked(MultiHeadAttention):
        def _compute_attention(self, *args, **kwargs):
            return super()._compute_attention(*args, **kwargs)

    x, options = (
        normal(1, 3, 6),
        {"query_mask": np.array([[True, True, False]]), "return_attention_scores": True},
    )
    hooked, plain = Hooked(2, 4), MultiHeadAttention(2, 4)
    for layer in (hooked, plain):
        layer(x, x)
    plain.set_weights(hooked.get_weights())
    assert_close(hooked(x, x, **options), plain(x, x, **options))
