"""Measures a training run whose text does not fit in memory: peak memory, seconds to the first steps, a resume.

usage: large_corpus.py FOLDER [--pairs 10000000]

Writes generated pairs into FOLDER, begins `keras-transformer train`, kills it (SIGKILL) after its first checkpoint in
the epoch, and resumes it until the next one. Prints one JSON object: seconds, and the peak memory of each process.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LINES_AT_ONCE = 100_000
RECIPE = [
    *("--num-layers", "1", "--d-model", "32", "--num-heads", "2", "--d-ff", "64", "--vocab-size", "4000"),
    *("--epochs", "1", "--batch-tokens", "2000", "--checkpoint-steps", "20"),
]


def write_corpus(folder, pairs):
    """Writes sentences of 5 to 14 words out of 20,000; the target has the words in reverse, spelt in another way."""
    rng = np.random.default_rng(0)
    words = np.array(
        ["".join(rng.choice(list("abcdefghijklmnoprstuvz"), n)) for n in rng.integers(2, 8, 20_000)]
    )
    with open(folder / "source", "w") as source, open(folder / "target", "w") as target:
        for begin in range(0, pairs, LINES_AT_ONCE):
            count = min(LINES_AT_ONCE, pairs - begin)
            ids = np.minimum(rng.zipf(1.3, (count, 14)), len(words)) - 1
            for row, length in zip(ids, rng.integers(5, 15, count), strict=True):
                sentence = words[row[:length]]
                source.write(" ".join(sentence) + "\n")
                target.write(" ".join(sentence[::-1]).upper() + "\n")


def run_until_checkpoint(folder, checkpoints):
    """Trains until there are more checkpoints, then kills the process. Returns seconds and peak memory in MB."""
    files = ("--source", folder / "source", "--target", folder / "target", "--output", folder / "run")
    begin, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "train", *map(str, files), *RECIPE]
    )
    while set((folder / "run").glob("checkpoint-*")) <= checkpoints:
        if process.poll() is not None:
            raise SystemExit(f"train ended with exit code {process.returncode}")
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max(
            [peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))]
        )
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return {"seconds": round(time.perf_counter() - begin), "peak_mb": round(peak / 1024)}


def main():
    """Writes the corpus, trains, kills, resumes and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_corpus(options.folder, options.pairs)
    size = sum((options.folder / name).stat().st_size for name in ("source", "target"))
    first = run_until_checkpoint(options.folder, set())
    resumed = run_until_checkpoint(options.folder, set((options.folder / "run").glob("checkpoint-*")))
    print(json.dumps({"pairs": options.pairs, "text_mb": size >> 20, "first": first, "resumed": resumed}))


if __name__ == "__main__":
    main()
