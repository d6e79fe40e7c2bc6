"""A run that is killed at random moments, again and again, ends as one that never was."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np

from keras_transformer.serving.loading import load_model
from keras_transformer.training import checkpoints

KILLS = int(os.environ.get("KILLS", "1"))  # each costs the start of a process; KILLS=5 for a thorough look


OPTIONS = """
--num-layers 1 --d-model 16 --num-heads 2 --d-ff 32 --dropout 0.3 --vocab-size 260 --character-coverage 1.0
--batch-tokens 256 --max-length 40 --epochs 6 --checkpoint-steps 2 --subword-sampling 0.1
"""


def command(folder, corpus):
    train = [sys.executable, "-m", "keras_transformer", "train"]
    return [*train, "--pairs", str(corpus), "--output", str(folder), *OPTIONS.split()]


def start(folder, corpus):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        command(folder, corpus), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finished(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()[-2000:]


def position(folder):
    saved = checkpoints(folder)
    return (saved[0].epochs, saved[0].steps) if saved else (0, 0)


def test_killed_and_resumed_a_run_has_the_weights_of_one_that_was_not(tmp_path, pairs):
    corpus = tmp_path / "pairs.tsv"
    corpus.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    finished(start(tmp_path / "whole", corpus))
    draw = random.Random(7)
    folder = tmp_path / "killed"
    reached = []
    for _ in range(KILLS):
        process, before = start(folder, corpus), position(folder)
        while process.poll() is None and position(folder) == before:  # until it has got on a little
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        reached.append(position(folder))
    assert reached[0] != (0, 0) and reached[0] < (6, 0), reached
    finished(start(folder, corpus))
    for name in ("checkpoint-0006.keras", "model.keras"):
        ends = [load_model(tmp_path / run / name).get_weights() for run in ("whole", "killed")]
        for one, other in zip(*ends, strict=True):
            np.testing.assert_array_equal(one, other)
    assert (tmp_path / "whole" / "history.csv").read_text() == (folder / "history.csv").read_text()
