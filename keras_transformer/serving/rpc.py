"""TensorFlow Serving's gRPC API, with `grpcio` and `tensorflow-serving-api`."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.serving.attempts import Failure

OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # the attention of a batch is larger than gRPC's limit of 4 MiB
    # A channel would wait a second before it connects again, and `attempt` tries again sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Rpc:
    """Sends requests for one model over gRPC.

    Args:
        url: URL of the server, `grpc://` or `grpcs://`.
        model: Name of the model.
        version: Version number, or None.
        label: Version label, or None.
        headers: A dict from name to value, sent with every request.
        certificates: Path of a PEM file of the authorities to trust; None for the system's.
    """

    def __init__(self, url, model, version, label, headers, certificates):
        parts = urlsplit(url)
        if parts.scheme == "grpcs":
            roots = Path(certificates).read_bytes() if certificates else None
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.secure_channel(parts.netloc, credentials, options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(parts.netloc, options=OPTIONS)
        self._metadata = [(name.lower(), value) for name, value in headers.items()]
        self._predict = prediction_service_pb2_grpc.PredictionServiceStub(self._channel).Predict
        self._status = model_service_pb2_grpc.ModelServiceStub(self._channel).GetModelStatus
        self._model = model
        self._version = version
        self._label = label

    def predict(self, signature, inputs, deadline):
        """Runs a signature.

        Args:
            signature: Name of the signature.
            inputs: A dict from name to array; strings are bytes in arrays of objects.
            deadline: In seconds of `time.monotonic`.

        Returns:
            A dict from name to array; strings are bytes in arrays of objects.

        Raises:
            Failure: If there is no answer, or it cannot be read.
        """
        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = signature
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        answer = self._send(self._predict, request, deadline)
        try:
            return {name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}
        except (TypeError, ValueError) as error:
            raise Failure("INTERNAL", f"the answer cannot be read: {error!r}") from error

    def status(self, deadline):
        """Asks for the state of each version.

        Args:
            deadline: In seconds of `time.monotonic`.

        Returns:
            A dict from version number to the name of its state.

        Raises:
            Failure: If there is no answer.
        """
        answer = self._send(self._status, get_model_status_pb2.GetModelStatusRequest(), deadline)
        states = get_model_status_pb2.ModelVersionStatus.State
        return {version.version: states.Name(version.state) for version in answer.model_version_status}

    def close(self):
        """Closes the connection."""
        self._channel.close()

    def _send(self, method, request, deadline):
        request.model_spec.name = self._model
        if self._version is not None:
            request.model_spec.version.value = self._version
        if self._label is not None:
            request.model_spec.version_label = self._label
        try:
            return method(request, timeout=deadline - time.monotonic(), metadata=self._metadata)
        except grpc.RpcError as error:
            raise Failure(error.code().name, error.details()) from error
