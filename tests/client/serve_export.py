"""Serves exports over both protocols in a process of its own.

Like TensorFlow Serving it answers the warm-up requests of an export before it opens its ports, and it ignores SIGTERM.
It ends with its standard input.

usage: serve_export.py REST_PORT GRPC_PORT NAME=VERSION=FOLDER...
"""

import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from servers import Backend, ServedModel, grpc_server, rest_server
from tensorflow_serving.apis import prediction_log_pb2


def warmed(folder):
    """Loads an export, and answers its warm-up requests if it has any."""
    model = ServedModel(folder)
    requests = pathlib.Path(folder) / "assets.extra" / "tf_serving_warmup_requests"
    if not requests.is_file():  # an export of Keras's `model.export` has none
        return model
    for record in tf.data.TFRecordDataset(str(requests)):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        model.served.answer(request.model_spec.signature_name, inputs)
    return model


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rest_port, grpc_port, *exports = sys.argv[1:]
    models = {}
    for name, version, folder in (export.split("=", 2) for export in exports):
        models.setdefault(name, {})[int(version)] = warmed(folder)
    backend = Backend(models, {"stable": max(map(max, models.values()))})
    with grpc_server(backend, port=int(grpc_port)), rest_server(backend, port=int(rest_port)):
        sys.stdin.buffer.read()
