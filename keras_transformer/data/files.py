"""Reads files as lines, and parallel files as pairs of sentences."""

import gzip
import io
import zlib
from pathlib import Path

LONGEST_LINE = 2**20  # bytes; no model reads that much of one sentence
UNREADABLE = (OSError, EOFError, zlib.error)  # a damaged .gz raises the last two


def iterate_lines(file, longest=None):
    r"""Yields the lines of a binary file. No line is read before it is needed.

    Args:
        file: A binary file, or another object with `readline(limit)`.
        longest: Largest number of bytes of a line. The rest of a longer line is skipped. None for no limit.

    Yields:
        The bytes of each line, without its end (`\n` or `\r\n`); the first line without a byte order mark.

    >>> list(iterate_lines(io.BytesIO(b"one\r\ntwo"), longest=5))
    [b'one', b'two']
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
    r"""Splits the bytes of a file into lines.

    Args:
        content: bytes.

    Returns:
        A list of bytes: each line without its end (`\n` or `\r\n`), the first without a byte order mark.

    >>> split_lines(b"one\ntwo\n")
    [b'one', b'two']
    """
    return list(iterate_lines(io.BytesIO(content)))


def stream_lines(path, longest=LONGEST_LINE):
    """Yields the lines of a file of any size.

    Args:
        path: Path of a plain file or of a `.gz`. Its lines may be any bytes.
        longest: Largest number of bytes of a line. The rest of a longer line is skipped. None for no limit.

    Yields:
        The bytes of each line, without its end; the first line without a byte order mark.

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
    """Reads the lines of a UTF-8 file.

    Only a newline ends a line, so line numbers are the same as in an editor or in `wc`.

    Args:
        path: Path of a plain file or of a `.gz`.

    Returns:
        A list of str: each line without its end, the first without a byte order mark.

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
    """Reads pairs from two files: line `n` of one file belongs to line `n` of the other.

    Args:
        source: Path of the source file, plain or `.gz`, UTF-8.
        target: Path of the target file, plain or `.gz`, UTF-8.

    Returns:
        A list of (source, target) str pairs.

    Raises:
        ValueError: If a file is missing, unreadable, not UTF-8 or empty, or the numbers of lines differ.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must have the same number of lines. "
            f"Received: {source} with {len(sources)}, {target} with {len(targets)}."
        )
    return _non_empty(list(zip(sources, targets, strict=True)), f"{source} and {target}")


def read_tsv(path):
    """Reads pairs from a file with lines `source<TAB>target`. Further columns are ignored.

    Args:
        path: Path of the file, plain or `.gz`, UTF-8.

    Returns:
        A list of (source, target) str pairs.

    Raises:
        ValueError: If the file is missing, unreadable, not UTF-8 or empty, or a line has no tab; the message names
            the line.
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
