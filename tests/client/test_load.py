"""`load_test` and `keras-transformer load-test`, against servers that are really there."""

import io
import pathlib
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_serving")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from servers import Backend, Refused, grpc_server, rest_server

from keras_transformer.cli import main
from keras_transformer.client import Client, load_test


@pytest.fixture(scope="module")
def model():
    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="text")])
    def lengths(text):
        return {"lengths": tf.strings.length(text)}

    return types.SimpleNamespace(signatures={"serving_default": lengths.get_concrete_function()})


@pytest.fixture(params=["rest", "grpc"])
def served(request, model):
    backend = Backend({"model": {1: model}})
    with {"rest": rest_server, "grpc": grpc_server}[request.param](backend) as url:
        yield backend, url


def answered(url):
    """The questions of a first request, which are answered: over REST it also reads the signature."""
    return [lambda: None] * (2 if url.startswith("http") else 1)


def refuse(code):
    def fault():
        raise Refused(code, "no\x1b[31m")

    return fault


def test_counts_the_requests_and_their_errors_by_kind(served):
    backend, url = served
    backend.faults.extend([*answered(url), *[refuse("UNAVAILABLE")] * 3, refuse("INVALID_ARGUMENT")])
    shown = []
    with Client(url, retries=0) as client:
        report = load_test(
            client,
            ["a", "bb", "ccc"],
            callers=4,
            rows=2,
            seconds=None,
            requests=20,
            on_request=lambda: shown.append(1),
        )
    assert report.errors == {"ConnectionError": 3, "ValueError": 1}
    assert "no\\x1b" in report.messages["ValueError"]
    assert (len(report.latencies), report.rows, len(shown)) == (16, 32, 20)
    assert backend.sizes == [[2]] * 17  # with the first request, which is not counted
    assert 0 < report.latency(0) <= report.latency(50) <= report.latency(99) <= report.seconds
    assert report.requests_per_second == 16 / report.seconds


def test_callers_send_at_the_same_time_until_the_time_is_over(served):
    backend, url = served
    backend.faults.extend([lambda: time.sleep(0.1)] * 1000)
    with Client(url) as client:
        report = load_test(client, ["a"], callers=4, seconds=0.35)
    assert 5 <= len(report.latencies) <= 16 and report.latency(0) >= 0.1  # one caller could send four
    assert 0.35 <= report.seconds < 5


def test_a_server_that_is_not_there_is_no_load_test():
    with (
        Client("grpc://127.0.0.1:1", retries=0) as client,
        pytest.raises(ConnectionError, match="not available"),
    ):
        load_test(client, ["a"], seconds=60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": []}, r"`texts` must be a list of at least one string\. Received: texts=\[\]"),
        ({"texts": "ab"}, "`texts` must be a list of at least one string"),
        ({"rows": 33}, r"`rows` must be at most the client's batch_size=32\. Received: rows=33"),
        ({"callers": 0}, "`callers` must be"),
        ({"callers": 100_000}, "`callers` must be .* at most 1000"),
        ({"seconds": 0}, "`seconds` must be"),
        ({"requests": 0}, "`requests` must be"),
        ({"seconds": None}, "`seconds` or `requests` must limit the test"),
    ],
)
def test_arguments_are_checked_before_a_request(options, message):
    with Client("grpc://127.0.0.1:1") as client, pytest.raises(ValueError, match=message):
        load_test(client, **{"texts": ["a"], **options})


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command: exit code, standard output and standard error."""

    def command(lines, *arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines), "utf-8"))
        code = main(["load-test", *arguments])
        return code, *capsys.readouterr()

    return command


def test_the_command_prints_throughput_and_latencies(served, command):
    backend, url = served
    code, out, err = command(b"one\n\ntwo\n", url, "--callers", "2", "--requests", "6", "--batch-size", "2")
    assert (code, err) == (0, "")
    assert (
        "6 requests, 12 rows" in out
        and "requests/s" in out
        and "p50" in out
        and "p90" in out
        and "p99" in out
    )
    assert "failed        0 requests" in out
    assert backend.sizes == [[2]] * 7


@pytest.mark.parametrize(
    ("faults", "expected", "line"),
    [(["UNAVAILABLE"], 4, "ConnectionError 1: "), (["UNAVAILABLE"] * 5, 5, "ConnectionError 5: ")],
)
def test_the_exit_code_tells_that_requests_failed(served, command, faults, expected, line):
    backend, url = served
    backend.faults.extend([*answered(url), *map(refuse, faults)])
    code, out, _ = command(b"", url, "--text", "a", "--requests", "5")
    assert code == expected and line in out and "\x1b" not in out


def test_the_command_refuses_no_text_and_another_model(served, command):
    backend, url = served
    code, _, err = command(b"\n \n", url)
    assert code == 2 and "Standard input must hold at least one line" in err and backend.calls == 0
    code, out, err = command(b"a", url, "--model", "other")
    assert (code, out) == (2, "") and "other" in err


def test_latencies_are_interpolated_percentiles():
    from keras_transformer.client import LoadReport

    report = LoadReport(2.0, np.array([0.4, 0.1, 0.2, 0.3]), 8, {}, {})
    assert report.latency(50) == pytest.approx(0.25) and report.latency(100) == 0.4
    assert np.isnan(LoadReport(2.0, np.array([]), 0, {}, {}).latency(50))
