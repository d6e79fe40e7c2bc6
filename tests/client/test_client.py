"""The client against both of TensorFlow Serving's protocols, with real graphs behind them."""

import asyncio
import concurrent.futures
import email.utils
import json
import re
import socket
import subprocess
import sys
import threading
import time
import types
import warnings

import grpc
import numpy as np
import pytest
import tensorflow as tf
from contracts import refuses

pytest.importorskip("tensorflow_serving")
from servers import (
    SERVERS,
    Backend,
    ServedModel,
    answer,
    make_certificate,
    refuse,
    rest_server,
    served_function,
)

from keras_transformer.client import AsyncClient, Client, attempts, rpc
from keras_transformer.serving.graph.saved_model import write_saved_model

TEXT = tf.TensorSpec((None,), tf.string, name="text")
HARD = [
    "", "\0", "a\0", "a\0b", 'a "quote" \\ \n\x1f', "\ud800", "가\udc80", b"\xff\xfe", "저는".encode()[:4],
    "🎉",
]  # fmt: skip


def as_bytes(texts):
    return [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]


def kinds(number, folder):
    """A SavedModel with every shape and dtype that an export of this package has, and a few more."""

    @tf.function(input_signature=[TEXT])
    def pieces(text):
        split = tf.strings.bytes_split(text)
        lengths = tf.cast(split.row_lengths(), tf.int32)
        ragged = tf.RaggedTensor.from_row_lengths(
            tf.cast(tf.range(tf.reduce_sum(lengths)), tf.float32) / 3.0, lengths
        )
        found = {"pieces": split.to_tensor(b""), "scores": ragged.to_tensor(), "lengths": lengths}
        return found | {"truncated": lengths > 5, "echo": text, "echo_bytes": text}

    @tf.function(input_signature=[TEXT, tf.TensorSpec((None,), tf.string, name="target")])
    def pair(text, target):
        return {"both": text + b"|" + target, "equal": text == target}

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="source")])
    def tokens(source):
        twice = tf.stack([source, -source], axis=1)
        total = tf.reduce_sum(tf.cast(source, tf.int64), axis=1) * 2**40
        return {"tokens": twice, "total": total, "scores": 1.0 / tf.cast(source[:, 0], tf.float32)}

    @tf.function(input_signature=[TEXT])
    def single(text):
        return {"only": tf.strings.length(text)}

    @tf.function(input_signature=[TEXT])
    def whole(text):
        return {"rows": tf.size(text), "version": tf.constant(number)}

    @tf.function(input_signature=[TEXT])
    def empty(text):
        rows = tf.size(text)
        return {
            "strings": tf.fill((rows, 0), b"x"),
            "cube": tf.zeros((rows, 0, 3)),
            "flags": tf.fill((rows, 0), True),
        }

    signatures = {
        "pieces": pieces, "pair": pair, "tokens": tokens, "single": single, "whole": whole, "empty": empty
    }  # fmt: skip
    write_saved_model(tf.Module(), signatures, folder / str(number), xla=False)
    return ServedModel(folder / str(number))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    return {"kinds": {number: kinds(number, folder) for number in (1, 3)}}


@pytest.fixture
def connect(url):
    """Makes clients that wait for next to nothing, and closes them."""
    made = []

    def connect(model="kinds", **options):
        made.append(Client(url, model, **{"backoff": 1e-4, **options}))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def waits(monkeypatch):
    """Seconds that attempts waited for, none of which they do."""
    seconds = []
    monkeypatch.setattr(attempts.time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize("batch_size", [100, 1])
def test_strings_arrive_and_return_as_their_bytes(connect, batch_size):
    found = connect(batch_size=batch_size).predict("pieces", text=HARD)
    assert found["echo"].tolist() == found["echo_bytes"].tolist() == as_bytes(HARD)
    assert [b"".join(row) for row in found["pieces"]] == as_bytes(HARD)
    two = connect(batch_size=batch_size).predict("pair", text=HARD, target=np.array(HARD[::-1], dtype=object))
    assert two["both"].tolist() == [
        a + b"|" + b for a, b in zip(as_bytes(HARD), as_bytes(HARD[::-1]), strict=True)
    ]
    for text in (np.array(["가", "b"]), tf.constant(["가", "b"])):
        found = connect().predict("pair", text=text, target=np.array([b"x", b"yz"]))
        assert found["both"].tolist() == ["가|x".encode(), b"b|yz"]


def test_batches_keep_the_order_and_are_padded_to_the_widest(connect, backend):
    texts = ["abcdefg", "a", "", "abc", "ab", "abcdef", "abcd"]
    whole = connect().predict("pieces", text=texts)
    found = connect(batch_size=3).predict("pieces", text=texts)
    assert backend.sizes == [[7], [3], [3], [1]]
    assert found["echo"].tolist() == as_bytes(texts) and found["lengths"].tolist() == [7, 1, 0, 3, 2, 6, 4]
    assert found["pieces"].tolist() == whole["pieces"].tolist()
    assert found["truncated"].tolist() == [True, False, False, False, False, True, False]
    assert found["scores"].shape == (7, 7) and found["scores"][2:5].tolist()[0] == [0.0] * 7
    kinds = {name: array.dtype for name, array in found.items()}
    assert kinds == {name: array.dtype for name, array in whole.items()}
    assert kinds["scores"] == np.float32 and kinds["lengths"] == np.int32 and kinds["truncated"] == np.bool_
    found = connect(batch_size=2).predict("pieces", text=["a" * 50, "b", "c" * 50, "d"])
    assert [row[0] for row in found["pieces"]] == [b"a", b"b", b"c", b"d"]
    # Scores count characters within a request: "b" and "d", of like length, were together in one.
    assert [found["scores"][row].max() for row in (1, 3)] == pytest.approx([0.0, 1.0 / 3])


def test_numbers_go_and_come_in_the_dtypes_of_the_signature(connect):
    source = [[0, 2], [3, 4], [-5, 6]]
    found = connect(batch_size=2).predict("tokens", source=source)
    np.testing.assert_equal(connect().predict("tokens", source=np.array(source, np.int32)), found)
    assert found["tokens"].tolist() == [[[a, b], [-a, -b]] for a, b in source]
    assert found["tokens"].dtype == np.int32 and found["total"].dtype == np.int64
    assert found["total"].tolist() == [(a + b) * 2**40 for a, b in source]
    expected = np.array([np.inf, 1 / 3, -1 / 5], np.float32)
    assert found["scores"].dtype == np.float32 and found["scores"].tolist() == expected.tolist()


def test_an_only_output_has_its_name(connect):
    assert connect().predict("single", text=["abc", ""])["only"].tolist() == [3, 0]


def test_outputs_without_a_value_keep_dtype_and_rank(connect):
    found = connect(batch_size=2).predict("empty", text=["a", "b", "c"])
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "strings": ((3, 0), np.dtype(object)),
        "cube": ((3, 0, 3 if found["cube"].shape[2] else 0), np.dtype(np.float32)),
        "flags": ((3, 0), np.dtype(bool)),
    }


def test_outputs_of_a_whole_request_cannot_be_put_together(connect):
    assert connect().predict("whole", text=["a", "b", "c"])["rows"].item() == 3
    with pytest.raises(
        OSError, match=r"signature='whole': output 'rows' has shape \(\) for a batch of 2 rows"
    ):
        connect(batch_size=2).predict("whole", text=["a", "b", "c"])


@pytest.mark.parametrize(("options", "version"), [({}, 3), ({"version": 1}, 1), ({"label": "stable"}, 1)])
def test_a_version_is_the_newest_or_the_one_asked_for(connect, options, version):
    assert connect(**options).predict("whole", text=["a"])["version"].item() == version


def test_another_version_with_other_outputs_is_read(connect, backend, models, monkeypatch):
    client = connect("kinds")
    assert client.predict("single", text=["abc"]).keys() == {"only"}
    client.predict("pair", text=["a"], target=["b"])
    swapped = types.SimpleNamespace(signatures={"pair": models["kinds"][1].signatures["pieces"]})
    monkeypatch.setitem(backend.models, "kinds", {1: swapped})
    assert client.predict("pair", text=["abc"])["lengths"].tolist() == [3]


RECTANGULAR = "`source` must be a rectangular array.*Received: source=.*"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"source": [[1, 2], [3]]}, RECTANGULAR + r"\[\[1, 2\], \[3\]\]"),
        ({"source": ["a", 1]}, RECTANGULAR + r"\['a', 1\]"),
        ({"source": [None]}, RECTANGULAR + r"\[None\]"),
        ({"source": json.loads("[" * 100 + "5" + "]" * 100)}, RECTANGULAR + r"\[\[\["),
        ({"source": [2**70]}, RECTANGULAR + str(2**70)),
        ({"source": np.array([1j])}, RECTANGULAR + "1.j"),
        ({"source": np.zeros((0, 3), np.int32)}, "`source` must have at least one row"),
        ({}, "`inputs` must name at least one input"),
    ],
)
def test_wrong_inputs_are_refused_without_a_request(connect, backend, inputs, message):
    refuses(message, connect().predict, "tokens", **inputs)
    refuses(r"`sentences` must be a list of strings\. Received: 'a dog'", connect().translate, "a dog")
    assert backend.calls == 0


def test_a_server_that_comes_back_is_asked_again_after_drawn_waits(connect, backend, waits):
    backend.faults += [refuse("UNAVAILABLE")] * 6
    client = connect(backoff=0.5, retries=6)
    assert client.predict("pair", text=["a"], target=["b"])["both"].tolist() == [b"a|b"]
    shares = [wait / 2**n for n, wait in enumerate(waits)]
    assert backend.sizes == [[1]] and len(set(shares)) == 6 and 0.25 <= min(shares) <= max(shares) <= 0.5


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_a_server_that_is_too_busy_is_asked_again_when_it_says(connect, backend, waits, code):
    backend.faults += [refuse(code, "slow down", retry_after="7"), refuse(code, retry_after="soon")]
    assert connect(backoff=0.5).predict("pair", text=["a"], target=["b"])["both"].tolist() == [b"a|b"]
    assert backend.sizes == [[1]] and waits[0] == 7.0 and 0.5 <= waits[1] <= 1.0


def test_a_date_to_retry_after_is_read():
    later = email.utils.formatdate(time.time() + 3600, usegmt=True)
    assert 3590 < attempts.seconds_of(later) <= 3600
    for text in ("-1", "1.5", "٣", "9" * 5000, "Wed, 99 Oct 2015 07:28:00 GMT", ""):
        assert attempts.seconds_of(text) == 0.0


def test_a_server_that_stays_down_is_named_with_the_attempts(connect, backend, url):
    backend.faults += [refuse("UNAVAILABLE", "too busy")] * 9
    with pytest.raises(ConnectionError, match=f"{url} is not available after 3 attempts: too busy"):
        connect(retries=2).predict("single", text=["a"])
    assert backend.calls == 3


@pytest.mark.parametrize(("retry_after", "backoff"), [("999999999", 1e-4), (None, 100.0)])
def test_a_wait_past_the_deadline_is_not_begun(connect, backend, waits, retry_after, backoff):
    backend.faults += [refuse("RESOURCE_EXHAUSTED", "slow down", retry_after=retry_after)] * 2
    with pytest.raises(ConnectionError, match=r"after 1 attempt: slow down \(RESOURCE_EXHAUSTED\)"):
        connect(timeout=30.0, backoff=backoff).predict("single", text=["a"])
    assert backend.calls == 1 and waits == []


def test_attempts_share_one_deadline(monkeypatch):
    now, left = [100.0], []
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now[0])

    async def sleep(seconds):
        pass

    async def call(deadline):
        left.append(deadline - now[0])
        now[0] += 4.0
        raise attempts.Failure("UNAVAILABLE", "busy")

    with pytest.raises(attempts.Failure) as raised:
        attempts.finished(attempts.attempt(call, timeout=10.0, retries=9, backoff=0.0, sleep=sleep))
    assert left == [10.0, 6.0, 2.0]
    assert (raised.value.code, raised.value.attempts) == ("DEADLINE_EXCEEDED", 3)


@pytest.mark.parametrize(("code", "message"), [
    ("INVALID_ARGUMENT", "Tensors with name 'text' from different tasks have different shapes and padding"),
    ("INTERNAL", "Tensor concat operation failed: Cannot concatenate tensors that have different data types"),
])  # fmt: skip
def test_batch_refused_for_another_task_is_sent_again(connect, backend, code, message):
    client = connect(backoff=0.001)
    client.predict("single", text=["a"])  # REST reads the signature, too
    before = backend.calls
    backend.faults += [refuse(code, message)]
    client.predict("single", text=["a"])
    assert backend.calls == before + 2


REFUSED = {code: "it's wrong: é" for code in ("INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL", "UNAUTHENTICATED")}
REFUSED["RESOURCE_EXHAUSTED"] = "Received message larger than max (9 vs. 4)"  # it never fits


@pytest.mark.parametrize("code", REFUSED)
def test_refused_request_is_not_sent_again(connect, backend, code):
    backend.faults += [refuse(code, REFUSED[code])]
    kind = {"INTERNAL": OSError, "UNAUTHENTICATED": PermissionError}.get(code, ValueError)
    said = re.escape(REFUSED[code])
    with pytest.raises(kind, match=rf"refuses model='kinds', .*signature='single': {said} \("):
        connect().predict("single", text=["a"])
    assert backend.calls == 1


def test_missing_model_version_label_and_signature_are_named(connect):
    for model, options, signature, said in (
        ("nobody", {}, "single", "model='nobody'.*Servable not found"),
        ("kinds", {"version": 2}, "single", "model='kinds', version=2.*Servable not found"),
        ("kinds", {"label": "canary"}, "single", "label=canary.*Unrecognized servable version label: canary"),
        ("kinds", {}, "sing", "signature='sing': .*\"sing\" not found"),
        ("a b%2F/é:", {}, "single", "model='a b%2F/é:'"),
    ):
        refuses(said, connect(model, **options).predict, signature, text=["a"])


def test_fewer_translations_than_sentences_are_an_error(connect, backend, models, monkeypatch):
    fewer = served_function(lambda text: {"translation": text[1:], "score": text[1:]})
    monkeypatch.setitem(backend.models, "fewer", {1: fewer})
    with pytest.raises(
        OSError, match=r"3 sentences with as many translations.*'translation': \('object', \(2,\)\)"
    ):
        connect("fewer").translate(["a", "b", "c"])
    with pytest.raises(OSError, match=r"'score' has shape \(1,\) for a batch of 2 rows"):
        connect("fewer", batch_size=2).translate(["a", "b", "c"])


def test_sentences_that_the_model_cut_are_counted_in_a_warning(connect, backend, monkeypatch):
    def cut(text):
        length = tf.strings.length(text)
        return {"translation": text, "truncated": length > 2, "unknown": tf.maximum(0, length - 3)}

    monkeypatch.setitem(backend.models, "cut", {1: served_function(cut)})
    with pytest.warns(UserWarning, match="2 of 4 sentences are longer than the model reads") as warned:
        texts = ["a", "abc", "ab", "abcd"]
        assert connect("cut", batch_size=3).translate(texts) == texts
    assert "1 of 4 sentences hold text that the model's vocabulary cannot write" in str(warned[1].message)
    assert [warning.filename for warning in warned] == [__file__] * 2  # the line of the caller
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connect("cut").translate(["a"])


def test_a_document_is_translated_sentence_by_sentence(connect, backend, monkeypatch):
    pytest.importorskip("sentencex")

    def marked(text):
        translation = tf.strings.join(["<", text, ">"])
        return {"translation": translation, "truncated": tf.strings.regex_full_match(text, "More.*")}

    monkeypatch.setitem(backend.models, "marked", {1: served_function(marked)})
    text = "  Dr. Wu sleeps. He runs!\n\n\tMore.\r\nlast"
    with pytest.warns(UserWarning, match="1 of 4 sentences are longer") as warned:
        found = connect("marked", batch_size=2).translate_document(text, "en")
    assert found == "  <Dr. Wu sleeps.> <He runs!>\n\n\t<More.>\r\n<last>"
    assert [warning.filename for warning in warned] == [__file__]
    assert connect("marked").translate_document("\n \n", "en") == "\n \n"
    refuses("`language` must be the code", connect("marked").translate_document, "a", "English")
    refuses("`text` must be a str", connect("marked").translate_document, ["a"], "en")


def test_a_slow_server_is_a_timeout(connect, backend, url):
    end = threading.Event()
    backend.faults += [lambda: end.wait(30)]
    try:
        with pytest.raises(TimeoutError, match=f"{url} must answer within timeout=0.3 seconds; 1 attempt"):
            connect(timeout=0.3).predict("single", text=["a"])
    finally:
        end.set()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_no_server_at_all_is_a_refused_connection(scheme):
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url, retries=2, backoff=1e-4) as client:
            with pytest.raises(
                ConnectionError, match=f"{url} is not available after 3 attempts: .*[Rr]efused"
            ) as caught:
                client.translate(["a"])
            assert "Connection(" not in str(caught.value)  # the name of a class
            assert client.ready() is False


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (200, b"<html>", OSError, "HTTP status 200, no answer of TensorFlow Serving: '<html>'"),
        (200, b"[1]", OSError, r"HTTP status 200, no answer of TensorFlow Serving: '\[1\]'"),
        (200, b'{"outputs": {"only": 1}}', OSError, "cannot be read"),
        (200, b'{"predictions": []}', OSError, "cannot be read"),
        (200, b'{"outputs": ["a"]}', OSError, "cannot be read"),
        (404, b"not\xff here", ValueError, "HTTP status 404, .*: 'not"),
        (404, b'{"error": "a\xffb"}', ValueError, r"a\?b"),
        (500, b'{ "error": "it\\\'s" }', OSError, r"it.*s"),
    ],
)
def test_unreadable_answer_is_shown(models, status, body, kind, said):
    backend = Backend(models)
    backend.faults.append(answer(status, body))
    with rest_server(backend) as url, Client(url, "kinds") as client:
        with pytest.raises(kind, match=said) as raised:
            client.predict("single", text=["a"])
        assert str(raised.value).encode() and backend.calls < 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n",  # then the body, byte by byte
        b"HTTP/1.1 200 OK\r\n\r\n",  # the body ends with the connection
        b"HTTP/1.1 200 OK\r\nX-Slow: ",  # a header that does not end
    ],
)
def test_an_answer_that_drips_ends_at_the_timeout(answer):
    """Each byte comes in time, and all of them together do not."""
    stop = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
            while not stop.wait(0.02):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with (
                Client(url, timeout=0.3) as client,
                pytest.raises(TimeoutError, match=r"timeout=0\.3 seconds"),
            ):
                client.predict(text=["a"])
        finally:
            stop.set()
            thread.join()


def test_a_message_of_a_server_is_cut_and_cannot_write_to_a_terminal(connect, backend):
    backend.faults.append(refuse("INVALID_ARGUMENT", "\x1b[31mred\x07\n가\u202e" + "x" * 5000))
    with pytest.raises(ValueError, match="refuses") as raised:
        connect().predict("single", text=["a"])
    message = str(raised.value)
    assert r"\x1b[31mred\x07\n가\u202exxx" in message and len(message) < 1300
    assert all(character.isprintable() for character in message)


def test_a_redirect_is_not_followed(models):
    backend = Backend(models)
    backend.faults.append(answer(307, b"", ("Location", "/v1/models/kinds:predict")))
    with rest_server(backend) as url, Client(url, "kinds", headers={"Authorization": "mine"}) as client:
        with pytest.raises(OSError, match="HTTP status 307"):
            client.predict("single", text=["a"])
        assert backend.calls == 1


def test_a_connection_that_breaks_is_made_again(models):
    def hang_up():
        raise ConnectionResetError

    backend = Backend(models)
    backend.faults += [hang_up, hang_up]
    with rest_server(backend) as url, Client(url, "kinds", backoff=1e-4) as client:
        assert client.predict("single", text=["abc"])["only"].tolist() == [3]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A server's key and certificate, which is its own authority."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("server", SERVERS.values())
def test_tls_trusts_the_authorities_it_is_given_and_no_other(models, certificate, server, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    backend = Backend(models)
    with server(backend, certificate) as url:
        assert url.split(":")[0] in ("https", "grpcs")
        with Client(url, "kinds", certificates=certificate[1]) as client:
            assert client.predict("single", text=["abc"])["only"].tolist() == [3]
        calls = backend.calls
        with (
            Client(url, "kinds", retries=0) as client,
            pytest.raises(ConnectionError, match=r"(?i)certificate|ssl"),
        ):
            client.predict("single", text=["abc"])
        assert backend.calls == calls


@pytest.fixture(scope="module")
def other_certificate(tmp_path_factory):
    """A key and a certificate of a client, which is its own authority."""
    return make_certificate(tmp_path_factory.mktemp("client"))


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS.values())
def test_a_server_may_ask_for_the_certificate_of_its_client(
    models, certificate, other_certificate, server, tmp_path
):
    backend = Backend(models)
    key, own = other_certificate
    both = tmp_path / "both.pem"
    both.write_bytes(own.read_bytes() + key.read_bytes())
    with server(backend, certificate, own) as url:
        shared = {"certificates": certificate[1]}
        for arguments in ({"client_certificate": own, "client_key": key}, {"client_certificate": both}):
            with Client(url, "kinds", **arguments, **shared) as client:
                assert client.predict("single", text=["abc"])["only"].tolist() == [3]

        async def ask():
            async with AsyncClient(url, "kinds", client_certificate=both, **shared) as client:
                return await client.predict("single", text=["abc"])

        assert asyncio.run(ask())["only"].tolist() == [3]
        calls = backend.calls
        with Client(url, "kinds", retries=0, **shared) as client, pytest.raises(ConnectionError):
            client.predict("single", text=["abc"])
        assert backend.calls == calls


def test_certificates_that_a_client_cannot_use_are_named(certificate, other_certificate, tmp_path):
    key, own = other_certificate
    locked, junk = tmp_path / "locked.pem", tmp_path / "junk.pem"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run(command, capture_output=True, check=True)
    junk.write_text("junk")
    for arguments, said in (
        ({"certificates": junk}, f"`certificates` must hold certificates in PEM.*certificates='{junk}'"),
        ({"certificates": key}, "`certificates` must hold certificates"),
        ({"client_key": key}, "`client_key` must come with `client_certificate`"),
        (
            {"client_certificate": own},
            "`client_certificate` and `client_key` must be a certificate and its key",
        ),
        ({"client_certificate": own, "client_key": certificate[0]}, "must be a certificate and its key"),
        ({"client_certificate": own, "client_key": locked}, "its key without a password"),
        ({"client_certificate": junk}, f"client_certificate='{junk}', client_key=None"),
        ({"client_certificate": own, "client_key": tmp_path / "none"}, "`client_key` must be a PEM file"),
        ({"url": "http://localhost", "client_certificate": own, "client_key": key}, "must come with TLS"),
    ):
        refuses(said, Client, **{"url": "https://localhost", **arguments})


def test_status_names_the_versions_and_ready_asks_for_one(connect, backend, monkeypatch):
    monkeypatch.setitem(backend.states, "kinds", {1: "AVAILABLE", 3: "LOADING"})
    assert connect().status() == {1: "AVAILABLE", 3: "LOADING"}
    assert connect(version=3).status() == {3: "LOADING"}
    assert connect().ready() is True
    assert connect(version=3).ready() is False
    refuses(r"model='nobody'.*status: Could not find any versions of model nobody", connect("nobody").ready)


def test_ready_looks_a_label_up(connect, backend, monkeypatch):
    monkeypatch.setattr(backend, "labels", {"stable": 1, "canary": 3})
    monkeypatch.setitem(backend.states, "kinds", {1: "AVAILABLE", 3: "LOADING"})
    # A server ignores the label of a question for the state.
    assert connect(label="canary").status() == {1: "AVAILABLE", 3: "LOADING"}
    assert connect(label="stable").ready() is True
    assert connect(label="canary").ready() is False
    refuses("label=other, ready: Unrecognized servable version label: other", connect(label="other").ready)
    backend.faults += [lambda: None, refuse("UNAUTHENTICATED")]
    with pytest.raises(PermissionError):
        connect(label="stable").ready()


def test_ready_asks_once(connect, backend):
    backend.faults += [refuse("UNAVAILABLE")]
    assert connect().ready() is False
    assert backend.calls == 1


def test_requests_share_a_connection_until_it_is_closed(connect, backend):
    client = connect()
    for _ in range(5):
        client.predict("single", text=["a"])
    assert len(backend.peers) == 1
    with client:
        pass
    client.close()
    refuses(r"must be open. Received: a request .*close\(\)", client.predict, "single", text=["a"])


def test_close_hangs_up(models):
    backend = Backend(models)
    with rest_server(backend) as url:
        with Client(url, "kinds") as client:
            client.status()
            assert not backend.hung_up.is_set()
        assert backend.hung_up.wait(30)


@pytest.mark.slow
def test_threads_share_a_client(connect):
    client = connect(batch_size=3)
    texts = [[f"{thread}-{row}" for row in range(7)] for thread in range(12)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda batch: client.predict("pieces", text=batch)["echo"].tolist(), texts))
    assert found == [as_bytes(batch) for batch in texts]


def test_headers_go_with_every_request_and_no_password_of_a_netrc(connect, backend, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    connect(headers={"Authorization": "Bearer 7", "X-Trace-Bin": "abc"}).predict("single", text=["a"])
    connect().status()
    found = [{name.lower(): value for name, value in headers.items()} for headers in backend.headers]
    assert {headers.get("authorization") for headers in found[:-1]} == {"Bearer 7"}
    assert {headers.get("x-trace-bin") for headers in found[:-1]} <= {"abc", b"abc"}
    assert found[-1].get("authorization") is None
    assert all(headers["user-agent"].startswith("keras-transformer/0.") for headers in found)


def test_headers_of_one_call_go_with_it_alone(connect, backend):
    client = connect(headers={"Authorization": "Bearer 7", "X-Team": "a"})
    client.with_headers({"x-team": "b", "X-Request-Id": "9"}).status()
    client.status()
    found = [{name.lower(): value for name, value in headers.items()} for headers in backend.headers]
    names = "authorization", "x-team", "x-request-id"
    assert [[headers.get(name) for name in names] for headers in found] == [
        ["Bearer 7", "b", "9"],
        ["Bearer 7", "a", None],
    ]
    other = client.with_headers({"x-request-id": "10"})
    assert len(backend.peers) == 1
    client.close()
    refuses("must be open", other.status)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "localhost:8501"}, "`url` must be .*url='localhost:8501'"),
        ({"url": "ftp://a:1"}, "url='ftp://a:1'"),
        ({"url": "grpc://a"}, "url='grpc://a'"),
        ({"url": "grpc://a:1/b"}, "url='grpc://a:1/b'"),
        ({"url": "http://a:b"}, "url='http://a:b'"),
        ({"url": "http://a?b"}, "`url` must not have a query: use `headers`. Received: a URL with one."),
        ({"headers": [("a", "b")]}, "`headers` must be a dict .* Received: a list"),
        ({"headers": ""}, "`headers` must be a dict .* Received: a str"),
        ({"url": "http://a /b"}, "url='http://a /b'"),
        ({"url": "http://a\t"}, "url='http://a"),
        ({"headers": {"a b": "c"}}, "letters, digits, `-`, `_` and `.` only. Received: the header 'a b'"),
        ({"url": None}, "url=None"),
        ({"model": ""}, "model=''"),
        ({"model": ".."}, "`model` must not be `.` or `..`. Received: model='..'"),
        ({"label": "."}, "`label` must not be `.` or `..`. Received: label='.'"),
        ({"version": 0}, "version=0"),
        ({"version": 1, "label": "a"}, "label='a', version=1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": 1e300}, "at most 1000000. Received: timeout=1e"),
        ({"timeout": 10**400}, "at most 1000000. Received: timeout=1000"),
        ({"retries": -1}, "retries=-1"),
        ({"backoff": -0.1}, "backoff=-0.1"),
        ({"certificates": "/nowhere.pem"}, "certificates='/nowhere.pem'"),
    ],
)
def test_a_wrong_argument_is_named(arguments, said):
    refuses(said, Client, **{"url": "http://localhost", **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "http://me:secret@a"},
        {"url": "http://a/b?key=secret"},
        {"url": "http://a#secret"},
        {"headers": {"Authorization": "secret\n"}},
        {"headers": "Authorization: secret"},
    ],
)
def test_a_message_holds_no_secret(arguments):
    with pytest.raises(ValueError, match="Received") as raised:
        Client(**{"url": "http://localhost", **arguments})
    assert "secret" not in str(raised.value)


def test_every_address_of_a_name_gets_requests(models):
    """As behind a headless Service of Kubernetes, whose name has an address for each pod."""
    backends = Backend(models), Backend(models)
    with SERVERS["grpc"](backends[0]) as one, SERVERS["grpc"](backends[1]) as other:
        addresses = ",".join(url.removeprefix("grpc://") for url in (one, other))
        with Client(one, "kinds", backoff=1e-4) as client:
            client._transport._channel.close()
            client._transport._channel = grpc.insecure_channel(f"ipv4:{addresses}", options=rpc.OPTIONS)
            for _ in range(1000):  # until both are connected
                if not all(backend.calls for backend in backends):
                    client.status()
            before = [backend.calls for backend in backends]
            for _ in range(10):
                client.status()
        assert [backend.calls - calls for backend, calls in zip(backends, before, strict=True)] == [5, 5]


def test_the_import_of_the_client_loads_no_tensorflow():
    code = """
import sys
from keras_transformer.client import Client
Client("http://localhost"), Client("grpc://localhost:1")
print(sorted({"tensorflow", "keras", "tensorflow_text", "sacrebleu", "tensorboard", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
