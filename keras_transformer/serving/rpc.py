"""TensorFlow Serving's gRPC API, over `grpcio` and `tensorflow-serving-api`."""

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
    ("grpc.max_receive_message_length", -1),  # attention of a batch is more than the 4 MiB that gRPC expects
    # A second attempt is to be one: without these, a channel waits a second before it connects again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Rpc:
    """Requests to one model over gRPC.

    Args:
        url: Of the server, `grpc://` or `grpcs://`.
        model: The model's name.
        version: A number, or None.
        label: A version's label, or None.
        headers: A dict from name to value, sent with every request.
        certificates: Path of a PEM file of the authorities to trust, or None for the usual ones.
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
        """A dict of arrays for a dict of arrays; strings are arrays of bytes objects."""
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
        """A dict from version to the name of its state."""
        answer = self._send(self._status, get_model_status_pb2.GetModelStatusRequest(), deadline)
        states = get_model_status_pb2.ModelVersionStatus.State
        return {found.version: states.Name(found.state) for found in answer.model_version_status}

    def close(self):
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
