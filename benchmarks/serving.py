"""Tests an export in the C++ runtime of TensorFlow Serving: results, warm-up, latency, threads (see README.md).

usage: serving.py sentences EXPORT --run RUN --source FILE --target FILE [--tokenize 13a] [--python PYTHON]
       serving.py warmup EXPORT --source FILE [--requests 300]
       serving.py latency EXPORT --source FILE [--batch-sizes 1,32] [--requests 200]
       serving.py threads EXPORT --source FILE [--threads 8] [--minutes 10] [--picture FILE.png]
       serving.py memory EXPORT --source FILE

EXPORT is the folder of a version; its `export.json` says whether it is compiled. `sentences` compares its
translations with those of `Translator.translate`, and scores them. `warmup` replays the warm-up records, and counts the
compilations during and after them. `latency` prints percentiles. `threads` compares the answers of many threads with
those of a quiet session, and watches the memory. `memory` prints the memory of the process before it loads the export,
then, and after 100 sentences.
"""

import argparse
import gzip
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cxx

SERVING = "serving_default"
HERE = Path(__file__).resolve().parent


def main():
    """Runs one of the questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("export", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one sentence a line, .gz or not")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--tokenize", default="13a")
    parser.add_argument(
        "--python", default=sys.executable, help="a Python with this library, if this one has none"
    )
    parser.add_argument("--requests", type=int)
    parser.add_argument("--batch-sizes", default="1,32")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--picture", type=Path, help="of the memory, second by second")
    options = parser.parse_args()
    made = json.loads((options.export / "assets.extra" / "export.json").read_text())
    print(
        f"{options.export}: {made['arguments']['strategy']['class_name']}, xla {made['xla']}, {made['precision']}",
        flush=True,
    )
    QUESTIONS[options.question](options, made)


def sentences(options, made):
    """Compares the translations with those of Python, and prints the BLEU of both."""
    import sacrebleu

    source, target = lines_of(options.source), lines_of(options.target)
    expected = by_python("translations", options.run, options.export, given=source, python=options.python)
    runtime, signature = cxx.load(options.export, SERVING, xla=made["xla"])
    found, seconds = [], 0.0
    for batch in batches(source, 32):
        took, outputs = runtime.run(signature, {"text": batch})
        seconds += took
        found += outputs["translation"]
    other = [i for i, (ours, python) in enumerate(zip(found, expected, strict=True)) if ours != python]
    print(f"{len(found)} sentences, {len(other)} unlike Python's, {seconds:.1f} s")
    for i in other[:5]:
        print(f"  {source[i]}\n    C++    {found[i]}\n    Python {expected[i]}")
    for name, texts in (("C++", found), ("Python", expected)):
        bleu = sacrebleu.corpus_bleu(texts, [target], tokenize=options.tokenize)
        print(f"{name:7} BLEU {bleu.score:.2f}")


def warmup(options, made):
    """Counts compilations during and after the warm-up, and prints median and slowest request of each shape."""
    with tempfile.TemporaryDirectory() as dump:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
        records = by_python("records", options.export)
        names = sorted({name for name, _ in records})
        runtime, *signatures = cxx.load(options.export, *names, xla=made["xla"])
        signatures = dict(zip(names, signatures, strict=True))

        def compiled():
            return len(list(Path(dump).glob("*before_optimizations.txt")))

        start = time.perf_counter()
        for name, inputs in records:
            runtime.run(signatures[name], inputs)
        warm = compiled()
        print(f"{len(records)} records in {time.perf_counter() - start:.1f} s, {warm} compilations")

        times, draw = {}, random.Random(6)
        requests = list(mixed(options.source, options.requests or 300, made["batch_sizes"][-1]))
        for texts in requests:
            took, _ = runtime.run(signatures[SERVING], {"text": texts})
            times.setdefault(shape_of(texts, made), []).append(took)
        for texts in requests[: len(requests) // 3]:  # the searches of the other signatures are compiled, too
            runtime.run(signatures[draw.choice(["n_best", "alignment"])], {"text": texts})
            width = draw.randint(1, made["arguments"]["max_source_length"] - 1)
            runtime.run(signatures["tokens"], {"source": [[4] * width + [3]] * len(texts)})
        count = len(requests) + 2 * (len(requests) // 3)
        print(f"{compiled() - warm} compilations in {count} requests after it")
    print(f"{'rows':>5} {'characters':>10} {'requests':>8} {'median ms':>10} {'slowest':>8} {'ratio':>6}")
    for (rows, length), took in sorted(times.items()):
        median, slowest = 1000 * statistics.median(took), 1000 * max(took)
        print(f"{rows:5} {length:10} {len(took):8} {median:10.1f} {slowest:8.1f} {slowest / median:6.2f}")


def latency(options, made):
    """Prints percentiles of the time of a request, for each number of sentences in a request."""
    runtime, signature = cxx.load(options.export, SERVING, xla=made["xla"])
    texts = itertools.cycle(lines_of(options.source))
    print(f"{'batch':>5} {'requests':>8} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'sentences/s':>12}")
    for size in map(int, options.batch_sizes.split(",")):
        requests = [list(itertools.islice(texts, size)) for _ in range(options.requests or 200)]
        for request in requests[:3]:
            runtime.run(signature, {"text": request})
        times = sorted(runtime.run(signature, {"text": request})[0] for request in requests)
        p50, p95, p99 = (1000 * times[int(len(times) * share)] for share in (0.5, 0.95, 0.99))
        rate = size * len(times) / sum(times)
        print(f"{size:5} {len(times):8} {p50:8.1f} {p95:8.1f} {p99:8.1f} {rate:12.1f}", flush=True)


def threads(options, made):
    """Compares the answers of many threads on one session with those of a quiet session, and watches the memory."""
    if options.picture:
        import matplotlib.pyplot  # noqa: F401, loaded after TensorFlow's library it crashes
    runtime, signature = cxx.load(options.export, SERVING, xla=made["xla"])
    requests = list(mixed(options.source, 64, made["batch_sizes"][-1]))
    quiet = [runtime.run(signature, {"text": texts})[1] for texts in requests]
    until = time.monotonic() + 60 * options.minutes
    done, wrong, errors, memory = [0] * options.threads, [], [], []

    def work(i):
        draw, own = random.Random(i), cxx.of_a_thread(runtime)
        while time.monotonic() < until and not errors:
            choice = draw.randrange(len(requests))
            try:
                _, found = own.run(signature, {"text": requests[choice]})
            except Exception as error:
                errors.append(repr(error))
                return
            expected = quiet[choice]
            if any(found[name] != expected[name] for name in ("translation", "truncated")):
                wrong.append(choice)
            done[i] += len(requests[choice])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(options.threads)]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        memory.append((time.monotonic() - start, resident()))
        time.sleep(1)
    for worker in workers:
        worker.join()
    print(
        f"{options.threads} threads, {options.minutes} minutes: {sum(done)} sentences in all, {min(done)} at least each"
    )
    print(f"{len(errors)} errors, {len(wrong)} answers unlike the quiet ones", *errors[:3])
    minutes = {}
    for second, size in memory:
        minutes.setdefault(int(second // 60), []).append(size)
    print("MB by minute: " + " ".join(f"{statistics.median(sizes):.0f}" for sizes in minutes.values()))
    if options.picture:
        draw(memory, options.picture)


def memory(options, made):
    """Prints the resident memory of the process, and the seconds that loading takes."""
    import numpy as np  # noqa: F401, a part of the process before

    before = resident()
    runtime, signature = cxx.load(options.export, SERVING, xla=made["xla"])
    loaded = resident()
    for texts in [*batches(lines_of(options.source)[:96], 32), *batches(lines_of(options.source)[96:100], 1)]:
        runtime.run(signature, {"text": texts})
    print(f"{before:.0f} MB before; loaded in {runtime.load_s:.1f} s, {loaded:.0f} MB")
    print(f"after 100 sentences {resident():.0f} MB")


def draw(memory, path):
    """Draws the memory of a process: pairs of a second and MB."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.plot([second / 60 for second, _ in memory], [size for _, size in memory])
    axes.set(xlabel="minutes", ylabel="resident MB", ylim=(0, 1.15 * max(size for _, size in memory)))
    axes.margins(x=0)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


QUESTIONS = {
    "sentences": sentences,
    "warmup": warmup,
    "latency": latency,
    "threads": threads,
    "memory": memory,
}


def shape_of(texts, made):
    """Returns the group of a request: the rows that it is filled up to, and a bound of its longest text."""
    rows = next(size for size in made["batch_sizes"] if size >= len(texts))
    longest = max(map(len, texts))
    return rows, next(length for length in (32, 64, 128, 256, 1 << 30) if length >= longest)


def mixed(source, requests, largest):
    """Yields requests with sentences of the file, from one row to the largest batch, by a fixed seed."""
    draw, texts = random.Random(5), lines_of(source)
    for _ in range(requests):
        size = draw.choice([1, 2, 5, 8, 19, largest])
        yield [text[: draw.choice([None, None, 20])] for text in draw.sample(texts, min(size, largest))]


def batches(items, size):
    """Some items at a time, in order."""
    return (items[i : i + size] for i in range(0, len(items), size))


def lines_of(path):
    """Reads the lines of a file, plain or .gz."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def by_python(question, *paths, given=None, python=sys.executable):
    """Runs `serving_python.py` in a process of its own, because this one must not load TensorFlow's Python."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parent),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    environment.pop("XLA_FLAGS", None)
    command = [python, HERE / "serving_python.py", question, *paths]
    answer = subprocess.run(
        command, input=json.dumps(given), env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def resident():
    """Returns the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
