"""TensorFlow Serving's REST API, over `requests`."""

import base64
import json
import time
from urllib.parse import quote

import numpy as np
import requests
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from keras_transformer.serving.attempts import Failure

CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    502: "UNAVAILABLE",  # of a proxy that finds no server
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
CONNECTIONS = 64  # that stay open, one for each thread that calls at the same time


class Rest:
    """Requests to one model over HTTP.

    Args:
        url: Of the server, `http://` or `https://`.
        model: The model's name.
        version: A number, or None.
        label: A version's label, or None.
        headers: A dict from name to value, sent with every request.
        certificates: Path of a PEM file of the authorities to trust, or None for the usual ones.
    """

    def __init__(self, url, model, version, label, headers, certificates):
        self._base = f"{url.rstrip('/')}/v1/models/{quote(model, safe='')}"
        if version is not None:
            self._base += f"/versions/{version}"
        if label is not None:
            self._base += f"/labels/{quote(label, safe='')}"
        self._verify = certificates or True
        self._session = requests.Session()
        self._session.headers.update(headers)
        self._session.auth = lambda request: request  # nothing from a .netrc
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._specs = {}  # by signature: name of an output to its dtype and rank

    def predict(self, signature, inputs, deadline):
        """A dict of arrays for a dict of arrays; strings are arrays of bytes objects."""
        body = {"signature_name": signature, "inputs": {name: _json(array) for name, array in inputs.items()}}
        answer = self._send("POST", ":predict", deadline, json.dumps(body).encode())
        try:
            return self._outputs(signature, answer["outputs"], deadline)
        except (KeyError, TypeError, ValueError) as error:
            raise Failure("INTERNAL", f"the answer cannot be read: {error!r}") from error

    def status(self, deadline):
        """A dict from version to the name of its state."""
        answer = self._send("GET", "", deadline)
        try:
            return {int(found["version"]): found["state"] for found in answer["model_version_status"]}
        except (KeyError, TypeError, ValueError) as error:
            raise Failure("INTERNAL", f"the answer cannot be read: {error!r}") from error

    def close(self):
        self._session.close()

    def _send(self, method, path, deadline, body=None):
        """The object that the server answers."""
        try:
            response = self._session.request(
                method,
                self._base + path,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=max(deadline - time.monotonic(), 1e-3),
                verify=self._verify,
                allow_redirects=False,  # a POST would become a GET
            )
        except requests.Timeout as error:
            raise Failure("DEADLINE_EXCEEDED", "no answer") from error
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            reason = getattr(error.args[0] if error.args else None, "reason", None)
            raise Failure("UNAVAILABLE", str(reason or error)) from error
        except (requests.RequestException, ValueError) as error:
            raise Failure("UNKNOWN", str(error)) from error
        # A server writes the bytes of its strings as they are, so an answer may be JSON and yet no UTF-8.
        text = response.content.decode("utf-8", "surrogateescape")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if response.status_code == 200 and isinstance(answer, dict):
            return answer
        message = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(message, str):
            message = f"HTTP status {response.status_code}, no answer of TensorFlow Serving: {text[:200]!r}"
        readable = message.encode("utf-8", "replace").decode()  # what was no UTF-8 could not be printed
        raise Failure(CODES.get(response.status_code, "UNKNOWN"), readable)

    def _outputs(self, signature, outputs, deadline):
        """Arrays of the dtypes that the signature has: JSON does not tell them."""
        for _ in range(2):
            spec = self._specs.get(signature)
            if spec is not None and len(spec) == 1:  # the only output has no name
                return {name: _array(outputs, *kind) for name, kind in spec.items()}
            if spec is not None and isinstance(outputs, dict) and spec.keys() == outputs.keys():
                return {name: _array(outputs[name], *kind) for name, kind in spec.items()}
            self._specs[signature] = self._spec(signature, deadline)  # none yet, or another version's
        raise ValueError(f"{signature!r} has the outputs {sorted(spec)}")

    def _spec(self, signature, deadline):
        answer = self._send("GET", "/metadata", deadline)
        found = answer["metadata"]["signature_def"]["signature_def"][signature]["outputs"]
        return {
            name: (
                np.dtype(tf.as_dtype(types_pb2.DataType.Value(info["dtype"])).as_numpy_dtype),
                len(info["tensor_shape"].get("dim", ())),
            )
            for name, info in found.items()
        }


def _json(array):
    if array.dtype.kind != "O":
        return array.tolist()
    leaves = np.empty(array.size, dtype=object)
    leaves[:] = [{"b64": base64.b64encode(text).decode()} for text in array.flat]
    return leaves.reshape(array.shape).tolist()


def _array(values, dtype, rank):
    array = np.array(_decoded(values) if dtype.kind == "O" else values, dtype=dtype)
    return array.reshape(array.shape + (0,) * (rank - array.ndim)) if array.size == 0 else array


def _decoded(values):
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    if isinstance(values, dict):
        return base64.b64decode(values["b64"])
    return values.encode("utf-8", "surrogateescape")
