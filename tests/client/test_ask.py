"""`keras-transformer ask`, against a server that is really there."""

import io
import pathlib
import sys

import pytest

pytest.importorskip("tensorflow_serving")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from servers import Backend, Refused, grpc_server, rest_server

from keras_transformer.cli import main
from keras_transformer.client import Client


@pytest.fixture(params=["rest", "grpc"])
def served(request, loaded):
    backend = Backend({"model": {1: loaded}, "ko_en": {2: loaded}}, {"stable": 2})
    with {"rest": rest_server, "grpc": grpc_server}[request.param](backend) as url:
        yield backend, url


@pytest.fixture
def ask(monkeypatch, capsysbinary):
    """Runs the command: exit code, standard output (bytes) and standard error (text)."""

    def ask(stream, *arguments):
        stream = io.BytesIO(stream) if isinstance(stream, bytes) else stream
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream, "utf-8"))
        code = main(["ask", *arguments])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return ask


def refuse():
    raise Refused("UNAVAILABLE", "busy")


def test_a_line_for_a_line_in_order(served, ask, translator, pairs):
    backend, url = served
    lines = [pairs[0][0], "", "   ", pairs[1][0], "a\0b", "🎉", pairs[2][0]]
    stream = "\ufeff".encode() + "\r\n".join(lines).encode() + b"\n\xff\n"
    code, out, err = ask(stream, url, "--batch-size", "3")
    assert (code, err) == (0, "")
    assert out.decode().splitlines() == translator.translate([*lines, b"\xff"])
    assert backend.sizes == [[3], [3], [2]]


def test_the_options_name_model_and_version(served, ask, translator, pairs):
    backend, url = served
    source = pairs[0][0]
    for options in ([], ["--version", "2"], ["--label", "stable"]):
        code, out, _ = ask(
            source.encode(), url, "--model", "ko_en", *options, "--timeout", "90", "--retries", "0"
        )
        assert (code, out.decode()) == (0, f"{translator.translate([source])[0]}\n")
    backend.faults.append(refuse)
    code, out, err = ask(b"a", url, "--retries", "0")
    assert (code, out) == (5, b"") and "not available after 1 attempt: busy" in err


def test_options_go_with_each_line(served, ask, pairs):
    _, url = served
    lines = [source for source, _ in pairs[:3]]
    stream = "\n".join(lines).encode()
    options = [
        "--prefix",
        "I",
        "--max-length",
        "9",
        "--min-length",
        "5",
        "--temperature",
        "1.5",
        "--top-p",
        "0.9",
    ]
    code, out, err = ask(stream, url, *options, "--seed", "7")
    assert (code, err) == (0, "")
    written = out.decode().splitlines()
    assert all(line.startswith("I") for line in written)
    with Client(url) as client:
        shared = {"prefix": "I", "max_length": [9] * 3, "min_length": 5, "temperature": 1.5, "top_p": 0.9}
        assert client.translate(lines, seed=[7, 7, 7], **shared) == written
        assert len({tuple(client.translate(lines, **shared)) for _ in range(5)}) > 1  # seeds of their own
        with pytest.raises(ValueError, match="row 1 of `sentences`: `top_p` must be above 0"):
            client.translate(lines, top_p=[1, 0, 1])
        with pytest.raises(ValueError, match=r"`seed` must be int64: one value, or one for each of 3 rows"):
            client.translate(lines, seed=[1, 2])
        with pytest.raises(ValueError, match=r"The options are prefix, .* Received: top_k"):
            client.translate(lines, top_k=2)
    code, out, err = ask(stream, url, "--temperature", "-1")
    assert (code, out) == (2, b"") and "`temperature` must be a finite number, at least 0" in err


def test_no_line_is_no_request(served, ask):
    backend, url = served
    assert ask(b"", url) == (0, b"", "")
    assert backend.calls == 0


def test_lines_are_answered_as_they_come(served, ask, monkeypatch):
    """What follows a batch is read after the batch is written."""
    seen, written = [], io.BytesIO()

    class Output(io.RawIOBase):
        def writable(self):
            return True

        def write(self, content):
            return written.write(content)

    class Stream(io.RawIOBase):
        lines = iter([b"a\n", b"b\n", b"c\n", b"d\n"])

        def readable(self):
            return True

        def readinto(self, buffer):
            seen.append(written.getvalue().count(b"\n"))
            line = next(self.lines, b"")
            buffer[: len(line)] = line
            return len(line)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Output())))
    code, _, _ = ask(Stream(), served[1], "--batch-size", "2")
    assert code == 0 and seen == [0, 0, 2, 2, 4]


def test_what_was_translated_before_an_error_is_written_and_the_rest_named(served, ask, translator):
    backend, url = served
    lines = list("abcdefg")
    broken = [lambda: None] * (3 if url.startswith("http") else 2)  # REST asks for the outputs' dtypes, too
    backend.faults += [*broken, *[refuse] * 9]
    code, out, err = ask("\n".join(lines).encode(), url, "--batch-size", "2", "--retries", "1")
    assert code == 5 and out.decode().splitlines() == translator.translate(lines[:4])
    assert err.startswith("keras-transformer: error: from line 5 on nothing is answered: ")
    assert err.count("\n") == 1 and "not available after 2 attempts: busy" in err


@pytest.mark.parametrize(
    ("arguments", "expected", "named"),
    [
        (["nowhere"], 2, "url='nowhere'"),
        (["http://127.0.0.1:1", "--batch-size", "0"], 2, "batch_size=0"),
        (["http://127.0.0.1:1", "--timeout", "-1"], 2, "timeout=-1"),
        (
            ["grpc://127.0.0.1:1", "--retries", "0"],
            5,
            "from line 1 on nothing is answered: grpc://127.0.0.1:1 is not",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_message_and_an_exit_code(ask, arguments, expected, named):
    code, out, err = ask(b"a", *arguments)
    assert (code, out) == (expected, b"")
    assert named in err and err.startswith("keras-transformer: error: ") and err.count("\n") == 1
