"""Attention on inputs of higher rank: what it is on inputs of rank 3, whatever the masks."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized, refuses

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


AXES = {
    "rank_4": ((2, 3, 4, 6), (2, 3, 4, 6), None),
    "rank_4_last": ((2, 3, 4, 6), (2, 3, 5, 6), (2,)),
    "rank_4_first": ((2, 3, 4, 6), (2, 5, 4, 6), (1,)),
    "rank_4_negative": ((2, 3, 4, 6), (2, 3, 5, 6), (-2,)),
    "rank_4_swapped": ((2, 3, 4, 6), (2, 3, 4, 6), (2, 1)),
    "rank_5": ((2, 3, 2, 4, 6), (2, 3, 2, 4, 6), (2, 3)),
    "rank_5_all": ((2, 3, 2, 2, 6), (2, 2, 3, 2, 6), None),
    "rank_5_apart": ((2, 3, 2, 4, 6), (2, 3, 2, 4, 6), (1, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("use_gate", [False, True])
@pytest.mark.parametrize("case", AXES)
def test_inputs_of_higher_rank_agree_with_keras(case, use_gate):
    query_shape, value_shape, axes = AXES[case]
    x, memory = normal(*query_shape), normal(*value_shape, seed=1)
    arguments = {"attention_axes": axes, "use_gate": use_gate}
    ours = MultiHeadAttention(3, 4, value_dim=6, **arguments)
    theirs = keras.layers.MultiHeadAttention(3, 4, value_dim=6, **arguments)
    for layer in (ours, theirs):
        layer.build(x.shape, memory.shape)
    theirs.set_weights(randomized(ours).get_weights())
    assert [w.path.split("/")[1:] for w in ours.weights] == [w.path.split("/")[1:] for w in theirs.weights]
    found = ours(x, memory, return_attention_scores=True)
    assert_close(found, theirs(x, memory, return_attention_scores=True))
    assert_close(ours(x, memory), found[0], 1e-6)
    attended = range(1, len(x.shape) - 1) if axes is None else [axis % len(x.shape) for axis in axes]
    free = [x.shape[n] for n in range(1, len(x.shape) - 1) if n not in attended]
    if len(free) == 0:
        sizes = [shape[n] for shape in (x.shape, memory.shape) for n in attended]
        mask = np.random.default_rng(5).uniform(size=(BATCH, *sizes)) < 0.6
        mask.reshape(BATCH, -1, memory[0, ..., 0].size)[..., 0] = True
        assert_close(ours(x, memory, attention_mask=mask), theirs(x, memory, attention_mask=mask))


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 2},
        {"positions": RotaryPositions()},
        {"positions": ALiBi()},
        {"num_key_value_heads": 1},
    ],
)
def test_windows_positions_and_grouped_queries_act_along_one_axis(options):
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
    refuses("`use_causal_mask` needs one attended axis", DecoderLayer(2, 8), normal(BATCH, ROWS, COLUMNS, 6))
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


@pytest.mark.slow
@pytest.mark.parametrize("axes", [None, (1,)])
def test_every_size_may_be_open(axes):
    layer = attention(axes)
    x = keras.Input((None, None, FEATURES))
    model = keras.Model(x, layer(x, x))
    assert_close(model(X), layer(X, X))


def test_a_layer_that_was_built_on_rank_3_attends_over_all_axes_of_rank_4():
    layer = MultiHeadAttention(2, 4)
    layer(X[:, 0], X[:, 0])
    flat = X.reshape(BATCH, -1, FEATURES)
    assert_close(as_numpy(layer(X, X)).reshape(flat.shape), layer(flat, flat))


def raises_for(*shapes, axes=None, call=(), **options):
    """A call with inputs of these shapes, and a mask or an argument beside them."""
    inputs = [normal(*shape) for shape in (shapes * 2 if len(shapes) == 1 else shapes)]
    return lambda: MultiHeadAttention(2, 4, attention_axes=axes, **options)(*inputs, **dict(call))


GRID = (2, 3, 5, 7)
DIFFERENT = "`attention_axes` must be different axes between"


@pytest.mark.parametrize(("call", "message"), [
    (raises_for(GRID, positions=ALiBi()), "`positions` needs one attended axis"),
    (raises_for(GRID, sliding_window=2), "`sliding_window` needs one attended axis"),
    (raises_for(GRID, call={"use_causal_mask": True}), "`use_causal_mask` needs one attended axis"),
    (raises_for(GRID, call={"cache": 3}), r"`cache` needs inputs `\(batch, length, features\)`"),
    (raises_for(GRID, call={"index": 3}), r"`index` needs inputs `\(batch, length, features\)`"),
    (raises_for(GRID, (2, 4, 5, 7), axes=(2,)), "must agree on all axes but the attended ones"),
    (raises_for(GRID, GRID, (2, 5, 3, 7), axes=(2,)), "must be equal"),
    (raises_for(GRID, call={"value_mask": REAL[:, 0]}), "`value_mask` must have the shape of its input"),
    (lambda: MultiHeadAttention(3, 4).compute_output_shape((2, 4, 8), (2, 2, 8), (2, 1, 7)), "must be equal"),
    (raises_for(GRID[1:], axes=(0,)), DIFFERENT),
    (raises_for(GRID[1:], axes=(5,)), DIFFERENT),
    (raises_for(GRID, axes=(3,)), DIFFERENT),
    (raises_for(GRID, axes=(1, 1)), DIFFERENT),
])  # fmt: skip
def test_calls_that_make_no_sense_are_refused(call, message):
    refuses(message, call)
