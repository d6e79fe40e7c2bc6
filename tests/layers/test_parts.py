"""Parts in every combination: positions, kinds of attention, norms and feed-forward networks."""

import itertools

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, compilations, normal, randomized, refuses
from keras import ops

from keras_transformer import layers
from keras_transformer.execution import native

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
    "grouped_query": {"num_key_value_heads": 2, "use_bias": False, "query_key_norm": "rms", "norm_over_heads": True},
    "multi_query": {"num_key_value_heads": 1},
    "sliding_window": {"sliding_window": 3},
    "query_key_norm": {"query_key_norm": "rms"},
    "scale": {"scale": 1.0},
}  # fmt: skip
RESIDUALS = {
    "post": {},
    "pre": {"normalize_first": True},
    "pre_rms": {"normalize_first": True, "norm": "rms", "layer_norm_epsilon": 1e-5},
    "sandwich": {"normalize_first": True, "sandwich_norm": True, "norm": "rms", "layer_norm_epsilon": 1e-5},
    "output_norm": {"normalize_first": True, "sandwich_norm": True, "input_norm": False},
}
FEED_FORWARD = {
    "plain": lambda: layers.FeedForward(17, "gelu", use_bias=False),
    "gated": lambda: layers.GatedFeedForward(17),
    "experts": lambda: layers.MixtureOfExperts([layers.FeedForward(5) for _ in range(3)], top_k=2),
}


def attention(kind="multi_head", positions="none", scheme=None):
    scheme = POSITIONS[positions]() if scheme is None else scheme
    return layers.MultiHeadAttention(HEADS, DIM, positions=scheme, **ATTENTION[kind])


def decoder(kind="multi_head", positions="none", residual="pre", feed_forward="gated", num_layers=1):
    """A stack whose layers share one scheme of positions."""
    scheme = POSITIONS[positions]()
    stack = layers.Decoder(
        [
            layers.DecoderLayer(
                attention=attention(kind, positions, scheme),
                feed_forward=FEED_FORWARD[feed_forward](),
                dropout=0.0,
                **RESIDUALS[residual],
            )
            for _ in range(num_layers)
        ]
    )
    stack.build((None, None, D_MODEL))
    return randomized(stack)


# JAX compiles each operation for each shape, which takes most of the time: there each value of each axis occurs, but
# not every combination of them, as both backends run the same `keras.ops`.
ON_JAX = keras.backend.backend() == "jax"
PRODUCT = list(itertools.product(ATTENTION, POSITIONS))
QUICK = list(zip(ATTENTION, POSITIONS, strict=True))
# Each kind with one scheme of positions, and each scheme with one kind.
ROWS = list(dict.fromkeys([*((k, "rotary") for k in ATTENTION), *(("grouped_query", p) for p in POSITIONS)]))
if ON_JAX:
    PRODUCT = ROWS = QUICK


def combinations(pairs):
    """Each value of each axis occurs in a quick test."""
    marked = [pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs]
    return pytest.mark.parametrize(("kind", "positions"), marked)


EACH_PAIR, EACH_ROW = combinations(PRODUCT), combinations([*QUICK, *(r for r in ROWS if r not in QUICK)])


def in_chunks(stack, x, chunks):
    cache, index, found = stack.empty_cache(BATCH, LENGTH + 1), 0, []
    for count in chunks:
        y, cache = stack(x[:, index : index + count], cache=cache, index=index)
        found.append(y)
        index += count
    assert index == LENGTH
    return ops.concatenate(found, axis=1)


def starting_late(stack, x, late=2):
    """All tokens at once, in slots of which the first are not used."""
    slots = np.maximum(np.arange(LENGTH + late, dtype="int32") - late, 0)
    y, _ = stack(
        x,
        cache=stack.empty_cache(BATCH, LENGTH + late),
        index=layers.Place(
            late,
            np.arange(LENGTH, dtype="int32")[None] + np.zeros((BATCH, 1), "int32"),
            slots,
            (np.arange(LENGTH + late) >= late)[None, None, None],
        ),
    )
    return y


@EACH_PAIR
@pytest.mark.sampled
def test_step_by_step_is_all_at_once(kind, positions):
    """With each norm (a quick test: one of them) and some feed-forward network: in chunks, in slots that begin late."""
    row, x = PRODUCT.index((kind, positions)), normal(BATCH, LENGTH, D_MODEL)
    for i, residual in enumerate(RESIDUALS):
        one_by_one = i == row % len(RESIDUALS)
        if (ON_JAX or (kind, positions) in QUICK) and not one_by_one:
            continue
        stack = decoder(kind, positions, residual, list(FEED_FORWARD)[(row + i) % len(FEED_FORWARD)])
        expected = stack(x)
        assert_close(in_chunks(stack, x, (2, 1, 3, 1)), expected)
        if one_by_one:
            if not ON_JAX:  # which would compile each index; as a tensor it is below
                assert_close(in_chunks(stack, x, (1,) * LENGTH), expected)
            assert_close(starting_late(stack, x), expected)


def test_sliding_window_agrees_with_keras():
    x = normal(BATCH, LENGTH, D_MODEL)
    ours = layers.MultiHeadAttention(HEADS, DIM, sliding_window=3)
    theirs = keras.layers.MultiHeadAttention(HEADS, DIM, sliding_window=3)
    for layer in (ours, theirs):
        layer.build(x.shape, x.shape)
    ours.set_weights(randomized(theirs).get_weights())
    for causal in (False, True):
        assert_close(ours(x, x, use_causal_mask=causal), theirs(x, x, use_causal_mask=causal))


@pytest.mark.slow
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
            y, caches = layer(x, cache=cache.layers, index=place)
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


LAYERS = pytest.mark.parametrize("layer_class", [layers.EncoderLayer, layers.DecoderLayer])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"attention": "self"}, "`attention` must be a `Layer`. Received: attention='self'"),
        ({"feed_forward": "relu"}, "`feed_forward` must be a `Layer`. Received: feed_forward='relu'"),
        (
            {"attention": attention(), "num_heads": 3},
            "Pass either `num_heads` or `attention`, not both.*num_heads=3",
        ),
        (
            {"attention": attention(), "attention_dropout": 0.1},
            "Pass either `attention_dropout` or `attention`",
        ),
        ({"attention": attention(), "key_dim": 4}, "Pass either `key_dim` or `attention`, not both"),
        ({"feed_forward": FEED_FORWARD["gated"](), "d_ff": 5}, "Pass either `d_ff` or `feed_forward`"),
        (
            {"feed_forward": FEED_FORWARD["gated"](), "activation_dropout": 0.1},
            "Pass either `activation_dropout` or `feed_forward`",
        ),
        ({"num_heads": None}, "`num_heads` must be a positive integer. Received: num_heads=None"),
        ({"d_ff": None}, "`d_ff` must be a positive integer. Received: d_ff=None"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_parts_and_sizes_that_contradict_are_refused(arguments, named):
    sizes = {
        **({} if "attention" in arguments else {"num_heads": 3}),
        **({} if "feed_forward" in arguments else {"d_ff": 5}),
    }
    refuses(named, layers.EncoderLayer, **{**sizes, **arguments})


@pytest.mark.parametrize("name", ["attention", "feed_forward", "cross_attention"])
def test_a_stack_does_not_give_one_layer_to_all(name):
    with pytest.raises(ValueError, match=f"All layers would share one `{name}`. Pass a list"):
        layers.Decoder(2, 3, 5, **{name: attention()})


@pytest.mark.parametrize("arguments", [{"num_heads": 3}, {"d_ff": 5}, {"dropout": 0.1}])
def test_a_list_of_layers_takes_no_sizes(arguments):
    with pytest.raises(ValueError, match="A list of layers must not be empty and describes them wholly"):
        layers.Encoder([layers.EncoderLayer(3, 5)], **arguments)
    refuses("A list of layers must not be empty", layers.Encoder, [])


def test_a_decoder_layer_with_its_attention_needs_one_for_the_memory():
    x = normal(BATCH, LENGTH, D_MODEL)
    with pytest.raises(ValueError, match=r"needs `cross_attention` too.*cross_attention=None"):
        layers.DecoderLayer(attention=attention(), d_ff=5)(x, x)
    layers.DecoderLayer(attention=attention(), cross_attention=attention(), d_ff=5)(x, x)


@pytest.mark.slow
@LAYERS
def test_an_overridden_call_of_an_attention_runs(layer_class):
    class Doubled(layers.MultiHeadAttention):
        def call(self, *args, **kwargs):
            return 2 * super().call(*args, **kwargs)

    x, made = normal(BATCH, LENGTH, D_MODEL), []
    for cls in (layers.MultiHeadAttention, Doubled):
        layer = layer_class(attention=cls(HEADS, DIM), d_ff=5, normalize_first=True, dropout=0.0)
        layer.build(x.shape)
        made.append(randomized(layer))
    plain, doubled = made
    plain.self_attention.output_dense.kernel.assign(2 * plain.self_attention.output_dense.kernel)
    plain.self_attention.output_dense.bias.assign(2 * plain.self_attention.output_dense.bias)
    assert_close(doubled(x), plain(x))


@LAYERS
@pytest.mark.slow
def test_attention_of_keras_and_a_sequential_network_are_taken(layer_class, tmp_path):
    x, mask = normal(BATCH, LENGTH, D_MODEL), np.arange(LENGTH) < np.array([[LENGTH], [4]])
    theirs = layer_class(
        attention=keras.layers.MultiHeadAttention(HEADS, DIM),
        feed_forward=keras.Sequential([keras.layers.Dense(17, "gelu"), keras.layers.Dense(D_MODEL)]),
        dropout=0.0,
    )
    ours = layer_class(attention=attention(), feed_forward=layers.FeedForward(17, "gelu"), dropout=0.0)
    for layer in (theirs, ours):
        layer(x)
    assert len(theirs.weights) == len(ours.weights)
    ours.set_weights(randomized(theirs).get_weights())
    # Keras's layer gives a masked query the mean of all values; so real tokens are compared.
    assert_close(as_numpy(theirs(x, padding_mask=mask))[mask], as_numpy(ours(x, padding_mask=mask))[mask])
    assert_close(theirs(x, return_attention_scores=True)[0], ours(x))
    inputs = keras.Input((None, D_MODEL))
    keras.Model(inputs, theirs(inputs)).save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(x), theirs(x), 1e-6)


@pytest.mark.slow
def test_a_layer_that_holds_an_attention_twice_is_one(tmp_path):
    """Two encoder layers share an attention, and its positions: saved and loaded they still do."""
    shared = layers.MultiHeadAttention(HEADS, DIM, positions=layers.RelativePositionBias(HEADS, 8, 5))
    made = [layers.EncoderLayer(attention=shared, d_ff=5, dropout=0.0) for _ in range(2)]
    inputs = keras.Input((None, D_MODEL))
    model = randomized(keras.Model(inputs, made[1](made[0](inputs))))
    alone = layers.MultiHeadAttention(HEADS, DIM, positions=layers.RelativePositionBias(HEADS, 8, 5))
    alone.build((None, None, D_MODEL), (None, None, D_MODEL))
    assert len(model.weights) == len(alone.weights) + 2 * (4 + 4)
    x = normal(BATCH, LENGTH, D_MODEL)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert len(again.weights) == len(model.weights)
    assert_close(again(x), model(x), 1e-6)
    first, second = (layer.self_attention for layer in again.layers if hasattr(layer, "self_attention"))
    assert first is second
    # Keras asks each layer of a functional model for its configuration alone.
    assert len(keras.models.clone_model(model).weights) == len(model.weights) + len(alone.weights)
    stack = layers.Encoder([layers.EncoderLayer(attention=shared, d_ff=5) for _ in range(2)])
    stack(x)
    clone = layers.Encoder.from_config(stack.get_config())
    clone(x)
    assert len(clone.weights) == len(stack.weights)


def test_feed_forward_of_the_user_gets_the_padding_mask():
    told = []

    class Watching(keras.layers.Layer):
        def call(self, x, padding_mask=None):
            told.append(padding_mask)
            return x

    mask = np.arange(LENGTH) < np.array([[LENGTH], [4]])
    x = normal(BATCH, LENGTH, D_MODEL)
    layers.EncoderLayer(3, feed_forward=Watching())(x, padding_mask=mask)
    layers.DecoderLayer(3, feed_forward=Watching())(x, index=layers.Place(real=mask))
    given = [found for found in told if found is not None]  # when it is built it is told nothing
    assert len(given) == 2
    for found in given:
        np.testing.assert_array_equal(as_numpy(found), mask)


def test_a_place_says_which_tokens_are_real_and_hides_nothing():
    stack, x = decoder(feed_forward="experts"), normal(BATCH, LENGTH, D_MODEL)
    mask = np.arange(LENGTH) >= np.array([[0], [4]])
    assert_close(stack(x, index=layers.Place(real=mask)), stack(x), 0.0)
    assert np.abs(as_numpy(stack(x, padding_mask=mask)) - as_numpy(stack(x))).max() > 1e-3


# Compiled, at a slot known late


@pytest.mark.slow
@EACH_ROW
def test_compiled_steps_at_an_index_tensor_are_all_at_once(kind, positions):
    stack, x = decoder(kind, positions, num_layers=2), normal(BATCH, LENGTH, D_MODEL)
    expected = as_numpy(stack(x))
    for jit_compile in compilations()[:1]:
        step = native.compiled(lambda x, cache, index: stack(x, cache=cache, index=index), stack, jit_compile)
        cache = stack.empty_cache(BATCH, LENGTH + 1)
        for i in range(LENGTH):
            y, cache = step(ops.convert_to_tensor(x[:, i : i + 1]), cache, ops.convert_to_tensor(i, "int32"))
            np.testing.assert_allclose(as_numpy(y)[:, 0], expected[:, i], rtol=1e-4, atol=1e-5)
