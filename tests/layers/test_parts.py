"""Parts in every combination: positions, kinds of attention, norms and feed-forward networks."""

import itertools

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, compilations, normal, randomized
from keras import ops

from keras_transformer import layers
from keras_transformer.backend import compiled

BATCH, LENGTH, D_MODEL, HEADS, DIM = 2, 7, 12, 6, 4

POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: layers.RotaryPositions(max_wavelength=100.0),
    "rotary_linear": lambda: layers.RotaryPositions(scaling=layers.LinearScaling(2.0)),
    "rotary_llama3": lambda: layers.RotaryPositions(
        scaling=layers.Llama3Scaling(4.0, original_max_length=16)
    ),
    "alibi": layers.ALiBi,
    "relative": lambda: layers.RelativePositionBias(HEADS, 8, 5, bidirectional=False),
}
ATTENTION = {
    "multi_head": {},
    "grouped_query": {"num_key_value_heads": 2, "use_bias": False},
    "multi_query": {"num_key_value_heads": 1},
    "sliding_window": {"sliding_window": 3},
    "query_key_norm": {"query_key_norm": layers.RMSNormalization(1e-5)},
    "scale": {"scale": 1.0},
}
RESIDUALS = {
    "post": lambda: layers.Residual(0.0),
    "pre": lambda: layers.Residual(0.0, True),
    "pre_rms": lambda: layers.Residual(0.0, True, norm=layers.RMSNormalization(1e-5)),
    "sandwich": lambda: layers.SandwichResidual(0.0, norm=layers.RMSNormalization(1e-5)),
}
FEED_FORWARD = {
    "plain": lambda: layers.FeedForward(17, "gelu", use_bias=False),
    "gated": lambda: layers.GatedFeedForward(17),
    "experts": lambda: layers.MixtureOfExperts(layers.FeedForward(5), 3, top_k=2),
}


def attention(kind="multi_head", positions="none"):
    return layers.MultiHeadAttention(HEADS, DIM, positions=POSITIONS[positions](), **ATTENTION[kind])


def decoder(kind="multi_head", positions="none", residual="pre", feed_forward="gated", **kwargs):
    stack = layers.Decoder(
        2,
        attention=attention(kind, positions),
        residual=RESIDUALS[residual](),
        feed_forward=FEED_FORWARD[feed_forward](),
        **kwargs,
    )
    stack.build((None, None, D_MODEL))
    return randomized(stack)


COMBINATIONS = [
    *((k, p, "pre", "gated") for k, p in itertools.product(ATTENTION, POSITIONS)),
    *(("grouped_query", "rotary", r, f) for r, f in itertools.product(RESIDUALS, FEED_FORWARD)),
    *(
        (k, p, r, "plain")
        for (k, p), r in zip(itertools.product(ATTENTION, POSITIONS), itertools.cycle(RESIDUALS))
    ),
]


@pytest.mark.parametrize("parts", sorted(set(COMBINATIONS)), ids="-".join)
def test_step_by_step_is_all_at_once(parts):
    """Chunks of 1, 2 and 4, then rows that start later in their slots: the same outputs."""
    stack, x = decoder(*parts), normal(BATCH, LENGTH, D_MODEL)
    expected = stack(x)
    for chunks in ((1,) * LENGTH, (2, 4, 1)):
        cache, index, found = stack.empty_cache(BATCH, LENGTH + 1), 0, []
        for count in chunks:
            y, cache = stack(x[:, index : index + count], cache=cache, index=index)
            found.append(y)
            index += count
        assert_close(ops.concatenate(found, axis=1), expected)

    late = 2
    positions = np.arange(LENGTH, dtype="int32")[None] + np.zeros((BATCH, 1), "int32")
    slots = np.maximum(np.arange(LENGTH + late, dtype="int32") - late, 0)
    mask = (np.arange(LENGTH + late) >= late)[None, None, None]
    y, _ = stack(
        x,
        cache=stack.empty_cache(BATCH, LENGTH + late),
        index=late,
        positions=positions,
        key_positions=slots,
        attention_mask=mask,
    )
    assert_close(y, expected)


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("positions", POSITIONS)
def test_keys_that_change_places_are_told_apart_by_positions_alone(kind, positions):
    layer, x = attention(kind, positions), normal(BATCH, LENGTH, D_MODEL)
    layer.build(x.shape, x.shape)
    randomized(layer)
    swapped = x[:, [0, 1, 2, 3, 5, 4, 6]]  # near enough to the last query for any window
    moved = np.abs(as_numpy(layer(swapped, swapped)) - as_numpy(layer(x, x)))[:, -1].max()
    assert moved < 1e-5 if positions == "none" else moved > 1e-3


@pytest.mark.parametrize("parts", [c for c in COMBINATIONS if c[2:] == ("pre", "gated")], ids="-".join)
def test_later_tokens_changed_change_nothing_before(parts):
    stack, x = decoder(*parts), normal(BATCH, LENGTH, D_MODEL)
    changed = x.copy()
    changed[:, 5:] += 1
    assert_close(stack(changed)[:, :5], stack(x)[:, :5])


def test_layers_of_a_stack_share_learned_positions_and_keep_them_when_saved(tmp_path):
    stack = decoder(positions="relative")
    schemes = {id(layer.self_attention.positions) for layer in stack.layers}
    assert len(schemes) == 1
    assert sum(weight.shape == (8, HEADS) for weight in stack.weights) == 1
    inputs = keras.Input((None, D_MODEL))
    x = normal(BATCH, LENGTH, D_MODEL)
    model = keras.Model(inputs, stack(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert len(again.weights) == len(model.weights)
    assert_close(again(x), stack(x), 1e-6)
    loaded = again.layers[-1]
    assert len({id(layer.self_attention.positions) for layer in loaded.layers}) == 1


def test_grouped_queries_are_many_heads_with_repeated_keys():
    few, x = attention("grouped_query", "rotary"), normal(BATCH, LENGTH, D_MODEL)
    few.build(x.shape, x.shape)
    randomized(few)
    many = layers.MultiHeadAttention(HEADS, DIM, use_bias=False, positions=POSITIONS["rotary"]())
    many.build(x.shape, x.shape)
    query, key, value, output = few.get_weights()
    many.set_weights([query, np.repeat(key, 3, axis=1), np.repeat(value, 3, axis=1), output])
    for long in (False, True):
        assert_close(
            few(x, x, use_causal_mask=True, return_attention_scores=long),
            many(x, x, use_causal_mask=True, return_attention_scores=long),
        )


def test_heads_must_divide_among_those_of_keys_and_values():
    with pytest.raises(ValueError, match="num_heads=6, num_key_value_heads=4"):
        layers.MultiHeadAttention(6, 4, num_key_value_heads=4)


def test_a_sliding_window_is_kerass():
    x = normal(BATCH, LENGTH, D_MODEL)
    ours = layers.MultiHeadAttention(HEADS, DIM, sliding_window=3)
    theirs = keras.layers.MultiHeadAttention(HEADS, DIM, sliding_window=3)
    for layer in (ours, theirs):
        layer.build(x.shape, x.shape)
    ours.set_weights(randomized(theirs).get_weights())
    for causal in (False, True):
        assert_close(ours(x, x, use_causal_mask=causal), theirs(x, x, use_causal_mask=causal))


def test_a_beam_sees_its_own_branch_at_its_own_positions():
    """A tree of hypotheses, rows padded on the left: each branch is what it would be alone."""
    width, trunk, steps = 3, 4, 3
    starts = np.array([0, 2], "int32")
    stack = decoder("grouped_query", "rotary")
    other = decoder("multi_head", "alibi")
    for layer in (stack, other):
        prompt = normal(BATCH, trunk, D_MODEL)
        continued = normal(BATCH, width, steps, D_MODEL, seed=3)
        cache = layers.TreeCache(layer.empty_cache(BATCH, trunk), ops.zeros((BATCH, width, 0), "int32"))

        def step(x, cache, index, layer=layer):
            cache, place = cache.at(index, x.shape[1] if index == 0 else 1, starts)
            y, caches = layer(
                x,
                cache=cache.layers,
                index=place.slot,
                positions=place.positions,
                key_positions=place.key_positions,
                attention_mask=place.mask,
            )
            return y, cache._replace(layers=caches)

        _, cache = step(prompt, cache, 0)
        cache = cache.grown(steps)
        found = []
        for i in range(steps):
            y, cache = step(continued[:, :, i], cache, trunk + i)
            found.append(as_numpy(y))
        for row, branch in itertools.product(range(BATCH), range(width)):
            alone = np.concatenate([prompt[row, starts[row] :], continued[row, branch]])[None]
            expected = as_numpy(layer(alone))[0, -steps:]
            for i in range(steps):
                np.testing.assert_allclose(found[i][row, branch], expected[i], atol=1e-5)


# What is handed in


class Wrong(keras.layers.Layer):
    """A layer, but no part."""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"attention": Wrong()}, "`attention` must be a `MultiHeadAttention`. Received: attention=<Wrong"),
        (
            {"attention": keras.layers.MultiHeadAttention(2, 2)},
            "`attention` must be a `MultiHeadAttention`. Received: attention=<MultiHeadAttention",
        ),
        ({"residual": Wrong()}, "`residual` must be a `Residual`. Received: residual=<Wrong"),
        ({"feed_forward": "relu"}, "`feed_forward` must be a `Layer`. Received: feed_forward='relu'"),
        (
            {"attention": attention(), "num_heads": 3},
            "`num_heads` has no effect beside `attention`.*num_heads=3",
        ),
        ({"attention": attention(), "attention_dropout": 0.1}, "`attention_dropout` has no effect"),
        ({"feed_forward": FEED_FORWARD["gated"](), "d_ff": 5}, "`d_ff` has no effect beside `feed_forward`"),
        ({"feed_forward": FEED_FORWARD["gated"](), "activation": "gelu"}, "`activation` has no effect"),
        ({"feed_forward": FEED_FORWARD["gated"](), "activation_dropout": 0.1}, "`activation_dropout` has no"),
        ({"residual": RESIDUALS["post"](), "dropout": 0.2}, "`dropout` has no effect beside `residual`"),
        ({"residual": RESIDUALS["post"](), "normalize_first": True}, "`normalize_first` has no effect"),
        ({"residual": RESIDUALS["post"](), "layer_norm_epsilon": 1e-5}, "`layer_norm_epsilon` has no effect"),
        (
            {
                "attention": attention(),
                "feed_forward": FEED_FORWARD["gated"](),
                "kernel_initializer": "he_normal",
            },
            "`kernel_initializer` has no effect beside `attention`",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
@pytest.mark.parametrize("make", [layers.EncoderLayer, lambda **kwargs: layers.Decoder(2, **kwargs)])
def test_what_does_not_fit_is_refused_at_once(make, arguments, named):
    sizes = {
        **({} if "attention" in arguments else {"num_heads": 3}),
        **({} if "feed_forward" in arguments else {"d_ff": 5}),
    }
    with pytest.raises(ValueError, match=named):
        make(**{**sizes, **arguments})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"key_dim": 5, "positions": layers.RotaryPositions()}, "`key_dim` must be even .* key_dim=5"),
        ({"positions": layers.RelativePositionBias(2)}, "Received: 2 for num_heads=6"),
        (
            {"positions": layers.PositionalEncoding()},
            "`positions` must be a `AttentionPositions`. Received: positions=<PositionalEncoding",
        ),
    ],
)
def test_positions_that_do_not_fit_the_heads_are_refused_at_once(arguments, named):
    with pytest.raises(ValueError, match=named):
        layers.MultiHeadAttention(**{"num_heads": 6, "key_dim": 4, **arguments})


def test_an_epsilon_beside_a_norm_is_refused():
    with pytest.raises(ValueError, match="`layer_norm_epsilon` has no effect beside `norm`"):
        layers.Residual(layer_norm_epsilon=1e-5, norm=layers.RMSNormalization())


def test_a_feed_forward_of_ones_own_is_told_which_tokens_are_real():
    told = []

    class Watching(keras.layers.Layer):
        def call(self, x, padding_mask=None):
            told.append(padding_mask)
            return x

    mask = np.arange(LENGTH) < np.array([[LENGTH], [4]])
    x = normal(BATCH, LENGTH, D_MODEL)
    layers.EncoderLayer(3, feed_forward=Watching())(x, padding_mask=mask)
    layers.DecoderLayer(3, feed_forward=Watching())(x, token_mask=mask)
    for found in told[-2:]:
        np.testing.assert_array_equal(as_numpy(found), mask)


def test_a_token_mask_hides_nothing():
    stack, x = decoder(feed_forward="experts"), normal(BATCH, LENGTH, D_MODEL)
    mask = np.arange(LENGTH) >= np.array([[0], [4]])
    assert_close(stack(x, token_mask=mask), stack(x), 0.0)
    assert np.abs(as_numpy(stack(x, padding_mask=mask)) - as_numpy(stack(x))).max() > 1e-3


# Compiled, at a slot known late


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("positions", POSITIONS)
def test_compiled_steps_at_an_index_tensor_are_all_at_once(kind, positions):
    stack, x = decoder(kind, positions), normal(BATCH, LENGTH, D_MODEL)
    expected = as_numpy(stack(x))
    for jit_compile in compilations()[:1]:
        step = compiled(lambda x, cache, index: stack(x, cache=cache, index=index), stack, jit_compile)
        cache = stack.empty_cache(BATCH, LENGTH + 1)
        for i in range(LENGTH):
            y, cache = step(ops.convert_to_tensor(x[:, i : i + 1]), cache, ops.convert_to_tensor(i, "int32"))
            np.testing.assert_allclose(as_numpy(y)[:, 0], expected[:, i], rtol=1e-4, atol=1e-5)


def test_positions_shared_by_two_layers_of_a_model_stay_shared_when_it_is_loaded(tmp_path):
    shared = layers.RelativePositionBias(2, 8, 5)
    first, second = (layers.MultiHeadAttention(2, 3, positions=shared, name=name) for name in ("a", "b"))
    inputs = keras.Input((None, D_MODEL))
    y = first(inputs, inputs)
    model = randomized(keras.Model(inputs, second(y, y)))
    assert len(model.weights) == 2 * 8 + 1
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.get_layer("a").positions is again.get_layer("b").positions
    x = normal(BATCH, LENGTH, D_MODEL)
    assert_close(again(x), model(x), 1e-6)
