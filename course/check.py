"""Checks the answer to a chapter's task of an hour.

    python course/check.py 4 answer.py

Each chapter of the course ends with a function that a student writes, in NumPy alone. No solution is published. This
program calls the function in the file, and says which of its properties hold: "yes" or "no" before each. It exits with
0 when all hold. The chapter describes the function.
"""

import argparse
import ast
import importlib.util
import os
import sys
import traceback
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from checks import TASKS

ALLOWED = {"numpy", "math", "itertools", "functools", "collections", "heapq", "operator"}


def main(arguments=None):
    """Checks a file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapter", help=f"number of the chapter: {', '.join(TASKS)}")
    parser.add_argument("file", type=Path, help="Python file with the function")
    options = parser.parse_args(arguments)
    chapter = options.chapter.lstrip("0")
    if chapter not in TASKS:
        parser.error(f"There is no chapter {options.chapter!r}. The chapters are {', '.join(TASKS)}.")
    if not options.file.is_file():
        parser.error(f"There is no file {options.file}.")
    check = TASKS[chapter]
    if refused := imported_from(options.file) - ALLOWED:
        print(f"The task is for NumPy alone. The file imports {', '.join(sorted(refused))}.")
        return 1
    function = getattr(module_of(options.file), check.__name__, None)
    if function is None:
        print(f"The file has no function {check.__name__}.")
        return 1
    return report(check, function)


def imported_from(file):
    """Returns the names of the packages that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or ".").partition(".")[0])
    return names


def module_of(file):
    """Executes a file and returns it as a module."""
    specification = importlib.util.spec_from_file_location("answer", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def report(check, function):
    """Prints each property and whether it holds; returns 0 if all hold, 1 if not."""
    held = []
    try:
        with np.errstate(all="ignore"):
            for sentence, holds in check(function):
                held.append(bool(holds))
                print("yes" if holds else "no ", sentence)
    except Exception:
        traceback.print_exc()
        held.append(False)
    print("All hold." if all(held) else f"{held.count(False)} of {len(held)} do not hold.")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
