"""Translates files on all machines of a Ray cluster, with Ray Data (`pip install '.[ray]'`).

    python examples/translate_on_ray.py RUN source.txt output.txt --workers 8 --gpus 1
    python examples/translate_on_ray.py RUN sources/*.txt translations --workers 8 --gpus 1

RUN and the files are where every machine finds them; RAY_ADDRESS names the cluster, this machine alone without it.
Each worker loads the translator once and translates parts of the file, each to a file of its own that appears whole.
A worker that dies is replaced, and does its part again; after the end of this script itself the same command goes
on. The output appears when all parts are there: a line for each line, in order. A line that cannot be translated is
empty, and the exit code is 4. The output of several files is a folder: each translation has the name of its file. A
file that cannot be read has no output there, a message names it, and the exit code is 4, too. An output that exists is
left as it is.
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

    def __init__(self, run):
        from keras_transformer.serving import Translator

        self.translator = Translator.load(run)

    def __call__(self, batch):
        """Writes the parts of a batch and says how many lines they have, and how many of those failed.

        Of a part that cannot be read, all lines failed, and there is no file.
        """
        names = ("source", "folder", "part", "start", "lines")
        lines, failed = [], []
        for source, folder, number, start, count in zip(*(batch[name] for name in names), strict=True):
            print(f"translating part {number} of {source}", flush=True)
            try:
                part = lines_of(source, start, count)
            except OSError as error:
                print(f"part {number} of {source} cannot be read: {error}", flush=True)
                done = (count, count)
            else:
                done = self.translate(part, folder, number)
            for column, value in zip((lines, failed), done, strict=True):
                column.append(value)
        return {"source": batch["source"], "part": batch["part"], "lines": lines, "failed": failed}

    def translate(self, lines, folder, number):
        """Writes the translations of the lines of a part. Returns the number of lines, and of those that failed."""
        from keras_transformer.files import replaced
        from keras_transformer.serving import translate_lines

        reports = []
        translations = list(translate_lines(self.translator, lines, BATCH_SIZE, LINES, report=reports.append))
        # Ray may translate a part twice. The file is replaced as a whole, and its content is the same each time.
        path, failed = part_path(folder, number), reports[-1].failed
        if failed:
            with replaced(path.with_suffix(FAILED)) as temporary:
                temporary.write_text(str(failed), encoding="utf-8")
        else:  # an earlier worker may have died between the two files
            path.with_suffix(FAILED).unlink(missing_ok=True)
        with replaced(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
        return reports[-1].lines, failed


def lines_of(source, start, count):
    """The lines of a part of a file: a list of bytes."""
    from keras_transformer.data import LONGEST_LINE, iterate_lines

    with open(source, "rb") as file:
        file.seek(start)
        return list(itertools.islice(iterate_lines(file, LONGEST_LINE, from_start=start == 0), count))


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


def digest_of(*paths):
    """The hash of files and of the settings that decide where parts begin."""
    digest = hashlib.sha256(f"{LINES} {BYTES} {BATCH_SIZE}".encode())
    for path in paths:
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class Job:
    """A file to translate. Its parts are in a folder that is named for the file and the translator."""

    def __init__(self, source, output, translator, stack):
        """Locks the folder until the stack is closed.

        Raises:
            ValueError: If the output exists, the file is compressed (parts of it are read on their own), or another
                process translates it.
            OSError: If the file cannot be read.
        """
        from keras_transformer.files import locked, remove_temporaries

        self.source, self.output = source, output
        if output.exists():
            raise ValueError(f"{output} exists; nothing is overwritten.")
        if source.suffix == ".gz":
            raise ValueError(f"{source} is compressed: decompress it, its parts are read on their own.")
        name = hashlib.sha256(f"{translator} {digest_of(source)}".encode()).hexdigest()[:16]
        self.folder = output.with_name(f"{output.name}.parts-{name}")
        self.parts = split(source)
        stack.enter_context(locked(self.folder))
        remove_temporaries(self.folder)

    def missing(self):
        """The parts that have no file: a list of dicts."""
        return [
            {"source": str(self.source), "folder": str(self.folder), **part}
            for part in self.parts
            if not part_path(self.folder, part["part"]).exists()
        ]

    def finish(self):
        """Writes the output. Returns how many lines failed and are empty."""
        from keras_transformer.files import replaced

        if self.output.exists():
            raise ValueError(f"{self.output} exists by now; nothing is overwritten.")
        with replaced(self.output) as temporary, open(temporary, "wb") as whole:
            for part in self.parts:
                with open(part_path(self.folder, part["part"]), "rb") as file:
                    shutil.copyfileobj(file, whole)
        return sum(int(path.read_text(encoding="utf-8")) for path in self.folder.glob(f"*{FAILED}"))


def translate(run, sources, output, workers=WORKERS, cpus=CPUS, gpus=GPUS):
    """Translates files on a Ray cluster, or goes on with them.

    Args:
        run: Folder of a run or of a saved translator.
        sources: List of the files. Of several files one that cannot be used is left out.
        output: The file for the translations of one file; the folder for those of several.
        workers: How many translate at once.
        cpus: CPUs of each.
        gpus: GPUs of each.

    Returns:
        How many lines failed and are empty, and a list of the files that were left out.

    Raises:
        ValueError: If a single file cannot be used.
        OSError: If Ray does not start, or a single file cannot be read.
    """
    import ray

    run, output = Path(run).resolve(), Path(output).resolve()
    sources = [Path(source).resolve() for source in sources]
    several = len(sources) > 1
    outputs = [output / source.name if several else output for source in sources]
    if len(set(outputs)) < len(outputs):
        raise ValueError("Files of the same name would have the same output.")
    tokenizers = sorted(run.glob("*_tokenizer.model"))
    translator = digest_of(run / "translator.json", run / "model.keras", *tokenizers)
    failed, left_out, finished = 0, [], []

    def leave_out(source, error):
        if not several:
            raise error
        print(f"translate_on_ray: {source} is left out: {error}", file=sys.stderr)
        left_out.append(source)

    with contextlib.ExitStack() as stack:
        jobs = []
        if several:
            output.mkdir(parents=True, exist_ok=True)
        for source, target in zip(sources, outputs, strict=True):
            if several and target.exists():
                print(f"{target} exists and is left as it is", flush=True)
                continue
            try:
                jobs.append(Job(source, target, translator, stack))
            except (ValueError, OSError) as error:
                leave_out(source, error)
        missing = [part for job in jobs for part in job.missing()]
        print(f"{sum(len(job.parts) for job in jobs)} parts, {len(missing)} to translate", flush=True)
        if missing:
            stack.callback(ray.shutdown)
            try:
                ray.init()
            except Exception as error:  # Ray raises errors of many classes
                raise OSError(f"Ray does not start: {error!s:.500}") from error
            done = ray.data.from_items(missing, override_num_blocks=len(missing)).map_batches(
                PartTranslator,
                fn_constructor_args=(str(run),),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
                num_cpus=cpus,
                num_gpus=gpus,
            )
            for row in done.iter_rows():
                print(
                    f"{row['source']}, part {row['part']}: {row['lines']} lines, {row['failed']} failed",
                    flush=True,
                )
        for job in jobs:
            if job.missing():
                leave_out(job.source, OSError(f"{job.source} could not be read by a worker."))
                continue
            try:
                failed += job.finish()
            except (ValueError, OSError) as error:
                leave_out(job.source, error)
            else:
                finished.append(job)
    for job in finished:
        shutil.rmtree(job.folder)
    return failed, left_out


def main(arguments=None):
    """Translates files and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="folder of a run or of a saved translator")
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="a file with a sentence on each line")
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        help="where to: a file that does not exist, or the folder for several files",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many translate at once")
    parser.add_argument("--cpus", type=float, default=CPUS, help="CPUs of each")
    parser.add_argument("--gpus", type=float, default=GPUS, help="GPUs of each")
    options = parser.parse_args(arguments)
    try:
        failed, left_out = translate(**vars(options))
    except ModuleNotFoundError as error:
        print(f"translate_on_ray: error: {error}. Install it: pip install '.[ray]'", file=sys.stderr)
        return EXIT_INPUT
    except (ValueError, OSError) as error:
        print(f"translate_on_ray: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    print(options.output)
    if failed:
        print(f"translate_on_ray: {failed} lines could not be translated and are empty.", file=sys.stderr)
    if left_out:
        print(f"translate_on_ray: {len(left_out)} files could not be used.", file=sys.stderr)
    return EXIT_SOME_FAILED if failed or left_out else 0


if __name__ == "__main__":
    sys.exit(main())
