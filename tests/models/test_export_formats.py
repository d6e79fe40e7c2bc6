"""Exports for LiteRT and ONNX give Keras's numbers, for any batch and length, or are refused by name."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, refuses

from keras_transformer import layers, models

pytestmark = pytest.mark.tensorflow

VOCAB, D_MODEL, HEADS, D_FF = 23, 8, 2, 16
FORMATS = ("litert", "onnx")
# (batch, length, length of the second input)
SIZES = ((3, 5, 2), (1, 7, 3), (2, 1, 1))


def ids(batch, length):
    """Ids, in rows that end with padding."""
    drawn = np.random.default_rng(length).integers(1, VOCAB, (batch, length)).astype("int32")
    drawn[0, max(1, length - 2) :] = 0
    return drawn


def answer_of(path, format):
    """A function that computes an export of named inputs."""
    if format == "litert":
        interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path))
        runner = interpreter.get_signature_runner()
        return lambda inputs: next(iter(runner(**inputs).values()))
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    names = [each.name for each in session.get_inputs()]
    return lambda inputs: session.run(None, {name: inputs[name] for name in names})[0]


def exported(model, format, tmp_path):
    """Exports a model; returns the function that computes its export."""
    if format == "onnx":
        pytest.importorskip("tf2onnx")
    path = tmp_path / ("model.tflite" if format == "litert" else "model.onnx")
    model.export(path if format == "litert" else str(path), format=format, verbose=False)
    return answer_of(path, format)


def called(model, inputs):
    """A functional model after a call: Keras exports it for ONNX only then."""
    model(inputs(1, 1, 1))
    return model


def encoder_layer():
    x = keras.Input((None, D_MODEL), name="x")
    real = keras.Input((None,), dtype="bool", name="real")
    y = layers.EncoderLayer(HEADS, D_FF)(x, padding_mask=real)

    def inputs(batch, length, _):
        drawn = np.random.default_rng(1).normal(size=(batch, length, D_MODEL)).astype("float32")
        return {"x": drawn, "real": ids(batch, length) != 0}

    return called(keras.Model({"x": x, "real": real}, y), inputs), inputs


def tagger():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.PositionalEncoding()(layers.TokenEmbedding(VOCAB, D_MODEL, pad_id=0)(tokens))
    y = keras.layers.Dense(5)(layers.Encoder(2, HEADS, D_FF)(x))

    def inputs(batch, length, _):
        return {"tokens": ids(batch, length)}

    return called(keras.Model({"tokens": tokens}, y), inputs), inputs


def transformer():
    model = models.Transformer(VOCAB, num_layers=2, d_model=D_MODEL, num_heads=HEADS, d_ff=D_FF)
    return model, lambda batch, length, other: {"source": ids(batch, length), "target": ids(batch, other)}


def encoder_model():
    model = models.EncoderModel(
        layers.Embeddings(VOCAB, D_MODEL, segments=layers.SegmentEmbedding()), layers.Encoder(2, HEADS, D_FF)
    )
    return model, lambda batch, length, _: {
        "token_ids": ids(batch, length),
        "segment_ids": np.zeros((batch, length), "int32"),
    }


def shared_keys_and_a_window():
    attention = layers.MultiHeadAttention(
        HEADS, 4, num_key_value_heads=1, sliding_window=3, positions=layers.RotaryPositions()
    )
    layer = layers.DecoderLayer(attention=attention, feed_forward=layers.GatedFeedForward(D_FF), norm="rms")
    model = models.LanguageModel(layers.Embeddings(VOCAB, D_MODEL), layers.Decoder([layer]))
    return model, lambda batch, length, _: ids(batch, length)


def t5():
    sizes = {"num_layers": 1, "d_model": D_MODEL, "num_heads": HEADS, "key_dim": 4, "d_ff": D_FF}
    return models.T5(VOCAB, **sizes), transformer()[1]


MAKERS = [encoder_layer, tagger, transformer, encoder_model, shared_keys_and_a_window, t5]


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("make", MAKERS)
def test_an_export_computes_what_keras_computes(make, format, tmp_path):
    keras.utils.set_random_seed(1)
    model, inputs = make()
    answer = exported(model, format, tmp_path)
    for sizes in SIZES:
        given = inputs(*sizes)
        named = given if isinstance(given, dict) else {"inputs": given}
        np.testing.assert_allclose(answer(named), as_numpy(model(given)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_recurrent_model_is_exported_for_onnx(tmp_path):
    model = models.RecurrentSeq2Seq(VOCAB, num_layers=1, d_model=D_MODEL)
    answer, inputs = exported(model, "onnx", tmp_path), transformer()[1](3, 5, 2)
    np.testing.assert_allclose(answer(inputs), as_numpy(model(inputs)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_models_that_a_format_cannot_hold_are_refused(format, tmp_path):
    path = str(tmp_path / "model.tflite")

    def encoder(**options):
        return models.EncoderModel(
            layers.Embeddings(VOCAB, D_MODEL), layers.Encoder(1, HEADS, D_FF), **options
        )

    quantized = encoder()
    quantized.embeddings.tokens.quantize("int8")
    with pytest.raises(ValueError, match=f'`format="{format}"` cannot hold weights that Keras quantized'):
        quantized.export(path, format=format)
    with pytest.raises(ValueError, match=f'`format="{format}"` needs a model that computes in float32'):
        encoder(dtype="mixed_bfloat16").export(path, format=format)
    if format == "litert":
        model = models.RecurrentSeq2Seq(VOCAB, num_layers=1, d_model=D_MODEL)
        refuses('Export with `format="onnx"`', model.export, path, format=format)
