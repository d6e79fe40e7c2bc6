"""A checkpoint that is quantized while it is read is the model that is quantized afterwards."""

import re
import warnings

import numpy as np
import pytest
from families import LLAMA, MARIAN, T5, ours
from relatives import DECODERS
from test_encoders import CONFIGS as ENCODERS

from keras_transformer.huggingface import from_huggingface, quantized, to_huggingface
from keras_transformer.keras_internals import sublayers

CASES = {
    "llama": LLAMA,
    "tied": DECODERS["qwen2-tied"],
    "fused": DECODERS["phi3"],
    "marian": MARIAN,
    "t5": T5,
    "roberta": ENCODERS["roberta-ForSequenceClassification"],
}


def name_of(weight):
    """The name of a weight, without the model's name and the numbers that Keras gives."""
    return re.sub(r"bias_\d+", "bias", weight.path.partition("/")[2])


SLOW = ("fused", "marian", "t5", "tied")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
)
def test_quantized_while_reading_is_quantized_afterwards(case, tmp_path, monkeypatch):
    monkeypatch.setattr(quantized, "ROWS", 8)  # several parts of an embedding
    to_huggingface(ours(CASES[case]), tmp_path / "new", family=CASES[case]["model_type"])
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


def test_another_precision_is_refused(tmp_path):
    to_huggingface(ours(LLAMA), tmp_path / "new")
    with pytest.raises(ValueError, match="`precision` must be one of"):
        from_huggingface(tmp_path / "new", precision="int4")


def test_what_is_built_later_stays_in_floats(tmp_path):
    to_huggingface(ours(LLAMA), tmp_path / "new")
    from_huggingface(tmp_path / "new", precision="int8")
    assert not any(layer.quantization_mode for layer in sublayers(ours(LLAMA)))
