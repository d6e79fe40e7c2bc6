"""TensorFlow Serving's REST API, with `requests`."""

import asyncio
import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import DefaultCookiePolicy
from urllib.parse import quote

import numpy as np
import requests

from keras_transformer.checks import printable
from keras_transformer.client.attempts import UNREADABLE, Failure, seconds_of
from keras_transformer.client.deadlines import DeadlineAdapter, deadline_of_this_thread
from keras_transformer.client.messages import DTYPES
from keras_transformer.version import USER_AGENT

CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    # It comes from a proxy that does not reach a server.
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
PIECE_BYTES = 2**16
# Number of connections that stay open. Each thread that calls at the same time needs one.
CONNECTIONS = 64


class Rest:
    """Sends requests for one model over HTTP.

    Args:
        client: The client, whose address, model and certificates it uses.

    The methods take the deadline of a request, in seconds of `time.monotonic`, and its headers, a dict.
    """

    closed = False

    def __init__(self, client):
        authorities, certificate, key = client.certificate_files
        self._base = f"{client.url.rstrip('/')}/v1/models/{quote(client.model, safe='')}"
        if client.version is not None:
            self._base += f"/versions/{client.version}"
        if client.label is not None:
            self._base += f"/labels/{quote(client.label, safe='')}"
        self._verify = authorities or True
        self._session = requests.Session()
        self._session.headers["User-Agent"] = USER_AGENT
        # A few compressed bytes can fill the memory.
        self._session.headers["Accept-Encoding"] = "identity"
        # `with_headers` shares the session: a cookie of one caller must not go with the key of another.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # Even without following a redirect, `requests` would read and decompress the whole body of one.
        self._session.get_redirect_target = lambda response: None
        self._max_bytes = client.max_bytes
        self._session.cert = (certificate, key) if key else certificate
        # Without `auth`, `requests` would send a password of the user's .netrc.
        self._session.auth = lambda request: request
        adapter = DeadlineAdapter(pool_maxsize=CONNECTIONS)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        # A dict from a signature's name to a dict from an output's name to its dtype and rank.
        self._kinds = {}

    def predict(self, signature, inputs, deadline, headers):
        """Runs a signature.

        Args:
            signature: Name of the signature.
            inputs: A dict from name to array; strings are bytes in arrays of objects.
            deadline: In seconds of `time.monotonic`.
            headers: A dict from name to value.

        Returns:
            A dict from name to array; strings are bytes in arrays of objects.

        Raises:
            Failure: If there is no answer, or it cannot be read.
        """
        body = {"signature_name": signature, "inputs": {name: _json(array) for name, array in inputs.items()}}
        answer = self._send("POST", ":predict", deadline, headers, json.dumps(body).encode())
        try:
            return self._outputs(signature, answer["outputs"], deadline, headers)
        except UNREADABLE as error:
            raise Failure("INTERNAL", f"the answer cannot be read: {error!r}") from error

    def status(self, deadline, headers):
        """Asks for the state of each version.

        Args:
            deadline: In seconds of `time.monotonic`.
            headers: A dict from name to value.

        Returns:
            A dict from version number to the name of its state.

        Raises:
            Failure: If there is no answer, or it cannot be read.
        """
        answer = self._send("GET", "", deadline, headers)
        try:
            states = answer["model_version_status"]
            return {int(each["version"]): printable(str(each["state"]), 100) for each in states}
        except UNREADABLE as error:
            raise Failure("INTERNAL", f"the answer cannot be read: {error!r}") from error

    def find(self, deadline, headers):
        """Returns True if a version answers requests, else raises `Failure`. It looks a label up.

        Args:
            deadline: In seconds of `time.monotonic`.
            headers: A dict from name to value.
        """
        self._send("GET", "/metadata", deadline, headers)
        return True

    def close(self):
        """Closes the connections."""
        self._session.close()

    def _send(self, method, path, deadline, headers, body=None):
        """Sends a request and returns the JSON object of the answer, a dict; raises `Failure` if there is none."""
        try:
            with deadline_of_this_thread(deadline):
                response = self._session.request(
                    method,
                    self._base + path,
                    data=body,
                    headers={**headers, "Content-Type": "application/json"},
                    timeout=max(deadline - time.monotonic(), 1e-3),
                    verify=self._verify,
                    # A redirected POST would become a GET.
                    allow_redirects=False,
                    stream=True,
                )
                with response:
                    content = self._content(response)
        except (requests.RequestException, ValueError) as error:
            if isinstance(error, requests.Timeout) or time.monotonic() >= deadline:
                raise Failure("DEADLINE_EXCEEDED", "no answer") from error
            if isinstance(error, (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
                reason = getattr(error.args[0] if error.args else None, "reason", None)
                raise Failure("UNAVAILABLE", str(reason or error)) from error
            raise Failure("UNKNOWN", str(error)) from error
        # A server writes the bytes of a string without encoding them, so valid JSON may be invalid UTF-8.
        text = content.decode("utf-8", "surrogateescape")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if response.status_code == 200 and isinstance(answer, dict):
            return answer
        # The rest of the answer was cut off.
        if answer is None and time.monotonic() >= deadline:
            raise Failure("DEADLINE_EXCEEDED", "no complete answer")
        message = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(message, str):
            message = f"HTTP status {response.status_code}, no answer of TensorFlow Serving: {text[:200]!r}"
        # It replaces bytes that are not UTF-8.
        message = message.encode("utf-8", "replace").decode()
        wait = seconds_of(response.headers.get("Retry-After"))
        raise Failure(CODES.get(response.status_code, "UNKNOWN"), message, wait)

    def _content(self, response):
        """Reads the bytes of an answer, or raises `Failure` for a compressed one and one of too many bytes."""
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise Failure(
                "INTERNAL", f"the answer must not be compressed, but has the encoding {encoding!r:.50}"
            )
        content = bytearray()
        for piece in response.iter_content(PIECE_BYTES):
            content += piece
            if len(content) > self._max_bytes:
                raise Failure("INTERNAL", f"the answer has more than `max_bytes`, {self._max_bytes} bytes")
        return bytes(content)

    def _outputs(self, signature, outputs, deadline, headers):
        """Makes arrays of the outputs in JSON. Their dtypes are in the signature, which is fetched once."""
        kinds = self._kinds.get(signature)
        if kinds is None or not _match(kinds, outputs):
            # There is none yet, or another version of the model answered.
            kinds = self._kinds[signature] = self._fetch_kinds(signature, deadline, headers)
            if not _match(kinds, outputs):
                raise ValueError(f"{signature!r} has the outputs {sorted(kinds)}")
        # A server leaves out the name of a single output.
        if len(kinds) == 1:
            outputs = {name: outputs for name in kinds}
        return {name: _array(outputs[name], *kind) for name, kind in kinds.items()}

    def _fetch_kinds(self, signature, deadline, headers):
        """Fetches a dict from an output's name to its dtype and rank."""
        answer = self._send("GET", "/metadata", deadline, headers)
        outputs = answer["metadata"]["signature_def"]["signature_def"][signature]["outputs"]
        return {
            name: (np.dtype(DTYPES[info["dtype"]][1]), len(info["tensor_shape"].get("dim", ())))
            for name, info in outputs.items()
        }


class AsyncRest:
    """`Rest` for an event loop: its methods are coroutines, and each request has a thread.

    Args:
        client: The `AsyncClient`.
    """

    closed = False

    def __init__(self, client):
        self._rest = Rest(client)
        self._threads = ThreadPoolExecutor(client.concurrency, "keras_transformer.client")

    async def predict(self, signature, inputs, deadline, headers):
        return await self._in_thread(self._rest.predict, signature, inputs, deadline, headers)

    async def status(self, deadline, headers):
        return await self._in_thread(self._rest.status, deadline, headers)

    async def find(self, deadline, headers):
        return await self._in_thread(self._rest.find, deadline, headers)

    async def close(self):
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._rest.close()

    async def _in_thread(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _match(kinds, outputs):
    return len(kinds) == 1 or (isinstance(outputs, dict) and kinds.keys() == outputs.keys())


def _json(array):
    """Makes nested lists of an array; strings are encoded as base64."""
    if array.dtype.kind != "O":
        return array.tolist()
    leaves = np.empty(array.size, dtype=object)
    leaves[:] = [{"b64": base64.b64encode(text).decode()} for text in array.ravel()]
    return leaves.reshape(array.shape).tolist()


def _array(values, dtype, rank):
    """Makes an array of nested lists. An empty list does not tell its rank, so it is given."""
    array = np.array(_decoded(values) if dtype.kind == "O" else values, dtype=dtype)
    if dtype.kind == "O" and not all(isinstance(leaf, bytes) for leaf in array.ravel()):
        raise ValueError(f"rows of different lengths in an array of shape {array.shape}")
    return array.reshape(array.shape + (0,) * (rank - array.ndim)) if array.size == 0 else array


def _decoded(values):
    """Makes bytes of the strings in nested lists."""
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    if isinstance(values, dict):
        return base64.b64decode(values["b64"])
    return values.encode("utf-8", "surrogateescape")
