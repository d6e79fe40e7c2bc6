"""Measures how a training step grows with the model, and the memory of a step over a long sequence.

usage: growth.py [--rounds 5] [--precisions float32,mixed_bfloat16] [--picture step_time.png]
       growth.py --long [--lengths 1024,2048,4096]

The first form starts from 3+3 layers of 256 over 32 rows of 32 tokens. It doubles `d_model`, layers, length and batch,
one at a time, and compares the time with the arithmetic of the products. The second form trains one attention layer,
this library's and Keras's, each in a process of its own.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time

START = {"d_model": 256, "num_layers": 3, "length": 32, "batch": 32}
DOUBLINGS = 2
HEAD = 64  # the heads grow in number, not in size
VOCAB = 8000
LONG = {"batch": 16, "d_model": 512, "num_heads": 8}


def main():
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precisions", default="float32,mixed_bfloat16")
    parser.add_argument("--picture", help="a PNG of times beside the arithmetic")
    parser.add_argument("--long", action="store_true", help="memory of a step over a long sequence instead")
    parser.add_argument("--lengths", default="1024,2048,4096", help="for --long")
    parser.add_argument("--one", nargs=2, metavar=("LAYER", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.one:
        print(json.dumps(one_long_step(options.one[0], int(options.one[1]))))
    elif options.long:
        long_steps([int(length) for length in options.lengths.split(",")])
    else:
        results = {p: measured(p, options.rounds) for p in options.precisions.split(",")}
        if options.picture:
            draw(results, options.picture)


def sizes():
    """Yields every size to measure: the start, and each of its axes doubled and doubled again."""
    yield None, 0, START
    for axis in START:
        for doubled in range(1, DOUBLINGS + 1):
            yield axis, doubled, {**START, axis: START[axis] * 2**doubled}


def arithmetic(d_model, num_layers, length, batch):
    """Returns the floating point operations of the products of one step, forward and twice that backward."""
    projections = num_layers * (4 + 8 + 2 * 8) * d_model**2  # encoder and decoder layers, d_ff = 4 d_model
    scores = num_layers * 3 * 2 * length * d_model
    return 6 * batch * length * (projections + scores + VOCAB * d_model)


def measured(precision, rounds):
    """Measures milliseconds and operations of a step for each size; the sizes take turns."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_transformer as kt

    steps, results = {}, {}
    for axis, doubled, size in sizes():
        d_model, shape = size["d_model"], (size["batch"], size["length"])
        model = kt.Transformer(
            VOCAB,
            num_layers=size["num_layers"],
            d_model=d_model,
            num_heads=d_model // HEAD,
            d_ff=4 * d_model,
            dtype=precision,
        )
        model.compile(kt.training.Adam(1e-4), kt.MaskedCrossentropy(), jit_compile=False)
        ids = np.random.default_rng(0).integers(4, VOCAB, shape)
        inputs = {"source": tf.constant(ids), "target": tf.constant(ids)}
        model.train_on_batch(inputs, ids)
        steps[axis, doubled] = functools.partial(tf.function(model.train_step), (inputs, tf.constant(ids)))
        results[axis, doubled] = [arithmetic(**size), []]
    for step in steps.values():
        step()
    progress = keras.utils.Progbar(rounds, unit_name="round")
    for _ in range(rounds):
        for key, step in steps.items():
            start = time.perf_counter()
            step()
            results[key][1].append(1e3 * (time.perf_counter() - start))
        progress.add(1)
    found = {key: (work, statistics.median(times)) for key, (work, times) in results.items()}
    work, base = found[None, 0]
    print(f"{precision}: {base:.0f} ms, {work / base / 1e6:.0f} GFLOP/s")
    for (axis, doubled), (operations, milliseconds) in found.items():
        if axis:
            print(
                f"  {axis:10s} x{2**doubled}: arithmetic x{operations / work:.2f}, time x{milliseconds / base:.2f}, "
                f"{operations / milliseconds / 1e6:.0f} GFLOP/s"
            )
    return found


def draw(results, path):
    """Draws one panel for each axis: time and arithmetic, both relative to the start."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(START), figsize=(11, 3), sharey=True, layout="constrained")
    for panel, axis in zip(panels, START, strict=True):
        values = [START[axis] * 2**doubled for doubled in range(DOUBLINGS + 1)]
        keys = [(None, 0), *((axis, doubled) for doubled in range(1, DOUBLINGS + 1))]
        for index, (precision, found) in enumerate(results.items()):
            work, base = found[None, 0]
            if index == 0:
                panel.plot(values, [found[key][0] / work for key in keys], "k--", label="arithmetic")
            panel.plot(values, [found[key][1] / base for key in keys], "o-", label=precision)
        panel.set(xscale="log", yscale="log", xlabel=axis, xticks=values)
        panel.set_xticklabels(values)
        panel.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("step, relative to the first")
    panels[0].legend()
    figure.savefig(path, dpi=150)


def long_steps(lengths):
    """Each layer at each length: seconds of a step, and the process's peak memory over what importing takes."""
    print(
        f"one attention layer, float32, {LONG}, causal mask: a training step, seconds and extra peak memory"
    )
    for length in lengths:
        for layer in ("ours", "keras"):
            command = [sys.executable, __file__, "--one", layer, str(length)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                print(f"  {length} {layer}: fails, exit {run.returncode}", flush=True)
            else:
                found = json.loads(run.stdout.splitlines()[-1])
                print(f"  {length} {layer}: {found['seconds']:.2f} s, {found['MB']:.0f} MB", flush=True)


def one_long_step(name, length):
    """Measures seconds and peak megabytes of a training step of one layer."""
    import resource

    import keras
    import tensorflow as tf

    import keras_transformer as kt

    d_model, heads = LONG["d_model"], LONG["num_heads"]
    kind = kt.MultiHeadAttention if name == "ours" else keras.layers.MultiHeadAttention
    layer = kind(heads, d_model // heads)
    x = tf.random.normal((LONG["batch"], length, d_model))
    layer.build(x.shape, x.shape)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x, x, use_causal_mask=True) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before, start = peak(), time.perf_counter()
    step(x)[0].numpy()
    return {"seconds": time.perf_counter() - start, "MB": peak() - before}


if __name__ == "__main__":
    main()
