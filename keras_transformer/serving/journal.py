"""A file of lines that is being written: it survives a kill, and the same job continues it."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from keras_transformer.checks import check_count, printable
from keras_transformer.files import (
    LOCK,
    locked,
    naming,
    open_own,
    remove_temporaries,
    settle,
    temporary_path,
    write_json,
)
from keras_transformer.untrusted import open_regular, read_json

SUFFIX = ".partial"
JOURNAL = "journal.json"
LINES = "lines"
FORMAT = 1
CHUNK_BYTES = 2**20


class Progress(NamedTuple):
    """The lines that are done.

    Args:
        lines: Number of lines that are written.
        size: Their number of bytes.
        cut: Number of lines whose source was too long and was cut.
        failed: Number of lines that could not be made and are empty.
    """

    lines: int = 0
    size: int = 0
    cut: int = 0
    failed: int = 0

    def with_lines(self, lines, size, cut, failed):
        """Returns the progress after further lines."""
        return Progress(self.lines + lines, self.size + size, self.cut + cut, self.failed + failed)


class Unfinished:
    """An output that is written in a folder `NAME.partial` next to it, and gets its name when it is complete.

    The folder holds the lines and a journal. The journal holds the number of lines, their bytes, and the job that
    writes them. Lines that are not in the journal come from a kill, and are removed when the job continues. While one
    process has the output open, no other process can open it.

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
        """Opens the output, and continues after the lines that the same job wrote before.

        Args:
            job: A dict of JSON with everything that the lines depend on. The journal must hold the same job.
            restart: Whether to discard the lines of an earlier job.

        Yields:
            True if there is work to do. False if the output is complete, because a kill came just after the end.

        Raises:
            ValueError: If the output exists already, another process has it open, the folder holds another job or
                other files, the folder is a link or another user's, or the journal or the lines are damaged.
        """
        with locked(self.folder, private=True):
            self._check_output()
            remove_temporaries(self.folder)
            self._job = job
            self.progress = self._saved_progress(restart)
            if self._is_finished():
                yield False
            else:
                with open_own(self.folder / LINES) as self._file:
                    self._file.truncate(self.progress.size)
                    self._write_journal()
                    yield True
        if self._is_finished():
            self._remove_folder()

    def _remove_folder(self):
        """Removes the folder of a finished output. A kill leaves the whole folder, or one of another name."""
        with contextlib.suppress(OSError):  # another process removes it
            temporary = temporary_path(self.folder)
            os.rename(self.folder, temporary)
            shutil.rmtree(temporary, ignore_errors=True)
            remove_temporaries(self.folder.parent, self.folder.name)

    def append(self, lines, cut=0, failed=0):
        """Adds lines. When it returns, they are on the disk and in the journal.

        Args:
            lines: List of str without line ends.
            cut: Number of them whose source was cut.
            failed: Number of them that could not be made.

        Raises:
            OSError: If the disk is full. The lines before these are kept.
        """
        content = "".join(f"{line}\n" for line in lines).encode()
        rest = memoryview(content)
        with naming(self.folder / LINES):
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        self.progress = self.progress.with_lines(len(lines), len(content), cut, failed)
        self._write_journal()

    def finish(self):
        """Gives the lines their final name.

        Raises:
            ValueError: If another process wrote a file of that name in the meantime.
        """
        self._check_output()
        settle(self.folder / LINES, self.output)

    def _is_finished(self):
        """Whether the output has its final name, so that only the folder is still to be removed."""
        journal, lines = self.folder / JOURNAL, self.folder / LINES
        return self.output.exists() and journal.exists() and not lines.exists()

    def _check_output(self, may_be_finished=True):
        """Raises `ValueError` if the output exists, unless this object's lines are in it and it may be finished."""
        if self.output.exists() and not (may_be_finished and self._is_finished()):
            raise ValueError(
                f"`output` must not exist yet; nothing is overwritten. Received: output={str(self.output)!r}."
            )

    def _write_journal(self):
        journal = {"format": FORMAT, "progress": self.progress._asdict(), "job": self._job}
        write_json(self.folder / JOURNAL, journal)

    def _saved_progress(self, restart):
        """Reads the progress from the journal; raises `ValueError` if this job cannot continue there."""
        path, lines = self.folder / JOURNAL, self.folder / LINES
        others = {entry.name for entry in self.folder.iterdir()} - {LOCK, JOURNAL, LINES}
        if others:
            raise ValueError(
                f"{self.folder} must hold only an unfinished output. Found: {sorted(others)!r:.500}."
            )
        if not path.exists() or (restart and not self._is_finished()):
            return Progress()
        try:
            journal = read_json(path)
            if journal["format"] != FORMAT:
                raise ValueError(f"format {journal['format']}, not {FORMAT}")
            progress, before = Progress(**journal["progress"]), dict(journal["job"])
            check_count(**progress._asdict())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a journal: {error!r:.500}. Use `restart` to begin again."
            ) from None
        names = [*self._job, *(name for name in before if name not in self._job)]
        changed = [
            f"{name}: {_shown(before.get(name))}, now {_shown(self._job.get(name))}"
            for name in names
            if before.get(name) != self._job.get(name)
        ]
        if changed:
            self._check_output(may_be_finished=False)
            raise ValueError(
                f"{self.folder} holds the lines of another job. Use another output, or `restart` to begin again. "
                f"Changed: {printable('; '.join(changed), 1000)}."
            )
        if not self._is_finished() and _count_lines(lines, progress.size) != progress.lines:
            raise ValueError(
                f"{lines} must hold what {path.name} says: {progress.lines} lines in {progress.size} bytes. "
                "Use `restart` to begin again."
            )
        return progress


def _count_lines(path, size):
    """Counts the lines in the first `size` bytes of a file; None if it has fewer, or they do not end with a line."""
    count, last = 0, b"\n"
    try:
        with open_regular(path) as file:
            while size:
                chunk = file.read(min(size, CHUNK_BYTES))
                if not chunk:
                    return None
                size, last = size - len(chunk), chunk[-1:]
                count += chunk.count(b"\n")
    except FileNotFoundError:
        return None
    return count if last == b"\n" else None


def _shown(value):
    """Returns a value of a job as a reader knows it: a strategy or a constraint as its constructor call."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict) and value.keys() == {"class_name", "config"}:
        options = (f"{name}={_shown(each)}" for name, each in value["config"].items())
        return f"{value['class_name']}({', '.join(options)})"
    return str(value)
