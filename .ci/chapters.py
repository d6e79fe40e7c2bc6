"""Prints the chapters of the course that continuous integration executes, by their numbers, with commas between.

    python .ci/chapters.py PART PARTS

These are the chapters of one part, and those that changed in the six hours before the last commit: their own program,
or the module of the package that they use most.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOURS = 6


def git(*arguments):
    """Returns what a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def last_base():
    """The commit before the last hours; empty where the history does not go back so far."""
    last = int(git("log", "-1", "--format=%ct"))
    return git("rev-list", "-1", f"--before={last - 3600 * HOURS}", "HEAD").strip()


def changed_files(base):
    """The files that changed after a commit; all where there is none."""
    return git("diff", "--name-only", base, "HEAD").split() if base else git("ls-files").split()


def program(text):
    """The cells of code of a chapter: new sentences alone are no reason to run it."""
    marks, cells = re.findall(r"(?m)^# %%(.*)$", text), re.split(r"(?m)^# %%.*$", text)[1:]
    return [cell.strip() for mark, cell in zip(marks, cells, strict=True) if "[markdown]" not in mark]


def has_another_program(path, base):
    """Whether the code of a chapter changed after a commit that had it."""
    before = subprocess.run(["git", "show", f"{base}:{path}"], cwd=ROOT, capture_output=True, text=True)
    return bool(before.returncode) or program(before.stdout) != program(
        (ROOT / path).read_text(encoding="utf-8")
    )


def most_used_module(text):
    """`layers` for a chapter that names `kt.layers` more often than other modules of the package."""
    modules = {path.stem for path in (ROOT / "keras_transformer").iterdir()}
    used = collections.Counter(name for name in re.findall(r"\bkt\.(\w+)", text) if name in modules)
    return used.most_common(1)[0][0] if used else "models"


def main(part, parts):
    """Prints the numbers of the chapters."""
    base = last_base()
    changed = changed_files(base)
    chosen = []
    for index, path in enumerate(sorted((ROOT / "course" / "en").glob("*.py"))):
        module = f"keras_transformer/{most_used_module(path.read_text(encoding='utf-8'))}"
        own = path.relative_to(ROOT).as_posix()
        touched = any(name.startswith((f"{module}/", f"{module}.py")) for name in changed)
        if touched or index % parts == part or (own in changed and has_another_program(own, base)):
            chosen.append(path.name.partition("_")[0])
    print(",".join(chosen))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
