import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, mask_of, needs_half_precision, normal, randomized
from keras import ops

from keras_transformer.execution.inference import inference
from keras_transformer.layers import TokenEmbedding

VOCAB, D_MODEL = 7, 5
IDS = np.array([[3, 6, 1], [4, 0, 0]], "int32")


def built(**arguments):
    layer = TokenEmbedding(VOCAB, D_MODEL, **arguments)
    layer.build()
    return randomized(layer)


def test_looks_up_and_scales_by_the_root_of_the_width():
    layer = built()
    table = as_numpy(layer.embeddings)
    assert_close(layer(IDS), table[IDS] * np.sqrt(D_MODEL))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"output_bias": True, "output_scale": 0.5, "pad_id": 0},
        {"tie_weights": False},
        {"logit_soft_cap": 2.0},
    ],
)
def test_logits_are_products_with_each_embedding(arguments, shape):
    """For states of any rank, and the same where the weights are read once."""
    layer, x = built(**arguments), normal(*shape, D_MODEL, scale=3.0)
    matrix = layer.embeddings if layer.tie_weights else ops.transpose(layer.reverse_embeddings)
    expected = layer.output_scale * x.astype("float64") @ as_numpy(matrix).T
    expected = expected + (as_numpy(layer.bias) if "output_bias" in arguments else 0.0)
    expected = 2 * np.tanh(expected / 2) if "logit_soft_cap" in arguments else expected
    assert len(layer.weights) == 1 + (len(arguments) == 3) + (not layer.tie_weights)
    assert_close(layer(x, reverse=True), expected)
    assert mask_of(layer(x, reverse=True)) is None
    with inference(keras.Sequential([layer])):
        assert_close(layer(x, reverse=True), expected)


def test_reversed_in_a_functional_model_it_stays_tied():
    layer = built(pad_id=0)
    ids = keras.Input((None,), dtype="int32")
    logits = layer(layer(ids), reverse=True)
    assert logits.shape == (None, None, VOCAB)
    model = keras.Model(ids, logits)
    before = as_numpy(model(IDS))
    assert_close(before, as_numpy(layer(layer(IDS), reverse=True)))
    np.testing.assert_array_equal(as_numpy(mask_of(model(IDS))), IDS != 0)
    layer.embeddings.assign(2.0 * layer.embeddings)
    assert_close(model(IDS), 4 * before)
    assert [weight.path for weight in model.trainable_weights] == [layer.embeddings.path]


@needs_half_precision
def test_logits_are_float32_under_mixed_bfloat16():
    layer = built(dtype="mixed_bfloat16")
    logits = layer(ops.cast(normal(2, 3, D_MODEL), "bfloat16"), reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    expected = normal(2, 3, D_MODEL).astype("float64") @ as_numpy(layer.embeddings).T
    assert_close(logits, expected, 0.03)


def test_padding_is_marked_where_asked():
    np.testing.assert_array_equal(as_numpy(mask_of(built(pad_id=0)(IDS))), IDS != 0)
    np.testing.assert_array_equal(as_numpy(mask_of(built(pad_id=3)(IDS))), IDS != 3)
    assert mask_of(built()(IDS)) is None


def test_large_ids_keep_their_value_under_mixed_precision():
    """bfloat16 has no 257: ids that were cast on the way would name a neighbour."""
    layer = TokenEmbedding(521, 2, dtype="mixed_bfloat16")
    layer.build()
    layer.embeddings.assign(np.arange(1042).reshape(521, 2) % 256)
    ids = np.array([[257, 259, 513]], "int32")
    assert_close(layer(ids), (np.arange(1042).reshape(521, 2) % 256)[ids] * np.sqrt(2), 0.01)


@pytest.mark.parametrize(
    "arguments", [{}, {"scale": 1.0, "embeddings_initializer": keras.initializers.RandomNormal(stddev=1.0)}]
)
def test_scaled_embeddings_start_with_unit_variance(arguments):
    layer = TokenEmbedding(1009, 101, **arguments)
    layer.build()
    np.testing.assert_allclose((as_numpy(layer.embeddings) * layer.scale).std(), 1.0, rtol=0.05)


def test_a_sequential_model_without_an_input_keeps_the_padding():
    """It casts its ids to float."""
    model = keras.Sequential([TokenEmbedding(VOCAB, D_MODEL, pad_id=0)])
    np.testing.assert_array_equal(as_numpy(mask_of(model(IDS))), IDS != 0)


@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("tie_weights", [False, True])
def test_quantized_embeddings_and_logits_differ_by_rounding(tie_weights, output_bias, tmp_path):
    layer = TokenEmbedding(23, 32, pad_id=0, output_bias=output_bias, tie_weights=tie_weights)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer(layer(ids), reverse=True))
    randomized(layer)
    x = np.arange(1, 23).reshape(2, 11)
    expected, states = as_numpy(model(x)), as_numpy(layer(x))
    model.quantize("int8")
    assert np.corrcoef(as_numpy(layer(x)).ravel(), states.ravel())[0, 1] >= 0.999
    assert np.corrcoef(as_numpy(model(x)).ravel(), expected.ravel())[0, 1] >= 0.999
    found = as_numpy(model(x))
    model.save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(x), found, 1e-5)


def test_low_rank_adapters_start_as_nothing_and_serve_both_ends():
    layer, x = built(), normal(2, 3, D_MODEL)
    expected = as_numpy(layer(x, reverse=True))
    layer.enable_lora(2)
    assert_close(layer(x, reverse=True), expected)
    assert len(layer.trainable_weights) == 2
    randomized(layer)
    assert_close(layer(x, reverse=True), x.astype("float64") @ as_numpy(layer.embeddings).T)
    assert_close(layer(IDS), as_numpy(layer.embeddings)[IDS] * np.sqrt(D_MODEL))


def test_lora_counts_in_the_logits_of_a_quantized_embedding():
    layer, states = TokenEmbedding(11, 8), normal(2, 3, 8)
    layer.build((None, None))
    layer.enable_lora(2)
    layer.lora_embeddings_b.assign(normal(*layer.lora_embeddings_b.shape, seed=1))
    expected = as_numpy(layer(states, reverse=True))
    layer.quantize("int8")
    np.testing.assert_allclose(
        as_numpy(layer(states, reverse=True)), expected, atol=0.03 * np.abs(expected).max()
    )
