"""`keras-transformer ask`, against a server that is really there."""

import io
import json
import subprocess
import sys

import pytest
from commands import assert_refused, run

pytest.importorskip("tensorflow_serving")
from servers import SERVERS, Backend, make_certificate, refuse, served_function

from keras_transformer.cli import main
from keras_transformer.client import Client


@pytest.fixture(scope="module")
def models(served_model):
    return {"model": {1: served_model}, "ko_en": {1: served_model, 2: served_model}}


def ask(stream, *arguments):
    return run("ask", *arguments, stdin=stream)


@pytest.mark.sampled
def test_lines_are_answered_in_order(backend, url, translator, pairs):
    lines = [pairs[0][0], "", "   ", pairs[1][0], "a\0b", "🎉", pairs[2][0]]
    stream = "\ufeff".encode() + "\r\n".join(lines).encode() + b"\n\xff\n"
    code, out, err = ask(stream, url, "--batch-size", "3")
    assert code == 0 and "of 3 texts hold text that the model's vocabulary cannot write" in err
    assert out.decode().splitlines() == translator.translate([*lines, b"\xff"])
    assert backend.sizes == [[3], [3], [2]]


def test_options_name_model_and_version(backend, url, translator, pairs):
    source = pairs[0][0]
    for options in ([], ["--version", "2"], ["--label", "stable"]):
        code, out, _ = ask(
            source.encode(), url, "--model", "ko_en", *options, "--timeout", "90", "--retries", "0"
        )
        assert (code, out.decode()) == (0, f"{translator.translate([source])[0]}\n")
    backend.faults.append(refuse("UNAVAILABLE", "busy"))
    code, out, err = ask(b"a", url, "--retries", "0")
    assert (code, out) == (5, b"") and "not available after 1 attempt: busy" in err


def test_options_go_with_each_line(url, pairs):
    lines = [source for source, _ in pairs[:3]]
    stream = "\n".join(lines).encode()
    options = "--prefix I --max-length 9 --min-length 5 --temperature 1.5 --top-p 0.9 --seed 7"
    code, out, err = ask(stream, url, *options.split())
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
        with pytest.raises(ValueError, match=r"The options are prefix, .* Received: typical_p"):
            client.translate(lines, typical_p=2)
        several = client.translate(lines[:2], n=3, temperature=1.5, seed=[7, 20])
        alone = [
            client.translate(lines[i : i + 1], temperature=1.5, seed=seed)[0] for i, seed in ((0, 8), (1, 20))
        ]
        assert len(several) == 6 and [several[1], several[3]] == alone
    letter = written[0][2]
    code, out, _ = ask(
        stream, url, *options.split(), "--stop", letter, "--stop", "\N{PARTY POPPER}", "--n", "2"
    )
    first, second, *others = out.decode().splitlines()
    assert (code, first, len(others)) == (
        0,
        written[0][: written[0].find(letter, 1)],
        4,
    ) and second != written[0]
    refused = "--temperature must be a finite number, at least 0"
    assert_refused("ask", url, "--temperature", "-1", stdin=stream, named=refused)


def test_the_sentences_of_a_line_are_translated_alone(backend, url, translator, pairs):
    pytest.importorskip("sentencex")
    one, other = (source for source, _ in pairs[:2])
    code, out, err = ask(f"{one} {other}\n\n{one}\n".encode(), url, "--split-sentences", "ko")
    first, second = translator.translate([one, other])
    assert (code, err, out.decode()) == (0, "", f"{first} {second}\n\n{first}\n")
    assert backend.sizes == [[3]]
    refused = "Give one of --pairs, --split-sentences, --stream"
    assert_refused("ask", url, "--split-sentences", "ko", "--pairs", stdin=b"a", named=refused)


def test_no_line_is_no_request(backend, url):
    assert ask(b"", url) == (0, b"", "")
    assert backend.calls == 0


def test_lines_are_answered_as_they_come(url, monkeypatch):
    """What follows a batch is read after the batch is written."""
    seen, written = [], io.BytesIO()

    class Stream(io.RawIOBase):
        lines = iter([b"a\n", b"b\n", b"c\n", b"d\n"])

        def readable(self):
            return True

        def readinto(self, buffer):
            seen.append(written.getvalue().count(b"\n"))
            line = next(self.lines, b"")
            buffer[: len(line)] = line
            return len(line)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Stream(), "utf-8"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8"))
    assert main(["ask", url, "--batch-size", "2"]) == 0
    assert seen == [0, 0, 2, 2, 4]


def test_error_keeps_the_answers_before_it_and_names_the_line(backend, url, translator):
    lines = list("abcdefg")
    broken = [lambda: None] * (3 if url.startswith("http") else 2)  # REST asks for the outputs' dtypes, too
    backend.faults += [*broken, *[refuse("UNAVAILABLE", "busy")] * 9]
    code, out, err = ask("\n".join(lines).encode(), url, "--batch-size", "2", "--retries", "1")
    assert code == 5 and out.decode().splitlines() == translator.translate(lines[:4])
    (error,) = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert error.startswith("keras-transformer: error: from line 5 on nothing is answered: ")
    assert "not available after 2 attempts: busy" in error


@pytest.mark.parametrize(
    ("arguments", "expected", "named"),
    [
        (["nowhere"], 2, "url='nowhere'"),
        (["grpc://127.0.0.1:1", "--retries", "0"], 5, "from line 1 on nothing is answered: grpc://127.0"),
    ],
)
def test_wrong_option_or_missing_server_is_one_message(arguments, expected, named):
    code, out, err = ask(b"a", *arguments)
    assert (code, out) == (expected, b"")
    assert named in err and err.startswith("keras-transformer: error: ") and err.count("\n") == 1


@pytest.mark.parametrize("command", [("ask",), ("load-test", "--requests", "1")])
def test_headers_come_from_the_command_line_a_file_and_the_environment(
    backend, url, tmp_path, monkeypatch, command
):
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\r\n\nX-Two:2\n")
    monkeypatch.setenv("KEY", "secret")
    options = ["--header", "X-One: 1", "--header-file", file, "--header-variable", "X-Key:KEY"]
    code, _, err = run(*command, url, *options, stdin=b"a")
    assert code == 0, err
    for headers in backend.headers:
        found = {name.lower(): value for name, value in headers.items()}
        names = "x-one", "authorization", "x-two", "x-key"
        assert [found[name] for name in names] == ["1", "Bearer a:b", "2", "secret"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--header", "secret"], "--header must hold a name, a colon and a value"),
        (["--header", ":secret"], "--header must hold a name, a colon and a value"),
        (["--header", "a b:secret"], "letters, digits, `-`, `_` and `.` only. Received: the header 'a b'"),
        (["--header-file", "nowhere"], "--header-file must be a file that can be read"),
        (["--header-file", "/dev/zero"], "--header-file must have at most 1 MiB"),
        (["--header-variable", "X-Key:NO_SUCH_KEY"], "Received: 'NO_SUCH_KEY'"),
        (["--certificates", "nowhere.pem"], "certificates='nowhere.pem'"),
        (["--client-key", "nowhere.pem"], "client_key='nowhere.pem'"),
    ],
)
def test_unusable_header_or_certificate_is_named_without_its_secret(options, named):
    code, out, err = ask(b"a", "https://127.0.0.1:1", *options)
    assert (code, out) == (2, b"") and named in err and "secret" not in err


def test_ask_uses_tls_on_both_sides(pairs, tmp_path):
    key, certificate = make_certificate(tmp_path)
    (line, _), backend = (
        pairs[0],
        Backend({"model": {1: served_function(lambda text: {"translation": text})}}),
    )
    files = ["--certificates", certificate, "--client-certificate", certificate, "--client-key", key]
    for server in SERVERS.values():
        with server(backend, (key, certificate), certificate) as url:
            assert ask(line.encode(), url, *files) == (0, f"{line}\n".encode(), "")
            code, _, _ = ask(line.encode(), url, *files[:2], "--retries", "0")
            assert code == 5


@pytest.mark.slow
def test_a_log_of_json_holds_no_line_of_grpc():
    """A handshake fails: gRPC itself would write to standard error, past Python."""
    with SERVERS["grpc"](Backend({})) as url:
        command = [sys.executable, "-m", "keras_transformer", "ask", url.replace("grpc:", "grpcs:")]
        options = ["--retries", "0", "--log-format", "json"]
        done = subprocess.run([*command, *options], input=b"a", capture_output=True, check=False)
    (event,) = map(json.loads, done.stderr.splitlines())
    assert done.returncode == 5 and "is not available" in event["message"]
