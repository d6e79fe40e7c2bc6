"""Measures what WMT14 English-German asks of one machine: the data, the memory and the devices of a training.

    python benchmarks/scale.py FOLDER data --pairs 10000000
    python benchmarks/scale.py FOLDER memory
    python benchmarks/scale.py FOLDER devices

`data` writes generated pairs and reads them as a training does: lines, vocabulary, ids, and batches as fast as they
come. `memory` trains the presets `base` and `big` for a step, and writes and reads a checkpoint. `devices` trains 3+3
layers of 256 for 50 steps on one device, and on eight simulated ones in two layouts, from the same weights on the same
batches, in float64. Each appends its line of JSON to FOLDER/results.jsonl and prints it. docs/evidence.md has the
figures, and what follows from them.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

VOCAB = 37_000  # pieces of both languages, as in the paper
BATCH_TOKENS = 25_000  # of each side, as in the paper
SECONDS = 60  # for which batches are read
STEP_SHAPE = (32, 32)  # rows and tokens a side, of the step whose memory is measured
ROWS, LENGTH, STEPS = 8, 16, 50  # of the batches of `devices`
DEVICES_MODEL = {"num_layers": 3, "d_model": 256, "num_heads": 8, "d_ff": 1024, "dropout": 0.0}
# None is one device; else the sizes of the axes "batch" and "model".
LAYOUTS = {
    "one device": None,
    "8 parts of the batch": (8, 1),
    "4 parts of the batch, 2 of the weights": (4, 2),
}


def peak_mib():
    """Returns the largest memory of this process so far, in MiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def measure_data(folder, pairs):
    """Returns seconds, rates and memory from the lines to the batches."""
    from large_corpus import write_corpus

    from keras_transformer.data import Batches, read_parallel
    from keras_transformer.runs import Recipe
    from keras_transformer.runs.tokenizers import make_tokenizers

    write_corpus(folder, pairs)
    seconds, clock = {}, time.perf_counter()

    def lap(name):
        nonlocal clock
        seconds[name], clock = round(time.perf_counter() - clock, 1), time.perf_counter()

    corpus = read_parallel(folder / "source", folder / "target")
    lap("lines")
    tokenizer, _ = make_tokenizers(Recipe(vocab_size=VOCAB), corpus)
    lap("vocabulary")
    batches = Batches(corpus, tokenizer, batch_tokens=BATCH_TOKENS, max_length=100)
    lap("ids")
    tokens = steps = 0
    dataset = batches.dataset()
    for _, targets in dataset:
        tokens, steps = tokens + int((targets.numpy() != tokenizer.pad_id).sum()), steps + 1
        if steps == 1:
            lap("first batch")
        if time.perf_counter() - clock > SECONDS:
            break
    lap("batches")
    return {
        "pairs": len(corpus),
        "seconds": seconds,
        "target_tokens": batches.tokens,
        "pairs_per_second_to_ids": round(len(corpus) / seconds["ids"]),
        "batches_read": steps,
        "target_tokens_per_second_from_batches": round(tokens / seconds["batches"]),
        "padding": round(batches.padding, 3),
        "peak_mib": peak_mib(),
    }


def measure_memory(folder, preset):
    """Returns the MiB of the weights, the optimizer, a step and a checkpoint of one preset, and seconds."""
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.training import Adam

    before = peak_mib()
    model = kt.Transformer.from_preset(preset, VOCAB)
    model.compile(Adam(1e-4), kt.MaskedCrossentropy(0.1))
    ids = np.random.default_rng(0).integers(4, VOCAB, STEP_SHAPE)
    begin = time.perf_counter()
    data = {"source": ids, "target": ids[:, :-1]}, ids[:, 1:]
    model.fit(*data, batch_size=len(ids), verbose=0)
    first, begin = time.perf_counter() - begin, time.perf_counter()
    model.fit(*data, batch_size=len(ids), verbose=0)
    step, after = time.perf_counter() - begin, peak_mib()
    begin, path = time.perf_counter(), folder / f"{preset}.keras"
    model.save(path)
    saved, begin = time.perf_counter() - begin, time.perf_counter()
    keras.models.load_model(path)
    loaded, size = time.perf_counter() - begin, path.stat().st_size
    path.unlink()

    def mebibytes(variables):
        return sum(int(np.prod(variable.shape)) for variable in variables) * 4 >> 20

    return {
        "preset": preset,
        "parameters": model.count_params(),
        "weights_mib": mebibytes(model.trainable_variables),
        "optimizer_mib": mebibytes(model.optimizer.variables),
        "step_positions": ids.size,
        "process_mib": before,
        "step_peak_mib": after,
        "first_step_seconds": round(first, 1),
        "step_seconds": round(step, 2),
        "checkpoint_mib": size >> 20,
        "save_seconds": round(saved, 1),
        "load_seconds": round(loaded, 1),
    }


def train_on(sizes):
    """Trains on a mesh of simulated devices. Returns the loss of each step, and the MiB of weights on a device."""
    import jax
    import keras
    import numpy as np
    import tensorflow as tf

    jax.config.update("jax_enable_x64", True)
    keras.config.set_floatx("float64")

    import keras_transformer as kt

    rng = np.random.default_rng(0)
    ids = rng.integers(4, VOCAB, (STEPS * ROWS, LENGTH))
    ids[np.arange(LENGTH) >= rng.integers(4, LENGTH + 1, (len(ids), 1))] = 0
    keras.utils.set_random_seed(1)
    with keras.StatelessScope():  # the weights are created when it ends, each on its devices
        model = kt.Transformer(VOCAB, **DEVICES_MODEL)
        if sizes is not None:
            mesh = keras.distribution.DeviceMesh(sizes, ("batch", "model"))
            layouts = model.layout_map(mesh)
            keras.distribution.set_distribution(
                keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
            )
    # Where a gradient is nothing but rounding, Adam with its usual epsilon makes a full step of it.
    optimizer = kt.training.Adam(kt.WarmupSchedule(256), beta_2=0.98, epsilon=1e-3)
    model.compile(optimizer, kt.MaskedCrossentropy(0.1))
    batches = tf.data.Dataset.from_tensor_slices(({"source": ids, "target": ids[:, :-1]}, ids[:, 1:]))
    batches = batches.batch(ROWS)
    # An epoch of one step, so that the history has the loss of each.
    losses = model.fit(batches.repeat(), steps_per_epoch=1, epochs=STEPS, verbose=0).history["loss"]
    held = {}
    for weight in model.trainable_variables:
        for shard in weight.value.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return {"losses": list(map(float, losses)), "weights_mib_a_device": max(held.values()) >> 20}


def own_output(arguments, **environment):
    """Returns the last line that this script prints in a new process, from JSON."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure_devices(folder):
    """Trains in each layout. Returns the first and the last loss of one device, and how far the others are off."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "KERAS_BACKEND": "jax"}
    runs = {name: own_output([folder, "layout", "--layout", name], **devices) for name in LAYOUTS}
    one = runs["one device"]["losses"]
    return {
        "steps": STEPS,
        "positions": ROWS * LENGTH,
        "first_and_last_loss": [one[0], one[-1]],
        "largest_difference": {
            name: max(abs(a - b) for a, b in zip(one, run["losses"], strict=True))
            for name, run in runs.items()
        },
        "weights_mib_a_device": {name: run["weights_mib_a_device"] for name, run in runs.items()},
    }


def main():
    """Measures one part, appends its line to the results and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", choices=("data", "memory", "devices", "preset", "layout"))
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--preset", help="of `preset`, one process of `memory`")
    parser.add_argument("--layout", choices=LAYOUTS, help="of `layout`, one process of `devices`")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.part == "layout":
        print(json.dumps(train_on(LAYOUTS[options.layout])))
        return
    if options.part == "preset":
        print(json.dumps(measure_memory(options.folder, options.preset)))
        return
    found = {
        "data": lambda: measure_data(options.folder, options.pairs),
        "memory": lambda: [own_output([options.folder, "preset", "--preset", p]) for p in ("base", "big")],
        "devices": lambda: measure_devices(options.folder),
    }[options.part]()
    line = json.dumps(
        {"part": options.part, "found": found, "cpus": os.cpu_count(), "on": platform.platform()}
    )
    with open(options.folder / "results.jsonl", "a") as results:
        results.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
