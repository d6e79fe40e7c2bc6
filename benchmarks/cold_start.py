"""What a user waits for: an import, a first answer in Python, an export, a server that is ready.

    python benchmarks/cold_start.py FOLDER [--precision int8] [--preset base] [--compare PATH]

The model has random weights, and each answer has as many tokens as `MAX_LENGTH` allows. The server is the program of
the tests, `tests/serving/batching_server.cc`: TensorFlow's loader and session with the settings of TensorFlow Serving.
It is ready when it has answered the warm-up requests of the export. Every row is CPU seconds and seconds, in a process
of its own. `--compare` is a checkout of another commit, which makes an export and is measured in the same run; they
take turns in each round. It needs a C++ compiler.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parents[1]
LENGTHS, MAX_LENGTH, VOCAB = (20, 13, 11), 64, 8000
SIGNATURE = "serving_default"


def main():
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the exports; they stay there")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16", "int8"))
    parser.add_argument("--preset", default="base")
    parser.add_argument("--compare", type=Path, help="a checkout of another commit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--threads", type=int, default=0, help="of the server, of each kind; 0: one for each core"
    )
    parser.add_argument("--signatures", nargs="+", help="of the export; default: all")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return in_python(options) if options.work == "python" else in_server(options)
    checkouts = {"here": ROOT, **({"compared": options.compare.resolve()} if options.compare else {})}
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(ROOT / "tests" / "serving"))
        import batching

        program = batching.build(folder)
        found = {name: {} for name in checkouts}
        for turn in range(options.rounds):
            for name, checkout in checkouts.items():
                export = options.folder / f"{name}-{options.precision}-{turn}"
                for work in ("python", "server"):
                    command = [sys.executable, __file__, str(export), "--work", work]
                    command += ["--precision", options.precision, "--preset", options.preset]
                    command += ["--threads", str(options.threads)]
                    command += ["--signatures", *options.signatures] if options.signatures else []
                    path = os.pathsep.join([str(checkout), str(ROOT / "tests" / "serving")])
                    environment = {**os.environ, "PYTHONPATH": path, "BATCHING_SERVER": str(program)}
                    lines = subprocess.run(
                        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
                    )
                    for line in lines.stdout.splitlines():
                        if "\t" in line:
                            row, cpu, wall = line.split("\t")
                            found[name].setdefault(row, []).append((float(cpu), float(wall)))
    print("| row |", " | ".join(f"{name}, CPU s / s" for name in found), "|")
    print("| --- |" + " --- |" * len(found))
    for row in found["here"]:
        medians = [[statistics.median(x) for x in zip(*found[name][row], strict=True)] for name in found]
        print(f"| {row} |", " | ".join(f"{cpu:.1f} / {wall:.1f}" for cpu, wall in medians), "|", flush=True)


def own_cpu():
    """Returns the CPU seconds of this process."""
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


class Clock:
    """Prints rows: CPU seconds, by a function, and seconds since the last row."""

    def __init__(self, cpu):
        self.cpu, self.last = cpu, (cpu(), time.perf_counter())

    def row(self, name):
        """Prints a row."""
        now = self.cpu(), time.perf_counter()
        print(
            name, *(f"{there - before:.3f}" for there, before in zip(now, self.last, strict=True)), sep="\t"
        )
        self.last = self.cpu(), time.perf_counter()


def in_python(options):
    """Imports, generates and exports."""
    clock = Clock(own_cpu)
    import keras
    import numpy as np

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    tokenizer = kt.text.ByteTokenizer()
    model = kt.models.Transformer.from_preset(options.preset, VOCAB)
    model.bos_id, model.eos_id = tokenizer.bos_id, tokenizer.eos_id
    clock.row("import, and a model")
    source = np.random.default_rng(0).integers(4, 260, (1, max(LENGTHS)))
    for name, length in zip(("first", "second", "third"), LENGTHS, strict=True):
        model.generate(source[:, :length], max_length=24)
        clock.row(f"`generate`, {name} length")
    translator = kt.serving.Translator(model, tokenizer, max_source_length=64, max_length=MAX_LENGTH)
    translator.export(options.folder, precision=options.precision, signatures=options.signatures)
    clock.row("`export`")


def in_server(options):
    """Starts the server, and sends the warm-up requests and one more."""
    import batching
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    path = options.folder / "1"
    warmup = path / "assets.extra" / "tf_serving_warmup_requests"
    requests = [
        prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        for record in tf.data.TFRecordDataset(str(warmup))
    ]
    requests = [
        (each.model_spec.signature_name, {name: tf.make_ndarray(x) for name, x in each.inputs.items()})
        for each in requests
    ]
    processes = []

    def cpu():
        """Returns the CPU seconds of the server."""
        if not processes:
            return 0.0
        fields = Path(f"/proc/{processes[0]}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    clock = Clock(cpu)
    started = clock.last[1]
    server = batching.BatchingServer(
        os.environ["BATCHING_SERVER"], path, "", intra_op=options.threads, inter_op=options.threads
    )
    processes.append(server.process.pid)
    clock.row("server: load")
    inputs = next(inputs for name, inputs in requests if name == SIGNATURE)
    server.predict(SIGNATURE, **inputs)
    clock.row("server: first answer")
    for name, inputs in requests:
        server.predict(name, **inputs)
    print("server: ready", f"{cpu():.3f}", f"{time.perf_counter() - started:.3f}", sep="\t")
    clock.last = cpu(), time.perf_counter()
    for name, inputs in requests:
        server.predict(name, **inputs)
    clock.row("server: the same answers again")
    server.close()


if __name__ == "__main__":
    main()
