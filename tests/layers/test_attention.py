import keras
import numpy as np
import pytest
from contracts import (
    STEP_IN_XLA,
    as_numpy,
    assert_close,
    mask_of,
    needs_bfloat16,
    normal,
    randomized,
    with_mask,
)
from keras import ops
from reference import attention as reference_attention
from reference import weights_of

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
KEYS_REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])


def query():
    return normal(BATCH, TARGET_LEN, FEATURES)


def value(seed=0):
    return normal(BATCH, SOURCE_LEN, MEMORY_FEATURES, seed=seed)


def built(*inputs, **arguments):
    layer = MultiHeadAttention(HEADS, KEY_DIM, **{"value_dim": VALUE_DIM, **arguments})
    layer.build(*(x.shape for x in inputs))
    return randomized(layer)


# Parity: with Keras, and with the paper in NumPy


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


@pytest.mark.slow
@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled
def test_same_weights_give_what_keras_gives(call, with_scores):
    ours = built(query(), value())
    theirs = keras_twin(ours, (query(), value()))
    found = ours(query(), value(), return_attention_scores=with_scores, **CALLS[call])
    expected = by_keras(theirs, query(), value(), **CALLS[call])
    assert_close(found, expected if with_scores else expected[0])


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
        {"value_dim": None},
        {"output_shape": 17},
        {"output_shape": (17,)},
        {"use_bias": False},
        {"use_gate": True},
        {"use_gate": True, "use_bias": False},
        {"use_gate": True, "output_shape": (2, 5)},
    ],
)
def test_same_arguments_give_what_keras_gives(arguments):
    """With a mask, and with keys of their own."""
    inputs = query(), value(), normal(BATCH, SOURCE_LEN, 17)
    ours = built(*inputs, **arguments)
    theirs = keras_twin(ours, inputs, **arguments)
    projections = 4 + arguments.get("use_gate", False)
    assert len(ours.get_weights()) == projections * (1 + arguments.get("use_bias", True))
    found = ours(*inputs, return_attention_scores=True, **CALLS["mask_of_rank_3"])
    assert_close(found, by_keras(theirs, *inputs, **CALLS["mask_of_rank_3"]))


def test_query_mask_gives_what_keras_gives_on_real_rows():
    queries_real = np.array([[True] * 5, [True] * 2 + [False] * 3])
    ours = built(query(), value())
    theirs = keras_twin(ours, (query(), value()))
    found = as_numpy(ours(query(), value(), query_mask=queries_real))
    expected = as_numpy(by_keras(theirs, query(), value(), query_mask=queries_real)[0])
    assert_close(found[queries_real], expected[queries_real])
    bias = as_numpy(ours.output_dense.bias)
    assert_close(found[~queries_real], np.broadcast_to(bias, (3, FEATURES)))


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


def test_attention_mask_of_rank_2_is_of_targets_and_sources():
    """Even where the batch is as large as the target: Keras reads it so, and no other way."""
    layer, x = built(query(), value()), normal(TARGET_LEN, TARGET_LEN, FEATURES)
    memory, mask = normal(TARGET_LEN, SOURCE_LEN, MEMORY_FEATURES), allowed(TARGET_LEN, SOURCE_LEN)
    found = layer(x, memory, attention_mask=mask, return_attention_scores=True)
    assert_close(found, reference_attention(weights_of(layer), x, memory, allowed=mask[None, None]))
    theirs = keras_twin(layer, (x, memory))
    assert_close(found, by_keras(theirs, x, memory, attention_mask=mask))


# The illustrated example: three tokens, one head


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


def test_illustrated_example_projects_to_small_integers():
    layer = illustrated(QUERY)
    memory = layer.project_memory(INPUTS)
    assert_close(memory.key, np.array([[[[0, 1, 1], [4, 4, 0], [2, 3, 1]]]], "float64"))
    assert_close(memory.value, VALUES[None, None])
    assert_close(layer.query_dense(INPUTS), np.array([[[[1, 0, 2]], [[2, 2, 2]], [[2, 1, 3]]]], "float64"))


@pytest.mark.parametrize("factor", [1.0, 3**0.5], ids=["scaled", "as_illustrated"])
def test_illustrated_example(factor):
    """The illustration leaves out the scaling by 1/sqrt(3): queries sqrt(3) times as long undo it."""
    powers = np.exp(SCORES * factor / 3**0.5)
    weights = powers / powers.sum(axis=-1, keepdims=True)
    output, found = illustrated(QUERY * np.float32(factor))(INPUTS, INPUTS, return_attention_scores=True)
    np.testing.assert_allclose(as_numpy(found)[0, 0], weights, rtol=1e-4)
    np.testing.assert_allclose(as_numpy(output)[0], weights @ VALUES, rtol=1e-4)


# Rows that may attend to nothing


@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_row_that_may_attend_to_nothing_gives_the_output_bias(with_scores, dropout):
    mask = allowed(BATCH, TARGET_LEN, SOURCE_LEN)
    mask[0, 2] = mask[1, 4] = False
    layer = built(query(), value(), dropout=dropout)
    found = layer(query(), value(), attention_mask=mask, return_attention_scores=with_scores)
    output, weights = found if with_scores else (found, None)
    bias = as_numpy(layer.output_dense.bias)
    for row in ((0, 2), (1, 4)):
        assert_close(as_numpy(output)[row], bias, 0.0)
    assert_close(output, reference_attention(weights_of(layer), query(), value(), allowed=mask[:, None])[0])
    if with_scores:
        assert np.all(as_numpy(weights)[0, :, 2] == 0) and np.all(as_numpy(weights)[1, :, 4] == 0)
        assert np.all(np.isfinite(as_numpy(weights)))


def test_row_that_may_attend_to_nothing_has_a_finite_gradient():
    layer = built(query(), value())
    before = layer.get_weights()
    x, memory = keras.Input((None, FEATURES)), keras.Input((None, MEMORY_FEATURES))
    real = keras.Input((None,), dtype="bool")
    model = keras.Model([x, memory, real], layer(x, memory, value_mask=real))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=STEP_IN_XLA)
    nothing = np.zeros((1, SOURCE_LEN), bool)
    model.fit([query()[:1], value()[:1], nothing], np.zeros((1, TARGET_LEN, FEATURES)), verbose=0)
    for weight, old, new in zip(layer.weights, before, layer.get_weights(), strict=True):
        assert np.all(np.isfinite(new))
        moved = np.abs(new - old).max() > 0
        assert moved == weight.path.endswith("attention_output/bias"), weight.path


# A masked token, changed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["value_mask", "key_mask", "attention_mask", "implicit"])
def test_masked_tokens_changed_change_nothing(how):
    layer = built(query(), value())
    changed = np.where(KEYS_REAL[..., None], value(), 1e3 * value(seed=1))

    def attend(memory):
        if how == "implicit":
            return layer(query(), with_mask(ops.convert_to_tensor(memory), KEYS_REAL))
        mask = KEYS_REAL[:, None] if how == "attention_mask" else KEYS_REAL
        return layer(query(), memory, **{how: mask})

    assert_close(attend(changed), attend(value()), 1e-6)
    assert np.abs(as_numpy(layer(query(), changed)) - as_numpy(layer(query(), value()))).max() > 0.1


# Keras's implicit mask, used again and again


def test_masks_of_all_inputs_are_left_alone():
    layer = built(query(), value(), value())
    masked = [
        with_mask(ops.convert_to_tensor(x), ops.convert_to_tensor(mask))
        for x, mask in (
            (query(), allowed(BATCH, TARGET_LEN)),
            (value(), KEYS_REAL),
            (value(1), allowed(BATCH, SOURCE_LEN)),
        )
    ]
    before = [mask_of(x) for x in masked]
    layer(*masked, return_attention_scores=True)
    assert all(mask is not None and mask_of(x) is mask for x, mask in zip(masked, before, strict=True))


def test_explicit_mask_wins_over_the_implicit_one():
    layer = built(query(), value())
    other = np.array([[True] * 2 + [False] * 5, [True] * 6 + [False]])
    masked = with_mask(ops.convert_to_tensor(value()), KEYS_REAL)
    assert_close(layer(query(), masked, value_mask=other), layer(query(), value(), value_mask=other), 0.0)


# Numbers


@needs_bfloat16
def test_softmax_is_float32_under_mixed_bfloat16():
    """257 equal keys: weights of 1/257 that sum to one; bfloat16 would round each of them."""
    shape = (1, 1, 257, 2)
    key = ops.zeros(shape, "bfloat16")
    _, weights = dot_product_attention(key[:, :, :1], key, key)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(as_numpy(weights), np.full((1, 1, 1, 257), 1 / 257), rtol=1e-6)


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


# The cache


def test_projected_parts_make_the_whole():
    layer = built(query(), value())
    memory = layer.project_memory(value())
    assert isinstance(memory, KVCache)
    causal = look_ahead_mask(TARGET_LEN, SOURCE_LEN)
    output, scores = layer(query(), memory, attention_mask=causal, return_attention_scores=True)
    expected = layer(query(), value(), use_causal_mask=True, return_attention_scores=True)
    assert_close((output, scores), expected, 1e-6)
    mask = np.tril(np.ones((TARGET_LEN, SOURCE_LEN), bool))
    assert_close((output, scores), reference_attention(weights_of(layer), query(), value(), allowed=mask))


# Errors

CACHE = empty_cache(1, 2, 5, 4, 4, "float32")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"use_causal_mask": False, "cache": CACHE},
            "`cache` needs `use_causal_mask=True`.*use_causal_mask=False",
        ),
        ({"index": 3}, r"`index` needs a `cache`. Received: index=3, cache=None\."),
        ({"key_mask": np.ones((1, 5), "float32")}, "`key_mask` must be boolean"),
        (
            {"value_mask": np.ones((1, 5), bool), "cache": CACHE},
            "`value_mask` cannot be given with a `cache`",
        ),
        ({"key": normal(1, 4, 8)}, "must be equal"),
    ],
)
def test_calls_that_make_no_sense_are_refused(arguments, message):
    x = normal(1, 5, 8)
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(2, 4)(x, x, **{"use_causal_mask": True, **arguments})


# Everything of Keras's layer


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
@pytest.mark.sampled
def test_inputs_of_higher_rank_give_what_keras_gives(case, use_gate):
    query_shape, value_shape, axes = AXES[case]
    x, memory = normal(*query_shape), normal(*value_shape, seed=1)
    arguments = {"attention_axes": axes, "use_gate": use_gate}
    ours = built(x, memory, **arguments)
    theirs = keras_twin(ours, (x, memory), **arguments)
    assert [w.path.split("/")[1:] for w in ours.weights] == [w.path.split("/")[1:] for w in theirs.weights]
    found = ours(x, memory, return_attention_scores=True)
    assert_close(found, theirs(x, memory, return_attention_scores=True))
    assert_close(ours(x, memory), found[0], 1e-6)
    attended = range(1, len(x.shape) - 1) if axes is None else [axis % len(x.shape) for axis in axes]
    free = [x.shape[n] for n in range(1, len(x.shape) - 1) if n not in attended]
    if len(free) == 0:
        sizes = [shape[n] for shape in (x.shape, memory.shape) for n in attended]
        mask = allowed(BATCH, *sizes)
        assert_close(ours(x, memory, attention_mask=mask), theirs(x, memory, attention_mask=mask))


def test_an_overridden_compute_attention_runs():
    """Keras names it for attention of one's own."""

    class Uniform(MultiHeadAttention):
        def _compute_attention(self, query, key, value, attention_mask=None, training=None, *args, **kwargs):
            mean = ops.mean(value, axis=1, keepdims=True)
            return ops.broadcast_to(mean, (*ops.shape(query)[:-1], self.value_dim)), None

    layer = Uniform(HEADS, KEY_DIM, VALUE_DIM)
    output = as_numpy(layer(query(), value()))
    assert_close(output, np.repeat(output[:, :1], TARGET_LEN, axis=1), 1e-6)


@pytest.mark.filterwarnings("error:.*does not support masking")
def test_masked_inputs_raise_no_warning():
    layer = built(query(), value())
    masked = (with_mask(ops.convert_to_tensor(x), np.ones(x.shape[:2], bool)) for x in (query(), value()))
    assert_close(layer(*masked), layer(query(), value()))


@pytest.mark.tensorflow  # JAX computes in float32 unless it is told otherwise at its start
def test_a_float64_policy_computes_in_float64():
    layer = MultiHeadAttention(HEADS, 5, dtype="float64")  # 1 / sqrt(5) has more digits than a float32 holds
    layer.build(query().shape, value().shape)
    randomized(layer)
    expected = reference_attention(weights_of(layer), query(), value())
    for found, exact in zip(layer(query(), value(), return_attention_scores=True), expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(found), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("queries", [1, 2, 4, 5])
def test_few_queries_in_a_graph_have_the_two_derivatives_that_keras_gives(queries):
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


def test_a_functional_model_may_contain_the_projection_of_a_memory():
    layer = built(query(), value())
    x, memory = keras.Input(query().shape[1:]), keras.Input(value().shape[1:])
    model = keras.Model([x, memory], layer(x, layer.project_memory(memory)))
    assert_close(model([query(), value()]), layer(query(), value()))


def test_a_soft_cap_bounds_the_products():
    q, k, v = (normal(2, 3, length, 4) for length in (5, 7, 7))
    found, scores = dot_product_attention(q, k, v, scale=1.0, soft_cap=0.5)
    products = 0.5 * np.tanh(np.einsum("bhqd,bhkd->bhqk", q, k) / 0.5)
    expected = np.exp(products) / np.exp(products).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(as_numpy(scores), expected, atol=1e-6)
    np.testing.assert_allclose(as_numpy(found), expected @ v, atol=1e-5)
    layer = MultiHeadAttention(2, 3, soft_cap=0.5)
    other = MultiHeadAttention(2, 3)
    x = 5 * normal(2, 7, 6)
    for each in (layer, other):
        each.build(x.shape, x.shape)
    other.set_weights(layer.get_weights())
    assert np.abs(as_numpy(layer(x, x)) - as_numpy(other(x, x))).max() > 1e-2


def test_the_output_may_lack_the_bias_of_the_other_projections():
    layer = MultiHeadAttention(2, 3, output_bias=False)
    layer.build((1, 5, 6), (1, 5, 6))
    assert layer.output_dense.bias is None
    assert layer.query_dense.bias is not None
    assert type(layer).from_config(layer.get_config()).output_bias is False


def test_masks_for_each_head_and_for_tokens_combine_where_a_subclass_computes_the_attention():
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


def test_an_implicit_mask_is_not_read_with_a_cache():
    marked = with_mask(normal(1, 5, 8), np.ones((1, 5), bool))
    MultiHeadAttention(2, 4)(marked, marked, cache=CACHE, use_causal_mask=True)


def test_positions_may_be_numpys():
    x = normal(1, 5, 8)
    attention = MultiHeadAttention(2, 4, positions=ALiBi())
    expected = attention(x, x)
    assert_close(attention(x, x, index=Place(positions=np.arange(5), key_positions=np.arange(5))), expected)
