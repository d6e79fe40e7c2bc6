"""`load_test` and `keras-transformer load-test`, against servers that are really there."""

import time

import numpy as np
import pytest
import tensorflow as tf
from commands import assert_refused, run

pytest.importorskip("tensorflow_serving")
from servers import refuse, served_function

from keras_transformer.client import Client, LoadReport, load_test


@pytest.fixture(scope="module")
def models():
    return {"model": {1: served_function(lambda text: {"lengths": tf.strings.length(text)})}}


def answered(url):
    """The questions of a first request, which are answered: over REST it also reads the signature."""
    return [lambda: None] * (2 if url.startswith("http") else 1)


def test_counts_the_requests_and_their_errors_by_kind(backend, url):
    backend.faults.extend(
        [*answered(url), *[refuse("UNAVAILABLE")] * 3, refuse("INVALID_ARGUMENT", "no\x1b[31m")]
    )
    shown = []
    with Client(url, retries=0) as client:
        options = {"callers": 4, "rows": 2, "seconds": None, "requests": 20}
        report = load_test(client, ["a", "bb", "ccc"], **options, on_request=lambda: shown.append(1))
    assert report.errors == {"ConnectionError": 3, "ValueError": 1}
    assert "no\\x1b" in report.messages["ValueError"]
    assert (len(report.latencies), report.rows, len(shown)) == (16, 32, 20)
    assert backend.sizes == [[2]] * 17  # with the first request, which is not counted
    assert 0 < report.latency(0) <= report.latency(50) <= report.latency(99) <= report.seconds
    assert report.requests_per_second == 16 / report.seconds


def test_callers_send_at_the_same_time_until_the_time_is_over(backend, url):
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


def test_the_command_prints_throughput_and_latencies(backend, url):
    options = "--callers 2 --requests 6 --batch-size 2"
    code, out, err = run("load-test", url, *options.split(), stdin=b"one\n\ntwo\n")
    assert (code, err) == (0, "")
    for part in ("6 requests, 12 rows", "requests/s", "p50", "p90", "p99", "failed        0 requests"):
        assert part in out.decode()
    assert backend.sizes == [[2]] * 7


@pytest.mark.parametrize(
    ("faults", "expected", "line"),
    [(["UNAVAILABLE"], 4, "ConnectionError 1: "), (["UNAVAILABLE"] * 5, 5, "ConnectionError 5: ")],
)
def test_the_exit_code_tells_that_requests_failed(backend, url, faults, expected, line):
    backend.faults.extend([*answered(url), *(refuse(code, "no\x1b[31m") for code in faults)])
    code, out, _ = run("load-test", url, "--text", "a", "--requests", "5")
    assert code == expected and line in out.decode() and b"\x1b" not in out


def test_the_command_refuses_no_text_an_unwritable_picture_and_another_model(backend, url):
    pytest.importorskip("matplotlib")
    assert_refused("load-test", url, stdin=b"\n \n", named="Standard input must hold at least one line")
    picture = ["--text", "a", "--requests", "1", "--picture", "l.xyz"]
    assert_refused("load-test", url, *picture, named="`--picture` must be a file that ends with one of .")
    assert backend.calls == 0
    assert_refused("load-test", url, "--model", "other", stdin=b"a", named="other")


@pytest.mark.slow
def test_the_command_draws_the_latencies(url, tmp_path):
    pytest.importorskip("matplotlib")
    code, out, err = run("load-test", url, "--text", "a", "--requests", "5", "--picture", tmp_path / "l.png")
    assert (code, err) == (0, "") and b"p99" in out
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    options = ["--text", "a", "--requests", "1", "--picture", tmp_path / "none.png"]
    code, out, err = run("load-test", "grpc://127.0.0.1:1", *options)
    assert code == 5 and "is not available" in err and not (tmp_path / "none.png").exists()


def test_latencies_are_interpolated_percentiles():
    report = LoadReport(2.0, np.array([0.4, 0.1, 0.2, 0.3]), 8, {}, {})
    assert report.latency(50) == pytest.approx(0.25) and report.latency(100) == 0.4
    assert np.isnan(LoadReport(2.0, np.array([]), 0, {}, {}).latency(50))
