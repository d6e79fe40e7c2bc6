"""Whisper base on recordings of 30 seconds: this library's exports beside CTranslate2 and transformers.

    python benchmarks/whisper.py HF_FOLDER CT2_FOLDER RECORDINGS OUTPUT --transformers PYTHON --ctranslate2 PYTHON

HF_FOLDER is the checkpoint openai/whisper-base, CT2_FOLDER the same weights for CTranslate2. RECORDINGS holds the five
WAV files of LibriVox in the Debian package pocketsphinx-testdata, at 16 kHz. The exports are written into OUTPUT. The
two interpreters have transformers with torch, and ctranslate2 with numpy and tokenizers. `CXX_RUN_DIR` is the folder of
`cxx_run.py`.

Each contestant is a process. They take turns, one repetition each. The exports and transformers begin with samples;
CTranslate2 is given the spectrograms that transformers computed, so its time has no spectrogram.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np

SECONDS, RATE, MAX_LENGTH = 30, 16_000, 224
PROMPT = (50258, 50259, 50359, 50363)  # the begin, English, transcribe, no times
TASKS = [(1, 1), (8, 1), (1, 5), (8, 5)]
VARIANTS = ("portable", "xla", "int8")


def main():
    """Prepares the exports, lets the contestants take turns and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hf", type=Path)
    parser.add_argument("ct2", type=Path)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--transformers", help="an interpreter with transformers and torch")
    parser.add_argument("--ctranslate2", help="an interpreter with ctranslate2, numpy and tokenizers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=["portable", "int8"], choices=VARIANTS)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        return compete(options)
    options.output.mkdir(parents=True, exist_ok=True)
    for i, samples in enumerate(recordings(options.recordings)):
        np.save(options.output / f"{i}.npy", samples)
    rows = {}
    for variant in options.variants:
        for beam in sorted({beam for _, beam in TASKS}):
            path = options.output / f"{variant}-{beam}"
            if not path.exists():
                subprocess.run(
                    [sys.executable, __file__, *sys.argv[1:5], "--contestant", f"write:{variant}:{beam}"],
                    check=True,
                )
        rows[f"export, {variant}"] = (sys.executable, f"export:{variant}")
    if options.transformers:
        rows["transformers"] = (options.transformers, "transformers")
    if options.ctranslate2:
        rows |= {f"CTranslate2, {kind}": (options.ctranslate2, f"ct2:{kind}") for kind in ("float32", "int8")}
    processes = {name: Contestant(python, kind) for name, (python, kind) in rows.items()}
    found, texts = {}, {}
    for count, beam in TASKS:
        for turn in range(options.rounds + 1):
            names = list(processes)[:: -1 if turn % 2 else 1]
            for name in names:
                answer = processes[name].ask(count, beam)
                texts[name, count, beam] = answer["text"]
                print(
                    f"{count} x 30 s, beam {beam}: {name}: {answer['wall']:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
                if turn:  # the first one is a warm-up
                    found.setdefault((name, count, beam), []).append((answer["cpu"], answer["wall"]))
    print(
        "| | "
        + " | ".join(f"{count} x 30 s, beam {beam}: CPU s / s" for count, beam in TASKS)
        + " | peak MB |"
    )
    print("| --- |" + " --- |" * (len(TASKS) + 1))
    for name, process in processes.items():
        cells = []
        for task in TASKS:
            cpu, wall = (statistics.median(x) for x in zip(*found[(name, *task)], strict=True))
            cells.append(f"{cpu:.2f} / {wall:.2f}")
        print(f"| {name} | " + " | ".join(cells) + f" | {process.end():.0f} |")
    for task in TASKS:
        print(task, *(f"{name}: {texts[(name, *task)]}" for name in processes), sep="\n  ")


def recordings(folder):
    """Returns eight recordings of 30 seconds, float32 in [-1, 1]: the sentences of a folder in eight orders."""
    sentences = []
    for path in sorted(folder.glob("*.wav")):
        with wave.open(str(path)) as file:
            assert file.getframerate() == RATE
            sentences.append(np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(2**15))
    result = []
    for i in range(8):
        order = [sentences[(i + j) % len(sentences)] for j in range(len(sentences))]
        samples = np.concatenate(order if i < len(order) else order[::-1])[: SECONDS * RATE]
        result.append(np.pad(samples, (0, SECONDS * RATE - len(samples))))
    return result


class Contestant:
    """A process that transcribes when it is asked to."""

    def __init__(self, python, kind):
        command = [python, __file__, *sys.argv[1:5], "--contestant", kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *task):
        """Sends one line and returns the answer, a dict."""
        print(json.dumps(task), file=self.process.stdin, flush=True)
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.process.args} has ended")

    def end(self):
        """Ends the process and returns its peak memory in MB."""
        peak = self.ask(0, 0)["peak"]
        self.process.stdin.close()
        self.process.wait()
        return peak


def compete(options):
    """Makes a contestant, or writes an export."""
    kind, _, variant = options.contestant.partition(":")
    if kind == "write":
        return write(options, *variant.split(":"))
    samples = [np.load(options.output / f"{i}.npy") for i in range(8)]
    function = {"export": of_export, "transformers": of_transformers, "ct2": of_ctranslate2}[kind](
        options, variant
    )
    for line in sys.stdin:
        count, beam = json.loads(line)
        if not count:
            print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
            continue
        prepared = function(samples[:count], beam)
        before, start = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), time.perf_counter()
        found = prepared()
        cpu, wall = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before, time.perf_counter() - start
        text = [str(each) for each in found]
        print(json.dumps({"cpu": cpu, "wall": wall, "text": text[0]}), flush=True)


def write(options, variant, beam):
    """Writes an export."""
    import keras_transformer as kt

    precision = "int8" if variant == "int8" else "float32"
    model = kt.huggingface.from_huggingface(options.hf, precision=precision)
    more = kt.huggingface.transcriber_options(options.hf) | {"language": "en", "max_length": MAX_LENGTH}
    strategy = kt.decoding.Beam(int(beam)) if int(beam) > 1 else kt.decoding.Greedy()
    tokenizers = kt.huggingface.tokenizers_from_huggingface(options.hf)
    transcriber = kt.serving.Transcriber(model, *tokenizers, strategy=strategy, **more)
    before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    transcriber.export(
        options.output / f"{variant}-{beam}", xla=variant == "xla", signatures=["serving_default"]
    )
    print(
        f"export, {variant}, beam {beam}: {sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before:.1f} CPU s"
    )


def of_export(options, variant):
    """The export in TensorFlow's C++ runtime."""
    import cxx

    loaded = {}

    def prepare(samples, beam):
        if beam not in loaded:
            path = options.output / f"{variant}-{beam}" / "1"
            loaded[beam] = cxx.load(path, "serving_default", xla=variant == "xla")
        runtime, signature = loaded[beam]
        audio = {"audio": np.stack(samples)}
        return lambda: runtime.run(signature, audio)[1]["text"]

    return prepare


def of_transformers(options, _):
    """Transformers, with its own spectrogram."""
    import torch
    import transformers

    extractor = transformers.WhisperFeatureExtractor.from_pretrained(options.hf)
    tokenizer = transformers.WhisperTokenizerFast.from_pretrained(options.hf)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        options.hf, dtype=torch.float32
    ).eval()

    def prepare(samples, beam):
        def run():
            features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
            with torch.no_grad():
                ids = model.generate(
                    features, language="en", task="transcribe", num_beams=beam, max_length=MAX_LENGTH
                )
            return tokenizer.batch_decode(ids, skip_special_tokens=True)

        features = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features
        np.save(options.output / f"features-{len(samples)}.npy", features)
        return run

    return prepare


def of_ctranslate2(options, kind):
    """CTranslate2, which is given spectrograms."""
    import ctranslate2
    import tokenizers

    model = ctranslate2.models.Whisper(
        str(options.ct2), device="cpu", compute_type=kind, intra_threads=os.cpu_count()
    )
    tokenizer = tokenizers.Tokenizer.from_file(str(options.hf / "tokenizer.json"))

    def prepare(samples, beam):
        path = options.output / f"features-{len(samples)}.npy"
        while not path.exists():
            time.sleep(0.1)
        features = ctranslate2.StorageView.from_array(np.ascontiguousarray(np.load(path)))

        def run():
            results = model.generate(
                features, [list(PROMPT)] * len(samples), beam_size=beam, max_length=MAX_LENGTH
            )
            return [tokenizer.decode(result.sequences_ids[0]) for result in results]

        return run

    return prepare


if __name__ == "__main__":
    main()
