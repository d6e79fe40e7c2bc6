"""Parts in every combination: positions, kinds of attention, norms and feed-forward networks."""

import itertools

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized
from keras import ops

from keras_transformer import layers

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
    "head_norm": {"head_norm": layers.RMSNormalization(1e-5)},
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
