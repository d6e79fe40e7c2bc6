"""Measures the thread settings of a server: throughput, latency and processor time of an export (see README.md).

usage: serving_threads.py EXPORT --source FILE [--intra-op 1,2] [--inter-op 1,2] [--batch-threads 1,2] [--callers 1,16]

EXPORT is the folder of a version, FILE has the texts, one in each line. Each combination of the settings gets a server
of its own, which has the batching of TensorFlow Serving (tests/serving/batching_server.cc) and the export's own
`batching.config`. Callers on the same machine send one text at a time. In each round every combination runs once; the
table has the medians of the rounds. The first combination is the one that the others are compared with.

The settings are the flags `--tensorflow_intra_op_parallelism` and `--tensorflow_inter_op_parallelism` of the server,
and `num_batch_threads` of `batching.config`. 0 is the number of cores.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "serving"))

import batching
import tensorflow as tf

from keras_transformer.client import load_test
from keras_transformer.data import read_lines
from keras_transformer.serving.server.server_files import write_server_files

SETTINGS = ("intra_op", "inter_op", "batch_threads")
FIGURES = ("requests_per_second", "p50_ms", "p99_ms", "cpu_ms")
WARM_UP = 0.25  # of the seconds of a measurement


def main(arguments=None):
    """Measures all combinations, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one text in each line, plain or .gz")
    parser.add_argument("--intra-op", type=numbers, default=[0], help="threads of one operation")
    parser.add_argument("--inter-op", type=numbers, default=[0], help="operations at the same time")
    parser.add_argument("--batch-threads", type=numbers, default=[0], help="batches at the same time")
    parser.add_argument("--callers", type=numbers, default=[1, 16], help="requests at the same time")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", type=Path, help="the program, if `batching.build` has compiled it before")
    parser.add_argument(
        "--output", type=Path, help="file to which the measurements are appended, as JSON lines"
    )
    options = parser.parse_args(arguments)
    texts = [text for text in read_lines(options.source) if text]
    combinations = list(itertools.product(*(getattr(options, name) for name in SETTINGS)))
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        config = batching_config(options.export, Path(folder) / "model")
        program = options.server or batching.build(folder)
        for number in range(options.rounds):
            for combination in combinations:
                settings = dict(zip(SETTINGS, combination, strict=True))
                for row in measure(program, options.export, config, settings, texts, options):
                    measured.append({"round": number + 1, **settings, **row})
                    if options.output:
                        with open(options.output, "a", encoding="utf-8") as file:
                            file.write(json.dumps(measured[-1]) + "\n")
    print(*table(measured), sep="\n")


def numbers(text):
    """Reads numbers with commas between them."""
    return [int(each) for each in text.split(",")]


def batching_config(export, folder):
    """Returns the text of the `batching.config` that `server-files` writes for an export."""
    folder.mkdir()
    (folder / "1").symlink_to(export.resolve())
    write_server_files(folder)
    return (folder / "batching.config").read_text()


class Server(batching.BatchingServer):
    """A server that `load_test` can call as if it were a `Client`."""

    batch_size = 1

    def predict(self, signature, /, **inputs):
        try:
            return super().predict(signature, **inputs)
        except tf.errors.OpError as error:
            raise OSError(error.message) from None

    def cpu_seconds(self):
        """Returns the processor time of the process until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system


def measure(program, export, config, settings, texts, options):
    """Starts a server, and yields the figures of each number of callers, a dict."""
    if settings["batch_threads"]:
        config += f"num_batch_threads {{ value: {settings['batch_threads']} }}\n"
    with Server(program, export, config, settings["intra_op"], settings["inter_op"]) as server:
        for callers in options.callers:
            load_test(server, texts, callers=callers, seconds=WARM_UP * options.seconds)
            before = server.cpu_seconds()
            report = load_test(server, texts, callers=callers, seconds=options.seconds)
            answered = len(report.latencies)
            yield {
                "callers": callers,
                "requests_per_second": report.requests_per_second,
                "p50_ms": 1000 * report.latency(50),
                "p99_ms": 1000 * report.latency(99),
                "cpu_ms": 1000 * (server.cpu_seconds() - before) / max(1, answered),
                "failed": sum(report.errors.values()),
            }


def table(measured):
    """Returns the lines of a table in Markdown: the medians of the rounds, one line for each combination.

    Args:
        measured: A list of dicts, one for each round, combination and number of callers. The first one has the settings
            that the others are compared with.
    """
    names = ("callers", *SETTINGS)
    lines = [
        "| callers | intra-op | inter-op | batch threads | requests/s | as much as the first | p50 ms | p99 ms "
        "| CPU ms a request | failed |",
        "| --- " * 10 + "|",
    ]
    groups, first = {}, [measured[0][name] for name in SETTINGS]
    for row in measured:
        groups.setdefault(tuple(row[name] for name in names), {})[row["round"]] = row
    for key, rows in sorted(groups.items(), key=lambda item: item[0][0]):
        reference = groups[(key[0], *first)]
        # Ratios within a round: the speed of a machine drifts.
        ratio = statistics.median(
            row["requests_per_second"] / reference[number]["requests_per_second"]
            for number, row in rows.items()
        )
        speed, p50, p99, cpu = (statistics.median(row[name] for row in rows.values()) for name in FIGURES)
        cells = [*map(str, key), f"{speed:.1f}", f"{ratio:.2f}", f"{p50:.1f}", f"{p99:.1f}", f"{cpu:.1f}"]
        lines.append(f"| {' | '.join(cells)} | {sum(row['failed'] for row in rows.values())} |")
    return lines


if __name__ == "__main__":
    main()
