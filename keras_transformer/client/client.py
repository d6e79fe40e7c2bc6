"""A client that waits for its answers."""

import time

from keras_transformer.checks import warn
from keras_transformer.client.attempts import finished
from keras_transformer.client.calls import Calls


class Client(Calls):
    """A client of a model in a running TensorFlow Serving, over REST or gRPC.

    Example::

        with Client("grpc://localhost:8500", "en_de") as client:
            client.translate(["A dog runs."])

    Connections stay open, and several threads can share one client. A request is sent again only if no server took it
    (`UNAVAILABLE`, HTTP 502 or 503, connection refused or lost) or a server had too many (`RESOURCE_EXHAUSTED`, HTTP
    429), and not before the time of a `Retry-After`. Requests change nothing in a server, so that is safe.

    Args:
        url: `http://host[:port][/path]` for REST, `grpc://host:port` for gRPC, `https://` and `grpcs://` with TLS.
            TensorFlow Serving listens on port 8501 for REST and on port 8500 for gRPC.
        model: Name of the model in the server.
        version: Version number; None for the newest version.
        label: Version label, instead of a number.
        batch_size: Number of rows of a request. Longer inputs are sent in several requests.
        timeout: Seconds for a request, including its retries and the waits between them, at most 10**6. TensorFlow
            Serving itself ends a request over REST after 30 seconds, unless it is started with another
            `--rest_api_timeout_in_ms`.
        retries: Largest number of attempts after the first.
        backoff: Seconds before the second attempt. They double with each further attempt.
        headers: A dict of HTTP headers or gRPC metadata, such as an authorization. Over gRPC a value whose name ends
            in `-bin` is sent as bytes.
        certificates: Path of a PEM file of the authorities to trust with TLS; None for the system's.
        client_certificate: Path of a PEM file with the certificate that the client shows to the server, for TLS on both
            sides; None for no certificate.
        client_key: Path of a PEM file with its key, without a password; None if `client_certificate` holds it, too.
        max_bytes: Largest number of bytes of an answer. Raise it for the attention of large batches.

    Raises:
        ValueError: If an argument is out of range.
    """

    def _connected(self, scheme):
        # The other transport would only take time to import.
        if scheme in ("grpc", "grpcs"):
            from keras_transformer.client.rpc import Rpc

            return Rpc(self)
        from keras_transformer.client.rest import Rest

        return Rest(self)

    def _run(self, coroutine):
        return finished(coroutine)

    def _pieces(self, stream):
        while not stream.finished:
            piece, notes = self._run(self._next_piece(stream))
            for note in notes:
                warn(note)
            if piece:
                yield piece

    async def _all(self, request, batches):
        return [await request(rows) for rows in batches]

    async def _send(self, method, *arguments):
        return getattr(self._transport, method)(*arguments)

    async def _sleep(self, seconds):
        time.sleep(seconds)

    def close(self):
        """Closes the connections. `with Client(...)` does so at its end."""
        self._transport.closed = True
        self._transport.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
