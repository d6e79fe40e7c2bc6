"""How far back can a layer look? Recall of a token that stood n steps before the end.

    python benchmarks/recall.py

The first token of a text is one of 16 values, then n tokens of noise follow. The last state must tell the value. All
stacks have two layers of the same width, the same updates and the same batches; attention in a window and convolution
reach 8 steps in each layer. This is the column "maximum path length" of table 1 of "Attention Is All You Need". Prints
a table, one JSON line for each run, and draws docs/images/recall.png.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_transformer import layers

VALUES, NOISE = 16, 16
WIDTH, HEADS, D_FF = 64, 4, 128
REACH = 8  # steps to each side, of a window and of a convolution
DISTANCES = (4, 16, 64, 128)
UPDATES, BATCH, TESTS = 400, 64, 1000
SEEDS = (1, 2, 3)
RATE = 2e-3


def attention(x, window=None):
    """Two encoder layers."""
    for _ in range(2):
        heads = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, sliding_window=window)
        x = layers.EncoderLayer(None, D_FF, dropout=0.0, normalize_first=True, attention=heads)(x)
    return x


def convolution(x):
    """Two convolutions, each in a residual connection."""
    for _ in range(2):
        y = keras.layers.Conv1D(WIDTH, 2 * REACH + 1, padding="same", activation="relu")(
            layers.LayerNormalization()(x)
        )
        x = keras.layers.Add()([x, y])
    return x


STACKS = {
    "self-attention": attention,
    f"attention, window of {REACH}": lambda x: attention(x, REACH + 1),
    "recurrent (LSTM)": lambda x: layers.LSTMStack(2, WIDTH, dropout=0.0)(x)[0],
    f"convolution, {2 * REACH + 1} wide": convolution,
}


def texts(rng, number, distance):
    """Draws texts `(number, distance + 1)` and the value that each starts with."""
    values = rng.integers(0, VALUES, number)
    noise = VALUES + rng.integers(0, NOISE, (number, distance))
    return np.concatenate([values[:, None], noise], axis=1).astype("int32"), values


def run(stack, distance, seed, updates):
    """Trains one stack, and returns the share of new texts whose value it tells."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((distance + 1,), dtype="int32")
    x = layers.PositionalEncoding()(layers.TokenEmbedding(VALUES + NOISE, WIDTH)(ids))
    last = keras.layers.Lambda(lambda x: x[:, -1])(layers.LayerNormalization()(STACKS[stack](x)))
    model = keras.Model(ids, keras.layers.Dense(VALUES)(last))
    model.compile(
        keras.optimizers.Adam(RATE, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    rng = np.random.default_rng(seed)
    model.fit(*texts(rng, updates * BATCH, distance), BATCH, verbose=0)
    accuracy = model.evaluate(*texts(rng, TESTS, distance), 250, verbose=0)[1]
    return float(accuracy), model.count_params()


def draw(results, path):
    """Draws accuracy against distance, with the range of the seeds."""
    figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    for i, stack in enumerate(STACKS):
        found = np.array([[results[stack, n, seed] for seed in SEEDS] for n in DISTANCES])
        mean = found.mean(axis=1)
        ends = np.abs(np.array([found.min(axis=1), found.max(axis=1)]) - mean)
        beside = np.array(DISTANCES) * 1.06 ** (i - 1.5)  # so that equal results do not hide one another
        axes.errorbar(beside, mean, ends, marker="os^D"[i], capsize=3, label=stack)
    axes.axhline(1 / VALUES, color="grey", linewidth=0.8, linestyle=":", label="guessing")
    axes.set_xscale("log", base=2)
    axes.set_xticks(DISTANCES, DISTANCES)
    axes.set_xlabel("steps between the token and its recall")
    axes.set_ylabel("share recalled")
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def main(arguments=None):
    """Trains each stack for each distance and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", default=UPDATES, type=int, help="updates of each run")
    parser.add_argument(
        "--picture", default=Path(__file__).parents[1] / "docs" / "images" / "recall.png", type=Path
    )
    options = parser.parse_args(arguments)
    results = {}
    for distance in DISTANCES:
        for stack in STACKS:
            for seed in SEEDS:
                began = time.perf_counter()
                accuracy, size = run(stack, distance, seed, options.updates)
                results[stack, distance, seed] = accuracy
                facts = {"stack": stack, "distance": distance, "seed": seed, "accuracy": round(accuracy, 3)}
                print(
                    json.dumps({**facts, "weights": size, "s": round(time.perf_counter() - began)}),
                    flush=True,
                )
    print("| stack | " + " | ".join(map(str, DISTANCES)) + " |")
    print("| --- |" + " --- |" * len(DISTANCES))
    for stack in STACKS:
        cells = []
        for distance in DISTANCES:
            found = [results[stack, distance, seed] for seed in SEEDS]
            cells.append(f"{np.mean(found):.2f} ({min(found):.2f}-{max(found):.2f})")
        print(f"| {stack} | " + " | ".join(cells) + " |")
    draw(results, options.picture)


if __name__ == "__main__":
    main()
