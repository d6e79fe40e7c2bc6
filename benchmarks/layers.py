"""Measures time and memory of one layer against length and width, and compares them with the paper's table 1.

usage: layers.py [--rounds 5] [--lengths 64,...,4096] [--widths 64,...,1024] [--output layers.json]
       [--picture docs/images/layer_types.png] [--quick]
       layers.py --draw layers.json --picture layer_types.png

Self-attention, O(n² d); restricted to a window of r, O(r n d); recurrent (Keras's LSTM), O(n d²); convolutional
(Keras's, causal, of k), O(k n d²). The length grows at one width and the width at one length; each layer maps
`(batch, n, d)` to the same, with every projection that it has. Forward and a training step are medians of rounds in
which all take turns, in one process; memory is the peak of a training step, the median of three processes for each
size.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BATCH, HEAD = 4, 64  # the heads grow in number, not in size
LENGTH, WIDTH = 256, 256  # what stays while the other grows
LENGTHS, WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096), (64, 128, 256, 512, 1024)
QUICK_LENGTHS, QUICK_WIDTHS = (16, 32), (64, 128)
WINDOW, KERNEL = 32, 3  # r and k
PROCESSES = 3  # for each memory; TensorFlow's own reserves differ by up to 80 MB between processes
# The number of queries of one block in a window of a long input: `FEWEST_QUERIES` of execution/blocks.py.
BLOCK = 128
# Multiplications of a layer for each row, up to a factor: as table 1 counts them, and with the projections.
ARITHMETIC = {
    "self-attention": ("O(n² d)", lambda n, d: n * n * d, lambda n, d: 2 * n * n * d + 4 * n * d * d),
    "restricted": (
        "O(r n d)",
        lambda n, d: WINDOW * n * d,
        lambda n, d: 2 * (BLOCK + 2 * WINDOW) * n * d + 4 * n * d * d,
    ),
    "recurrent": ("O(n d²)", lambda n, d: n * d * d, lambda n, d: 8 * n * d * d),
    "convolutional": ("O(k n d²)", lambda n, d: KERNEL * n * d * d, lambda n, d: KERNEL * n * d * d),
}


def main():
    """Measures what is asked for, prints tables and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=numbers)
    parser.add_argument("--widths", type=numbers)
    parser.add_argument("--output", help="JSON file of all results")
    parser.add_argument("--picture", help="a PNG of both beside the arithmetic")
    parser.add_argument("--draw", metavar="JSON", help="draw earlier results")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--peak", nargs=3, metavar=("LAYER", "LENGTH", "WIDTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.peak:
        name, *size = options.peak
        print(peak_of(name, *map(int, size)))
        return
    if options.draw:
        with open(options.draw, encoding="utf-8") as file:
            results = json.load(file)
    else:
        lengths = options.lengths or (QUICK_LENGTHS if options.quick else LENGTHS)
        widths = options.widths or (QUICK_WIDTHS if options.quick else WIDTHS)
        results = measured(lengths, widths, 2 if options.quick else options.rounds)
        if options.output:
            with open(options.output, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
    tables(results)
    if options.picture:
        draw(results, options.picture)


def numbers(text):
    """Parses ints with commas between them."""
    return tuple(map(int, text.split(",")))


def layer_of(name, length, width):
    """Returns a built layer of a kind, and the function from its input to its output."""
    import keras

    import keras_transformer as kt

    heads = max(1, width // HEAD)
    shape = (BATCH, length, width)
    if name == "recurrent":
        layer = keras.layers.LSTM(width, return_sequences=True)
        layer.build(shape)
        return layer, layer
    if name == "convolutional":
        layer = keras.layers.Conv1D(width, KERNEL, padding="causal")
        layer.build(shape)
        return layer, layer
    layer = kt.MultiHeadAttention(
        heads, width // heads, sliding_window=WINDOW if name == "restricted" else None
    )
    layer.build(shape, shape)
    return layer, lambda x: layer(x, x)


def steps_of(name, length, width):
    """Returns two functions without arguments: the forward pass, and the forward and backward pass."""
    import tensorflow as tf

    layer, call = layer_of(name, length, width)
    x = tf.random.stateless_normal((BATCH, length, width), (1, 2))

    @tf.function
    def forward():
        return tf.reduce_sum(call(x))

    @tf.function
    def training():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(call(x) ** 2)
        return tape.gradient(loss, [x, *layer.trainable_variables])

    return {"forward": forward, "training": training}


def measured(lengths, widths, rounds):
    """Measures each layer and size: a list of dicts with median milliseconds and the megabytes of a training step."""
    import tensorflow as tf
    import tqdm

    sizes = sorted(
        {(n, WIDTH) for n in lengths} | {(LENGTH if LENGTH in lengths else lengths[-1], d) for d in widths}
    )
    cases = [(name, n, d) for n, d in sizes for name in ARITHMETIC]
    steps = {case: steps_of(*case) for case in cases}

    def once(function):
        start = time.perf_counter()
        tf.nest.map_structure(lambda part: part.numpy(), function())
        return 1e3 * (time.perf_counter() - start)

    times = {(case, kind): [] for case in cases for kind in ("forward", "training")}
    for number in tqdm.trange(rounds + 1, desc="time", unit="round"):
        for case, kind in list(times)[:: -1 if number % 2 else 1]:
            took = once(steps[case][kind])
            if number:  # the first traces
                times[case, kind].append(took)
    del steps
    peaks = {}
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }  # freed memory goes back to the system at once
    for case in tqdm.tqdm(cases, "memory", unit="process"):
        command = [sys.executable, __file__, "--peak", *map(str, case)]
        measured = []
        for _ in range(PROCESSES):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                measured.append(float(done.stdout.splitlines()[-1]))
        peaks[case] = statistics.median(measured) if len(measured) == PROCESSES else None
    return [
        {
            "layer": name,
            "length": n,
            "width": d,
            **{kind: statistics.median(times[(name, n, d), kind]) for kind in ("forward", "training")},
            "MB": peaks[name, n, d],
        }
        for name, n, d in cases
    ]


def peak_of(name, length, width):
    """Returns the megabytes that a training step takes at its peak, without the layer and its input."""
    steps_of(name, 8, HEAD)["training"]()  # TensorFlow allocates at its first step
    training = steps_of(name, length, width)["training"].get_concrete_function()
    before = megabytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    training()
    return megabytes("VmHWM") - before


def megabytes(kind):
    """Reads one line of Linux's account of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def series(results, name, axis):
    """Returns the results of a layer in which one axis grows and the other stays, in order."""
    other, kept = ("width", WIDTH) if axis == "length" else ("length", fixed_length(results))
    rows = [row for row in results if row["layer"] == name and row[other] == kept]
    return sorted(rows, key=lambda row: row[axis])


def fixed_length(results):
    """Returns the length at which the width grew."""
    return next(row["length"] for row in results if row["width"] != WIDTH)


def growth(name, row, base, counted):
    """Returns the ratio of the arithmetic of two sizes: as table 1 counts, or with the projections ("all")."""
    arithmetic = ARITHMETIC[name][2 if counted == "all" else 1]
    return arithmetic(row["length"], row["width"]) / arithmetic(base["length"], base["width"])


def tables(results):
    """Prints one table for each axis: milliseconds, megabytes, and the growth of the last doubling."""
    for axis in ("length", "width"):
        rows = series(results, "recurrent", axis)
        print(
            f"\n| {axis} | "
            + " | ".join(str(row[axis]) for row in rows)
            + " | last step (table 1; with projections) |"
        )
        print("| --- " * (len(rows) + 2) + "|")
        for name in ARITHMETIC:
            rows = series(results, name, axis)
            for kind, unit in (("forward", "ms"), ("training", "ms"), ("MB", "MB")):
                values = [row[kind] for row in rows]
                cells = " | ".join("killed" if value is None else f"{value:.3g}" for value in values)
                ratio = (
                    f"{values[-1] / values[-2]:.1f}" if len(values) > 1 and values[-2] and values[-1] else ""
                )
                by_count = [
                    f"{growth(name, rows[-1], rows[-2], counted):.1f}" for counted in ("table", "all")
                ]
                expected = f" ({'; '.join(by_count)})" if kind != "MB" else ""
                label = kind if kind != "MB" else "peak of training"
                print(f"| {name}, {label}, {unit} | {cells} | {ratio}{expected} |")


def draw(results, path):
    """A column an axis: training time, and memory, with table 1's growth as a dashed line from the last point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained", sharex="col")
    kinds = (("training", "training step, ms"), ("MB", "peak of a training step, MB"))
    for column, axis in enumerate(("length", "width")):
        for panel, (kind, label) in zip(panels[:, column], kinds, strict=True):
            for number, (name, (order, *_)) in enumerate(ARITHMETIC.items()):
                rows = [row for row in series(results, name, axis) if row[kind]]
                colour, sizes = f"C{number}", [row[axis] for row in rows]
                panel.plot(sizes, [row[kind] for row in rows], "o-", color=colour, label=f"{name}, {order}")
                if kind == "training" and rows:
                    lines = [rows[-1][kind] * growth(name, row, rows[-1], "table") for row in rows]
                    panel.plot(sizes, lines, "--", color=colour, alpha=0.5, linewidth=1)
            panel.set(xscale="log", yscale="log", xticks=sizes)
            panel.set_xticklabels(sizes)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            panel.set_ylabel(label)
            floor = [row[kind] for row in results if row[kind]]
            panel.set_ylim(min(floor) / 2, max(floor) * 2)
        panels[1, column].set_xlabel("length n" if axis == "length" else "width d")
        kept = f"d = {WIDTH}" if axis == "length" else f"n = {fixed_length(results)}"
        panels[0, column].set_title(
            f"{kept}; dashed: table 1's growth, from the last point back", fontsize=10
        )
    panels[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
