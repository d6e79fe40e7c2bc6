"""A file of lines under way: what a kill leaves of it, and how it goes on from there."""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from keras_transformer.checks import check_count
from keras_transformer.files import LOCK, locked, naming, remove_temporaries, replaced, settle

SUFFIX = ".partial"
JOURNAL = "journal.json"
LINES = "lines"
FORMAT = 1
CHUNK = 2**20


class Progress(NamedTuple):
    """How far an output is: its lines, their bytes, how many had too long a source, how many could not be made."""

    lines: int = 0
    size: int = 0
    cut: int = 0
    failed: int = 0


class Unfinished:
    """An output that grows beside its final name, in a folder `NAME.partial`, until it is whole.

    The folder holds the lines and a journal: how many, in how many bytes, and of what job. Only what the journal
    tells of is there; what a kill left after it is cut off when the job goes on. While it is open, no other process
    can open it.

    Args:
        output: Path of the output.

    Raises:
        ValueError: If the output exists already.
    """

    def __init__(self, output):
        self.output = Path(output)
        self.folder = self.output.with_name(self.output.name + SUFFIX)
        self.progress = Progress()
        self._check_output()

    @contextlib.contextmanager
    def opened(self, job, restart=False):
        """Goes on where an earlier process was with the same job, or begins.

        Args:
            job: A dict of JSON: what the lines depend on. It must be what the journal says.
            restart: Whether to throw away what is there.

        Yields:
            Whether there is anything to do: False where a kill came just after the end.

        Raises:
            ValueError: If the output exists already, another process has it open, the folder holds another job or
                what is none, or the journal or the lines are damaged.
        """
        with locked(self.folder):
            self._check_output()
            remove_temporaries(self.folder)
            self._job = job
            self.progress = self._resumed(restart)
            if self._is_finished():
                yield False
            else:
                with open(self.folder / LINES, "ab", buffering=0) as self._file:
                    self._file.truncate(self.progress.size)
                    self._write_journal()
                    yield True
        if self._is_finished():
            shutil.rmtree(self.folder, ignore_errors=True)

    def append(self, lines, cut=0, failed=0):
        """Adds lines; when this returns, they are on the disk and in the journal.

        Args:
            lines: List of str without line ends.
            cut: How many of them had too long a source.
            failed: How many of them could not be made.

        Raises:
            OSError: If there is no room; what was there before is not touched.
        """
        content = "".join(f"{line}\n" for line in lines).encode()
        left = memoryview(content)
        with naming(self.folder / LINES):
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        before = self.progress
        self.progress = Progress(
            before.lines + len(lines), before.size + len(content), before.cut + cut, before.failed + failed
        )
        self._write_journal()

    def finish(self):
        """Gives the lines their final name.

        Raises:
            ValueError: If a file of that name has come meanwhile.
        """
        self._check_output()
        settle(self.folder / LINES, self.output)

    def _is_finished(self):
        """Whether the output has its name, and only this folder is left to be removed."""
        journal, lines = self.folder / JOURNAL, self.folder / LINES
        return self.output.exists() and journal.exists() and not lines.exists()

    def _check_output(self, finished_is_mine=True):
        if self.output.exists() and not (finished_is_mine and self._is_finished()):
            raise ValueError(
                f"`output` must not exist yet; nothing is overwritten. Received: output={str(self.output)!r}."
            )

    def _write_journal(self):
        with replaced(self.folder / JOURNAL) as temporary:
            journal = {"format": FORMAT, "progress": self.progress._asdict(), "job": self._job}
            temporary.write_text(json.dumps(journal, indent=2) + "\n", encoding="utf-8")

    def _resumed(self, restart):
        """How far the folder is with this job."""
        path, lines = self.folder / JOURNAL, self.folder / LINES
        others = {entry.name for entry in self.folder.iterdir()} - {LOCK, JOURNAL, LINES}
        if others:
            raise ValueError(f"{self.folder} must hold an unfinished output alone. Found: {sorted(others)}.")
        if not path.exists() or (restart and not self._is_finished()):
            return Progress()
        try:
            journal = json.loads(path.read_text(encoding="utf-8"))
            if journal["format"] != FORMAT:
                raise ValueError(f"format {journal['format']}, not {FORMAT}")
            progress, before = Progress(**journal["progress"]), dict(journal["job"])
            check_count(**progress._asdict())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a journal: {error!r}. `restart` begins anew.") from None
        names = [*self._job, *(name for name in before if name not in self._job)]
        changed = [
            f"{name}: {before.get(name)}, now {self._job.get(name)}"
            for name in names
            if before.get(name) != self._job.get(name)
        ]
        if changed:
            self._check_output(finished_is_mine=False)
            raise ValueError(
                f"{self.folder} holds the beginning of another job; use another output, or `restart` to begin anew. "
                f"Changed: {'; '.join(changed)}."
            )
        if not self._is_finished() and _newlines(lines, progress.size) != progress.lines:
            raise ValueError(
                f"{lines} is not what {path.name} says, {progress.lines} lines in {progress.size} bytes. "
                "`restart` begins anew."
            )
        return progress


def _newlines(path, size):
    """How many newlines the first `size` bytes of a file hold; None if it has fewer bytes or does not end in one."""
    found, last = 0, b"\n"
    try:
        with open(path, "rb") as file:
            while size:
                chunk = file.read(min(size, CHUNK))
                if not chunk:
                    return None
                size, last = size - len(chunk), chunk[-1:]
                found += chunk.count(b"\n")
    except FileNotFoundError:
        return None
    return found if last == b"\n" else None
