"""Adam in one pass and Muon for kernels of attention: Keras's results, state and options."""

import contextlib

import keras
import numpy as np
import pytest
from contracts import as_numpy, refuses
from keras import ops

import keras_transformer as kt
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.training import Adam, AdamW, Muon

OPTIONS = [
    {},
    {"global_clipnorm": 0.5},
    {"gradient_accumulation_steps": 2},
    {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    {"amsgrad": True},
]


def trained(optimizer, steps=7, shapes=((5, 3), (4,)), names=("kernel", "bias")):
    """Weights, a matrix and a vector, and the optimizer's state after some given gradients."""
    rng = np.random.default_rng(0)
    weights = []
    for shape, name in zip(shapes, names, strict=True):
        *scopes, name = name.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            weights.append(keras.Variable(rng.normal(size=shape).astype("float32"), name=name))
    for _ in range(steps):
        gradients = [ops.convert_to_tensor(rng.normal(size=w.shape).astype("float32")) for w in weights]
        optimizer.apply(gradients, weights)
    return [as_numpy(v) for v in [*weights, *optimizer.variables]]


@pytest.mark.parametrize(
    ("kind", "options"),
    [*(("Adam", options) for options in OPTIONS), ("AdamW", {"global_clipnorm": 0.5})],
    ids=lambda value: value if isinstance(value, str) else next(iter(value), "plain"),
)
def test_results_are_those_of_keras(kind, options):
    settings = {"beta_2": 0.98, "epsilon": 1e-6, **options}
    found, expected = (
        trained(getattr(module, kind)(WarmupSchedule(8, warmup_steps=4), **settings))
        for module in (kt.training, keras.optimizers)
    )
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        # Seven steps of about ten operations that each round by 2**-24 make 4e-6; ten times that is allowed.
        np.testing.assert_allclose(one, other, rtol=4e-5, atol=4e-6)


MUON_OPTIONS = [
    {},
    {"global_clipnorm": 0.5},
    {"gradient_accumulation_steps": 2},
    {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    {"nesterov": False, "rms_rate": None, "ns_steps": 3},
]


def test_muon_has_a_bounded_number_of_steps():
    """Each of them is traced, and a checkpoint of a stranger names their number."""
    refuses("`ns_steps` must be an integer at least 1, at most 100", Muon, 0.01, ns_steps=10**9)


@pytest.mark.parametrize("options", MUON_OPTIONS, ids=lambda options: next(iter(options), "plain"))
def test_muon_of_a_matrix_and_a_vector_is_that_of_keras(options):
    settings = {"adam_beta_2": 0.98, "adam_lr_ratio": 0.5, "weight_decay": 0.1, **options}
    found, expected = (trained(kind(0.01, **settings)) for kind in (Muon, keras.optimizers.Muon))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "matrix"),
    [("query", (8, 2, 3), (8, 6)), ("value", (4, 1, 5), (4, 5)), ("attention_output", (2, 3, 8), (6, 8))],
)
def test_muon_takes_an_attention_kernel_as_the_matrix_of_all_heads(name, shape, matrix):
    found = trained(Muon(0.01), shapes=(shape,), names=(f"attention/{name}/kernel",))
    expected = trained(keras.optimizers.Muon(0.01), shapes=(matrix,), names=("kernel",))
    assert len(found) == len(expected)  # no second moment: Adam does not update it
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "excluded"),
    [
        ("embedding/embeddings", (8, 4), []),
        ("patch_embedding/kernel", (8, 4), []),
        ("conv1d/kernel", (3, 4, 4), []),
        ("attention/query/kernel", (8, 2, 4), ["query"]),
        ("attention/query/bias", (2, 4), []),
        ("value_projection/kernel", (3, 4, 4), []),
        ("attention/query/lora_kernel_b", (2, 4), []),
    ],
)
def test_muon_leaves_other_weights_to_adam(name, shape, excluded):
    settings = {"weight_decay": None, "adam_weight_decay": None}
    found = trained(Muon(0.01, exclude_layers=excluded, **settings), shapes=(shape,), names=(name,))
    expected = trained(keras.optimizers.Adam(0.01), shapes=(shape,), names=(name,))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.tensorflow  # JAX computes in float32 unless it is told otherwise at its start
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_muon_updates_weights_of_any_dtype(dtype):
    weights = [keras.Variable(np.eye(4), dtype=dtype, name=name) for name in ("kernel", "bias")]
    optimizer = Muon(WarmupSchedule(8, warmup_steps=4), weight_decay=0.1, adam_beta_2=0.98)
    optimizer.apply([ops.cast(np.diag([1.0, -2.0, 3.0, -4.0]), dtype)] * 2, weights)
    for weight in weights:
        diagonal = np.diag(as_numpy(ops.cast(weight, "float32")))
        assert (diagonal[[0, 2]] < 1).all() and (diagonal[[1, 3]] > diagonal[[0, 2]]).all()


def test_muon_makes_momentum_orthogonal_in_another_dtype():
    options = {"shapes": ((16, 12),), "names": ("kernel",)}
    exact, rounded = (
        trained(Muon(1.0, weight_decay=None, ns_dtype=dtype), 1, **options)[0] for dtype in (None, "bfloat16")
    )
    begin = trained(Muon(0.0, weight_decay=None), 1, **options)[0]
    one, other = ((weights - begin).ravel() for weights in (exact, rounded))
    assert not np.array_equal(one, other)
    assert one @ other > 0.98 * np.linalg.norm(one) * np.linalg.norm(other)


def test_config_of_muon_comes_back_with_the_layers_that_adam_updates():
    optimizer = Muon(0.01, ns_dtype="bfloat16", adam_lr_ratio=0.5, exclude_layers=["last"])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is Muon and again.get_config() == optimizer.get_config()
    inputs = keras.Input((4, 8))
    features = kt.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    again.build(keras.Model(inputs, keras.layers.Dense(3, name="last")(features)).trainable_variables)
    by_adam = [v.path for v in again.variables if v.path.endswith("kernel_velocity")]
    assert len(by_adam) == 1 and "last" in by_adam[0]


def test_the_average_of_weights_outlives_an_evaluation():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(Adam(0.1, use_ema=True), "mse")
    data = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    model.fit(*data, verbose=0)
    model.evaluate(*data, verbose=0)
    averages = [v for v in model.optimizer.variables if v.name.endswith("_average")]
    for average, weight in zip(averages, model.get_weights(), strict=True):
        np.testing.assert_array_equal(as_numpy(average), weight)


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_config_and_state_come_back(kind):
    optimizer = kind(0.1, beta_2=0.98, epsilon=1e-8)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is kind and again.get_config() == optimizer.get_config()
    kerass = getattr(keras.optimizers, kind.__name__)
    assert [v.name for v in _built(optimizer)] == [v.name for v in _built(kerass(0.1))]


def _built(optimizer):
    optimizer.build([keras.Variable(np.zeros(3, "float32"), name="w")])
    return optimizer.variables


@pytest.mark.tensorflow
def test_one_operation_a_weight_and_rows_of_an_embedding():
    import tensorflow as tf

    weight, optimizer = keras.Variable(np.ones((6, 2), "float32")), Adam(0.1)
    optimizer.build([weight])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weight.value, [1, 1, 4]))
        gradients = tape.gradient(loss, [weight.value])
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply(gradients, [weight])

    graph = step.get_concrete_function().graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("ResourceApplyAdam") == 1 and "Sqrt" not in kinds
    step()
    changed = (as_numpy(weight) != 1.0).all(axis=1)
    assert changed.tolist() == [False, True, False, False, True, False]


@pytest.mark.tensorflow
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["plain", "accumulated"])
@pytest.mark.parametrize("kind", [Adam, AdamW, Muon])
def test_scalars_are_traced_once_for_all_weights_of_a_dtype(kind, options):
    import tensorflow as tf

    def weights():
        shapes = [(5, "float32"), (3, "float32"), (2, "float64")]
        return [keras.Variable(np.ones(size), dtype=dtype, name=f"w{size}") for size, dtype in shapes]

    def step(optimizer, weights):
        optimizer.apply([ops.cast(ops.arange(1, w.shape[0] + 1), w.dtype) for w in weights], weights)

    traced, alone = weights(), weights()
    optimizer = kind(0.1, **options)
    optimizer.build(traced)
    in_graph = tf.function(lambda: step(optimizer, traced), autograph=False)
    graph = in_graph.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    # Two powers of the betas, for each of the two dtypes.
    assert [node.op for node in nodes].count("Pow") == 4
    optimizers = [kind(0.1, **options) for _ in alone]
    for _ in range(4):
        in_graph()
        for one, weight in zip(optimizers, alone, strict=True):
            step(one, [weight])
    for one, other in zip(traced, alone, strict=True):
        np.testing.assert_allclose(as_numpy(one), as_numpy(other), rtol=1e-6)


def test_a_subclass_may_update_each_weight_with_other_betas():
    def update_step(self, gradient, variable, learning_rate):
        self.beta_2 = 0.5 if variable.shape[0] == 5 else 0.9
        super(type(self), self).update_step(gradient, variable, learning_rate)

    found, expected = (
        trained(type("Other", (kind,), {"update_step": update_step})(0.1))
        for kind in (Adam, keras.optimizers.Adam)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-5, atol=4e-6)


@pytest.mark.tensorflow
def test_a_subclass_may_leave_a_weight_out_in_a_condition():
    import tensorflow as tf

    class Finite(Adam):
        def update_step(self, gradient, variable, learning_rate):
            def update():
                super(Finite, self).update_step(gradient, variable, learning_rate)

            ops.cond(ops.all(ops.isfinite(gradient)), update, lambda: None)

    weights = [keras.Variable(np.ones(size, "float32")) for size in (2, 3, 5)]
    optimizer = Finite(0.1)
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(*gradients):
        optimizer.apply(gradients, weights)

    step(tf.ones(2), tf.fill(3, float("nan")), tf.ones(5))
    for weight, expected in zip(weights, (0.9, 1.0, 0.9), strict=True):
        np.testing.assert_allclose(as_numpy(weight), expected, rtol=1e-5)


@pytest.mark.tensorflow  # JAX computes in float32 unless it is told otherwise at its start
def test_float64_weights_take_float64_betas():
    weight, mean, square = keras.Variable([1.0, 2.0], dtype="float64"), np.zeros(2), np.zeros(2)
    gradient, expected = np.array([0.3, -1e-9]), np.array([1.0, 2.0])
    optimizer = Adam(2.0**-4, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    for step in range(1, 6):
        optimizer.apply([ops.convert_to_tensor(gradient)], [weight])
        mean, square = 0.9 * mean + 0.1 * gradient, 0.98 * square + 0.02 * gradient**2
        rate = 2.0**-4 * np.sqrt(1 - 0.98**step) / (1 - 0.9**step)
        expected -= rate * mean / (np.sqrt(square) + 1e-9)
    np.testing.assert_allclose(ops.convert_to_numpy(weight), expected, rtol=1e-12)
