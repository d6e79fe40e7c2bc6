"""Checks of exports: before they appear, and later by `keras-transformer verify`."""

import json
import re
import shutil
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.cli import main
from keras_transformer.serving.graph.saved_model import write_saved_model
from keras_transformer.serving.verify import (
    DESCRIPTION,
    RequestTime,
    check_answers,
    hashes,
    time_of_request,
    verify,
)
from keras_transformer.serving.warmup import FILE, first_warmup_request, write_warmup


@pytest.fixture
def copy(exported, tmp_path):
    """A copy of the translator's export that a test may damage."""
    return shutil.copytree(exported, tmp_path / "model" / "1")


@pytest.mark.slow
def test_every_version_of_a_whole_model_is_verified(exported, capsys):
    assert main(["verify", str(exported.parent), "--log-level", "info"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{exported}\n" and f"verified  folder={exported}\n" in err
    # Twice 256 tokens of a text, plus 16.
    assert f"{exported}: an answer has at most 528 tokens: the longest request takes 528 steps\n" in err
    time = f"{re.escape(str(exported))}: serving_default takes [0-9.]+ ms for its first warm-up request"
    assert re.search(time + r" \(rows: 1\)\n", err)


def change(path):
    data = path / "variables" / "variables.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (change, "variables/variables.data-00000-of-00001"),
        (lambda path: (path / "fingerprint.pb").unlink(), "fingerprint.pb"),
        (lambda path: (path / "assets" / "mine").write_text("mine"), "assets/mine"),
    ],
)
def test_other_bytes_are_found(copy, damage, named):
    (copy / "assets").mkdir(exist_ok=True)
    damage(copy)
    for folder in (copy, copy.parent, copy.parent.parent):  # a version, a model, a folder of models
        with pytest.raises(ValueError, match=f"must hold the files that the export wrote.* {named}"):
            verify(folder)


@pytest.mark.parametrize("file", ["saved_model.pb", "variables/variables.data-00000-of-00001"])
def test_an_export_that_cannot_be_loaded_is_found(copy, file):
    (copy / file).write_bytes(b"no graph")
    described = json.loads((copy / DESCRIPTION).read_text())
    (copy / DESCRIPTION).write_text(json.dumps({**described, "files": hashes(copy)}))
    with pytest.raises(ValueError, match="1 cannot be loaded"):
        verify(copy)


def test_a_folder_without_an_export_is_refused(copy, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="`folder` must hold an exported version, or folders of models"):
        verify(tmp_path / "empty")
    (copy / DESCRIPTION).unlink()
    with pytest.raises(
        ValueError, match=r"1 is not an export of this library: .*Keras's `model.export` writes none"
    ):
        verify(copy.parent)


def test_first_warm_up_request_is_read(tmp_path):
    assert first_warmup_request(tmp_path) is None
    requests = [
        ("n_best", {"text": ["가", "b"], "n": np.int32([1, 2])}),
        ("serving_default", {"text": ["a"]}),
    ]
    write_warmup(tmp_path, requests)
    name, inputs = first_warmup_request(tmp_path)
    assert (
        name == "n_best"
        and inputs["text"].tolist() == ["가".encode(), b"b"]
        and inputs["n"].tolist() == [1, 2]
    )
    with tf.io.TFRecordWriter(str(tmp_path / "no message")) as writer:
        writer.write(b"\xff")
    for damaged in (b"damaged", b"", (tmp_path / "no message").read_bytes()):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(ValueError, match="tf_serving_warmup_requests must hold warm-up requests"):
            first_warmup_request(tmp_path)


@pytest.mark.parametrize(
    ("seconds", "answers", "median"),
    [([9.0, 0.3, 0.1, 0.2, 0.5, 0.4], 6, 300.0), ([9.0, 1.5, 0.7], 3, 1100.0)],
    ids=["five answers", "two seconds"],
)
def test_the_time_is_the_median_after_the_first_answer(tmp_path, monkeypatch, seconds, answers, median):
    now, asked, left = [0.0], [], list(seconds)

    class Fake:
        def __init__(self, path, only):
            asked.append(only)

        def answer(self, name, inputs):
            asked.append((name, inputs["text"].tolist()))
            now[0] += left.pop(0)

        def close(self):
            asked.append("closed")

    monkeypatch.setattr(sys.modules[RequestTime.__module__], "Served", Fake)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    extra = tmp_path / DESCRIPTION.parent
    extra.mkdir()
    write_warmup(extra, [("n_best", {"text": ["a", "b", "c"]})])
    found = time_of_request(tmp_path)
    assert found == RequestTime("n_best", 3, pytest.approx(median))
    assert asked == ["n_best", *[("n_best", [b"a", b"b", b"c"])] * answers, "closed"]


def test_a_warm_up_request_that_cannot_be_answered_is_named(copy):
    write_warmup(copy / DESCRIPTION.parent, [("serving_default", {"no_input": ["a"]})])
    with pytest.raises(ValueError, match="1 does not answer its first warm-up request: Cannot interpret"):
        time_of_request(copy)


def test_an_export_without_warm_up_requests_is_not_timed(copy):
    (copy / DESCRIPTION.parent / FILE).unlink()
    assert time_of_request(copy) is None


def test_export_that_answers_unlike_python_is_refused(tmp_path):
    def serving(number):
        spec = tf.TensorSpec((None,), tf.float32, name="x")
        function = tf.function(
            lambda x: {"y": x + number, "text": tf.strings.as_string(x)}, input_signature=[spec]
        )
        return {"serving_default": function.get_concrete_function()}

    write_saved_model(tf.Module(), serving(1.0), tmp_path / "1", xla=False)
    requests = [("serving_default", {"x": [1.0, 2.0]})]
    check_answers(tmp_path / "1", serving(1.0 + 1e-5), requests)
    with pytest.raises(
        ValueError, match=r"must answer as the model does in Python.*'serving_default', output 'y'"
    ):
        check_answers(tmp_path / "1", serving(1.1), requests)
    check_answers(tmp_path / "1", serving(1.1), requests, draws=True)
