"""Equal layers of a stack are traced once, and compute what they compute one by one."""

import gc
import subprocess
import sys
from pathlib import Path

import contracts
import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, normal, randomized

from keras_transformer.execution import native, repeated
from keras_transformer.execution.inference import inference
from keras_transformer.keras_internals import implicit_mask, set_implicit_mask, sublayers
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Embeddings,
    Encoder,
    EncoderLayer,
    FeedForward,
    MixtureOfExperts,
    MultiHeadAttention,
    RotaryPositions,
)
from keras_transformer.models import LanguageModel

ROOT = Path(__file__).parents[2]
X, MEMORY = normal(3, 5, 12), normal(3, 7, 12)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)


def rotary_layer():
    attention = MultiHeadAttention(2, 6, positions=RotaryPositions())
    return DecoderLayer(attention=attention, d_ff=17, normalize_first=True, norm="rms")


def mixture_layer():
    experts = MixtureOfExperts([FeedForward(11), FeedForward(11)], balance=0.5)
    return EncoderLayer(2, feed_forward=experts)


STACKS = {
    "encoder": (lambda: Encoder(3, 2, 17), [X]),
    "decoder": (lambda: Decoder(3, 2, 17), [X, MEMORY]),
    "rotary": (lambda: Decoder([rotary_layer() for _ in range(3)]), [X]),
    "mixture": (lambda: Encoder([mixture_layer() for _ in range(3)]), [X]),
    "one layer three times": (lambda: Encoder([EncoderLayer(2, 17)] * 3), [X]),
}


def built(name):
    """A stack, and the function that computes it."""
    make, inputs = STACKS[name]
    stack = make()
    stack(*inputs)
    return randomized(stack), [keras.ops.convert_to_tensor(x) for x in inputs]


@pytest.fixture
def calls(monkeypatch):
    """The names of the layers whose `call` ran."""
    names = []
    for kind in EncoderLayer, DecoderLayer:

        def call(self, *args, original=kind.call, **kwargs):
            names.append(self.name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(kind, "call", call)
    return names


@pytest.mark.parametrize("name", STACKS)
def test_equal_layers_are_traced_once_and_compute_what_each_computes(name, calls):
    stack, inputs = built(name)
    expected = stack(*inputs, padding_mask=MASK)
    calls.clear()
    computed = native.compiled(lambda *x: stack(*x, padding_mask=MASK), stack, False)(*inputs)
    assert len(calls) == 1
    assert_close(computed, expected)
    with inference(stack):
        assert_close(stack(*inputs, padding_mask=MASK), expected)


def test_a_training_step_leaves_no_call(monkeypatch):
    sizes, made = [], native.shared_function
    monkeypatch.setattr(
        native,
        "shared_function",
        lambda function, size, *rest: sizes.append(size) or made(function, size, *rest),
    )
    stack = Encoder(24, 2, 17)
    stack(X)
    native.compiled(lambda x: stack(x, training=True), stack, False, differentiable=True)(X)
    assert sizes == [None]


@pytest.mark.tensorflow  # JAX compiles a step of shared functions once
def test_a_training_step_in_xla_shares_no_function(calls):
    """With shared functions XLA compiled every step anew, which took seconds each."""
    stack, (x, *_) = built("encoder")
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, stack(inputs))
    model.compile("sgd", "mse", jit_compile=True)
    calls.clear()
    model.train_on_batch(x, x)
    assert len(set(calls)) == len(stack.layers)


@pytest.mark.sampled
@pytest.mark.parametrize("name", STACKS)
def test_a_training_step_is_the_same(name, monkeypatch):
    """Dropout, its next seeds, gradients and losses of sublayers."""

    def trained():
        keras.utils.set_random_seed(1)
        stack, inputs = built(name)
        names = [keras.Input(x.shape[1:]) for x in inputs]
        model = keras.Model(names, stack(*names))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=contracts.STEP_IN_XLA)
        data = inputs if len(inputs) > 1 else inputs[0]
        losses = [model.train_on_batch(data, X) for _ in range(2)]
        return np.array(losses), [weight.value for weight in stack.variables]

    together = trained()
    monkeypatch.setattr(repeated, "_groups", lambda layers: [])
    assert_close(together, trained())


def change_activation(stack):
    stack.layers[1].feed_forward.inner.activation = keras.activations.gelu


def change_rate(stack):
    stack.layers[1].feed_forward_residual.drop.rate = 0.5


def freeze(stack):
    stack.layers[1].self_attention.trainable = False


def add_adapter(stack):
    stack.layers[1].feed_forward.inner.enable_lora(2)


def quantize(stack):
    stack.layers[1].feed_forward.inner.quantize("int8")


def change_call(stack):
    stack.layers[1].self_attention.call = lambda query, value, **_: (0.5 * query,)[0]


UNEQUAL = [change_activation, change_rate, freeze, add_adapter, quantize, change_call]


@pytest.mark.parametrize("change", UNEQUAL, ids=lambda change: change.__name__)
def test_a_layer_that_differs_is_called_as_it_is(change, calls):
    stack, inputs = built("encoder")
    change(stack)
    expected = stack(*inputs)
    calls.clear()
    assert_close(native.compiled(stack, stack, False)(*inputs), expected, 1e-4)
    assert len(calls) == 2, "one for the changed layer, one for the other two"


def test_layers_of_another_kind_or_size_are_not_equal():
    others = [
        EncoderLayer(2, 17),
        EncoderLayer(2, 19),
        EncoderLayer(3, 17),
        EncoderLayer(2, 17, use_causal_mask=True),
        EncoderLayer(2, 17, dropout=0.2),
        EncoderLayer(2, 17, dtype="float64"),
        EncoderLayer(attention=MultiHeadAttention(2, 6, sliding_window=2), d_ff=17),
        DecoderLayer(2, 17),
    ]
    for layer in others:
        layer(X)
    assert repeated._groups(others) == []


class OwnFeedForward(FeedForward):
    """A layer of a user's class may do anything."""


def own_activation(x):
    return keras.ops.relu(x)


@pytest.mark.parametrize("make", [
    lambda: EncoderLayer(2, feed_forward=OwnFeedForward(17)),
    lambda: EncoderLayer(2, 17, activation=own_activation),
    lambda: EncoderLayer(2, feed_forward=keras.layers.SpectralNormalization(keras.layers.Dense(12))),
], ids=["layer", "function", "gradient of what is assigned"])  # fmt: skip
def test_layers_with_a_part_that_may_keep_tensors_are_called_one_by_one(make, calls):
    stack = Encoder([make() for _ in range(3)])
    stack(X)
    calls.clear()
    native.compiled(stack, stack, False)(keras.ops.convert_to_tensor(X))
    assert len(calls) == 3


@contracts.needs_half_precision
def test_weights_keep_their_own_precision():
    """Layers compute in bfloat16 with norms and scales that Keras keeps in float32."""
    with contracts.policy("mixed_bfloat16"):
        stack, inputs = built("rotary")
    expected = stack(*inputs)
    assert_close(native.compiled(stack, stack, False)(*inputs), expected, contracts.BFLOAT16)


def test_implicit_masks_pass_through():
    stack, inputs = built("encoder")

    def mask_of(x, mask):
        set_implicit_mask(x, mask)
        return implicit_mask(stack(x))

    mask = native.compiled(mask_of, stack, False)(*inputs, keras.ops.convert_to_tensor(MASK))
    np.testing.assert_array_equal(as_numpy(mask), MASK)


class LearnedMemory(keras.layers.Layer):
    """Decodes a memory that is a weight."""

    def __init__(self):
        super().__init__()
        self.decoder = Decoder(3, 2, 17)

    def build(self, input_shape):
        self.memory = self.add_weight(shape=MEMORY.shape)
        self.decoder.build(input_shape, MEMORY.shape)

    def call(self, x):
        return self.decoder(x, self.memory)


def test_a_variable_may_be_an_input():
    x = keras.Input(X.shape[1:], batch_size=len(X))
    layer = LearnedMemory()
    model = keras.Model(x, layer(x))
    assert_close(model.predict(X, verbose=0), layer(X))
    before = as_numpy(layer.memory)
    model.compile("sgd", "mse")
    model.train_on_batch(X, X)
    assert np.all(before != as_numpy(layer.memory))


def test_every_sublayer_is_still_there():
    """Tracing leaves no tensor of a graph in a layer."""
    stack, inputs = built("decoder")
    before = [sorted(vars(part)) for part in sublayers(stack)]
    native.compiled(stack, stack, False)(*inputs)
    assert [sorted(vars(part)) for part in sublayers(stack)] == before


def test_replicas_call_layers_one_by_one(calls, monkeypatch):
    stack, inputs = built("encoder")
    monkeypatch.setattr(native, "in_replicas", lambda: True)
    calls.clear()
    native.compiled(stack, stack, False)(*inputs)
    assert len(calls) == 3


REPLICAS = """
import numpy as np
import tensorflow as tf
from keras_transformer.layers import Encoder

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 8)), "float32")
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    stack = Encoder(3, 2, 9, dropout=0.0)
    stack(x)

def step(x):
    with tf.GradientTape() as tape:
        y = stack(x, training=True)
        loss = tf.reduce_sum(y**3)
    return y, tape.gradient(loss, [variable.value for variable in stack.trainable_variables])

y, gradients = tf.function(lambda: strategy.run(step, args=(tf.identity(x),)), autograph=False)()
for replica in strategy.experimental_local_results(y):
    np.testing.assert_allclose(replica, stack(x), atol=1e-4)
assert not [gradient for gradient in gradients if gradient is None]
"""


@pytest.mark.tensorflow
def test_layers_of_wide_heads_share_the_functions_of_a_search(monkeypatch):
    made, begun = [], repeated._SharedCall.__init__
    monkeypatch.setattr(
        repeated._SharedCall, "__init__", lambda self, *given: made.append(begun(self, *given))
    )
    model = LanguageModel(Embeddings(7, 264), Decoder(3, 1, 8))
    model.generate([[1, 2]], max_length=3, jit_compile=False)
    assert len(made) == 2, "one function for the prompt, and one for a step"


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["decoder", "rotary"])
def test_a_loop_has_the_operations_in_the_place_of_calls(name):
    """So TensorFlow computes once what layers compute alike, such as their masks."""
    operations = operations_of_a_loop(name)
    assert "MatMul" in operations
    assert not [operation for operation in operations if "Call" in operation]


def operations_of_a_loop(name):
    """Calls a stack twice in a loop, compares the result, and returns the kinds of the loop's operations."""
    import tensorflow as tf

    stack, (x, *memory) = built(name)

    def call_twice(x, *memory):
        def body(i, x):
            return i + 1, stack(x, *memory, padding_mask=MASK)

        with native.inference_graph(), inference(stack):
            return tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]

    function = tf.function(call_twice, autograph=False).get_concrete_function(x, *memory)
    expected = stack(stack(x, *memory, padding_mask=MASK), *memory, padding_mask=MASK)
    assert_close(function(x, *memory), expected)
    bodies = [
        each for each in function.graph.as_graph_def().library.function if "body" in each.signature.name
    ]
    return [node.op for each in bodies for node in each.node_def]


@pytest.mark.tensorflow
def test_a_layer_that_calls_functions_is_called_in_a_loop():
    """Nothing would keep the functions that a copy calls: with the graph of the first layer they would go."""
    import tensorflow as tf

    layers = [EncoderLayer(2, feed_forward=Encoder(2, 2, 9)) for _ in range(3)]
    stack = Encoder(layers)
    stack(X)
    x = keras.ops.convert_to_tensor(X)

    def call_twice(x):
        with native.inference_graph(), inference(stack):
            return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, stack(x)), (0, x))[1]

    function = tf.function(call_twice, autograph=False).get_concrete_function(x)
    gc.collect()
    assert_close(function(x), stack(stack(x)))


@pytest.mark.tensorflow
def test_the_gradient_of_a_loop_is_that_of_its_layers():
    """TensorFlow records no gradient of a copied operation."""
    import tensorflow as tf

    stack, (x,) = built("encoder")

    def looped(x):
        with inference(stack):
            return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, stack(x)), (0, x))[1]

    def gradient(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) ** 3)
        return tape.gradient(loss, x)

    found = tf.function(lambda x: gradient(looped, x), autograph=False)(x)
    assert_close(found, gradient(lambda x: stack(stack(x)), x))


@pytest.mark.tensorflow
def test_large_layers_are_called_in_a_loop(monkeypatch):
    from keras_transformer.execution import tensorflow_calls

    monkeypatch.setattr(tensorflow_calls, "CALLED_FROM", 1)
    assert operations_of_a_loop("decoder").count("PartitionedCall") == 3


@pytest.mark.slow
@pytest.mark.tensorflow
def test_replicas_compute_with_the_weights_of_each_layer():
    done = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow traces no eager gradient")
def test_an_eager_gradient_compiles_nothing(calls):
    import jax

    stack, (x,) = built("encoder")
    calls.clear()
    jax.grad(lambda x: stack(x).sum())(x)
    assert len(calls) == 3
