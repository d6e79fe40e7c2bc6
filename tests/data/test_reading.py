"""Lines and pairs that are read from files."""

import gzip
import io
import os
import re
import warnings

import pytest
from contracts import refuses

from keras_transformer.data import (
    iterate_lines,
    read_lines,
    read_parallel,
    read_tsv,
    split_lines,
    stream_lines,
)


def written(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_newlines_separate_lines(tmp_path, name):
    for content, lines in (
        ("", []),
        ("\n", [""]),
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        ("a\n\nb\n\n", ["a", "", "b", ""]),
        ("\ufeffa\n\ufeffb\n", ["a", "\ufeffb"]),
        ("가\n a \t\na\0b\n", ["가", " a \t", "a\0b"]),
    ):
        assert read_lines(written(tmp_path / name, content.encode())) == lines


def test_only_a_newline_ends_a_line_and_a_path_may_be_a_string(tmp_path):
    lines = [f"a{inside}b" for inside in "\u2028\u2029\x0c\x0b\x85\x1c\r"]
    path = written(tmp_path / "text", "\n".join([*lines, "c"]).encode())
    assert read_lines(path) == read_lines(str(path)) == [*lines, "c"]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refuses("pipe must be a regular file", read_lines, tmp_path / "pipe")


def corrupt(content):
    content = bytearray(content)
    content[20] ^= 0xFF
    content[30] ^= 0xFF
    return content


@pytest.mark.parametrize("read", [read_lines, lambda path: list(stream_lines(path))], ids=["lines", "stream"])
@pytest.mark.parametrize("damage", [lambda content: content[:-12], corrupt, gzip.decompress, None])
def test_unreadable_file_is_refused_and_named(tmp_path, read, damage):
    if damage is not None:
        (tmp_path / "bad.gz").write_bytes(damage(gzip.compress(b"hello world\n" * 1000)))
    refuses(r"bad\.gz", read, tmp_path / "bad.gz")
    refuses(re.escape(str(tmp_path)), read, tmp_path)


def test_invalid_utf8_is_refused_with_its_line(tmp_path):
    refuses(r"bad\.txt, line 3", read_lines, written(tmp_path / "bad.txt", b"a\n\xea\xb0\x80\nb\xff\nc\n"))


def test_parallel_files_give_pairs_in_order(tmp_path):
    source = written(tmp_path / "ko.gz", "가\n그\n\n".encode())
    target = written(tmp_path / "en", b"a\r\nb\r\nc")
    assert list(read_parallel(source, target)) == [("가", "a"), ("그", "b"), ("", "c")]


def test_files_of_unequal_length_are_refused_with_both_numbers(tmp_path):
    source, target = written(tmp_path / "ko", b"a\nb\nc\n"), written(tmp_path / "en", b"a\nb\n")
    refuses(r"ko with 3, .*en with 2", read_parallel, source, target)


def test_empty_files_are_refused(tmp_path):
    empty = written(tmp_path / "none", b"")
    refuses(r"none.*empty", read_parallel, empty, empty)
    refuses(r"none.*empty", read_tsv, empty)


def test_tsv_gives_its_first_two_columns(tmp_path):
    content = "\ufeff가\ta\n나 나\tb b\tmore\teven more\r\n\tc\nd\t\n".encode()
    expected = [("가", "a"), ("나 나", "b b"), ("", "c"), ("d", "")]
    for name in ("pairs.tsv", "pairs.tsv.gz"):
        with pytest.warns(UserWarning, match=rf"{name}: 1 of 4 lines have more than two columns"):
            assert list(read_tsv(written(tmp_path / name, content))) == expected
    with warnings.catch_warnings(action="error"):  # two columns are no warning
        assert list(read_tsv(written(tmp_path / "pairs.tsv", b"a\tb\n\tc\n"))) == [("a", "b"), ("", "c")]


@pytest.mark.parametrize("line", ["no tab", ""])
def test_a_tsv_line_without_a_tab_is_refused_with_its_number(tmp_path, line):
    with pytest.raises(ValueError, match=rf"pairs\.tsv, line 2.*Received: '{line}'"):
        read_tsv(written(tmp_path / "pairs.tsv", f"a\tb\n{line}\nc\td\n".encode()))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_lines_of_any_bytes_are_streamed_as_they_are_split(tmp_path, suffix):
    bom, odd = b"\xef\xbb\xbf", b"a\r\n\r\r\nb\0\xff\n\x0c\xef\xbb\xbf"
    for content in (b"", b"\n", bom, bom + b"\n\n", odd, b"\r"):
        path = tmp_path / f"text{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        expected = [line.rstrip(b"\r") for line in (lines if lines[-1] else lines[:-1])]
        assert list(stream_lines(path)) == split_lines(content) == expected


def test_a_long_line_is_cut_and_the_next_line_is_whole():
    file = io.BytesIO(b"abcdefghij\nklmn\nopqrs\n\ntu")
    assert list(iterate_lines(file, longest=5)) == [b"abcde", b"klmn", b"opqrs", b"", b"tu"]


def test_a_byte_order_mark_in_the_middle_of_a_file_is_text():
    content = b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n"
    assert list(iterate_lines(io.BytesIO(content))) == [b"one", b"\xef\xbb\xbftwo"]
    rest = io.BytesIO(content[7:])
    assert list(iterate_lines(rest, from_start=False)) == [b"\xef\xbb\xbftwo"]
