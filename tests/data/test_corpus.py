"""Sentences in files: they are those of a list, whatever the size of the blocks that are read."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from contracts import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import (
    Batches,
    corpus,
    read_parallel,
    read_table,
    read_tsv,
    split_lines,
    stream_lines,
)
from keras_transformer.data.corpus import IdStore, Lines
from keras_transformer.text import ByteTokenizer

LINES = ["one", "", "가나다 라", "x" * 300, "\t", "zwei\r\r", "\u2028 is no end", "last"]


def decoded(path):
    """Reads the whole file, and decodes line by line."""
    lines = []
    for number, line in enumerate(split_lines(path.read_bytes()), start=1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason}).") from None
    return lines


@pytest.mark.parametrize("block", [3, 64, 2**20])
@pytest.mark.parametrize(("begin", "end"), [("", "\n"), ("\ufeff", "")])
def test_lines_are_those_of_the_whole_file(block, end, begin, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "AT_ONCE", block)
    plain, packed = tmp_path / "text", tmp_path / "text.gz"
    content = (begin + "\n".join(LINES) + end).encode()
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    expected = decoded(plain)
    assert expected[5] == "zwei"
    for path in (plain, packed):
        lines = Lines(path)
        assert list(lines) == lines[:] == [lines[i] for i in range(len(lines))] == expected
        for part in (-1, slice(2, 4), slice(None, None, 3), slice(5, 5)):
            assert lines[part] == expected[part]
        with pytest.raises(IndexError):
            lines[len(expected)]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    content=st.binary(max_size=40).map(lambda x: x.replace(b"\xff", b"\n").replace(b"\r", b"\r\n")),
    block=st.integers(1, 9),
)
def test_any_bytes_are_read_as_the_whole_file_is(content, block, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "text"
    path.write_bytes(content)

    def result(read):
        try:
            return list(read(path))
        except ValueError as error:
            # Python gives another reason for a line that ends too early than for a file.
            return str(error).partition(" (")[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "AT_ONCE", block)
        assert result(Lines) == result(decoded)


def test_carriage_returns_in_a_row_are_counted_in_one_pass(tmp_path):
    """A search that begins again at each of them would take a day."""
    path = tmp_path / "text"
    path.write_bytes(b"\r" * 2_000_000 + b"x")
    refuses(r"2,000,000 times", Lines, path)


@pytest.mark.parametrize("block", [3, 64])
def test_lines_that_end_with_a_carriage_return_alone_are_refused(block, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "AT_ONCE", block)
    path = tmp_path / "text"
    path.write_bytes(b"one\rtwo\rthree")
    refuses(r"2 times", Lines, path)
    path.write_bytes(b"one\r\r\ntwo\rzwei\nthree\r")
    with pytest.warns(UserWarning, match=r"1 times"):
        assert [*Lines(path)] == ["one", "two\rzwei", "three"]
    with pytest.warns(UserWarning, match="inside"):
        assert split_lines(path.read_bytes()) == [b"one", b"two\rzwei", b"three"]


def test_a_file_that_was_cut_while_it_was_used_is_an_error(tmp_path):
    path = tmp_path / "text"
    path.write_text("one\ntwo\nthree\n")
    lines = Lines(path)
    path.write_text("one\n")
    with pytest.raises(ValueError, match="was changed while it was used"):
        lines[1:3]


@pytest.mark.parametrize("limit", [0, 2**26])
@pytest.mark.parametrize("vocab_size", [50, 70_000])
def test_ids_come_back_from_memory_and_from_a_file(limit, vocab_size, monkeypatch):
    monkeypatch.setattr(corpus, "IN_MEMORY", limit)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, vocab_size, n) for n in (3, 0, 5, 1)]
    store = IdStore(vocab_size)
    store.add(np.concatenate(rows[:2]), [3, 0])
    store.add(np.concatenate(rows[2:]), [5, 1])
    found = store.rows()
    assert [row.tolist() for row in found] == [row.tolist() for row in rows]
    assert found[2].dtype == "int32"


def test_batches_of_files_are_those_of_a_list(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    words = ["a", "bb", "ccc", "다", "e f"]
    pairs = [tuple(" ".join(rng.choice(words, rng.integers(1, 5))) for _ in range(2)) for _ in range(60)]
    for number, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[number]}\n" for pair in pairs))
    (tmp_path / "pairs.tsv").write_text("".join("\t".join(pair) + "\tmore\n" for pair in pairs))
    monkeypatch.setattr(corpus, "IN_MEMORY", 0)
    monkeypatch.setattr(corpus, "SENTENCES_AT_ONCE", 7)

    def batches(pairs):
        return Batches(pairs, ByteTokenizer(), batch_tokens=64, max_length=32)

    expected = batches(pairs)
    for read in (read_parallel(tmp_path / "source", tmp_path / "target"), read_tsv(tmp_path / "pairs.tsv")):
        found = batches(read)
        assert (found.shapes, found.tokens) == (expected.shapes, expected.tokens)
        assert found.texts(1, 2) == expected.texts(1, 2)
        for (inputs, targets), (other, wanted) in zip(found.arrays(1), expected.arrays(1), strict=True):
            for one, two in ((targets, wanted), *((inputs[key], other[key]) for key in inputs)):
                np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("block", [3, 64, 2**20])
@pytest.mark.parametrize("end", ["", "\n", "\nmore\n"])
def test_a_line_without_end_does_not_fill_the_memory(block, end, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "AT_ONCE", block)
    monkeypatch.setattr(corpus, "LONGEST", 300)
    path = tmp_path / "text"
    path.write_text("\n".join(["one", "", "x" * 299]) + end)
    assert len(Lines(path)) == 3 + end.count("more")
    path.write_text("\n".join(["one", "", "x" * 301]) + end)
    refuses(r"text, line 3: a line must have at most 300 bytes\.", Lines, path)


@pytest.mark.parametrize(
    "read", [Lines, lambda path: [*stream_lines(path)], lambda path: read_table(path, "a")]
)
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        # Without the hour the test has the same name in every process.
        (gzip.compress(b"a", mtime=0), "gzip"),
        (bz2.compress(b"a"), "bzip2"),
        (lzma.compress(b"a"), "xz"),
        (b"\x28\xb5\x2f\xfd\x00", "Zstandard"),
        ("a".encode("utf-16"), "UTF-16"),
        ("A line".encode("utf-16-le"), "UTF-16"),
        ("A line".encode("utf-16-be"), "UTF-16"),
        ("a".encode("utf-32"), "UTF-32"),
    ],
)
def test_the_kind_of_a_file_that_is_no_text_is_named(content, kind, read, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    refuses(f"file.*{kind}", read, path)


def test_a_gz_may_have_a_name_in_capitals(tmp_path):
    path = tmp_path / "text.GZ"
    path.write_bytes(gzip.compress(b"a"))
    assert [*Lines(path)] == ["a"]


def test_a_gz_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "AT_ONCE", 16)
    monkeypatch.setattr(corpus, "LARGEST_UNPACKED", 1000)
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"two\n" * 250))
    assert len(Lines(path)) == 250
    path.write_bytes(gzip.compress(b"two\n" * 10**6))
    message = r"\.gz must unpack to at most 1000 bytes: .* Received: path=.*text\.gz"
    refuses(message, Lines, path)


def test_a_file_of_too_many_lines_is_refused_before_the_memory_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MOST_LINES", 5)
    monkeypatch.setattr(corpus, "AT_ONCE", 4)
    path = tmp_path / "lines.gz"
    for lines in (5, 6):
        path.write_bytes(gzip.compress(b"\n" * lines))
        if lines == 5:
            assert len(Lines(path)) == 5
    refuses(r"lines\.gz must have at most 5 lines", Lines, path)
