"""Compares decoding with that of peers, which take turns in one run; or measures how a token's time grows.

usage: decoding.py [--configs base,small] [--tasks T2,T3,T4a,T4b] [--peers ct2-f32,onmt,...] [--rounds 7]
                   [--own ours-xla,ours-portable,ours-int8,ours-int8-intra1,export-int8] [--reference ours-xla]
                   [--output FILE.json]
       decoding.py --growth [--configs base] [--rounds 7] [--output FILE.json]

After the harness's tables comes a summary for each configuration. A peer that is not installed is named and
left out.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time

import harness

VARIANTS = {
    "ours-xla": "float32-xla",
    "ours-portable": "float32",
    "ours-int8": "int8",
    "ours-int8-intra1": "int8-intra1",
}
OWN = "ours-xla,ours-portable,ours-int8"
PEERS = "ct2-f32,ct2-int8,onmt,hub,hub-jit,hf"
CONFIGS = ("base", "small")
TASKS = ("T2", "T3", "T4a", "T4b")
GROWTH_ROWS = ("ours-xla", "ours-portable")
GROWTH_TASKS = ("T2", "T3")  # batch 1 and 32, greedy
GROWTH_LENGTHS = (50, 100, 200, 400)
FLOAT32_BYTES = 4


def main():
    """Runs the harness for each configuration and task, or measures growth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", help=f"of {', '.join(CONFIGS)}; all, for growth base")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--peers", default=PEERS, help="rows of the harness")
    parser.add_argument(
        "--own", default=OWN, help=f"of {', '.join(VARIANTS)}, or rows of exports: export-int8"
    )
    parser.add_argument("--reference", help="row that the others are compared with; default: our first")
    parser.add_argument(
        "--growth", action="store_true", help="our rows alone, with longer and longer targets"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", help="JSON lines are appended to this file")
    options = parser.parse_args()
    configs = (options.configs or ("base" if options.growth else ",".join(CONFIGS))).split(",")
    tasks = options.tasks.split(",")
    for name in (set(configs) - set(CONFIGS)) | (set(tasks) - set(TASKS)):
        parser.error(f"neither a configuration nor a task here: {name}")

    rows = harness.all_rows(VARIANTS)
    if options.growth:
        for config in configs:
            growth(config, options.rounds, options.output)
        return 0
    names = [*filter(None, options.own.split(",")), *filter(None, options.peers.split(","))]
    names = harness.installed(names, rows)
    reference = options.reference or names[0]
    if reference not in names:
        parser.error(f"the reference is not among the rows that run: {reference}")
    status = 0
    for config in configs:
        results = {}
        for task in tasks:
            code, results[task] = beside_peers(
                config, task, names, rows, options.rounds, reference, options.output
            )
            status = status or code
        summarise(config, names, reference, results)
    return status


def beside_peers(config, task, names, rows, rounds, reference, output):
    """Runs the harness once; returns its exit status, and its results by row for the rows that did not fail."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        code = harness.run(config, task, names, rows, rounds=rounds, reference=reference, output=file.name)
        found = [json.loads(line) for line in file]
    write(found, output)
    return code, {row["name"]: row for row in found}


def summarise(config, names, reference, results):
    """Prints tokens a second of each row and task, and how many times as fast the reference is."""
    print(f"\n## {config}: tokens/s (in brackets: how many times as fast {reference} is)\n")
    print(f"| {'':14} | " + " | ".join(f"{task:>17}" for task in results) + " |")
    print("| --- " * (1 + len(results)) + "|")
    for name in names:
        cells = [cell(rows.get(name), rows.get(reference)) for rows in results.values()]
        print(f"| {name:14} | " + " | ".join(f"{text:>17}" for text in cells) + " |")
    print(flush=True)


def cell(row, reference):
    """Formats a row's speed, and the median of its ratios to the reference within each round."""
    if row is None:
        return "failed"
    speed = f"{row['units'] / row['med_s']:,.1f}"
    if reference is None:
        return speed
    pairs = zip(row["samples"], reference["samples"], strict=False)  # a row that died has fewer
    ratio = statistics.median(a / row["units"] / (b / reference["units"]) for a, b in pairs)
    return f"{speed} ({ratio:.2f})"


def growth(config_name, rounds, output):
    """Prints a token's time for longer and longer targets, and the bytes that a step must read.

    A step reads the decoder's weights and the output matrix, the source's keys and values, and those of the
    tokens so far: on average over the steps half of the target.
    """
    own = harness.own_row()
    own.tf.get_logger().setLevel("ERROR")  # TensorFlow warns because each length compiles anew
    config = own.common.CONFIGS[config_name]
    # One model for each batch size, as in the harness: a portable graph that has seen two sizes is built for any.
    models = {task: own.transformer(config, "float32") for task in GROWTH_TASKS}
    load = os.getloadavg()[0]
    samples = growth_samples(own, config, models, rounds)

    print(f"## growth {config_name}  rounds={rounds} load0={load:.2f}: ms a token of every row, MB of a step")
    layout = "{:14} {:>6} {:>7} {:>9} {:>8} {:>9} {:>9} {:>8} {:>8}"
    heads = ("batch", "target", "ms/token", "growth", "by bytes", "weights", "source", "cache")
    print(layout.format("", *heads))
    found = []
    for (name, task, length), times in samples.items():
        shortest = samples[name, task, GROWTH_LENGTHS[0]]
        sizes = own.common.TASKS[task]
        read = read_bytes(models[task], config, sizes, length)
        least = read_bytes(models[task], config, sizes, GROWTH_LENGTHS[0])
        row = {
            "name": name,
            "config": config_name,
            "batch": sizes["batch"],
            "length": length,
            "ms_per_token": statistics.median(times),
            "growth": statistics.median(a / b for a, b in zip(times, shortest, strict=True)),
            "growth_by_bytes": sum(read.values()) / sum(least.values()),
            **read,
            "samples": times,
        }
        found.append(row)
        numbers = [f"{row['ms_per_token']:.3f}", f"{row['growth']:.2f}", f"{row['growth_by_bytes']:.2f}"]
        numbers += [f"{size / 1e6:.1f}" for size in read.values()]
        print(layout.format(name, sizes["batch"], length, *numbers))
    write(found, output)


def growth_samples(own, config, models, rounds):
    """Measures milliseconds a token for each row, task and length; the cases take turns. Returns a list for each."""
    cases = [(n, t, length) for n in GROWTH_ROWS for t in GROWTH_TASKS for length in GROWTH_LENGTHS]
    samples = {case: [] for case in cases}

    def milliseconds(name, task, length):
        source = own.common.decode_data(config, task)
        start = time.perf_counter()
        own.generated(models[task], source, own.Greedy(), length, xla=VARIANTS[name].endswith("xla"))
        return 1000 * (time.perf_counter() - start) / length

    for case in [*cases, *cases]:  # the first call compiles, the second still settles
        milliseconds(*case)
    for number in range(rounds):
        for case in cases[:: -1 if number % 2 else 1]:
            samples[case].append(milliseconds(*case))
    return samples


def read_bytes(model, config, sizes, length):
    """Returns the bytes that a step must read, on average over the steps of a target of `length` tokens."""
    once = [w for layer in model.decoder.layers for w in projections_of_memory(layer.cross_attention)]
    weights = model.decoder.count_params() - sum(math.prod(w.shape) for w in once)
    position = config["dec"] * 2 * sizes["batch"] * config["d"]  # its keys and values, in all layers
    return {
        "weights_bytes": FLOAT32_BYTES * (weights + config["vocab"] * config["d"]),
        "source_bytes": FLOAT32_BYTES * position * sizes["src"],
        "cache_bytes": FLOAT32_BYTES * position * (length + 1) / 2,
    }


def projections_of_memory(attention):
    """Returns the weights that project the source, once and before the first step."""
    return [*attention.key_dense.weights, *attention.value_dense.weights]


def write(rows, output):
    """Appends JSON lines to a file, unless `output` is None."""
    if output:
        with open(output, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
