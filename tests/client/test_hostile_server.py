"""Answers that no honest server gives: they end in one of the documented errors, in little time and memory."""

import json

import numpy as np
import pytest

from keras_transformer.client import Client
from keras_transformer.client.messages import CLASSES, MOST_REPEATED

FLOAT, UINT8, STRING = 1, 4, 7


def tensor(dtype, shape, **values):
    message = CLASSES["Tensor"](dtype=dtype, **values)
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    return message


TENSORS = {
    "terabytes": tensor(FLOAT, [2**40], float_val=[1]),
    "terabytes without a value": tensor(FLOAT, [2**40]),
    "gigabytes": tensor(FLOAT, [MOST_REPEATED + 2], float_val=[1]),
    "gigabytes of strings": tensor(STRING, [2**30], string_val=[b"a"]),
    "negative": tensor(FLOAT, [-1, -1], float_val=[1]),
    "out of range": tensor(UINT8, [1], int_val=[300]),
    "pointers": tensor(STRING, [1], tensor_content=b"12345678"),
    "zero of many": tensor(FLOAT, [2**62, 0]),
    "overflow": tensor(FLOAT, [2**62, 2**62], float_val=[1]),
    "many axes": tensor(FLOAT, [1] * 100, float_val=[1]),
    "part of a number": tensor(FLOAT, [2], tensor_content=b"123"),
    "unknown dtype": tensor(99, [1], float_val=[1]),
}


def predicted(monkeypatch, output):
    """Returns what the client makes of an answer with one output, the message of a tensor."""
    answer = CLASSES["PredictResponse"]()
    answer.outputs["score"].CopyFrom(output)
    with Client("grpc://localhost:1") as client:
        monkeypatch.setattr(client._transport, "_send", lambda *_: answer)
        return client.predict(text=["a"])["score"]


@pytest.mark.parametrize("name", TENSORS)
def test_unreadable_tensor_is_an_error(name, monkeypatch):
    with pytest.raises(OSError, match="the answer cannot be read"):
        predicted(monkeypatch, TENSORS[name])


def test_values_that_repeat_the_last_one_are_read(monkeypatch):
    found = predicted(monkeypatch, tensor(FLOAT, [3], float_val=[1, 2]))
    np.testing.assert_array_equal(found, [1, 2, 2])


def test_strings_without_a_value_are_empty(monkeypatch):
    assert predicted(monkeypatch, tensor(STRING, [2])).tolist() == [b"", b""]


def metadata(dtype, **shape):
    signature = {"outputs": {"translation": {"dtype": dtype, "tensor_shape": shape}}}
    return {"metadata": {"signature_def": {"signature_def": {"serving_default": signature}}}}


DEEP = json.loads("[" * 500 + "]" * 500)
ANSWERS = {
    "deep": (DEEP, metadata("DT_STRING")),
    "100 deep": (json.loads("[" * 100 + '"a"' + "]" * 100), metadata("DT_STRING")),
    "a number for a string": ([5], metadata("DT_STRING")),
    "nothing for a string": ([None], metadata("DT_STRING")),
    "rows of two lengths": ([["a"], ["b", "c"]], metadata("DT_STRING")),
    "a large number": ([10**30], metadata("DT_INT32")),
    "no base64": ([{"b64": "a"}], metadata("DT_STRING")),
    "base64 of a number": ([{"b64": 5}], metadata("DT_STRING")),
    "another dtype": (["a"], metadata("DT_FLOAT")),
    "an unknown dtype": (["a"], metadata("DT_RESOURCE")),
    "a list as dtype": (["a"], metadata(["DT_STRING"])),
    "many axes": ([], metadata("DT_STRING", dim=[{}] * 1000)),
    "a list as metadata": (["a"], {"metadata": []}),
    "a list of outputs": (["a"], {"metadata": {"signature_def": {"signature_def": {"serving_default": []}}}}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_json_that_is_no_answer_is_an_error(name, monkeypatch):
    outputs, description = ANSWERS[name]
    with Client("http://localhost:1") as client:
        monkeypatch.setattr(
            client._transport,
            "_send",
            lambda method, *_: {"outputs": outputs} if method == "POST" else description,
        )
        with pytest.raises(OSError, match="the answer cannot be read"):
            client.predict(text=["a"])


@pytest.mark.parametrize(
    "outputs",
    [
        {"translation": np.zeros(1)},
        {"translation": np.array([b"a"], object), "truncated": np.array([b"a"], object)},
        {"translation": np.array([b"a"], object), "error": np.ones(1)},
        {"translation": np.array([b"a"], object), "error": np.array(b"a", object)},
    ],
)
def test_outputs_of_other_dtypes_are_an_error(outputs, monkeypatch):
    with Client("grpc://localhost:1") as client:
        monkeypatch.setattr(client._transport, "predict", lambda *_: outputs)
        with pytest.raises(OSError, match="must answer 1 sentences with as many"):
            client.translate(["a"])


@pytest.mark.parametrize("states", [[5], [{"version": "x", "state": 1}], {"a": 1}, 5, None, [[]]])
def test_unreadable_states_are_an_error(states, monkeypatch):
    with Client("http://localhost:1") as client:
        monkeypatch.setattr(client._transport, "_send", lambda *_: {"model_version_status": states})
        with pytest.raises(OSError, match="the answer cannot be read"):
            client.status()
