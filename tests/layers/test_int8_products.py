"""The int8 product: the numbers of Keras's own path up to rounding, on every CPU, and never of old weights."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from contracts import as_numpy, normal
from keras import ops

from keras_transformer.execution import native
from keras_transformer.execution.inference import inference
from keras_transformer.execution.int8 import MAX_INT8_WEIGHT, STEPS, TwoPartQuantizer
from keras_transformer.layers import Embeddings, Encoder
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.projection import Projection
from keras_transformer.models import EncoderModel, Transformer

pytestmark = pytest.mark.tensorflow  # JAX has no int8 product of its own

VOCAB = 97
TWO_PARTS = keras.quantizers.Int8QuantizationConfig(activation_quantizer=TwoPartQuantizer())
CONFIGS = {1: None, 2: TWO_PARTS}
by_parts = pytest.mark.parametrize("parts", CONFIGS)


def quantized(features=(3, 5), seed=1, parts=1):
    """A projection of int8 with a bias."""
    keras.utils.set_random_seed(seed)
    layer = Projection("...x,xhd->...hd", features, bias_axes="hd", bias_initializer="normal")
    layer.build((None, None, 64))
    layer.quantize("int8", config=CONFIGS[parts])
    assert layer.int8_parts == parts
    return layer


def as_keras(monkeypatch):
    """Takes the backend's product away: `keras.ops` computes it."""
    monkeypatch.setattr(native, "int8_column_sums", lambda kernel, axes, largest: None)


@pytest.mark.slow
@by_parts
def test_a_product_has_the_numbers_of_keras_ops(parts, monkeypatch):
    layer, x = quantized(parts=parts), normal(2, 7, 64)
    assert layer.operands().sums is not None
    found = as_numpy(layer(x))
    with inference(keras.Sequential([layer])):
        in_a_search = as_numpy(layer(x))
    as_keras(monkeypatch)
    np.testing.assert_allclose(found, as_numpy(layer(x)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(in_a_search, found)


@pytest.mark.parametrize("size, operations", [(64 * 15, 1), (64 * 15 + 1, 2)])
def test_all_calls_for_a_large_kernel_share_one_copy(size, operations, monkeypatch):
    """oneDNN copies a kernel for each operation: the loops of a search have one operation together."""
    import tensorflow as tf

    monkeypatch.setattr(native, "COPIED_ONCE", size)
    layer, x = quantized(), normal(4, 1, 64)

    @tf.function(autograph=False)
    def call_in_a_loop_and_outside(x):
        with native.inference_graph(), inference(keras.Sequential([layer])):
            (looped,) = ops.while_loop(
                lambda y: ops.sum(y) < 0, lambda y: (layer(x),), (-ops.ones((4, 1, 3, 5)),)
            )
            return looped, layer(x)

    graph = call_in_a_loop_and_outside.get_concrete_function(tf.TensorSpec((4, 1, 64))).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert sum(node.op == "_QuantizedMatMul" for node in nodes) == operations
    for found in call_in_a_loop_and_outside(tf.constant(x)):
        np.testing.assert_array_equal(as_numpy(found), as_numpy(layer(x)))


def test_one_part_has_the_numbers_of_keras():
    layer, x = quantized(), normal(14, 64)
    expected = keras.layers.EinsumDense("ax,xhd->ahd", (3, 5), bias_axes="hd")
    expected.build((None, 64))
    expected.quantize("int8")
    for name in ("_kernel", "kernel_scale", "bias"):
        getattr(expected, name).assign(getattr(layer, name))
    np.testing.assert_allclose(as_numpy(layer(x)), as_numpy(expected(x)), rtol=1e-4, atol=1e-5)


@by_parts
@pytest.mark.parametrize("size", [1e6, 1.0, 1e-6, 0.0])
def test_rows_of_any_size_are_rounded_to_equal_steps(size, parts):
    layer, x = quantized(parts=parts), size * normal(1, 3, 64)
    layer.bias.assign(ops.zeros(layer.bias.shape))
    kernel = as_numpy(layer._kernel).reshape((64, -1)) / as_numpy(layer.kernel_scale).reshape((1, -1))
    exact = x @ kernel
    found = as_numpy(layer(x)).reshape(exact.shape)
    steps = {1: 127, 2: 63 * 126}[parts]
    step = np.abs(x).max(axis=-1, keepdims=True) / steps
    # Each value is off by half a step at most; float32 rounds too.
    assert (abs(found - exact) <= 0.51 * step * abs(kernel).sum(axis=0) + 1e-12).all()


@pytest.mark.slow
@by_parts
@pytest.mark.parametrize("tie_weights", [True, False])
def test_weights_are_as_small_as_every_cpu_needs(parts, tie_weights):
    largest = MAX_INT8_WEIGHT[parts]
    # A CPU without VNNI adds two products in 16 bits, of numbers of the rows that the steps were added to.
    assert 2 * largest * (2 * STEPS[parts]) < 2**15
    assert np.abs(as_numpy(quantized(parts=parts)._kernel)).max() == largest
    tokens = TokenEmbedding(VOCAB, 8, tie_weights=tie_weights)
    tokens.build()
    tokens.quantize("int8", config=CONFIGS[parts])
    matrix = tokens._embeddings if tie_weights else tokens.reverse_embeddings
    assert np.abs(as_numpy(matrix)).max() == largest and tokens.operands().parts == parts


def test_larger_weights_from_elsewhere_are_multiplied_by_keras_ops():
    layer, x = quantized(), normal(2, 7, 64)
    layer._kernel.assign(ops.ones(layer._kernel.shape, "int8") * 127)
    assert layer.operands().sums is None
    scale = 127 / (np.abs(x).max(axis=-1, keepdims=True) + keras.config.epsilon())
    sums = np.round(x * scale).sum(axis=-1)[..., None, None] * 127.0
    expected = sums / (scale[..., None] * as_numpy(layer.kernel_scale)[0]) + as_numpy(layer.bias)
    np.testing.assert_allclose(as_numpy(layer(x)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("kind", ["projection", "logits"])
@by_parts
def test_the_gradient_is_that_of_a_product_with_floats(kind, is_native, parts, monkeypatch):
    import tensorflow as tf

    layer, x = quantized(parts=parts), tf.constant(normal(3, 64))
    if not is_native:
        as_keras(monkeypatch)
    if kind == "logits":
        layer = TokenEmbedding(VOCAB, 64)
        layer.build()
        layer.quantize("int8", config=CONFIGS[parts])

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, reverse=True) if isinstance(layer, TokenEmbedding) else layer(x[:, None])
            loss = tf.reduce_sum(tf.sin(y))
        return tape.gradient(loss, x)

    if isinstance(layer, TokenEmbedding):
        floats = as_numpy(layer._embeddings) / as_numpy(layer.embeddings_scale)[:, None]
        expected = np.cos(as_numpy(layer(x, reverse=True))) @ floats
    else:
        floats = as_numpy(layer._kernel) / as_numpy(layer.kernel_scale)[0]
        expected = np.einsum(
            "bhd,xhd->bx", np.cos(as_numpy(layer(x[:, None]))[:, 0]), floats.reshape(64, 3, 5)
        )
    np.testing.assert_allclose(gradient(), expected, rtol=1e-4, atol=1e-4)


def int8_model(seed=1):
    keras.utils.set_random_seed(seed)
    model = Transformer(VOCAB, num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
    model.quantize("int8")
    return model


SOURCE = np.array([[5, 9, 17, 4], [8, 6, 0, 0]])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["variable", "set_weights", "assign", "load_weights"])
def test_new_weights_are_used_however_they_came(how, tmp_path):
    """oneDNN keeps an ordered copy of a kernel and never looks at the kernel again."""
    model, other = int8_model(1), int8_model(2)
    before = as_numpy(model.generate(SOURCE, max_length=6, jit_compile=False).scores)
    expected = as_numpy(other.generate(SOURCE, max_length=6, jit_compile=False).scores)
    assert np.abs(before - expected).max() > 1e-3
    if how == "set_weights":
        model.set_weights(other.get_weights())
    elif how == "load_weights":
        other.save_weights(tmp_path / "other.weights.h5")
        model.load_weights(tmp_path / "other.weights.h5")
    else:
        for mine, theirs in zip(model.weights, other.weights, strict=True):
            (mine if how == "assign" else mine.value).assign(theirs.value)
    found = as_numpy(model.generate(SOURCE, max_length=6, jit_compile=False).scores)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_predict_follows_new_weights():
    """The function of `predict` keeps an ordered copy of each kernel."""
    model, other = (EncoderModel(Embeddings(VOCAB, 16), Encoder(1, 2, 32)) for _ in range(2))
    for each in (model, other):
        each.quantize("int8")
        each.compile(jit_compile=False)
    before, expected = (each.predict(SOURCE, verbose=0) for each in (model, other))
    assert np.abs(before - expected).max() > 1e-3
    for mine, theirs in zip(model.weights, other.weights, strict=True):
        mine.assign(theirs.value)
    np.testing.assert_allclose(model.predict(SOURCE, verbose=0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_predict_follows_weights_that_the_fast_product_cannot_hold(tmp_path):
    """CPUs without VNNI add up such products wrongly; the run with AVX2 would see that."""
    model, other = (EncoderModel(Embeddings(VOCAB, 16), Encoder(1, 2, 32)) for _ in range(2))
    for each in (model, other):
        each.quantize("int8")
    for weight in other.weights:
        if keras.backend.standardize_dtype(weight.dtype) == "int8":
            weight.assign(ops.sign(weight) * 127)
    model.compile(jit_compile=False)
    model.predict(SOURCE, verbose=0)
    traced = model.predict_function
    other.save_weights(tmp_path / "other.weights.h5")
    model.load_weights(tmp_path / "other.weights.h5")
    found = model.predict(SOURCE, verbose=0)
    assert model.predict_function is not traced
    # A number may be rounded to its neighbour in int8.
    np.testing.assert_allclose(found, as_numpy(other(SOURCE)), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_other_policies_compute_int8_with_exact_scales(policy):
    layer = Projection("...x,xy->...y", 5, dtype=policy)
    layer.build((None, 64))
    layer.quantize("int8")
    x = normal(3, 64)
    found = as_numpy(ops.cast(layer(x), "float32"))
    floats = as_numpy(ops.cast(layer.kernel, "float32")) / as_numpy(layer.kernel_scale)
    assert layer.operands().sums is not None
    assert keras.backend.standardize_dtype(layer(x).dtype) == layer.compute_dtype
    np.testing.assert_allclose(found, x @ floats, atol=0.03 * np.abs(x @ floats).max())


class Coarse(keras.quantizers.AbsMaxQuantizer):
    """Rounds every input to 0."""

    def __call__(self, x, axis=None, to_numpy=False):
        x, scale = super().__call__(x, axis, to_numpy)
        return ops.zeros_like(x), scale


def test_a_quantizer_of_the_user_is_used():
    layer = Projection("...x,xy->...y", 5)
    layer.build((None, 64))
    layer.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(None, Coarse()))
    assert layer.int8_parts is None and not as_numpy(layer(normal(3, 64))).any()


@pytest.mark.parametrize("tie_weights", [True, False])
def test_a_cap_comes_after_the_bias_on_both_paths(tie_weights, monkeypatch):
    layer = TokenEmbedding(VOCAB, 16, output_bias=True, tie_weights=tie_weights, logit_soft_cap=1.0)
    layer.build()
    layer.bias.assign(ops.full((VOCAB,), 5.0))
    x = normal(3, 16)
    assert layer.get_config()["logit_soft_cap"] == 1.0
    expected = as_numpy(layer(x, reverse=True))
    assert 0.9 < expected.max() <= 1.0
    layer.quantize("int8")
    assert layer.operands() is not None
    fast = as_numpy(layer(x, reverse=True))
    monkeypatch.setattr(native, "int8_column_sums", lambda kernel, axes, largest: None)
    np.testing.assert_allclose(fast, as_numpy(layer(x, reverse=True)), atol=1e-5)
    np.testing.assert_allclose(fast, expected, atol=0.05)


@pytest.mark.slow
def test_functions_that_run_eagerly_and_functions_of_xla_compute_int8_too():
    import tensorflow as tf

    layer, x = quantized(), normal(2, 7, 64)
    expected = as_numpy(layer(x))
    try:
        tf.config.run_functions_eagerly(True)
        np.testing.assert_array_equal(as_numpy(layer(x)), expected)
    finally:
        tf.config.run_functions_eagerly(False)
    compiled = tf.function(layer, jit_compile=True)
    np.testing.assert_allclose(as_numpy(compiled(tf.constant(x))), expected, rtol=1e-4, atol=1e-5)
    assert layer(x[:0]).shape == (0, 7, 3, 5)


def test_a_layer_in_the_scope_of_a_strategy_computes_the_same():
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        layer = quantized()
        x = normal(2, 7, 64)
        np.testing.assert_allclose(as_numpy(layer(x)), as_numpy(quantized()(x)), rtol=1e-5, atol=1e-5)


SUMS = """
import numpy as np, tensorflow as tf
from keras_transformer.execution import native
from keras_transformer.execution.int8 import STEPS, MAX_INT8_WEIGHT
from keras_transformer.execution.tensorflow import int8_product
rng = np.random.default_rng(0)
for parts, steps in STEPS.items():
    weight = MAX_INT8_WEIGHT[parts]
    rows = rng.choice([-float(steps), float(steps)], (5, 512)).astype("float32")
    kernel = rng.choice([-weight, weight], (512, 48)).astype("int8")
    kernel[:, 0], rows[0] = weight, steps
    kernel[:, 1] = -weight
    with native.inference_graph():
        for transposed in (False, True):
            given = kernel.T.copy() if transposed else kernel
            operands = tf.constant(given), tf.ones(48), kernel.sum(axis=0).astype("float32"), steps
            product = tf.function(lambda: int8_product(*operands, transposed)(tf.constant(rows)))
            # A sum that overflowed 16 bits would be off by thousands, float32 by less than 1.
            sums = product().numpy().astype("float64") * 127
            assert (abs(sums - rows.astype(int) @ kernel.astype(int)) <= 1).all(), "not exact"
"""


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"])
def test_the_largest_sums_are_exact_on_every_instruction_set(instructions):
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    subprocess.run([sys.executable, "-c", SUMS], env=environment, check=True)
