"""Attention: examples worked by hand, then the numbers of NumPy and of Keras, then promises and refusals."""

import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    gradient_of,
    mask_of,
    needs_half_precision,
    normal,
    randomized,
    refuses,
    with_mask,
)
from keras import ops
from reference import attention as reference_attention
from reference import layer_norm, rms_norm, under, weights_of

from keras_transformer.layers import (
    ALiBi,
    KVCache,
    MultiHeadAttention,
    Place,
    dot_product_attention,
    empty_cache,
)
from keras_transformer.masks import look_ahead_mask

BATCH, TARGET_LEN, SOURCE_LEN, FEATURES, MEMORY_FEATURES = 2, 5, 7, 11, 13
HEADS, KEY_DIM, VALUE_DIM = 3, 4, 6
CACHE = empty_cache(1, 2, 5, 4, 4, "float32")
KEYS_REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])


def query():
    return normal(BATCH, TARGET_LEN, FEATURES)


def value(seed=0):
    return normal(BATCH, SOURCE_LEN, MEMORY_FEATURES, seed=seed)


def built(*inputs, **arguments):
    layer = MultiHeadAttention(HEADS, KEY_DIM, **{"value_dim": VALUE_DIM, **arguments})
    layer.build(*(x.shape for x in inputs))
    return randomized(layer)


# Worked by hand


INPUTS = np.array([[[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]], "float32")
KEY = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]], "float32")
QUERY = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]], "float32")
VALUE = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]], "float32")
# Keys [0,1,1] [4,4,0] [2,3,1], queries [1,0,2] [2,2,2] [2,1,3]: their products.
SCORES = np.array([[2, 4, 4], [4, 16, 12], [4, 12, 10]], "float64")
VALUES = np.array([[1, 2, 3], [2, 8, 0], [2, 6, 3]], "float64")


def illustrated(query_weights):
    layer = MultiHeadAttention(1, 3, use_bias=False, output_shape=3)
    layer.build(INPUTS.shape, INPUTS.shape)
    layer.set_weights(
        [query_weights[:, None, :], KEY[:, None, :], VALUE[:, None, :], np.eye(3, dtype="float32")[None]]
    )
    return layer


@pytest.mark.parametrize("factor", [1.0, 3**0.5], ids=["scaled", "as_illustrated"])
def test_attention_of_three_tokens_worked_by_hand(factor):
    """The illustration leaves out the scaling by 1/sqrt(3): queries sqrt(3) times as long undo it."""
    layer = illustrated(QUERY * np.float32(factor))
    memory = layer.project_memory(INPUTS)
    assert_close(memory.key, np.array([[[[0, 1, 1], [4, 4, 0], [2, 3, 1]]]], "float64"))
    assert_close(memory.value, VALUES[None, None])
    queries = np.array([[[[1, 0, 2]], [[2, 2, 2]], [[2, 1, 3]]]], "float64")
    assert_close(layer.query_dense(INPUTS), factor * queries)
    output, scores = layer(INPUTS, INPUTS, return_attention_scores=True)
    powers = np.exp(SCORES * factor / 3**0.5)
    weights = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(as_numpy(scores)[0, 0], weights, rtol=1e-4)
    np.testing.assert_allclose(as_numpy(output)[0], weights @ VALUES, rtol=1e-4)
    if factor > 1:
        np.testing.assert_allclose(as_numpy(output)[0, 0], [1.94, 6.68, 1.60], atol=0.005)


def test_look_ahead_mask_takes_the_place_of_the_scores():
    """The scores of `<SOS> I am a student`: each token attends to itself most, and to none that comes later."""
    scores = [[7, 2, 2, 2, 2], [1, 7, 3, 2, 1], [1, 4, 8, 4, 3], [1, 2, 3, 6, 2], [1, 5, 4, 1, 9]]
    one = np.eye(5, dtype="float32")[None, None]
    query, mask = np.array([[scores]], "float32"), look_ahead_mask(5)
    context, weights = dot_product_attention(query, one, one, mask, scale=1.0)
    powers = np.tril(np.exp(np.array(scores, "float64")))
    assert_close(weights[0, 0], powers / powers.sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(
        as_numpy(weights)[0, 0, 1, :2], [1 / (1 + np.exp(6)), 1 / (1 + np.exp(-6))], 1e-4
    )
    assert_close(context, weights)


def test_eight_heads_of_512_channels_have_64_each():
    layer = MultiHeadAttention(8, 64)
    layer.build((None, None, 512), (None, None, 512))
    shapes = [tuple(part.kernel.shape) for part in (layer.query_dense, layer.key_dense, layer.value_dense)]
    assert shapes == [(512, 8, 64)] * 3
    assert tuple(layer.output_dense.kernel.shape) == (8, 64, 512)


def test_shuffled_tokens_give_shuffled_outputs_without_positions():
    """{home, go, I} is {I, go, home}."""
    x = normal(1, 3, FEATURES)
    layer = built(x, x)
    backwards = x[:, ::-1]
    assert_close(layer(backwards, backwards), as_numpy(layer(x, x))[:, ::-1])


# The numbers of the paper in NumPy, and of Keras


def allowed(*shape):
    """A mask in which every query may attend to something."""
    mask = np.random.default_rng(list(shape)).integers(0, 2, shape).astype(bool)
    mask[..., 0] = True
    return mask


CALLS = {
    "plain": {},
    "causal": {"use_causal_mask": True},
    "mask_of_rank_3": {"attention_mask": allowed(BATCH, TARGET_LEN, SOURCE_LEN)},
    "mask_of_rank_4": {"attention_mask": allowed(BATCH, HEADS, TARGET_LEN, SOURCE_LEN)},
    "mask_that_broadcasts": {"attention_mask": allowed(1, 1, TARGET_LEN, SOURCE_LEN)},
    "value_mask": {"value_mask": KEYS_REAL},
    "key_mask": {"key_mask": KEYS_REAL},
    "all_masks": {
        "value_mask": KEYS_REAL,
        "key_mask": allowed(BATCH, SOURCE_LEN),
        "attention_mask": allowed(BATCH, TARGET_LEN, SOURCE_LEN),
        "use_causal_mask": True,
    },
}


@pytest.mark.parametrize("call", CALLS)
def test_agrees_with_numpy(call):
    arguments = CALLS[call]
    layer = built(query(), value())
    mask = np.ones((BATCH, HEADS, TARGET_LEN, SOURCE_LEN), bool)
    for name in ("value_mask", "key_mask"):
        if name in arguments:
            mask &= arguments[name][:, None, None, :]
    if "attention_mask" in arguments:
        given = arguments["attention_mask"]
        mask &= given[:, None] if given.ndim == 3 else given
    if arguments.get("use_causal_mask"):
        mask &= np.tril(np.ones((TARGET_LEN, SOURCE_LEN), bool))
    expected = reference_attention(weights_of(layer), query(), value(), allowed=mask)
    assert_close(layer(query(), value(), return_attention_scores=True, **arguments), expected)
    assert_close(layer(query(), value(), **arguments), expected[0])


def keras_twin(layer, inputs, **arguments):
    """Keras's own layer with the weights of `layer`."""
    twin = keras.layers.MultiHeadAttention(HEADS, KEY_DIM, **{"value_dim": VALUE_DIM, **arguments})
    twin.build(*(x.shape for x in inputs))
    twin.set_weights(layer.get_weights())
    return twin


def by_keras(layer, *inputs, **arguments):
    """Output and scores. Keras's path without scores cannot do a `value_dim` of its own on JAX."""
    output, scores = layer(*inputs, return_attention_scores=True, **arguments)
    if keras.backend.backend() != "jax":
        output = layer(*inputs, **arguments)
    return output, scores


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"value_dim": None},
        {"output_shape": 17},
        {"output_shape": (17,)},
        {"use_bias": False},
        {"use_gate": True},
        {"use_gate": True, "use_bias": False},
        {"use_gate": True, "output_shape": (2, 5)},
    ],
)
def test_arguments_agree_with_keras(arguments):
    """With every mask, and with keys of their own."""
    inputs = query(), value(), normal(BATCH, SOURCE_LEN, 17)
    ours = built(*inputs, **arguments)
    theirs = keras_twin(ours, inputs, **arguments)
    projections = 4 + arguments.get("use_gate", False)
    assert len(ours.get_weights()) == projections * (1 + arguments.get("use_bias", True))
    found = ours(*inputs, return_attention_scores=True, **CALLS["all_masks"])
    assert_close(found, by_keras(theirs, *inputs, **CALLS["all_masks"]))


def test_query_mask_agrees_with_keras_on_real_rows():
    queries_real = np.array([[True] * 5, [True] * 2 + [False] * 3])
    ours = built(query(), value())
    theirs = keras_twin(ours, (query(), value()))
    found = as_numpy(ours(query(), value(), query_mask=queries_real))
    expected = as_numpy(by_keras(theirs, query(), value(), query_mask=queries_real)[0])
    assert_close(found[queries_real], expected[queries_real])
    bias = as_numpy(ours.output_dense.bias)
    assert_close(found[~queries_real], np.broadcast_to(bias, (3, FEATURES)))


def test_attention_mask_of_rank_2_is_of_targets_and_sources():
    """Even where the batch is as large as the target: Keras reads it so, and no other way."""
    layer, x = built(query(), value()), normal(TARGET_LEN, TARGET_LEN, FEATURES)
    memory, mask = normal(TARGET_LEN, SOURCE_LEN, MEMORY_FEATURES), allowed(TARGET_LEN, SOURCE_LEN)
    found = layer(x, memory, attention_mask=mask, return_attention_scores=True)
    assert_close(found, reference_attention(weights_of(layer), x, memory, allowed=mask[None, None]))
    theirs = keras_twin(layer, (x, memory))
    assert_close(found, by_keras(theirs, x, memory, attention_mask=mask))


# Options that Keras does not have


def test_a_soft_cap_bounds_the_products():
    q, k, v = (normal(2, 3, length, 4) for length in (5, 7, 7))
    found, scores = dot_product_attention(q, k, v, scale=1.0, soft_cap=0.5)
    products = 0.5 * np.tanh(np.einsum("bhqd,bhkd->bhqk", q, k) / 0.5)
    expected = np.exp(products) / np.exp(products).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(as_numpy(scores), expected, atol=1e-6)
    np.testing.assert_allclose(as_numpy(found), expected @ v, atol=1e-5)
    x = 5 * normal(2, 7, 6)
    capped, plain = (built(x, x, soft_cap=cap) for cap in (0.5, None))
    assert np.abs(as_numpy(capped(x, x)) - as_numpy(plain(x, x))).max() > 1e-2


@pytest.mark.parametrize("over_heads", [True, False])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_queries_and_keys_are_normed_over_each_head_or_over_all(kind, over_heads):
    x = normal(2, 7, 8)
    options = {"query_key_norm": kind, "norm_over_heads": over_heads, "norm_epsilon": 0.2}
    layer = built(x, x, num_key_value_heads=1, **options)
    weights, own = weights_of(layer), {}
    for name, heads in (("query", HEADS), ("key", 1)):
        of_norm, shape = under(weights, f"{name}_norm"), (heads, KEY_DIM) if over_heads else (KEY_DIM,)
        assert {each.shape for each in of_norm.values()} == {shape}
        of_norm = {name: each.reshape(-1) for name, each in of_norm.items()}
        projected = as_numpy(getattr(layer, f"{name}_dense")(x)).astype("float64")
        projected = projected.reshape(2, 7, -1, np.prod(shape))
        normed = {"rms": rms_norm, "layer": layer_norm}[kind](of_norm, projected, 0.2)
        own[name] = normed.reshape(2, 7, heads, KEY_DIM).transpose(0, 2, 1, 3)
    _, scores = layer(x, x, return_attention_scores=True)
    powers = np.exp(own["query"] @ own["key"].swapaxes(2, 3) / KEY_DIM**0.5)
    assert_close(scores, powers / powers.sum(axis=-1, keepdims=True))


def test_output_bias_may_be_left_out():
    layer = MultiHeadAttention(2, 3, output_bias=False)
    layer.build((1, 5, 6), (1, 5, 6))
    assert layer.output_dense.bias is None
    assert layer.query_dense.bias is not None
    assert type(layer).from_config(layer.get_config()).output_bias is False


@pytest.mark.parametrize("batches", [(1, 3), (3, 1)], ids=["learned queries", "one memory"])
def test_a_batch_of_one_is_repeated(batches):
    queries, values = (
        normal(batch, length, 4, seed=batch) for batch, length in zip(batches, (5, 7), strict=True)
    )
    layer = MultiHeadAttention(2, 3)
    layer.build(queries.shape, values.shape)
    randomized(layer)
    whole = [np.repeat(x, 3 // len(x), axis=0) for x in (queries, values)]
    masks = {"attention_mask": np.tri(5, 7, dtype=bool)[None].repeat(3, axis=0)}
    results = [layer(*inputs, **masks, return_attention_scores=True) for inputs in ((queries, values), whole)]
    assert_close(*results, 1e-6)
    assert layer.compute_output_shape(queries.shape, values.shape) == (3, 5, 4)
    inputs = [keras.Input(batch_shape=x.shape) for x in (queries, values)]
    output = layer(*inputs)
    assert output.shape == (3, 5, 4)
    assert_close(keras.Model(inputs, output)([queries, values]), layer(*whole), 1e-6)


def test_positions_may_be_arrays_of_numpy():
    x = normal(1, 5, 8)
    attention = MultiHeadAttention(2, 4, positions=ALiBi())
    expected = attention(x, x)
    assert_close(attention(x, x, index=Place(positions=np.arange(5), key_positions=np.arange(5))), expected)


# Rows that may attend to nothing


def test_row_that_may_attend_to_nothing_gives_the_output_bias():
    mask = allowed(BATCH, TARGET_LEN, SOURCE_LEN)
    mask[0, 2] = mask[1, 4] = False
    layer = built(query(), value(), dropout=0.5)
    output, scores = layer(query(), value(), attention_mask=mask, return_attention_scores=True)
    assert_close(
        (output, scores), reference_attention(weights_of(layer), query(), value(), allowed=mask[:, None])
    )
    alone = layer(query(), value(), attention_mask=mask)
    bias = as_numpy(layer.output_dense.bias)
    for row in ((0, 2), (1, 4)):
        assert_close(as_numpy(output)[row], bias, 0.0)
        assert_close(as_numpy(alone)[row], bias, 0.0)


def test_row_that_may_attend_to_nothing_gives_gradients_of_zero():
    layer, nothing = built(query(), value()), np.zeros((BATCH, SOURCE_LEN), bool)
    for weight in layer.weights:

        def total(given, weight=weight):
            with keras.StatelessScope(state_mapping=[(weight, ops.convert_to_tensor(given))]):
                return ops.sum(layer(query(), value(), value_mask=nothing))

        is_output_bias = weight.path.endswith("attention_output/bias")
        rows = float(BATCH * TARGET_LEN * is_output_bias)
        found = gradient_of(total, as_numpy(weight).astype("float32"))
        np.testing.assert_array_equal(found, np.full(weight.shape, rows), err_msg=weight.path)


# Keras's implicit mask


@pytest.mark.filterwarnings("error:.*does not support masking")
def test_implicit_masks_are_read_and_left_alone():
    """Of the query, the value and the key; an explicit mask wins over the implicit one of that input."""
    layer, inputs = built(query(), value(), value()), (query(), value(), value(1))
    names, other = ("query_mask", "value_mask", "key_mask"), allowed(2 * BATCH, SOURCE_LEN)[BATCH:]
    masks = dict(zip(names, (allowed(BATCH, TARGET_LEN), KEYS_REAL, allowed(BATCH, SOURCE_LEN)), strict=True))
    masked = [with_mask(ops.convert_to_tensor(x), masks[name]) for x, name in zip(inputs, names, strict=True)]
    before = [mask_of(x) for x in masked]
    assert_close(layer(*masked), layer(*inputs, **masks), 1e-6)
    assert_close(layer(*masked, value_mask=other), layer(*inputs, **{**masks, "value_mask": other}), 1e-6)
    assert all(mask is not None and mask_of(x) is mask for x, mask in zip(masked, before, strict=True))


def test_an_implicit_mask_is_not_read_with_a_cache():
    marked = with_mask(normal(1, 5, 8), np.ones((1, 5), bool))
    MultiHeadAttention(2, 4)(marked, marked, cache=CACHE, use_causal_mask=True)


# The cache


def test_projected_memory_gives_the_same_output():
    layer = built(query(), value())
    memory = layer.project_memory(value())
    assert isinstance(memory, KVCache)
    causal = look_ahead_mask(TARGET_LEN, SOURCE_LEN)
    output, scores = layer(query(), memory, attention_mask=causal, return_attention_scores=True)
    expected = layer(query(), value(), use_causal_mask=True, return_attention_scores=True)
    assert_close((output, scores), expected, 1e-6)
    mask = np.tril(np.ones((TARGET_LEN, SOURCE_LEN), bool))
    assert_close((output, scores), reference_attention(weights_of(layer), query(), value(), allowed=mask))


def test_project_memory_works_in_a_functional_model():
    layer = built(query(), value())
    x, memory = keras.Input(query().shape[1:]), keras.Input(value().shape[1:])
    model = keras.Model([x, memory], layer(x, layer.project_memory(memory)))
    assert_close(model([query(), value()]), layer(query(), value()))


# Precision, first weights and derivatives


@needs_half_precision
def test_softmax_is_float32_under_mixed_bfloat16():
    """257 equal keys: weights of 1/257 that sum to one; bfloat16 would round each of them."""
    shape = (1, 1, 257, 2)
    key = ops.zeros(shape, "bfloat16")
    _, weights = dot_product_attention(key[:, :, :1], key, key)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(as_numpy(weights), np.full((1, 1, 1, 257), 1 / 257), rtol=1e-6)


@pytest.mark.tensorflow  # JAX computes in float32 unless it is told otherwise at its start
def test_a_float64_policy_computes_in_float64():
    layer = MultiHeadAttention(HEADS, 5, dtype="float64")  # 1 / sqrt(5) has more digits than a float32 holds
    layer.build(query().shape, value().shape)
    randomized(layer)
    expected = reference_attention(weights_of(layer), query(), value())
    for found, exact in zip(layer(query(), value(), return_attention_scores=True), expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(found), exact, rtol=1e-12, atol=1e-12)


def test_huge_scores_stay_finite():
    one = np.ones((1, 1, 2, 3), "float32") * np.array([1e4, -1e4], "float32")[:, None]
    context, weights = dot_product_attention(one, one, one, ops.convert_to_tensor([[[[True, True]]]]))
    assert_close(weights, np.array([[[[1.0, 0.0], [0.0, 1.0]]]]))
    assert_close(context, one)


def test_kernels_are_initialised_as_matrices():
    """Glorot's limit of a (features, heads * dim) matrix, reached and not passed."""
    layer = MultiHeadAttention(5, 37)
    layer.build((None, None, 101), (None, None, 101))
    limit = (6 / (101 + 5 * 37)) ** 0.5
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
        largest = np.abs(as_numpy(dense.kernel)).max()
        assert 0.98 * limit < largest <= limit
    query_kernel, key_kernel = as_numpy(layer.query_dense.kernel), as_numpy(layer.key_dense.kernel)
    assert np.abs(query_kernel - key_kernel).max() > 0.1 * limit


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("queries", [1, 2, 4, 5])
def test_derivatives_of_few_queries_in_a_graph_agree_with_keras(queries):
    import tensorflow as tf

    x = tf.constant(normal(BATCH, queries, FEATURES))
    ours = built(x, value())

    def derivatives(layer):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = layer(x, value())
                loss = tf.reduce_sum(tf.square(y))
            first = inner.gradient(loss, x)
            length = tf.reduce_sum(tf.square(first))
        return y, first, outer.gradient(length, x)

    assert_close(tf.function(derivatives)(ours), derivatives(keras_twin(ours, (x, value()))), 1e-3)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("queries", [1, 2, 5])
def test_the_forward_derivative_is_the_same_in_a_graph(queries):
    import tensorflow as tf

    x, direction = (tf.constant(normal(BATCH, queries, FEATURES, seed=seed)) for seed in (1, 2))
    ours = built(x, value())

    def derivative():
        with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
            y = ours(x, value())
        return accumulator.jvp(y)

    assert_close(tf.function(derivative)(), derivative())


# What a subclass overrides


def test_an_overridden_compute_attention_runs():
    """Keras names it for attention of one's own."""

    class Uniform(MultiHeadAttention):
        def _compute_attention(self, query, key, value, attention_mask=None, training=None, *args, **kwargs):
            mean = ops.mean(value, axis=1, keepdims=True)
            return ops.broadcast_to(mean, (*ops.shape(query)[:-1], self.value_dim)), None

    layer = Uniform(HEADS, KEY_DIM, VALUE_DIM)
    output = as_numpy(layer(query(), value()))
    assert_close(output, np.repeat(output[:, :1], TARGET_LEN, axis=1), 1e-6)


def test_a_fused_kernel_gives_no_scores():
    layer = MultiHeadAttention(HEADS, KEY_DIM, VALUE_DIM, flash_attention=True)
    rule = "`return_attention_scores` needs `flash_attention=False`"
    refuses(rule, layer, query(), value(), return_attention_scores=True)


class KerasLines(MultiHeadAttention):
    """Attention with the lines of Keras's own layer."""

    _compute_attention = keras.layers.MultiHeadAttention._compute_attention


# A query that sees all keys, one that sees none, and one that sees the first.
MASK = np.arange(SOURCE_LEN) < np.array([SOURCE_LEN, 0, 1])[:, None]


@pytest.mark.parametrize(("options", "masks"), [
    ({}, {}),
    ({"key_dim": None}, {"attention_mask": np.tile(MASK, (BATCH, 1, 1))}),
    ({"scale": 0.3}, {"attention_mask": np.tile(MASK, (BATCH, HEADS, 1, 1))}),
    ({}, {"value_mask": np.arange(SOURCE_LEN) < np.arange(1, BATCH + 1)[:, None]}),
    ({"sliding_window": 2}, {}),
], ids=["plain", "mask", "mask of heads", "value mask", "window"])  # fmt: skip
def test_the_lines_of_keras_run_as_an_overridden_hook(options, masks):
    queries, options = normal(BATCH, len(MASK), 12), {"key_dim": KEY_DIM, **options}
    layers = KerasLines(HEADS, **options), MultiHeadAttention(HEADS, **options)
    for layer in layers:
        layer.build(queries.shape, value().shape)
    layers[1].set_weights(randomized(layers[0]).get_weights())
    outputs = [layer(queries, value(), **masks, return_attention_scores=True) for layer in layers]
    assert_close(*outputs, 1e-6)


def test_the_hook_of_keras_sees_one_axis_on_inputs_of_rank_4():
    x = normal(2, 3, 5, 4)
    layers = [kind(2, 2, attention_axes=(1, 2)) for kind in (KerasLines, MultiHeadAttention)]
    for layer in layers:
        layer.build(x.shape, x.shape)
    layers[1].set_weights(randomized(layers[0]).get_weights())
    assert_close(*(layer(x, x) for layer in layers), 1e-6)


def test_masks_combine_for_an_overridden_compute_attention():
    """As many heads as rows: Keras would read the rows of its mask as heads."""

    class Own(MultiHeadAttention):
        def _compute_attention(self, *args, **kwargs):
            return super()._compute_attention(*args, **kwargs)

    x = normal(2, 3, 8)
    plain, own = MultiHeadAttention(2, 4), Own(2, 4)
    plain(x, x), own(x, x)
    own.set_weights(plain.get_weights())
    masks = {
        "query_mask": np.array([[True, True, False], [True] * 3]),
        "value_mask": np.array([[True] * 3, [True, False, False]]),
        "attention_mask": np.ones((2, 2, 3, 3), bool),
    }
    found, expected = (layer(x, x, return_attention_scores=True, **masks)[1] for layer in (own, plain))
    assert_close(found, expected)


# Refusals


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"as many rows as one another.*query_rows=3, value_rows=2"):
        MultiHeadAttention(2, 3)(normal(3, 5, 4), normal(2, 7, 4))


@pytest.mark.parametrize(("arguments", "message"), [
    ({"use_causal_mask": False, "cache": CACHE}, "`cache` needs `use_causal_mask=True`.*use_causal_mask=False"),
    ({"index": 3}, r"`index` needs a `cache`. Received: index=3, cache=None\."),
    ({"key_mask": np.ones((1, 5), "float32")}, "`key_mask` must be boolean"),
    ({"value_mask": np.ones((1, 5), bool), "cache": CACHE}, "`value_mask` cannot be given with a `cache`"),
    ({"key": normal(1, 4, 8)}, "must be equal"),
])  # fmt: skip
def test_contradicting_arguments_of_a_call_are_refused(arguments, message):
    x = normal(1, 5, 8)
    refuses(message, MultiHeadAttention(2, 4), x, x, **{"use_causal_mask": True, **arguments})
