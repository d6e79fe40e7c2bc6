"""TensorFlow Serving's gRPC API, with `grpcio`."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from keras_transformer.client.attempts import UNREADABLE, Failure, seconds_of
from keras_transformer.client.messages import CLASSES, STATES, array_of, fill_tensor
from keras_transformer.version import USER_AGENT

OPTIONS = [
    # gRPC limits a compressed message before it is decompressed: a few bytes could fill the memory.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # A channel would wait a second before it connects again, and `attempt` tries again sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Where a name has several addresses, as that of a headless Service of Kubernetes, all of them get requests.
    ("grpc.lb_policy_name", "round_robin"),
    # Names are looked up again after a second, not after 30: a pod that ends has left the list by then.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.primary_user_agent", USER_AGENT),
]
PREDICT = "PredictionService/Predict"
METADATA = "PredictionService/GetModelMetadata"
STATUS = "ModelService/GetModelStatus"


class Rpc:
    """Sends requests for one model over gRPC.

    Args:
        client: The client, whose address, model and certificates it uses.

    The methods take the deadline of a request, in seconds of `time.monotonic`, and its headers, a dict.
    """

    closed = False

    def __init__(self, client):
        parts = urlsplit(client.url)
        self._address = parts.netloc
        self._credentials = None
        if parts.scheme == "grpcs":
            authorities, certificate, key = client.certificate_files
            files = authorities, key or certificate, certificate
            self._credentials = grpc.ssl_channel_credentials(
                *(None if path is None else Path(path).read_bytes() for path in files)
            )
        self._model, self._version, self._label = client.model, client.version, client.label
        self._options = [*OPTIONS, ("grpc.max_receive_message_length", client.max_bytes)]
        self._channel = self._opened()

    def _opened(self):
        return self._channel_of(grpc)

    def _channel_of(self, module):
        """Opens a channel of `grpc` or of `grpc.aio`."""
        if self._credentials is None:
            return module.insecure_channel(self._address, options=self._options)
        return module.secure_channel(self._address, self._credentials, options=self._options)

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
        return _outputs(self._send(PREDICT, _prediction(signature, inputs), deadline, headers))

    def status(self, deadline, headers):
        """Asks for the state of each version.

        Args:
            deadline: In seconds of `time.monotonic`.
            headers: A dict from name to value.

        Returns:
            A dict from version number to the name of its state.

        Raises:
            Failure: If there is no answer.
        """
        return _states(self._send(STATUS, CLASSES["GetModelStatusRequest"](), deadline, headers))

    def find(self, deadline, headers):
        """Returns True if a version answers requests, else raises `Failure`. It looks a label up.

        Args:
            deadline: In seconds of `time.monotonic`.
            headers: A dict from name to value.
        """
        request = CLASSES["GetModelMetadataRequest"](metadata_field=["signature_def"])
        self._send(METADATA, request, deadline, headers)
        return True

    def close(self):
        """Closes the connection."""
        self._channel.close()

    def _send(self, method, request, deadline, headers):
        """Sends a request to a method such as `ModelService/GetModelStatus`, and returns the answer."""
        call = self._call(method, request)
        try:
            return call(request, timeout=deadline - time.monotonic(), metadata=_metadata(headers))
        except grpc.RpcError as error:
            raise _failure(error) from error

    def _call(self, method, request):
        """Returns the function of the channel that sends a request, which gets the name of the model here."""
        request.model_spec.name = self._model
        if self._version is not None:
            request.model_spec.version.value = self._version
        if self._label is not None:
            request.model_spec.version_label = self._label
        answer_class = CLASSES[type(request).__name__.replace("Request", "Response")]
        return self._channel.unary_unary(
            f"/tensorflow.serving.{method}", type(request).SerializeToString, answer_class.FromString
        )


class AsyncRpc(Rpc):
    """`Rpc` for an event loop: its methods are coroutines. The first request opens the channel.

    Args:
        client: The `AsyncClient`.
    """

    def _opened(self):
        # A channel belongs to the event loop that runs when it is opened.
        return None

    async def predict(self, signature, inputs, deadline, headers):
        return _outputs(await self._send(PREDICT, _prediction(signature, inputs), deadline, headers))

    async def status(self, deadline, headers):
        return _states(await self._send(STATUS, CLASSES["GetModelStatusRequest"](), deadline, headers))

    async def find(self, deadline, headers):
        request = CLASSES["GetModelMetadataRequest"](metadata_field=["signature_def"])
        await self._send(METADATA, request, deadline, headers)
        return True

    async def close(self):
        if self._channel is not None:
            await self._channel.close()

    async def _send(self, method, request, deadline, headers):
        if self._channel is None:
            self._channel = self._channel_of(grpc.aio)
        call = self._call(method, request)
        try:
            answer = await call(request, timeout=deadline - time.monotonic(), metadata=_metadata(headers))
        except grpc.RpcError as error:
            raise _failure(error) from error
        # grpc.aio logs the error of the reader, and returns nothing.
        if answer is None:
            raise Failure("INTERNAL", "the answer cannot be read: it is compressed or damaged")
        return answer


def _metadata(headers):
    """Makes gRPC's metadata of headers: bytes for the names that end in `-bin`, and strings for the others."""
    return [(name, value.encode() if name.endswith("-bin") else value) for name, value in headers.items()]


def _failure(error):
    """Makes a `Failure` of an `RpcError`. A proxy may say in its metadata when to send the request again."""
    metadata = dict(error.trailing_metadata() or ())
    details = error.details() or ""
    if "CLIENT: Received message larger" in details:
        details += ": `max_bytes` is the limit"
    return Failure(error.code().name, details, seconds_of(metadata.get("retry-after")))


def _prediction(signature, inputs):
    """Makes the request that runs a signature."""
    request = CLASSES["PredictRequest"]()
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        fill_tensor(request.inputs[name], array)
    return request


def _outputs(answer):
    """Reads the arrays of an answer, or raises `Failure`."""
    try:
        return {name: array_of(tensor) for name, tensor in answer.outputs.items()}
    except UNREADABLE as error:
        raise Failure("INTERNAL", f"the answer cannot be read: {error!r}") from error


def _states(answer):
    """Reads the states of the versions, a dict from number to name."""
    return {each.version: STATES.get(each.state, str(each.state)) for each in answer.model_version_status}
