"""Adam in one pass: Keras's results, state and options."""

import keras
import numpy as np
import pytest
from contracts import as_numpy
from keras import ops

from keras_transformer.schedules import WarmupSchedule
from keras_transformer.training import Adam, AdamW

OPTIONS = [
    {},
    {"global_clipnorm": 0.5},
    {"gradient_accumulation_steps": 2},
    {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    {"amsgrad": True},
]


def trained(optimizer, steps=7):
    """Weights, a matrix and a vector, and the optimizer's state after some given gradients."""
    rng = np.random.default_rng(0)
    weights = [keras.Variable(rng.normal(size=shape).astype("float32")) for shape in ((5, 3), (4,))]
    for _ in range(steps):
        gradients = [ops.convert_to_tensor(rng.normal(size=w.shape).astype("float32")) for w in weights]
        optimizer.apply(gradients, weights)
    return [as_numpy(v) for v in [*weights, *optimizer.variables]]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options), "plain"))
@pytest.mark.parametrize(
    ("ours", "kerass"),
    [(Adam, keras.optimizers.Adam), (AdamW, keras.optimizers.AdamW)],
    ids=["adam", "adamw"],
)
def test_results_are_kerass(ours, kerass, options):
    settings = {"beta_2": 0.98, "epsilon": 1e-6, **options}
    found, expected = (
        trained(kind(WarmupSchedule(8, warmup_steps=4), **settings)) for kind in (ours, kerass)
    )
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        # Seven steps of about ten operations that each round by 2**-24 make 4e-6; ten times that is allowed.
        np.testing.assert_allclose(one, other, rtol=4e-5, atol=4e-6)


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
    assert [v.name for v in _built(optimizer)] == [v.name for v in _built(kind.__mro__[2](0.1))]


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
