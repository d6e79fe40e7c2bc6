"""The mixture of experts: who computes a token, with what share, and what keeps the experts evenly used."""

import keras
import numpy as np
import pytest
from contracts import (
    as_numpy,
    assert_close,
    gradient_of,
    normal,
    portable_first,
    randomized,
    refuses,
    with_mask,
)
from keras import ops
from reference import feed_forward, gated_feed_forward, imbalance, mixture, routing, weights_of

from keras_transformer.execution import native
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward
from keras_transformer.layers.mixture import MixtureOfExperts

BATCH, LENGTH, D_MODEL, D_FF, EXPERTS = 2, 7, 5, 11, 3
X = normal(BATCH, LENGTH, D_MODEL)
REAL = np.arange(LENGTH) < np.array([[LENGTH], [4]])


def experts_of(make, number=EXPERTS):
    """A list of experts whose weights `reference.mixture` finds by name."""
    return [make(name=f"expert_{i}") for i in range(number)]


def plain(**arguments):
    return FeedForward(D_FF, **arguments)


def gated(**arguments):
    return GatedFeedForward(D_FF, **arguments)


def built(make=plain, num_experts=EXPERTS, top_k=2, **arguments):
    layer = MixtureOfExperts(experts_of(make, num_experts), top_k, **arguments)
    layer.build((None, None, D_MODEL))
    return randomized(layer)


def routed(router, top_k=2, **arguments):
    """A layer of experts that multiply by 1, 10, 100 and so on, for tokens of two features."""
    router = np.array(router, "float32")
    experts = [keras.layers.Dense(2, use_bias=False) for _ in range(router.shape[1])]
    layer = MixtureOfExperts(experts, top_k, **arguments)
    layer.build((None, None, 2))
    layer.router.kernel.assign(router)
    for i, expert in enumerate(experts):
        expert.kernel.assign(10.0**i * np.eye(2))
    return layer


def added_loss(layer, x, training=True, **arguments):
    """What a call adds to the loss, as a float64; None where it adds nothing."""
    values = [variable.value for variable in layer.trainable_variables]
    others = [variable.value for variable in layer.non_trainable_variables]
    *_, losses = layer.stateless_call(
        values, others, ops.convert_to_tensor(x), training=training, return_losses=True, **arguments
    )
    return as_numpy(sum(losses)) if losses else None


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize(
    ("make", "reference"),
    [
        (plain, feed_forward),
        (lambda **kwargs: gated(activation="tanh", **kwargs), lambda w, x: gated_feed_forward(w, x, np.tanh)),
        (
            lambda **kwargs: keras.layers.Dense(D_MODEL, "tanh", **kwargs),
            lambda w, x: np.tanh(x @ w["kernel"] + w["bias"]),
        ),
    ],
    ids=["plain", "gated", "dense"],
)
def test_agrees_with_numpy(make, reference, top_k):
    layer = built(make, top_k=top_k)
    assert_close(layer(X), mixture(weights_of(layer), X.astype("float64"), top_k, reference))


def test_small_values_by_hand():
    """Logits (0, ln 3, ln 9, -1) for (1, 0): of 9 and 3, the shares are 3/4 and 1/4; the experts give 100 and 10."""
    layer = routed([[0, np.log(3), np.log(9), -1], [5, 5, 0, 0]])
    x = np.array([[[1.0, 0.0], [0.0, 2.0]]], "float32")
    assert_close(layer(x), np.array([[[77.5, 0.0], [0.0, 11.0]]]))


def test_a_single_experts_share_is_its_softmax_over_all():
    """Of 1, 3 and 4, it is 4 / 8."""
    layer = routed([[0, np.log(3), np.log(4)], [0, 0, 0]], top_k=1)
    assert_close(layer(np.array([[[1.0, 0.0]]], "float32")), np.array([[[50.0, 0.0]]]))


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")
def test_one_expert_is_the_expert():
    layer = built(num_experts=1, top_k=1)
    assert_close(layer(X), layer.experts[0](X))


def test_no_token_is_dropped_where_all_choose_the_same_experts():
    layer = built()
    x = np.repeat(X[:1, :1], 512, axis=1)
    assert_close(layer(x), np.repeat(as_numpy(layer(X[:1, :1])), 512, axis=1))
    assert np.abs(as_numpy(layer(x))).max() > 0.01


def test_balance_loss_by_hand():
    """Of four tokens three choose expert 0, one expert 1: f = (3/4, 1/4); P is likewise between 3/4 and 1/4."""
    layer = routed([[np.log(3), 0], [0, np.log(3)]], top_k=1, balance=0.5)
    x = np.array([[[1, 0], [1, 0], [0, 1], [1, 0]]], "float32")
    first = (3 * 0.75 + 0.25) / 4
    expected = 2 * (0.75 * first + 0.25 * (1 - first))
    assert_close(added_loss(layer, x), np.array(0.5 * expected))


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_balance_loss_agrees_with_numpy_over_real_tokens(top_k):
    layer = built(top_k=top_k, balance=0.3)
    for real in (np.ones_like(REAL), REAL):
        expected = 0.3 * imbalance(weights_of(layer), X.astype("float64"), top_k, real)
        assert_close(added_loss(layer, X, padding_mask=real), np.array(expected))
    assert_close(added_loss(layer, X), added_loss(layer, X, padding_mask=np.ones_like(REAL)))


@pytest.mark.parametrize("top_k", [1, 2])
def test_even_use_costs_as_much_as_the_balance(top_k):
    router = np.array([[9, 0, -9], [0, -9, 9], [-9, 9, 0]])
    layer = MixtureOfExperts([keras.layers.Dense(3) for _ in range(3)], top_k, balance=0.3)
    layer.build((None, None, 3))
    layer.router.kernel.assign(router)
    assert_close(added_loss(layer, np.eye(3, dtype="float32")[None]), np.array(0.3))


def test_an_explicit_mask_wins_over_keras_own():
    layer, masked = built(), with_mask(X, REAL)
    assert_close(added_loss(layer, masked), added_loss(layer, X, padding_mask=REAL))
    other = np.roll(REAL, 2, axis=1)
    found = added_loss(layer, masked, padding_mask=other)
    assert_close(found, added_loss(layer, X, padding_mask=other))
    assert abs(found - added_loss(layer, masked)) > 1e-5


def test_a_batch_without_tokens_adds_a_finite_loss():
    assert_close(added_loss(built(), X, padding_mask=np.zeros_like(REAL)), np.array(0.0))


def test_balance_loss_is_for_training():
    assert added_loss(built(), X, training=False) is None
    assert added_loss(built(balance=0.0), X) is None


def model_of(layer):
    """Ids to the layer's output, through an embedding that masks 0."""
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(13, D_MODEL, mask_zero=True, embeddings_initializer="normal")
    return keras.Model(ids, layer(embedding(ids))), embedding


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", portable_first())
def test_fit_adds_the_loss_of_the_tokens_that_keras_does_not_mask(jit_compile):
    layer = MixtureOfExperts([plain(dropout=0.3) for _ in range(EXPERTS)], balance=0.7)
    model, embedding = model_of(layer)
    randomized(model)
    model.compile(keras.optimizers.SGD(0.0), lambda y, found: 0.0 * found[..., 0], jit_compile=jit_compile)
    ids = np.where(REAL, np.arange(1, 1 + LENGTH), 0)
    history = model.fit(ids, ids, batch_size=BATCH, verbose=0)
    x = as_numpy(embedding(ids))
    expected = 0.7 * imbalance(weights_of(layer), x, 2, REAL)
    assert_close(np.array(history.history["loss"][0]), np.array(expected))
    assert_close(np.array(model.evaluate(ids, ids, verbose=0)), np.array(0.0))


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", portable_first())
def test_fit_teaches_the_router_and_every_expert(jit_compile):
    layer = MixtureOfExperts(experts_of(gated), balance=0.0)
    inputs = keras.Input((None, D_MODEL))
    model = keras.Model(inputs, layer(inputs))
    before = weights_of(layer)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    model.fit(X, normal(BATCH, LENGTH, D_MODEL, seed=1), batch_size=BATCH, verbose=0)
    assert all(np.abs(after - before[path]).max() > 1e-6 for path, after in weights_of(layer).items())


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("of_loss", [False, True], ids=["of_outputs", "of_balance_loss"])
def test_gradient_of_the_router_is_that_of_numpy(of_loss, top_k):
    layer = built(top_k=top_k, balance=1.0)
    upstream, weights = normal(*X.shape, seed=1), weights_of(layer)

    def total(router):
        kernel = layer.router.kernel
        values = [router if v is kernel else v.value for v in layer.trainable_variables]
        others = [v.value for v in layer.non_trainable_variables]
        y, _, losses = layer.stateless_call(
            values, others, ops.convert_to_tensor(X), training=True, return_losses=True
        )
        return losses[0] if of_loss else ops.sum(y * upstream)

    def exact(router):
        changed, x = {**weights, "router/kernel": router}, X.astype("float64")
        if of_loss:
            return imbalance(changed, x, top_k, np.ones_like(REAL))
        return np.sum(mixture(changed, x, top_k) * upstream)

    step, router = 1e-6, weights["router/kernel"]
    expected = np.zeros(router.shape)
    for entry in np.ndindex(router.shape):
        small = np.zeros(router.shape)
        small[entry] = step
        expected[entry] = (exact(router + small) - exact(router - small)) / (2 * step)
    assert any(v is layer.router.kernel for v in layer.trainable_variables)
    assert np.abs(expected).max() > 0.01
    assert_close(gradient_of(total, router.astype("float32")), expected, 1e-4)


def test_routing_is_float32_under_mixed_precision():
    """In bfloat16 the two logits, 1 and 1 + 1/512, are the same, and the first expert wins."""
    layer = routed([[1, 1 + 2**-9], [0, 0]], top_k=1, dtype="mixed_bfloat16")
    found = layer(np.array([[[1.0, 0.0]]], "float32"))
    assert_close(found, np.array([[[5.0, 0.0]]]), 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", portable_first())
def test_one_compiled_function_serves_every_length(jit_compile):
    layer = built()
    function = native.compiled(lambda x: layer(x), layer, jit_compile)
    for length in (LENGTH, 1, 3):
        assert_close(function(ops.convert_to_tensor(X[:, :length])), layer(X[:, :length]))


def test_experts_are_the_layers_handed_in():
    experts = [plain(), gated(), keras.layers.Dense(D_MODEL)]
    layer = MixtureOfExperts(experts, kernel_initializer="zeros")
    layer.build((None, None, D_MODEL))
    assert all(one is other for one, other in zip(layer.experts, experts, strict=True))
    assert len(layer.weights) == 1 + 4 + 3 + 2
    x, shares = X.astype("float64"), routing(weights_of(layer), X.astype("float64"), 2)[0]
    expected = sum(as_numpy(e(X)) * shares[..., i : i + 1] for i, e in enumerate(experts))
    assert_close(layer(x), expected)


def test_an_expert_must_keep_the_shape():
    layer = MixtureOfExperts([keras.layers.Dense(D_MODEL), keras.layers.Dense(4)])
    message = r"`experts\[1\]` must keep .*shape=\(2, 7, 5\), output_shape=\(2, 7, 4\)\."
    refuses(message, layer.build, X.shape)


@pytest.mark.slow
def test_balance_loss_is_the_same_for_any_rank():
    x, losses = normal(6, 8), []
    for shape in ((6, 8), (2, 3, 8), (1, 2, 3, 8)):
        keras.utils.set_random_seed(0)
        layer = MixtureOfExperts([FeedForward(8), FeedForward(8)], top_k=1, balance=1.0)
        layer(x.reshape(shape), training=True)
        losses.append(float(layer.losses[0]))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
