"""A checkpoint that is quantized while it is read is the model that is quantized afterwards."""

import re
import warnings

import keras
import numpy as np
import pytest
from families import CONFIGS, LLAMA, MARIAN, T5, own_model

from keras_transformer.huggingface import FAMILIES, from_huggingface, quantized, to_huggingface
from keras_transformer.keras_internals import sublayers

SMALL = {**LLAMA, "num_hidden_layers": 1}
CASES = {
    "llama": SMALL,
    "tied": CONFIGS["qwen2-tied"],
    "fused": CONFIGS["phi3"],
    "marian": MARIAN,
    "t5": T5,
    "whisper": CONFIGS["whisper"],
    "roberta": {**CONFIGS["roberta-ForSequenceClassification"], "num_hidden_layers": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a small Llama."""
    folder = tmp_path_factory.mktemp("llama") / "new"
    to_huggingface(own_model(SMALL), folder)
    return folder


def name_of(weight):
    """The name of a weight, without the model's name and the numbers that Keras gives."""
    return re.sub(r"bias_\d+", "bias", weight.path.partition("/")[2])


SLOW = ("fused", "marian", "t5", "tied", "whisper")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
)
def test_quantized_while_reading_is_quantized_afterwards(case, tmp_path, monkeypatch):
    monkeypatch.setattr(quantized, "ROWS", 8)  # several parts of an embedding
    to_huggingface(own_model(CASES[case]), tmp_path / "new", family=CASES[case]["model_type"])
    expected = from_huggingface(tmp_path / "new")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without matrices
        expected.quantize("int8")
    model = from_huggingface(tmp_path / "new", precision="int8")
    values = [{name_of(w): np.asarray(w) for w in each.weights} for each in (model, expected)]
    assert values[0].keys() == values[1].keys()
    for name, value in values[0].items():
        assert value.dtype == values[1][name].dtype, name
        np.testing.assert_array_equal(value, values[1][name], name)
    assert {layer.name for layer in sublayers(model) if layer.quantization_mode == "int8"}


EACH = {(config["model_type"], *config.get("architectures", ())): config for config in CONFIGS.values()}


@pytest.mark.slow
@pytest.mark.parametrize("family", EACH, ids="-".join)
def test_no_matrix_of_a_family_is_made_of_floats(family):
    found = FAMILIES[family[0]]
    dtype = quantized.dtype_of("int8", more_names=found.matrices)
    model = found.make_model(EACH[family], dtype=dtype)
    for layer in sublayers(model):
        assert (layer.quantization_mode == "int8") == (type(layer) in quantized.MATRICES), layer.path


def test_other_layers_have_the_given_dtype_in_a_file_too(folder, tmp_path):
    model = from_huggingface(folder, precision="int8", dtype="mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    ids = np.array([[5, 7, 3]])
    expected = np.asarray(model(ids))
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        layer = each.decoder.layers[0].feed_forward
        assert (layer.inner.quantization_mode, layer.inner.kernel.dtype) == ("int8", "int8")
        assert layer.inner.compute_dtype == layer.compute_dtype == "bfloat16"
        assert each.decoder.norm.quantization_mode is None
        np.testing.assert_array_equal(np.asarray(each(ids)), expected)


def test_another_precision_is_refused(folder):
    with pytest.raises(ValueError, match="`precision` must be one of"):
        from_huggingface(folder, precision="int4")


def test_later_models_stay_in_floats(folder):
    from_huggingface(folder, precision="int8")
    assert not any(layer.quantization_mode for layer in sublayers(own_model(SMALL)))
