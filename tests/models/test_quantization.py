"""`model.quantize("int8")`: logits stay near, and the model writes and is saved as before."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from contracts import as_numpy, assert_close, normal, refuses
from keras import ops

from keras_transformer.decoding import Greedy, SuppressTokens
from keras_transformer.execution import inference, native
from keras_transformer.execution.int8 import OneProduct, TwoPartQuantizer
from keras_transformer.keras_internals import sublayers
from keras_transformer.layers import (
    Decoder,
    Embeddings,
    Encoder,
    EncoderLayer,
    LayerNormalization,
    LearnedPositions,
)
from keras_transformer.layers.projection import Projection
from keras_transformer.models import (
    T5,
    EncoderModel,
    LanguageModel,
    MaskedLanguageHead,
    RecurrentSeq2Seq,
    Transformer,
    VisionTransformer,
)

VOCAB, D_MODEL, HEADS, D_FF = 97, 64, 4, 128
RNG = np.random.default_rng(0)
IDS = RNG.integers(4, VOCAB, (3, 11)).astype("int32")
PAIR = {"source": IDS, "target": RNG.integers(4, VOCAB, (3, 7)).astype("int32")}
SIZES = {"num_layers": 1, "d_model": D_MODEL, "num_heads": HEADS, "d_ff": D_FF}
MODELS = {
    "Transformer": (lambda: Transformer(VOCAB, **SIZES), PAIR),
    "T5": (lambda: T5(VOCAB, **SIZES, key_dim=16), PAIR),
    "RecurrentSeq2Seq": (lambda: RecurrentSeq2Seq(VOCAB, d_model=D_MODEL, output_bias=True), PAIR),
    "LanguageModel": (
        lambda: LanguageModel(
            Embeddings(VOCAB, D_MODEL, LearnedPositions(32)), Decoder(2, HEADS, D_FF, normalize_first=True)
        ),
        IDS,
    ),
    "EncoderModel": (
        lambda: EncoderModel(
            Embeddings(VOCAB, D_MODEL, norm=LayerNormalization(), output_bias=True),
            Encoder(2, HEADS, D_FF),
            head=MaskedLanguageHead(),
        ),
        IDS,
    ),
    "vectors": (
        lambda: EncoderModel(Embeddings(VOCAB, D_MODEL, norm=LayerNormalization()), Encoder(2, HEADS, D_FF)),
        IDS,
    ),
    "VisionTransformer": (
        lambda: VisionTransformer((8, 12), 4, D_MODEL, Encoder(2, HEADS, D_FF, normalize_first=True), VOCAB),
        normal(3, 8, 12, 3),
    ),
}


def quantized(name):
    """An int8 model, and the logits that it gave before."""
    make, inputs = MODELS[name]
    keras.utils.set_random_seed(1)
    model = make()
    expected = as_numpy(model(inputs))
    model.quantize("int8")
    return model, expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled
def test_eight_bits_change_logits_little(name):
    model, expected = quantized(name)
    found = as_numpy(model(MODELS[name][1]))
    assert len([w for w in model.weights if keras.backend.standardize_dtype(w.dtype) == "int8"]) >= 2
    assert np.abs(found - expected).max() > 1e-6
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] >= 0.999


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_int8_model_is_saved_and_writes_the_same(name, tmp_path):
    model, _ = quantized(name)
    inputs = MODELS[name][1]
    found = as_numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(inputs), found, 1e-6)
    again.save(tmp_path / "again.keras")
    assert_close(keras.models.load_model(tmp_path / "again.keras")(inputs), found, 1e-6)
    if hasattr(model, "generate"):
        written, scored = [], []
        for each in (model, again):
            hypotheses = each.generate(IDS, Greedy(), 6, False, constraints=[SuppressTokens((0,))])
            written.append(as_numpy(hypotheses.tokens))
            scored.append(as_numpy(hypotheses.scores))
        np.testing.assert_array_equal(*written)
        np.testing.assert_allclose(*scored, rtol=1e-4)
        # One pass rounds its floats otherwise than single steps do, so an input may round to the next of 127 steps.
        given = model.score(IDS, written[0], jit_compile=False)
        np.testing.assert_allclose(as_numpy(given.scores), scored[0], rtol=0.03)


@pytest.mark.tensorflow
@pytest.mark.parametrize("known", [True, False], ids=["known batch", "open batch"])
@pytest.mark.parametrize("name, tokens", [("EncoderModel", 11), ("VisionTransformer", 7)])
@pytest.mark.slow
def test_the_parts_of_a_large_batch_are_encoded_as_the_whole(name, tokens, known, monkeypatch):
    make, inputs = MODELS[name]
    model = make()
    model.quantize("int8")
    inputs = np.random.default_rng(1).permuted(np.concatenate([inputs] * 3)[:7], axis=-1)
    if name == "EncoderModel":
        for row in range(6):
            inputs[row, 11 - row :] = 0
    sizes, in_parts = [], inference.in_parts
    monkeypatch.setattr(
        inference, "in_parts", lambda *arguments: sizes.append(arguments[-1]) or in_parts(*arguments)
    )

    def encode(x):
        return model(x, training=False), ops.convert_to_tensor(sizes[-1])

    expected = as_numpy(model(inputs))
    between_rows = np.abs(expected[1:] - expected[:-1]).mean()
    spec = tf.TensorSpec((7 if known else None, *inputs.shape[1:]), inputs.dtype)
    # One part; two; four of two rows; one for each row. The last row fills up the last part of four or of two rows.
    for part, size in ((14 * tokens + 1, 7), (14 * tokens, 4), (2 * tokens, 2), (1, 1)):
        monkeypatch.setattr(inference, "PART", part)
        with native.inference_graph():
            graph = tf.function(encode, autograph=False).get_concrete_function(spec)
        found, used = graph(ops.convert_to_tensor(inputs))
        # Floats of fewer rows may round otherwise on some CPU, and then a rounded input takes the next int8.
        assert np.abs(as_numpy(found) - expected).mean() < 0.1 * between_rows
        assert int(used) == size


@pytest.mark.slow
@pytest.mark.tensorflow
def test_an_encoder_with_layers_of_another_kind_is_computed_as_one(monkeypatch):
    class OfAUser(EncoderLayer):
        """May look at the whole batch, as far as the library can know."""

    monkeypatch.setattr(inference, "PART", 1)
    monkeypatch.setattr(inference, "in_parts", lambda *arguments: pytest.fail("computed in parts"))
    for layer in OfAUser(HEADS, D_FF), EncoderLayer(HEADS, D_FF, dtype="mixed_bfloat16"):
        model = EncoderModel(Embeddings(VOCAB, D_MODEL), Encoder([layer]))
        model.quantize("int8")
        with native.inference_graph():
            graph = tf.function(lambda x, model=model: model(x, training=False), autograph=False)
            traced = graph.get_concrete_function(tf.TensorSpec(IDS.shape, "int32"))
        assert traced.structured_outputs.shape == (*IDS.shape, D_MODEL)


def parts_of_products(model):
    """In how many parts the products of a model round their inputs."""
    return {layer.int8_parts for layer in sublayers(model) if isinstance(layer, OneProduct)}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_texts_and_vectors_round_inputs_to_two_parts_by_default(name, tmp_path):
    model, _ = quantized(name)
    inputs, parts = MODELS[name][1], 2 if name in ("LanguageModel", "vectors") else 1
    assert parts_of_products(model) == {parts}
    coarse, fine = MODELS[name][0](), MODELS[name][0]()
    coarse.quantize("int8", config=keras.quantizers.Int8QuantizationConfig())
    fine.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(None, TwoPartQuantizer()))
    assert (parts_of_products(coarse), parts_of_products(fine)) == ({1}, {2})
    fine.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert parts_of_products(again) == {2}
    np.testing.assert_array_equal(as_numpy(again(inputs)), as_numpy(fine(inputs)))


def test_two_parts_are_nearer_to_the_floats_where_an_input_is_large():
    layer, x = Projection("...x,xy->...y", 8), normal(5, 64)
    x[:, 0] *= 100
    layer.build((None, 64))
    expected, kernel, errors = as_numpy(layer(x)), as_numpy(layer.kernel), []
    for quantizer in (keras.quantizers.AbsMaxQuantizer(), TwoPartQuantizer()):
        layer = Projection("...x,xy->...y", 8)
        layer.build((None, 64))
        layer.kernel.assign(kernel)
        layer.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(None, quantizer))
        errors.append(np.abs(as_numpy(layer(x)) - expected).mean())
    assert errors[1] < errors[0] / 2


def test_lora_over_int8_has_the_numbers_of_keras():
    """Where the output has one axis, Keras's LoRA is a product of two matrices too."""
    layer = Projection("...xh,xhd->...d", 5)
    expected = keras.layers.EinsumDense("axh,xhd->ad", 5)
    for each in (layer, expected):
        each.build((None, 16, 4))
        each.quantize("int8")
        each.enable_lora(2, lora_alpha=3)
    for ours, keras_s in zip(layer.weights, expected.weights, strict=True):
        if ours.dtype != "int8" and "scale" not in ours.name:
            ours.assign(normal(*ours.shape, seed=7))
        keras_s.assign(np.reshape(as_numpy(ours), keras_s.shape))
    x = normal(4, 16, 4)
    np.testing.assert_allclose(as_numpy(layer(x)), as_numpy(expected(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_lora_of_heads_has_its_rank(precision):
    """As in PEFT: two matrices for all heads together. Keras has a first matrix for each head."""
    layer = Projection("...x,xhd->...hd", (3, 5))
    layer.build((None, 16))
    if precision == "int8":
        layer.quantize("int8")
    x = normal(2, 4, 16)
    before = as_numpy(layer(x))
    layer.enable_lora(2, lora_alpha=3)
    low, high = layer.lora_kernel_a, layer.lora_kernel_b
    assert (tuple(low.shape), tuple(high.shape)) == ((16, 2), (2, 15))
    high.assign(normal(2, 15, seed=7))
    expected = before + 1.5 * (x @ as_numpy(low) @ as_numpy(high)).reshape(2, 4, 3, 5)
    np.testing.assert_allclose(as_numpy(layer(x)), expected, rtol=1e-4, atol=1e-4)
    if precision == "float32":
        refuses(r'LoRA.*"int8"', layer.quantize, "int4")


@pytest.mark.tensorflow
def test_the_floats_of_an_int8_kernel_wait_for_their_gradient():
    """TensorFlow would make the floats of all kernels as soon as a training step begins, and keep them."""
    layer = Projection("...x,xy->...y", 6)
    layer.build((None, 4))
    layer.quantize("int8")

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) ** 2)
        return tape.gradient(loss, x)

    operations = gradient.get_concrete_function(tf.TensorSpec((3, 4))).graph.get_operations()
    casts = [each for each in operations if each.type == "Cast" and each.inputs[0].dtype == tf.int8]
    (floats,) = (each for each in casts if each.outputs[0].dtype == tf.float32)
    assert floats.inputs[0].op.control_inputs
