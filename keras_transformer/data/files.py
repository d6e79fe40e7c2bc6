"""Parallel files to pairs of sentences."""

import gzip
import itertools
import zlib
from pathlib import Path

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def split_lines(content):
    """The lines of a file's bytes, without byte order mark, newlines and carriage returns before them."""
    lines = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def line_batches(stream, size):
    """The lines of a binary stream as `split_lines` has them, in lists of `size`, read as they are asked for.

    Args:
        stream: Open for reading bytes, such as `sys.stdin.buffer`.
        size: Number of lines in each list; the last may have fewer.

    Yields:
        Lists of bytes.
    """
    lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in stream)
    mark = BYTE_ORDER_MARK
    while batch := list(itertools.islice(lines, size)):
        batch[0] = batch[0].removeprefix(mark)
        mark = b""  # only a file's beginning is one
        yield batch


def read_lines(path):
    """The lines of a UTF-8 file, plain or `.gz`, without their ends.

    Only a newline ends a line, so that line numbers agree with every other tool's.

    Raises:
        ValueError: If the file is missing, unreadable or not UTF-8; the message names the line.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
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
