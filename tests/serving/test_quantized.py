"""Quantized models: saved, loaded and exported with their int8 weights."""

import gc
import json

import numpy as np
import pytest
import tensorflow as tf
from alone import answers
from contracts import refuses

from keras_transformer.serving import Translator
from keras_transformer.serving.graph.saved_model import compiled_parts
from keras_transformer.serving.graph.weights import _old_objects_kept, store_weights


@pytest.fixture(scope="module")
def quantized(tiny_run):
    translator = Translator.load(tiny_run)
    translator.model.quantize("int8")
    return translator


@pytest.fixture(scope="module")
def texts(pairs):
    return [*(source for source, _ in pairs[:5]), ""]


@pytest.fixture(scope="module")
def translations(quantized, texts):
    found = quantized.translate(texts)
    assert found[-1] == "" and len(set(found)) > 4
    return found


def int8_weights(model):
    return {weight.path: weight.numpy() for weight in model.weights if weight.dtype == "int8"}


@pytest.mark.slow
def test_a_saved_and_loaded_translator_has_the_same_int8_weights(quantized, texts, translations, tmp_path):
    quantized.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved")
    expected, found = int8_weights(quantized.model), int8_weights(loaded.model)
    assert found.keys() == expected.keys() and len(found) > 10
    for path, weight in expected.items():
        np.testing.assert_array_equal(found[path], weight)
    assert loaded.translate(texts) == translations


@pytest.mark.slow
def test_an_export_computes_with_int8_weights_and_without_xla(quantized, texts, translations, tmp_path):
    export = quantized.export(tmp_path / "model", warmup=False, check=False)
    assert compiled_parts(export) == []
    checkpoint = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    dtypes = [*checkpoint.get_variable_to_dtype_map().values()]
    assert dtypes.count(tf.int8) == len(int8_weights(quantized.model))
    assert answers(export, tmp_path, text=texts)["translation"] == translations


def test_an_int8_model_is_not_compiled(quantized, tmp_path):
    refuses("XLA has no fast int8 product for CPUs.", quantized.export, tmp_path / "model", xla=True)


def test_precision_int8_exports_what_a_quantized_model_answers(quantized, pairs, tmp_path, tiny_run):
    translator = Translator.load(tiny_run)
    options = {"signatures": ["score"], "warmup": False, "check": False}
    export = translator.export(tmp_path / "model", precision="int8", **options)
    assert int8_weights(translator.model) == {}, "the servable keeps its weights"
    assert json.loads((export / "assets.extra" / "export.json").read_text())["precision"] == "int8"
    checkpoint = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    dtypes = [*checkpoint.get_variable_to_dtype_map().values()]
    assert dtypes.count(tf.int8) == len(int8_weights(quantized.model)) > 10
    (text, target), tokenizer = pairs[0], quantized.source_tokenizer
    (found,) = answers(export, tmp_path, "score", text=[text], target=[target])["token_scores"]
    source, written = ([*tokenizer.tokenize(each).numpy(), 3] for each in (text, target))
    logits = quantized.model({"source": np.array([source]), "target": np.array([[2, *written[:-1]]])})
    expected = tf.nn.log_softmax(logits)[0].numpy()[np.arange(len(written)), written]
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)  # an input may round to the next step


def test_bfloat16_storage_leaves_int8_weights_as_they_are(quantized):
    read, _ = store_weights(quantized.model, narrow=True)
    for weight, value in zip(quantized.model.weights, read(), strict=True):
        assert value.dtype.name == weight.dtype
        if weight.dtype == "int8":
            np.testing.assert_array_equal(value, weight.numpy())


@pytest.mark.slow
def test_quantizing_a_used_translator_takes_effect(tiny_run, texts, translations):
    translator = Translator.load(tiny_run)
    translator.translate(texts)
    translator.model.quantize("int8")
    assert translator.translate(texts) == translations
    kernel = translator.model.target.tokens.embeddings
    kernel.assign(-kernel.numpy())
    assert translator.translate(texts) != translations


def test_quantizing_looks_at_no_old_object():
    """Keras collects garbage for each layer: over a program's old objects that takes a third of a second each time."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    with _old_objects_kept():
        assert gc.get_freeze_count()
        with _old_objects_kept():
            pass
        assert gc.get_freeze_count(), "who freezes first decides"
    assert not gc.get_freeze_count()
    if frozen:
        gc.freeze()
