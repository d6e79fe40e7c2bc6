"""Answers that would fill the memory, and cookies: what a client takes from a server is bounded."""

import asyncio
import contextlib
import gzip
import http.server
import io
import sys
import threading
import zlib
from concurrent import futures

import grpc
import pytest

from keras_transformer.cli.main import main
from keras_transformer.client import AsyncClient, Client
from keras_transformer.client.messages import CLASSES

LIMIT = 10_000
STATES = b'{"model_version_status": [{"version": 1, "state": "AVAILABLE"}]}'
ZEROS = b" " * 2**20
# the headers, the body, part of the message
ANSWERS = {
    "compressed twice": ({"Content-Encoding": "gzip, gzip"}, gzip.compress(gzip.compress(ZEROS)), "compressed"),
    "gzip": ({"Content-Encoding": "gzip"}, gzip.compress(ZEROS), "compressed"),
    "deflate": ({"content-encoding": "Deflate"}, zlib.compress(ZEROS), "compressed"),
    "an unknown encoding": ({"Content-Encoding": "\x1b[2J"}, b"", "compressed"),
    "too large": ({}, b" " * (LIMIT + 1) + STATES, "more than `max_bytes`, 10000"),
    "too large without its size": ({"Connection": "close"}, ZEROS + STATES, "more than `max_bytes`, 10000"),
    "too large in parts": ({"Transfer-Encoding": "chunked"}, ZEROS + STATES, "more than `max_bytes`, 10000"),
}  # fmt: skip


@contextlib.contextmanager
def serving(headers, body, seen=None, status=200):
    """Serves an answer to each request; `seen` gets the headers of the requests."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self):
            if seen is not None:
                seen.append(self.headers)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            sent = body
            if headers.get("Transfer-Encoding"):
                sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body, b""))
            elif not headers.get("Connection"):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client left
                self.wfile.write(sent)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def states(url, asynchronous=False, **arguments):
    """Asks for the states, with one of both clients."""
    arguments = {"retries": 0, "timeout": 5, **arguments}
    if not asynchronous:
        with Client(url, **arguments) as client:
            return client.status()

    async def ask():
        async with AsyncClient(url, **arguments) as client:
            return await client.status()

    return asyncio.run(ask())


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_a_bounded_size(name, asynchronous):
    headers, body, message = ANSWERS[name]
    with serving(headers, body) as url, pytest.raises(OSError, match=message) as caught:
        states(url, asynchronous, max_bytes=LIMIT)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("name", ["gzip", "too large", "too large without its size", "too large in parts"])
def test_a_redirect_has_a_bounded_size(name, status):
    """`requests` would read and decompress the body of an answer with a `Location`."""
    headers, body, message = ANSWERS[name]
    with (
        serving({**headers, "Location": "/elsewhere"}, body, status=status) as url,
        pytest.raises(OSError, match=message),
    ):
        states(url, max_bytes=LIMIT)


def test_a_command_limits_an_answer(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog\n")))
    with serving({}, STATES) as url:
        assert main(["ask", url, "--max-bytes", "10", "--retries", "0"])
    assert "more than --max-bytes, 10 bytes" in capsys.readouterr().err


def test_a_client_asks_for_no_compression_and_keeps_no_cookie():
    seen = []
    with serving({"Set-Cookie": "session=SECRET_OF_A"}, STATES, seen) as url, Client(url) as client:
        assert client.status() == {1: "AVAILABLE"}
        assert client.with_headers({"authorization": "Bearer B"}).status() == {1: "AVAILABLE"}
    assert [each["Accept-Encoding"] for each in seen] == ["identity"] * 2
    assert [each["Cookie"] for each in seen] == [None] * 2


def test_the_state_of_a_version_cannot_write_to_a_terminal():
    with serving({}, STATES.replace(b"AVAILABLE", b"\\u001b[2J\\n" * 999)) as url:
        (state,) = states(url).values()
    assert state.isprintable() and len(state) < 1000


@contextlib.contextmanager
def serving_rpc(content, **options):
    """Serves bytes as the answer to each request of gRPC."""

    def answer(_, context):
        return content

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Handler()], **options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_an_answer_of_grpc_has_a_bounded_size(compression, asynchronous):
    answer = CLASSES["GetModelStatusResponse"]()
    answer.model_version_status.extend([CLASSES["ModelVersionStatus"](version=1, state=30)] * 10**5)
    with serving_rpc(answer.SerializeToString(), compression=compression) as url:
        if compression == grpc.Compression.NoCompression:
            assert states(url, asynchronous) == {1: "AVAILABLE"}
        with pytest.raises((OSError, ValueError), match=r"max_bytes|compressed|Exception deserializing"):
            states(url, asynchronous, max_bytes=LIMIT)
