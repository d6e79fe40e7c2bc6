"""Files to lines, and parallel files to pairs of sentences."""

import gzip
import io
import zlib
from pathlib import Path

LONGEST_LINE = 2**20  # bytes; far more than any model reads of one sentence
UNREADABLE = (OSError, EOFError, zlib.error)  # the last two: of a damaged .gz


def iterate_lines(file, longest=None):
    """Yields the lines of a binary file, without byte order mark, newlines and carriage returns before them.

    Args:
        file: What has `readline`. Nothing is read ahead of the line that is asked for.
        longest: Of a line with more bytes only the first so many; all of it when None.
    """
    limit = -1 if longest is None else longest
    line = file.readline(limit).removeprefix(b"\xef\xbb\xbf")
    while line:
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(limit)
        yield line.removesuffix(b"\n").removesuffix(b"\r")
        line = file.readline(limit)


def split_lines(content):
    """The lines of a file's bytes, without byte order mark, newlines and carriage returns before them."""
    return list(iterate_lines(io.BytesIO(content)))


def stream_lines(path, longest=LONGEST_LINE):
    """Yields the lines of a file of any size, plain or `.gz`, as bytes of any kind.

    Args:
        path: The file.
        longest: Of a line with more bytes only the first so many.

    Raises:
        ValueError: If the file is missing or unreadable.
    """
    path = Path(path)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            yield from iterate_lines(file, longest)
    except UNREADABLE as error:
        raise ValueError(f"Cannot read {path}: {error}") from None


def read_lines(path):
    """The lines of a UTF-8 file, plain or `.gz`, without their ends.

    Only a newline ends a line, so that line numbers agree with every other tool's.

    Raises:
        ValueError: If the file is missing, unreadable or not UTF-8; the message names the line.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except UNREADABLE as error:
        raise ValueError(f"Cannot read {path}: {error}") from None
    decoded = []
    for number, line in enumerate(split_lines(content), start=1):
        try:
            decoded.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason}).") from None
    return decoded


def read_parallel(source, target):
    """Pairs from two files whose lines correspond.

    Args:
        source: Path of the source file, plain or `.gz`.
        target: Path of the target file.

    Returns:
        A list of (source, target) str pairs.

    Raises:
        ValueError: If a file is unreadable or empty, or their numbers of lines differ.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must have the same number of lines. "
            f"Received: {source} with {len(sources)}, {target} with {len(targets)}."
        )
    return _non_empty(list(zip(sources, targets, strict=True)), f"{source} and {target}")


def read_tsv(path):
    """Pairs from a file of `source<TAB>target` lines; further columns are ignored.

    Raises:
        ValueError: If the file is unreadable or empty, or a line has no tab; the message names the line.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise ValueError(f"{path}, line {number}: expected source<TAB>target. Received: {line!r}.")
        pairs.append((columns[0], columns[1]))
    return _non_empty(pairs, path)


def _non_empty(pairs, where):
    if not pairs:
        raise ValueError(f"{where}: no sentence pair to read, the file is empty.")
    return pairs
