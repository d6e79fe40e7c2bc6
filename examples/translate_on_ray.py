"""Translates a file on all machines of a Ray cluster, with Ray Data (`pip install '.[ray]'`).

    python examples/translate_on_ray.py RUN source.txt output.txt --workers 8 --gpus 1

RUN and both files are where every machine finds them; RAY_ADDRESS names the cluster, this machine alone without it.
Each worker loads the translator once and translates parts of the file, each to a file of its own that appears whole.
A worker that dies is replaced, and does its part again; after the end of this script itself the same command goes
on. The output appears when all parts are there: a line for each line, in order. A line that cannot be translated is
empty, and the exit code is 4.
"""

import argparse
import contextlib
import hashlib
import itertools
import os
import shutil
import sys
from pathlib import Path

# Before TensorFlow loads: its notices are not the news.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LINES = 4096  # of a part, which is translated and saved together ...
BYTES = 2**23  # ... and which ends before, where its lines are long
BATCH_SIZE = 32
WORKERS = 2
CPUS, GPUS = 1.0, 0.0  # for each worker
EXIT_INPUT = 2  # what the user gave cannot be used
EXIT_SOME_FAILED = (
    4  # the output is there, and some of its lines are empty because they could not be translated
)
FAILED = ".failed"  # the end of the name of a file with the number of such lines of a part


class PartTranslator:
    """What a worker does: loads the translator once, then translates part after part."""

    def __init__(self, run, source, folder):
        from keras_transformer.serving import Translator

        self.translator = Translator.load(run)
        self.source = source
        self.folder = folder

    def __call__(self, batch):
        """Writes the parts of a batch and says how many lines they have, and how many of those failed."""
        from keras_transformer.data import LONGEST_LINE, iterate_lines
        from keras_transformer.files import replaced
        from keras_transformer.serving import translate_lines

        reports = []
        for number, start, count in zip(batch["part"], batch["start"], batch["lines"], strict=True):
            print(f"translating part {number}", flush=True)
            with open(self.source, "rb") as file:
                file.seek(start)
                lines = itertools.islice(iterate_lines(file, LONGEST_LINE, from_start=start == 0), count)
                translations = list(
                    translate_lines(self.translator, lines, BATCH_SIZE, LINES, report=reports.append)
                )
            # Ray may translate a part twice. The file is replaced as a whole, and its content is the same each time.
            path, failed = part_path(self.folder, number), reports[-1].failed
            if failed:
                with replaced(path.with_suffix(FAILED)) as temporary:
                    temporary.write_text(str(failed), encoding="utf-8")
            else:  # an earlier worker may have died between the two files
                path.with_suffix(FAILED).unlink(missing_ok=True)
            with replaced(path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
        return {
            "part": batch["part"],
            "lines": [report.lines for report in reports],
            "failed": [report.failed for report in reports],
        }


def part_path(folder, number):
    """The file of a part's translations."""
    return Path(folder) / f"{number:08d}"


def split(source):
    """Where each part of a file begins: a list of dicts with its number, its offset and its number of lines."""
    parts, start, lines, ended = [], 0, 0, True
    with open(source, "rb") as file:
        while line := file.readline(BYTES):
            ended = line.endswith(b"\n")
            lines += ended
            if ended and (lines == LINES or file.tell() - start >= BYTES):
                parts.append({"part": len(parts), "start": start, "lines": lines})
                start, lines = file.tell(), 0
        if file.tell() > start:
            parts.append({"part": len(parts), "start": start, "lines": lines + (not ended)})
    return parts


def parts_folder(run, source, output):
    """The folder of the parts, named for the file and the translator that they are made of."""
    digest = hashlib.sha256(f"{LINES} {BYTES} {BATCH_SIZE}".encode())
    tokenizers = sorted(Path(run).glob("*_tokenizer.model"))
    for path in (source, Path(run) / "translator.json", Path(run) / "model.keras", *tokenizers):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return output.with_name(f"{output.name}.parts-{digest.hexdigest()[:16]}")


def translate(run, source, output, workers=WORKERS, cpus=CPUS, gpus=GPUS):
    """Translates a file on a Ray cluster, or goes on with it, and returns how many lines failed and are empty.

    Raises:
        ValueError: If the output exists, or the file is compressed: parts of it are read on their own.
        OSError: If Ray does not start.
    """
    import ray

    from keras_transformer.files import locked, remove_temporaries, replaced

    run, source, output = (Path(path).resolve() for path in (run, source, output))
    if output.exists():
        raise ValueError(f"{output} exists; nothing is overwritten.")
    if source.suffix == ".gz":
        raise ValueError(f"{source} is compressed: decompress it, its parts are read on their own.")
    folder = parts_folder(run, source, output)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder))
        remove_temporaries(folder)
        parts = split(source)
        missing = [part for part in parts if not part_path(folder, part["part"]).exists()]
        print(f"{len(parts)} parts, {len(missing)} to translate", flush=True)
        if missing:
            stack.callback(ray.shutdown)
            try:
                ray.init()
            except Exception as error:  # Ray raises errors of many classes
                raise OSError(f"Ray does not start: {error!s:.500}") from error
            done = ray.data.from_items(missing, override_num_blocks=len(missing)).map_batches(
                PartTranslator,
                fn_constructor_args=(str(run), str(source), str(folder)),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
                num_cpus=cpus,
                num_gpus=gpus,
            )
            for row in done.iter_rows():
                print(f"part {row['part']}: {row['lines']} lines, {row['failed']} failed", flush=True)
        if output.exists():
            raise ValueError(f"{output} exists by now; nothing is overwritten.")
        with replaced(output) as temporary, open(temporary, "wb") as whole:
            for part in parts:
                with open(part_path(folder, part["part"]), "rb") as file:
                    shutil.copyfileobj(file, whole)
        failed = sum(int(path.read_text(encoding="utf-8")) for path in folder.glob(f"*{FAILED}"))
    shutil.rmtree(folder)
    return failed


def main(arguments=None):
    """Translates a file and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="folder of a run or of a saved translator")
    parser.add_argument("source", metavar="SOURCE", help="a sentence a line")
    parser.add_argument("output", metavar="OUTPUT", help="where to; must not exist")
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many translate at once")
    parser.add_argument("--cpus", type=float, default=CPUS, help="CPUs of each")
    parser.add_argument("--gpus", type=float, default=GPUS, help="GPUs of each")
    options = parser.parse_args(arguments)
    try:
        failed = translate(**vars(options))
    except ModuleNotFoundError as error:
        print(f"translate_on_ray: error: {error}. Install it: pip install '.[ray]'", file=sys.stderr)
        return EXIT_INPUT
    except (ValueError, OSError) as error:
        print(f"translate_on_ray: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    print(options.output)
    if failed:
        print(f"translate_on_ray: {failed} lines could not be translated and are empty.", file=sys.stderr)
        return EXIT_SOME_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
