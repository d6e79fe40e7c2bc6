"""Executes the chapters of the course into notebooks.

    python course/execute.py [--languages en,ko] [--only 04,11] [--processes 2] [--seconds-per-cell 900]

A chapter is a Jupytext percent script, `course/LANGUAGE/NN_name.py`. Its notebook with all outputs and pictures goes to
`course/_build/LANGUAGE/NN_name.ipynb`. A chapter runs again only if its source, a picture that it shows, the package,
this file, or a version of a library that it uses changed. The notebook of a chapter that fails stays the old one.
"""

import argparse
import base64
import hashlib
import importlib.metadata
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

COURSE = Path(__file__).resolve().parent
ROOT = COURSE.parent
BUILT = COURSE / "_build"
LANGUAGES = ("en", "ko")
LIBRARIES = ("keras", "tensorflow", "matplotlib", "nbclient", "jupytext")
PICTURE = re.compile(r"(?<=\]\()[^()\s]+\.svg(?=\))")
LOG = re.compile(r"[IW]\d{4} [\d:.]+|WARNING: All log messages before absl")  # of TensorFlow's C++ code
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments=None):
    """Executes the chapters that changed; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        default="",
        help="how the names of the chapters begin, with commas between; all are the default",
    )
    parser.add_argument(
        "--languages", default=",".join(LANGUAGES), help="languages of the chapters to execute"
    )
    parser.add_argument("--processes", type=int, default=2, help="chapters that run at a time")
    parser.add_argument(
        "--seconds-per-cell",
        type=int,
        default=900,
        help="a cell that takes longer fails; more on a slow machine",
    )
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    sources = [file for language in LANGUAGES for file in sorted((COURSE / language).glob("*.py"))]
    remove_notebooks_without_source(sources)
    languages = options.languages.split(",")
    if unknown := set(languages).difference(LANGUAGES):
        parser.error(f"--languages takes {', '.join(LANGUAGES)}. Received: {', '.join(sorted(unknown))}.")
    beginnings = tuple(options.only.split(","))
    chosen = [f for f in sources if f.parent.name in languages and f.name.startswith(beginnings)]
    if not chosen:
        parser.error(f"No chapter begins with {options.only!r}.")
    package = digest_of_package()
    with ThreadPoolExecutor(options.processes) as pool:
        results = list(pool.map(lambda file: build(file, package, options.seconds_per_cell), chosen))
    print(
        f"{len(results)} chapters in {BUILT}: {results.count('executed')} executed, "
        f"{results.count('unchanged')} unchanged, {results.count('failed')} failed, "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 1 if "failed" in results else 0


def build(source, package, seconds_per_cell):
    """Executes a chapter into its notebook, unless nothing changed; returns "executed", "unchanged" or "failed"."""
    began = time.perf_counter()
    name = f"{source.parent.name}/{source.stem}"
    target = notebook_of(source)
    text = source.read_text(encoding="utf-8")
    pictures = b"".join((source.parent / path).read_bytes() for path in PICTURE.findall(text))
    digest = hashlib.sha256(text.encode() + pictures + package).hexdigest()
    if target.exists() and nbformat.read(target, 4).metadata.get("digest") == digest:
        print(f"{name}: unchanged", flush=True)
        return "unchanged"
    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as log:
        client = NotebookClient(
            notebook,
            timeout=seconds_per_cell,
            coalesce_streams=True,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=environment(), stderr=log)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            log.seek(0)
            reason = str(error) if isinstance(error, CellExecutionError) else f"{log.read()[-2000:]}\n{error}"
            slow = isinstance(error, CellTimeoutError)
            hint = ": a cell took too long, see --seconds-per-cell" if slow else ""
            print(f"{name}: failed after {time.perf_counter() - began:.0f} s{hint}", flush=True)
            print(COLOURS.sub("", reason), file=sys.stderr, flush=True)
            return "failed"
    warned = remove_stderr(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            attach_pictures(cell, source.parent)
    notebook.metadata["digest"] = digest
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    nbformat.write(notebook, unfinished)
    unfinished.replace(target)
    print(f"{name}: {time.perf_counter() - began:.0f} s{warned}", flush=True)
    return "executed"


def attach_pictures(cell, folder):
    """Puts the pictures that a cell shows into it, so that a reader needs the notebook alone."""
    for path in PICTURE.findall(cell.source):
        file = folder / path
        cell.source = cell.source.replace(f"]({path})", f"](attachment:{file.name})")
        content = base64.b64encode(file.read_bytes()).decode()
        cell.setdefault("attachments", {})[file.name] = {"image/svg+xml": content}


def remove_stderr(notebook):
    """Removes what cells wrote to stderr; returns it indented, but TensorFlow's log, for the line of progress."""
    lines = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                lines += output.text.splitlines()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return "".join(f"\n    {line}" for line in lines if line.strip() and not LOG.match(line))


def environment():
    """The environment of a kernel: this folder's package, and no log of TensorFlow."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": path}


def digest_of_package():
    """Returns bytes that change with the package, with this file and with the libraries."""
    digest = hashlib.sha256(repr([(name, importlib.metadata.version(name)) for name in LIBRARIES]).encode())
    package = ROOT / "keras_transformer"
    for file in sorted([Path(__file__), *(p for p in package.rglob("*") if "__pycache__" not in p.parts)]):
        if file.is_file():
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.digest()


def notebook_of(source):
    """Returns the path of a chapter's notebook."""
    return BUILT / source.parent.name / f"{source.stem}.ipynb"


def remove_notebooks_without_source(sources):
    """Removes notebooks of chapters that were renamed."""
    wanted = {notebook_of(source) for source in sources}
    for notebook in BUILT.glob("*/*.ipynb"):
        if notebook not in wanted:
            notebook.unlink()


if __name__ == "__main__":
    sys.exit(main())
