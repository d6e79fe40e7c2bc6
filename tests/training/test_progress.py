"""The line of each epoch and the bar."""

import io
import itertools
import re
import types

import keras
import numpy as np
import pytest

from keras_transformer.training import Progress, progress


def fit(file, epochs=2, initial_epoch=0, validate=False, say=None):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=True)
    x = np.ones((4, 3), "float32")
    data = (x, x[:, :2])
    model.fit(
        *data, batch_size=2, epochs=epochs, initial_epoch=initial_epoch, verbose=0,
        validation_data=data if validate else None, callbacks=[Progress(2, 123_456, file, say=say)],
    )  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.slow
def test_a_log_file_gets_one_line_an_epoch_and_no_bar():
    file = io.StringIO()
    fit(file, validate=True)
    lines = file.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert all(re.search(r" loss \S+  val_loss \S+  [\d,]+ tokens/s", line) for line in lines)
    assert "\r" not in file.getvalue() and "%" not in file.getvalue()


def test_a_long_epoch_is_not_silent_in_a_log_file(monkeypatch):
    clock = itertools.count(0, 40)  # 40 seconds from look to look
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    file = io.StringIO()
    callback = Progress(9, 900, file)
    callback.set_params({"epochs": 2})
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch in range(9):
            callback.on_train_batch_end(batch, {"loss": 1.0})
    callback.close()
    lines = file.getvalue().splitlines()  # after 80 and 200 seconds of each epoch
    assert lines == [
        f"epoch {epoch}/2, step {n} of 9  loss 1  2 tokens/s" for epoch in (1, 2) for n in (2, 5)
    ]


def test_a_resumed_run_counts_on():
    file = io.StringIO()
    fit(file, epochs=3, initial_epoch=2)
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["3/3"]


@pytest.mark.slow
def test_a_terminal_gets_a_bar_too():
    file = Terminal()
    fit(file, epochs=2)
    assert "/4" in file.getvalue() and "\r" in file.getvalue()
    assert file.getvalue().count("epoch ") == 2


def test_the_lines_can_go_elsewhere_than_the_bar():
    file, lines = Terminal(), []
    fit(file, say=lines.append)
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    assert "\r" in file.getvalue() and "epoch" not in file.getvalue()


def test_the_bar_shows_the_time_left_and_tokens_a_second(monkeypatch):
    clock = itertools.count()  # a second from look to look
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    callback = Progress(4, 1000, Terminal())
    callback.set_params({"epochs": 3})
    callback.on_epoch_begin(0)
    callback.on_train_batch_end(0, {"loss": 1.0})
    callback.on_train_batch_end(1, {"loss": 2.0})
    # Two batches of 250 tokens in two seconds; ten more at two seconds each.
    shown = callback.bar.format_meter(**{**callback.bar.format_dict, "elapsed": 4.0, "rate": None})
    assert re.search(r" 2/12 \[00:04<00:20, .*, 250 tokens/s  loss 2\]", shown)
    callback.on_train_end()


def test_without_a_file_it_writes_to_standard_error(capsys):
    fit(None, epochs=1)
    captured = capsys.readouterr()
    assert captured.err.startswith("epoch 1/1") and captured.out == ""


@pytest.mark.parametrize("off", [False, True])
def test_it_says_once_where_tensorflow_leaves_onednn_off(off, monkeypatch):
    monkeypatch.setattr(progress.native, "leaves_onednn_off", lambda: off)
    lines = []
    fit(io.StringIO(), say=lines.append)
    assert lines[:-2] == [progress.ONEDNN] * off


@pytest.mark.tensorflow
def test_onednn_is_off_only_where_nobody_asked(monkeypatch):
    from keras_transformer.execution import tensorflow_training

    monkeypatch.setattr(tensorflow_training, "IsMklEnabled", lambda: False)
    monkeypatch.setattr(tensorflow_training.platform, "system", lambda: "Linux")
    monkeypatch.setattr(tensorflow_training.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    assert tensorflow_training.leaves_onednn_off()
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert not tensorflow_training.leaves_onednn_off()
