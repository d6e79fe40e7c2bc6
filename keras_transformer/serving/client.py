"""A client of a running TensorFlow Serving."""

import warnings
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from keras_transformer.checks import check_count, check_positive, check_range
from keras_transformer.serving.attempts import Failure, attempt
from keras_transformer.serving.tensors import input_array, joined

# What the caller gets for what a server answers; OSError for the rest.
ERRORS = {
    "UNAVAILABLE": ConnectionError,
    "DEADLINE_EXCEEDED": TimeoutError,
    "UNAUTHENTICATED": PermissionError,
    "PERMISSION_DENIED": PermissionError,
    "NOT_FOUND": ValueError,
    "INVALID_ARGUMENT": ValueError,
    "FAILED_PRECONDITION": ValueError,
    "OUT_OF_RANGE": ValueError,
}


class Client:
    """Asks a model that TensorFlow Serving serves, over REST or gRPC.

    ```python
    with Client("grpc://localhost:8500", "en_de") as client:
        client.translate(["A dog runs."])
    ```

    Connections are kept and shared: one client serves several threads. Only a request that no server took up
    (`UNAVAILABLE`, HTTP 503, connection refused or lost) is sent again; a request changes nothing in a server.

    Args:
        url: `http://host[:port][/path]` for REST, `grpc://host:port` for gRPC, `https://` and `grpcs://` over TLS.
            TensorFlow Serving's own ports are 8501 for REST and 8500 for gRPC.
        model: The model's name, as in `MODEL_NAME`.
        version: Number of its version; None for the newest one.
        label: Label of its version, instead of a number.
        batch_size: Number of rows in a request; longer inputs are sent in several.
        timeout: Seconds for a request, its retries and the waits between them included. Over REST the last attempt
            ends when the server says nothing for what is left of them.
        retries: How many attempts may follow a request's first.
        backoff: Seconds before the second attempt, doubled with each further one.
        headers: A dict of HTTP headers or gRPC metadata, such as an authorization.
        certificates: PEM file of the authorities to trust over TLS; None for the usual ones.

    Raises:
        ValueError: If an argument is out of range.
        ModuleNotFoundError: If the packages of the extra `client` are missing.
    """

    def __init__(
        self,
        url,
        model="model",
        *,
        version=None,
        label=None,
        batch_size=32,
        timeout=60.0,
        retries=3,
        backoff=0.1,
        headers=None,
        certificates=None,
    ):
        scheme = _scheme(url)
        if not isinstance(model, str) or not model:
            raise ValueError(f"`model` must be a model's name. Received: model={model!r}.")
        if version is not None:
            check_positive(version=version)
        if label is not None and (version is not None or not isinstance(label, str) or not label):
            raise ValueError(
                "`label` must be a label, without a version beside it. "
                f"Received: label={label!r}, version={version!r}."
            )
        check_positive(batch_size=batch_size)
        check_range(0, above=True, timeout=timeout)
        check_count(0, 100, retries=retries)
        check_range(0, backoff=backoff)
        headers = dict(headers or {})
        for name, value in headers.items():  # a value may be a secret: not in the message
            if not all(
                isinstance(part, str) and part.isascii() and part.isprintable() for part in (name, value)
            ):
                raise ValueError(f"`headers` must be a dict of printable ASCII. Received: another {name!r}.")
        if certificates is not None and not Path(certificates).is_file():
            raise ValueError(
                f"`certificates` must be a PEM file. Received: certificates={str(certificates)!r}."
            )
        self.url = url
        self.model = model
        self.version = version
        self.label = label
        self.batch_size = batch_size
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self._closed = False
        certificates = None if certificates is None else str(certificates)
        self._transport = _transport_class(scheme)(url, model, version, label, headers, certificates)

    def translate(self, sentences):
        """Translates sentences, with a warning if the model cut some of them.

        Args:
            sentences: List of str (or of UTF-8 bytes).

        Returns:
            A list of str, one for each sentence, in their order.

        Raises:
            ValueError: If `sentences` is a single string, or as in `predict`.
            OSError: As in `predict`.
        """
        if isinstance(sentences, (str, bytes)):
            raise ValueError(f"`sentences` must be a list of strings. Received: {sentences!r}.")
        sentences = list(sentences)
        if not sentences:
            return []
        found = self.predict(text=sentences)
        translations = found.get("translation")
        if translations is None or translations.shape != (len(sentences),):
            raise OSError(
                f"{self.url} must answer {len(sentences)} sentences with as many translations. "
                f"Received: { {name: array.shape for name, array in found.items()} }."
            )
        cut = int(found["truncated"].sum()) if "truncated" in found else 0
        if cut:
            warnings.warn(
                f"{cut} of {len(sentences)} sentences are longer than the model reads; what follows is not "
                "translated.",
                stacklevel=2,
            )
        return [text.decode("utf-8", "replace") for text in translations]

    def predict(self, signature="serving_default", /, **inputs):
        """Runs a signature.

        Inputs of more than `batch_size` rows are sent in several requests, strings of like length together; a row of
        the result belongs to the same row of the inputs. If one request fails, there is no result.

        Args:
            signature: Its name.
            **inputs: By name, arrays or nested lists of strings (str, or bytes as they are), numbers or booleans.
                Python's numbers become int32 and float32; an array keeps its dtype. Inputs with one first
                dimension, `(batch, ...)`, are split along it; others go in one request.

        Returns:
            A dict from name to array, strings as bytes in an array of objects. Where batches differ in width the
            narrower ones are padded with 0, False or b"".

        Raises:
            ValueError: If an input is no such array, or the server refuses the request: no such model, version,
                signature or input, or a wrong shape or dtype.
            OSError: If there is no answer: `ConnectionError` if the server is not there, `TimeoutError` if time is
                up, `PermissionError`, or else one that says what came instead.
        """
        if not inputs:
            raise ValueError("`inputs` must name at least one input. Received: none.")
        arrays = {name: input_array(name, value) for name, value in inputs.items()}
        sizes = {len(array) if array.ndim else None for array in arrays.values()}
        if 0 in sizes:
            raise ValueError(f"`{next(iter(arrays))}` must have at least one row. Received: none.")

        def request(rows):
            batch = arrays if rows is None else {name: array[rows] for name, array in arrays.items()}
            return self._ask(
                f"signature={signature!r}",
                lambda deadline: self._transport.predict(signature, batch, deadline),
            )

        (size, *others) = sizes
        if others or size is None or size <= self.batch_size:
            return request(None)
        lengths = np.zeros(size, int)
        for array in arrays.values():
            if array.dtype == object and array.ndim == 1:
                lengths += [len(text) for text in array]
        order = lengths.argsort(kind="stable")
        batches = [order[start : start + self.batch_size] for start in range(0, size, self.batch_size)]
        parts = [(rows, request(rows)) for rows in batches]
        try:
            return joined(parts)
        except ValueError as error:
            raise OSError(f"{self.url}, signature={signature!r}: {error}.") from None

    def status(self):
        """The versions of the model: a dict from number to state, `"AVAILABLE"` when it answers.

        A label is not looked up: with one it is all versions.

        Raises:
            ValueError: If the server has no such model or version.
            OSError: If there is no answer, as in `predict`.
        """
        return self._ask("status", self._transport.status)

    def ready(self):
        """Whether the version answers, or some version where none was given; False where no server answers; asks once.

        Raises:
            ValueError: If the server has no such model or version.
            OSError: If the server refuses to say.
        """
        try:
            return "AVAILABLE" in self._ask("status", self._transport.status, retries=0).values()
        except (ConnectionError, TimeoutError):
            return False

    def close(self):
        """Closes the connections; `with Client(...)` does so, too."""
        self._closed = True
        self._transport.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _ask(self, what, call, retries=None):
        if self._closed:
            raise ValueError(f"The client must be open. Received: a request to {self.url} after close().")
        try:
            return attempt(call, self.timeout, self.retries if retries is None else retries, self.backoff)
        except Failure as failure:
            kind, said = ERRORS.get(failure.code, OSError), f"{failure.message} ({failure.code})"
            where = f"model={self.model!r}, version={self.version}, label={self.label}, {what}"
            times = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
            if kind is ConnectionError:
                said = f"{self.url} is not available after {times}: {said}"
            elif kind is TimeoutError:
                said = (
                    f"{self.url} must answer within timeout={self.timeout} seconds; {times}, {where}: {said}"
                )
            else:
                said = f"{self.url} refuses {where}: {said}"
            raise kind(said) from None


def _scheme(url):
    """The scheme of a URL that a client can use."""
    if isinstance(url, str) and "@" in url:
        raise ValueError("`url` must hold no password; `headers` may. Received: one with an @.")
    try:
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
        if parts.scheme in ("http", "https") and usable:
            return parts.scheme
        if parts.scheme in ("grpc", "grpcs") and usable and parts.port and not parts.path.strip("/"):
            return parts.scheme
    except (AttributeError, TypeError, ValueError):  # no string, or no number for a port
        pass
    raise ValueError(
        f"`url` must be http[s]://host[:port][/path] or grpc[s]://host:port. Received: url={url!r}."
    )


def _transport_class(scheme):
    """The transport of a scheme; what it needs loads with the first client."""
    try:
        if scheme in ("grpc", "grpcs"):
            from keras_transformer.serving.rpc import Rpc

            return Rpc
        from keras_transformer.serving.rest import Rest

        return Rest
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"`Client` needs {error.name.split('.')[0]}, of the extra `client`: pip install '.[client]'.",
            name=error.name,
        ) from None
