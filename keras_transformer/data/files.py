"""Reads files as lines."""

import gzip
import io
import re
import zlib
from pathlib import Path

from keras_transformer.checks import warn

# Number of bytes. No model reads that much of one sentence.
LONGEST_LINE = 2**20
LINE_ENDS = r"Only \n and \r\n end a line."
# A damaged .gz raises the last two.
UNREADABLE = (OSError, EOFError, zlib.error)
# The first bytes of files that hold no UTF-8, and what they are.
SIGNATURES = {
    rb"\x1f\x8b": "a gzip file, whose name must end with .gz",
    rb"BZh[1-9]1AY&SY": "a bzip2 file: unpack it",
    rb"\xfd7zXZ": "an xz file: unpack it",
    rb"\x28\xb5\x2f\xfd": "a Zstandard file: unpack it",
    rb"PK\x03\x04": "a zip file: unpack it",
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32: convert it to UTF-8",
    # Latin letters in UTF-16 have every second byte 0.
    rb"\xff\xfe|\xfe\xff|(?:[^\0]\0){4}|(?:\0[^\0]){4}": "UTF-16: convert it to UTF-8",
}


def check_kind(begin, where):
    """Raises `ValueError` for the first bytes of a file that is packed, or of another encoding than UTF-8.

    Args:
        begin: bytes, sixteen at least where the file has as many.
        where: Name of the file, for the message.
    """
    for pattern, kind in SIGNATURES.items():
        if re.match(pattern, begin, re.DOTALL):
            raise ValueError(f"{where}: not UTF-8 ({kind}).")


def iterate_lines(file, longest=None, from_start=True):
    r"""Yields the lines of a binary file. No line is read before it is needed.

    Warns of a line with a carriage return inside.

    Args:
        file: A binary file, or another object with `readline(limit)`.
        longest: Largest number of bytes of a line. The rest of a longer line is skipped. None for no limit.
        from_start: Whether the lines are the first of a file. Only those may begin with a byte order mark.

    Yields:
        The bytes of each line, without its end (`\n` or `\r\n`); the first line without a byte order mark.

    Raises:
        ValueError: If the first bytes are those of a packed file, or of another encoding than UTF-8.

    >>> list(iterate_lines(io.BytesIO(b"one\r\ntwo"), longest=5))
    [b'one', b'two']
    """
    limit = -1 if longest is None else longest
    line = file.readline(limit)
    if from_start:
        check_kind(line, "line 1")
        line = line.removeprefix(b"\xef\xbb\xbf")
    while line:
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(limit)
        line = line.removesuffix(b"\n").rstrip(b"\r")
        if b"\r" in line:
            warn(rf"{LINE_ENDS} A line has the character \r inside: {line!r:.100}.")
        yield line
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
        ValueError: If the file is missing or unreadable, packed in another way, or of another encoding than UTF-8.
    """
    path = Path(path)
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            yield from iterate_lines(file, longest)
    except (*UNREADABLE, ValueError) as error:
        raise ValueError(f"Cannot read {path}: {error}") from None
