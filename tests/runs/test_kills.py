"""Runs and exports that are killed at random moments give the same results as those that are not killed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.files import LOCK, temporaries
from keras_transformer.models.loading import load_model
from keras_transformer.serving import Translator
from keras_transformer.training import checkpoints

KILLS = int(os.environ.get("KILLS", "1"))  # each kill starts a process; KILLS=5 tests more thoroughly


OPTIONS = """
--num-layers 1 --d-model 16 --num-heads 2 --d-ff 32 --dropout 0.3 --vocab-size 260 --character-coverage 1.0
--batch-tokens 256 --max-length 40 --epochs 6 --checkpoint-steps 2 --subword-sampling 0.1
"""


def training(folder, corpus):
    train = [sys.executable, "-m", "keras_transformer", "train"]
    return [*train, "--pairs", str(corpus), "--output", str(folder), *OPTIONS.split()]


def start(arguments):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()[-2000:]


def position(folder):
    saved = checkpoints(folder)
    return (saved[0].epochs, saved[0].steps) if saved else (0, 0)


@pytest.mark.slow
def test_killed_and_resumed_run_has_the_same_weights(tmp_path, pairs):
    corpus = tmp_path / "pairs.tsv"
    corpus.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    finished(start(training(tmp_path / "whole", corpus)))
    draw = random.Random(7)
    folder = tmp_path / "killed"
    reached = []
    for _ in range(KILLS):
        process, before = start(training(folder, corpus)), position(folder)
        while process.poll() is None and position(folder) == before:  # until it has saved a checkpoint
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        reached.append(position(folder))
    assert reached[0] != (0, 0) and reached[0] < (6, 0), reached
    finished(start(training(folder, corpus)))
    for name in ("checkpoint-0006.keras", "model.keras"):
        ends = [load_model(tmp_path / run / name).get_weights() for run in ("whole", "killed")]
        for one, other in zip(*ends, strict=True):
            np.testing.assert_array_equal(one, other)
    assert (tmp_path / "whole" / "history.csv").read_text() == (folder / "history.csv").read_text()


@pytest.mark.slow
def test_a_killed_export_leaves_no_incomplete_version(tmp_path, tiny_run):
    import tensorflow as tf

    models, draw = tmp_path / "models", random.Random(3)
    arguments = [sys.executable, "-m", "keras_transformer", "export", str(tiny_run), str(models)]
    texts = ["저는 학생입니다."]
    translator = Translator.load(tiny_run)
    expected = translator.translate(texts)

    def versions():
        return sorted(path for path in models.iterdir() if path not in [*temporaries(models), models / LOCK])

    def answers(version):
        function = tf.saved_model.load(str(version)).signatures["serving_default"]
        return [text.decode() for text in function(text=tf.constant(texts))["translation"].numpy()]

    for _ in range(KILLS):
        process = start(arguments)
        while process.poll() is None and not (models.exists() and any(models.glob("*1"))):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for version in versions():  # the export ended before it was killed
            assert answers(version) == expected
            shutil.rmtree(version)
    translator.export(models)
    assert [version.name for version in versions()] == ["1"] and answers(models / "1") == expected
