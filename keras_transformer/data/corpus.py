"""Sentences in files of any size: lines and pairs that are read when they are asked for, and ids in a flat array."""

import gzip
import itertools
import re
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_transformer.checks import check, warn
from keras_transformer.data.files import LINE_ENDS, UNREADABLE, check_kind
from keras_transformer.untrusted import open_regular

# Number of bytes of a file that are looked through at once.
AT_ONCE = 2**24
# Number of bytes of a line, so that a file without line ends does not fill the memory.
LONGEST = 2**24
# Number of bytes of an unpacked .gz, so that a small file does not fill the disk.
LARGEST_UNPACKED = 2**35
MOST_LINES = 2**27
# Number of bytes of ids that stay in memory. More of them go to a temporary file.
IN_MEMORY = 2**26
# Number of sentences that are read or tokenized together.
SENTENCES_AT_ONCE = 4096
# Carriage returns that are no part of a line's end. A search takes time with the length, whatever the bytes.
LONE_RETURNS = re.compile(rb"(?<!\r)\r++(?!\n|\Z)")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Lines(Sequence):
    r"""The lines of a UTF-8 file. Memory holds only where each line begins, 8 bytes a line.

    Only a newline ends a line, so line numbers are the same as in `wc`. A file whose lines end with a carriage return
    alone is refused. The file must stay as it is while it is used. A `.gz` is unpacked into a temporary file, which is
    removed with the object.

    Args:
        path: Path of a plain file or of a `.gz`.

    Raises:
        ValueError: If the file is missing, unreadable, a pipe or not UTF-8, its lines end with a carriage return alone,
            a line has more than 16 MiB (the message names the line), there are more than 134 million lines, or a `.gz`
            unpacks to more than 32 GiB.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     _ = file.write("one\ntwo\n")
    ...     file.flush()
    ...     lines = Lines(file.name)
    ...     len(lines), lines[1], lines[:]
    (2, 'two', ['one', 'two'])
    """

    def __init__(self, path):
        self.path = Path(path)
        try:
            self._file = open_regular(self.path)
            if self.path.suffix.lower() == ".gz":
                packed, self._file = self._file, tempfile.TemporaryFile()  # noqa: SIM115
                with packed, gzip.open(packed, "rb") as unpacked:
                    self._unpack(unpacked)
            weakref.finalize(self, self._file.close)
            self._starts = self._index()
        except UNREADABLE as error:
            raise ValueError(f"Cannot read {path}: {error}") from None

    def _unpack(self, unpacked):
        """Copies what a `.gz` unpacks to into the temporary file."""
        size = 0
        while block := unpacked.read(AT_ONCE):
            size += len(block)
            rule = f"A .gz must unpack to at most {LARGEST_UNPACKED} bytes: unpack a larger one yourself."
            check(size <= LARGEST_UNPACKED, rule, path=str(self.path))
            self._file.write(block)

    def _index(self):
        """Returns where each line begins, and behind the last one where the next would begin: int64 `(lines + 1,)`."""
        self._file.seek(0)
        check_kind(self._file.read(16), f"{self.path}, line 1")
        self._file.seek(0)
        position = len(BYTE_ORDER_MARK) if self._file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else 0
        starts, count, rest, returns = [np.array([position])], 0, b"", 0
        self._file.seek(position)
        while block := self._file.read(AT_ONCE):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
            whole = rest + block[: ends[-1]] if len(ends) else b""
            self._check_lengths(len(rest), ends, len(block), count)
            self._check_utf8(whole, count)
            returns += self._lone_returns(whole)
            rest = block[ends[-1] :] if len(ends) else rest + block
            starts.append(position + ends)
            position, count = position + len(block), count + len(ends)
            rule = f"{self.path} must have at most {MOST_LINES:,} lines, 8 bytes of memory each: split it."
            check(count <= MOST_LINES, rule, lines=count)
        self._check_utf8(rest, count)
        self._check_returns(returns + self._lone_returns(rest), count)
        # The last line has no newline.
        if rest:
            starts.append(np.array([position + 1]))
        return np.concatenate(starts)

    def _check_lengths(self, rest, ends, size, lines_before):
        """Raises `ValueError` for a line that is too long.

        Args:
            rest: Number of bytes of the line in which a block begins, before the block.
            ends: Where lines end in the block, int `(lines,)`.
            size: Number of bytes of the block.
            lines_before: Number of lines that ended before the block.
        """
        lengths = np.diff(np.concatenate([[-rest], ends, [size]]))
        too_long = np.flatnonzero(lengths > LONGEST)
        if len(too_long):
            raise ValueError(
                f"{self.path}, line {lines_before + too_long[0] + 1}: a line must have at most {LONGEST} bytes."
            )

    def _check_utf8(self, content, lines_before):
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            number = lines_before + content.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{self.path}, line {number}: not UTF-8 ({error.reason}).") from None

    @staticmethod
    def _lone_returns(content):
        # The ends of most files are found at once.
        content = content.replace(b"\r\n", b"\n")
        return sum(map(len, LONE_RETURNS.findall(content))) if b"\r" in content else 0

    def _check_returns(self, returns, newlines):
        """Raises `ValueError` if carriage returns end the lines of the file. Warns if some stand inside lines."""
        found = rf"{self.path}: {LINE_ENDS} The character \r stands inside lines {returns:,} times."
        if returns > newlines:
            raise ValueError(rf"{found} Convert the file first: tr '\r' '\n' < old > new")
        if returns:
            warn(f"{found} They stay in the texts.")

    def __len__(self):
        return len(self._starts) - 1

    def __getitem__(self, index):
        if not isinstance(index, slice):
            number = range(len(self))[index]  # raises IndexError
            return self._between(number, number + 1)[0]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return [self[i] for i in range(start, stop, step)]
        return self._between(start, stop) if start < stop else []

    def _between(self, start, stop):
        begin, end = int(self._starts[start]), int(self._starts[stop])
        self._file.seek(begin)
        content = self._file.read(end - begin)
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
        if len(lines) != stop - start:
            raise ValueError(f"{self.path} was changed while it was used.")
        return [line.rstrip("\r") for line in lines]

    def __iter__(self):
        return itertools.chain.from_iterable(slices(self))


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
    return Lines(path)[:]


def slices(sequence):
    """Yields the slices of a sequence, `SENTENCES_AT_ONCE` items in each."""
    for start in range(0, len(sequence), SENTENCES_AT_ONCE):
        yield sequence[start : start + SENTENCES_AT_ONCE]


class Pairs(Sequence):
    """Pairs (source, target) of str from two sequences of lines of one length."""

    def __init__(self, sources, targets):
        self._sides = sources, targets

    def __len__(self):
        return len(self._sides[0])

    def __getitem__(self, index):
        source, target = (side[index] for side in self._sides)
        return list(zip(source, target, strict=True)) if isinstance(index, slice) else (source, target)

    def __iter__(self):
        return itertools.chain.from_iterable(slices(self))


class Columns(Sequence):
    """Pairs (source, target) of str from lines `source<TAB>target`. Warns of lines with further columns."""

    def __init__(self, lines):
        self._lines, longer = lines, 0
        for number, line in enumerate(lines, start=1):
            longer += line.count("\t") > 1
            if "\t" not in line:
                raise ValueError(
                    f"{lines.path}, line {number}: expected source<TAB>target. Received: {line!r:.200}."
                )
        if longer:
            warn(
                f"{lines.path}: {longer:,} of {len(lines):,} lines have more than two columns. What stands after the "
                "second tab of a line is not read."
            )

    def __len__(self):
        return len(self._lines)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [tuple(line.split("\t", 2)[:2]) for line in self._lines[index]]
        return tuple(self._lines[index].split("\t", 2)[:2])

    def __iter__(self):
        return itertools.chain.from_iterable(slices(self))


def read_parallel(source, target):
    """Reads pairs from two files: line `n` of one file belongs to line `n` of the other.

    The files may be larger than the memory: a sentence is read when it is asked for.

    Args:
        source: Path of the source file, plain or `.gz`, UTF-8.
        target: Path of the target file, plain or `.gz`, UTF-8.

    Returns:
        A sequence of (source, target) str pairs.

    Raises:
        ValueError: If a file is missing, unreadable, not UTF-8 or empty, or the numbers of lines differ.
    """
    sources, targets = Lines(source), Lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must have the same number of lines. "
            f"Received: {source} with {len(sources)}, {target} with {len(targets)}."
        )
    return _non_empty(Pairs(sources, targets), f"{source} and {target}")


def read_tsv(path):
    """Reads pairs from a file with lines `source<TAB>target`. Further columns are not read, with a warning.

    The file may be larger than the memory: a sentence is read when it is asked for.

    Args:
        path: Path of the file, plain or `.gz`, UTF-8.

    Returns:
        A sequence of (source, target) str pairs.

    Raises:
        ValueError: If the file is missing, unreadable, not UTF-8 or empty, or a line has no tab; the message names
            the line.
    """
    return _non_empty(Columns(Lines(path)), path)


def _non_empty(pairs, where):
    if not pairs:
        raise ValueError(f"{where}: no sentence pair to read, the file is empty.")
    return pairs


class IdStore:
    """Writes rows of ids one after another; `rows` then gives them as a `FlatIds`.

    Up to `IN_MEMORY` bytes stay in memory. More go to a temporary file, which is mapped.

    Args:
        vocab_size: Number of different ids. Up to 65,536 an id takes two bytes, else four.
    """

    def __init__(self, vocab_size):
        self._dtype = np.dtype("uint16" if vocab_size <= 2**16 else "int32")
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lengths = []

    def add(self, flat, lengths):
        """Adds rows.

        Args:
            flat: int `(ids,)`, the ids of all rows.
            lengths: int `(rows,)`.
        """
        self._file.write(np.asarray(flat).astype(self._dtype).tobytes())
        self._lengths.append(np.asarray(lengths, "int32"))

    def rows(self):
        """Returns a `FlatIds` of all rows."""
        lengths = np.concatenate([np.zeros(0, "int32"), *self._lengths])
        size = int(lengths.sum(dtype="int64")) * self._dtype.itemsize
        # A mapped file stays readable after it is closed.
        with self._file as file:
            file.seek(0)
            if size <= IN_MEMORY:
                return FlatIds(np.frombuffer(file.read(), self._dtype), lengths)
            return FlatIds(np.memmap(file, self._dtype, "r"), lengths)


class FlatIds(Sequence):
    """Rows of ids in one flat array.

    Args:
        flat: int `(ids,)`.
        lengths: int `(rows,)`, the number of ids of each row.
    """

    def __init__(self, flat, lengths):
        self.lengths = lengths
        self._flat = flat
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype="int64")])

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        start = self._starts[index]
        return np.asarray(self._flat[start : start + self.lengths[index]], "int32")

    def first_ids(self, numbers, width):
        """Returns the first ids of rows, int32 `(rows, width)`; a shorter row goes on with ids of the next ones.

        Args:
            numbers: int `(rows,)`, which rows.
            width: Number of ids of each.
        """
        positions = self._starts[numbers][:, None] + np.arange(width)
        return self._flat[np.minimum(positions, len(self._flat) - 1)].astype("int32")
