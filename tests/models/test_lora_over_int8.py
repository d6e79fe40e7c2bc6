"""LoRA over int8 weights: it trains, saves, loads and writes, in every precision."""

import keras
import numpy as np
import pytest
from contracts import STEP_IN_XLA, as_numpy, assert_close, compilations, needs_half_precision

from keras_transformer import MaskedCrossentropy, layers
from keras_transformer.models import LanguageModel, Transformer

IDS = np.array([[5, 7, 11], [4, 5, 6]], "int32")
POLICIES = ["float32", pytest.param("mixed_bfloat16", marks=needs_half_precision)]


def language_model(policy, **options):
    feed_forward = layers.GatedFeedForward(16, dtype=policy)
    layer = layers.DecoderLayer(2, feed_forward=feed_forward, dropout=0.0, dtype=policy)
    decoder = layers.Decoder([layer], dtype=policy)
    return LanguageModel(
        layers.Embeddings(20, 16, dropout=0.0, dtype=policy), decoder, dtype=policy, **options
    )


def quantized(model):
    with pytest.warns(UserWarning, match="does not have a `quantize` method|do not support quantization"):
        model.quantize("int8")
    return model


def adapted(layer, seed=0):
    """LoRA whose second matrix is not zero."""
    layer.enable_lora(2)
    matrices = [w for w in layer.trainable_variables if "lora" in w.name]
    matrices[-1].assign(np.random.default_rng(seed).normal(size=matrices[-1].shape, scale=0.3))
    return layer


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_it_trains(policy):
    keras.utils.set_random_seed(1)
    model = quantized(
        Transformer(20, num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, dtype=policy)
    )
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.self_attention.query_dense.enable_lora(2)
        layer.feed_forward.outer.enable_lora(2)
    model.compile(keras.optimizers.Adam(0.05), MaskedCrossentropy(), jit_compile=STEP_IN_XLA)
    inputs = {"source": IDS, "target": IDS}
    before = model.evaluate(inputs, IDS, verbose=0)
    model.fit(inputs, IDS, epochs=5, verbose=0)
    assert model.evaluate(inputs, IDS, verbose=0) < before


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["inner", "gate", "outer", "query_dense"])
def test_a_saved_model_computes_the_same_as_far_as_merged_weights_allow(policy, name, tmp_path):
    """Keras merges LoRA into the int8 kernel, which rounds again."""
    model = quantized(language_model(policy))
    layer = model.decoder.layers[0]
    adapted(getattr(layer.self_attention if name == "query_dense" else layer.feed_forward, name))
    expected = as_numpy(model(IDS))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    found = as_numpy(again(IDS))
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 0.1 * np.abs(expected).mean()
    assert again.generate(IDS, max_length=3).tokens.shape == (2, 1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lora_first", [True, False])
def test_the_tied_embedding_takes_both(policy, lora_first):
    model = language_model(policy)
    embedding = model.embeddings.tokens
    if lora_first:
        adapted(embedding)
        quantized(model)
    else:
        quantized(model)
        adapted(embedding)
    logits = model(IDS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert np.isfinite(as_numpy(logits)).all()
    assert model.generate(IDS, max_length=2).tokens.shape == (2, 1, 2)
    assert np.isfinite(as_numpy(model.score(IDS, IDS).scores)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_keep_the_compute_dtype(policy):
    projection = layers.Projection("...x,xhd->...hd", (2, 3), dtype=policy)
    projection.build((None, None, 8))
    embedding = layers.TokenEmbedding(13, 8, dtype=policy)
    embedding.build()
    for layer in (projection, embedding):
        layer.quantize("int8")
    adapted(projection)
    x = np.ones((2, 3, 8), "float32")
    dtypes = [keras.backend.standardize_dtype(y.dtype) for y in (projection(x), embedding(IDS))]
    assert dtypes == [projection.compute_dtype] * 2


@pytest.mark.slow
@needs_half_precision
@pytest.mark.parametrize("jit_compile", compilations())
def test_int8_below_float32_writes_in_every_compilation(jit_compile):
    keras.utils.set_random_seed(0)  # else it may write the id of padding, which `score` leaves out
    model = quantized(language_model("mixed_bfloat16"))
    found = model.generate(IDS, max_length=3, jit_compile=jit_compile)
    assert found.tokens.shape == (2, 1, 3)
    assert_close(model.score(IDS, found.tokens[:, 0]).scores, found.scores[:, 0], 0.2)
