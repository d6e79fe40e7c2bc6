"""Servers that answer as TensorFlow Serving does, with a real SavedModel behind real transports.

REST follows json_tensor.cc and http_rest_api_util.cc of TensorFlow Serving: strings are written as their bytes,
whatever they are; an output that stands alone has no name; outputs named `*_bytes` come as base64.
"""

import base64
import collections
import contextlib
import http.server
import json
import re
import shutil
import ssl
import subprocess
import threading
import types
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.serving.verify import Served

HTTP = {
    "INVALID_ARGUMENT": 400, "UNAUTHENTICATED": 401, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500,
    "UNAVAILABLE": 503,
}  # fmt: skip
PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(:predict|/metadata)?")


class Refused(Exception):
    def __init__(self, code, message, retry_after=None):
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.retry_after = retry_after


def refuse(code, message="no", retry_after=None):
    """Returns a fault: the server refuses the next request, and may say when it wants to see it again."""

    def fault():
        raise Refused(code, message, retry_after)

    return fault


def answer(status, body, *headers):
    """Returns a fault: the server answers with an HTTP status, a body and pairs of a header and its value."""

    def fault():
        raise Raw(status, body, *headers)

    return fault


def served_function(function):
    """Returns a model as a server holds it: one signature, a function of texts that returns a dict of outputs."""
    text = tf.TensorSpec((None,), tf.string, name="text")
    concrete = tf.function(function).get_concrete_function(text=text)
    return types.SimpleNamespace(signatures={"serving_default": concrete})


class ServedModel:
    """An export as a server holds it: a session runs the nodes of its signatures.

    Args:
        folder: Folder of an exported version.
    """

    def __init__(self, folder):
        self.served = Served(folder)
        self.signatures = {name: ServedSignature(self.served, name) for name in self.served.signatures}


class ServedSignature:
    """A signature of such a model: tensors in, a dict of tensors out, as of a function of `tf.saved_model.load`."""

    def __init__(self, served, name):
        self.served, self.name = served, name
        inputs, outputs = (
            {key: tf.TensorSpec(info.tensor_shape, info.dtype, key) for key, info in infos.items()}
            for infos in (served.signatures[name].inputs, served.signatures[name].outputs)
        )
        self.structured_input_signature, self.structured_outputs = ((), inputs), outputs

    def __call__(self, **inputs):
        found = self.served.answer(self.name, {key: value.numpy() for key, value in inputs.items()})
        return {key: tf.constant(value) for key, value in found.items()}


def input_specs(function):
    positional, named = function.structured_input_signature
    return {spec.name: spec for spec in positional} | named


class Backend:
    """Models by name and version; `faults` are called one by one, before a request is answered."""

    def __init__(self, models, labels=None):
        self.models = models
        self.labels = labels or {}
        self.states = {name: dict.fromkeys(versions, "AVAILABLE") for name, versions in models.items()}
        self.reset()

    def reset(self):
        self.faults = collections.deque()
        self.sizes = []  # rows of each request that reached a model
        self.calls = 0
        self.headers = []
        self.peers = set()
        self.hung_up = threading.Event()

    def enter(self, headers, peer):
        self.calls += 1
        self.headers.append(headers)
        self.peers.add(peer)
        if self.faults:
            self.faults.popleft()()

    def model(self, name, version, label):
        if label:
            version = self.labels.get(label)
            if version is None:
                raise Refused("INVALID_ARGUMENT", f"Unrecognized servable version label: {label}")
        versions = self.models.get(name, {})
        loaded = self.states.get(name, {}).get(version, "AVAILABLE") == "AVAILABLE"
        if not versions or (version and version not in versions) or not loaded:
            asked = f"Specific({name}, {version})" if version else f"Latest({name})"
            raise Refused("NOT_FOUND", f"Servable not found for request: {asked}")
        return versions[version or max(versions)]

    def signature(self, name, version, label, signature):
        found = self.model(name, version, label).signatures.get(signature)
        if found is None:
            raise Refused(
                "INVALID_ARGUMENT", f'Serving signature name: "{signature}" not found in signature def'
            )
        return found

    def run(self, function, inputs):
        specs = input_specs(function)
        if inputs.keys() != specs.keys():
            raise Refused("INVALID_ARGUMENT", f"input keys {sorted(inputs)}, expected {sorted(specs)}")
        for name, tensor in inputs.items():
            if tensor.dtype != specs[name].dtype:
                raise Refused("INVALID_ARGUMENT", f"{name}: {tensor.dtype} is not {specs[name].dtype}")
        self.sizes.append(next(iter(inputs.values())).shape.as_list()[:1])
        try:
            return function(**inputs)
        except tf.errors.InvalidArgumentError as error:
            raise Refused("INVALID_ARGUMENT", error.message) from None

    def status(self, name, version):
        states = self.states.get(name, {})
        if not states or (version and version not in states):
            raise Refused("NOT_FOUND", f"Could not find any versions of model {name}")
        answer = get_model_status_pb2.GetModelStatusResponse()
        for number in [version] if version else states:
            answer.model_version_status.add(version=number, state=states[number])
        return answer


# gRPC


class Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, backend):
        self.backend = backend

    def Predict(self, request, context):
        with answering(self.backend, context):
            function = self.backend.signature(*asked(request), request.model_spec.signature_name)
            inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
            answer = predict_pb2.PredictResponse()
            for name, tensor in self.backend.run(function, inputs).items():
                answer.outputs[name].CopyFrom(tf.make_tensor_proto(tensor.numpy()))
            return answer

    def GetModelMetadata(self, request, context):
        with answering(self.backend, context):
            self.backend.model(*asked(request))
            return get_model_metadata_pb2.GetModelMetadataResponse()


class Status(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, backend):
        self.backend = backend

    def GetModelStatus(self, request, context):
        with answering(self.backend, context):
            return self.backend.status(*asked(request)[:2])


def asked(request):
    spec = request.model_spec
    return spec.name, spec.version.value, spec.version_label


@contextlib.contextmanager
def answering(backend, context):
    try:
        backend.enter(dict(context.invocation_metadata()), context.peer())
        yield
    except Refused as refused:
        if refused.retry_after is not None:
            context.set_trailing_metadata((("retry-after", refused.retry_after),))
        context.abort(grpc.StatusCode[refused.code], refused.message)


@contextlib.contextmanager
def grpc_server(backend, tls=None, clients=None, port=0):
    """A server. `tls` are the paths of its key and certificate, `clients` that of the authority of its clients'."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Prediction(backend), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Status(backend), server)
    if tls:
        key, certificate = (path.read_bytes() for path in tls)
        roots = clients.read_bytes() if clients else None
        credentials = grpc.ssl_server_credentials([(key, certificate)], roots, clients is not None)
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    else:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"{'grpcs' if tls else 'grpc'}://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


# REST


def rest_handler(backend):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(lambda: self.predict(json.loads(content)))

        def do_GET(self):
            self.answer(self.describe)

        def finish(self):
            super().finish()
            backend.hung_up.set()

        def asked(self):
            match = PATH.fullmatch(self.path)
            if not match:
                raise Refused("INVALID_ARGUMENT", f"Malformed request: {self.command} {self.path}")
            name, version, label, verb = match.groups()
            return name, int(version or 0), label, verb

        def answer(self, found):
            code, headers = 200, {}
            try:
                backend.enter(dict(self.headers), self.client_address)
                body = found()
            except Refused as refused:
                code, body = HTTP[refused.code], written({"error": refused.message.encode()})
                headers = {} if refused.retry_after is None else {"Retry-After": refused.retry_after}
            except Raw as raw:
                code, body, *others = raw.args
                headers = dict(others)
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def predict(self, request):
            *model, verb = self.asked()
            assert verb == ":predict"
            function = backend.signature(*model, request.get("signature_name", "serving_default"))
            specs = input_specs(function)
            inputs = {
                name: tf.constant(read(value), specs[name].dtype if name in specs else None)
                for name, value in columns(request, specs).items()
            }
            found = {name: np.asarray(tensor) for name, tensor in backend.run(function, inputs).items()}
            for name, array in found.items():
                if name.endswith("_bytes"):
                    found[name] = [{"b64": base64.b64encode(text)} for text in array.tolist()]
                else:
                    found[name] = array.tolist() if array.dtype != np.float32 else Floats(array)
            found = found if len(found) > 1 else next(iter(found.values()))
            if "instances" in request:
                return written({"predictions": rows(found)})
            return written({"outputs": found})

        def describe(self):
            *model, verb = self.asked()
            if verb is None:
                message = backend.status(*model[:2])
                return json_format.MessageToJson(
                    message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
                ).encode()
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name, function in backend.model(*model).signatures.items():
                for output, spec in function.structured_outputs.items():
                    info = signatures.signature_def[name].outputs[output]
                    info.dtype = spec.dtype.as_datatype_enum
                    info.tensor_shape.CopyFrom(spec.shape.as_proto())
            described = json_format.MessageToDict(signatures, preserving_proto_field_name=True)
            return json.dumps({"metadata": {"signature_def": described}}).encode()

    return Handler


class Raw(Exception):
    """An answer as it is: HTTP status, body and pairs of a header and its value."""


class Floats:
    """float32 values, written as the shortest decimal that is one."""

    def __init__(self, array):
        self.array = array

    def rows(self):
        return [Floats(row) for row in self.array]


def columns(request, specs):
    """The inputs of a request by name. `instances` has a row for each text, `inputs` a list for each input."""
    if "instances" not in request:
        inputs = request["inputs"]
        return inputs if isinstance(inputs, dict) else {next(iter(specs)): inputs}
    instances = request["instances"]
    if isinstance(instances[0], dict) and instances[0].keys() != {"b64"}:
        return {name: [row[name] for row in instances] for name in instances[0]}
    return {next(iter(specs)): instances}


def rows(outputs):
    """The rows of `predictions`: objects, or the values of an output that stands alone."""
    if not isinstance(outputs, dict):
        return outputs
    columns = [values.rows() if isinstance(values, Floats) else values for values in outputs.values()]
    return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def read(value):
    """Strings from base64; a plain JSON string is what UTF-8 makes of it."""
    if isinstance(value, list):
        return [read(each) for each in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    return value.encode() if isinstance(value, str) else value


def written(value):
    """JSON as RapidJSON writes it: bytes of strings pass, except for those that JSON must escape."""
    if isinstance(value, dict):
        members = (written(key.encode()) + b": " + written(each) for key, each in value.items())
        return b"{" + b", ".join(members) + b"}"
    if isinstance(value, list):
        return b"[" + b", ".join(written(each) for each in value) + b"]"
    if isinstance(value, Floats):
        if value.array.ndim == 0 and not np.isfinite(value.array):
            return json.dumps(float(value.array)).encode()  # NaN, Infinity
        if value.array.ndim == 0:
            return np.format_float_scientific(value.array, trim="0").encode()
        return b"[" + b", ".join(written(Floats(each)) for each in value.array) + b"]"
    if isinstance(value, bytes):
        escaped = re.sub(rb'["\\\x00-\x1f]', lambda found: b"\\u%04x" % found[0][0], value)
        return b'"' + escaped + b'"'
    return json.dumps(value).encode()


@contextlib.contextmanager
def rest_server(backend, tls=None, clients=None, port=0):
    """A server. `tls` are the paths of its key and certificate, `clients` that of the authority of its clients'."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), rest_handler(backend))
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*reversed(tls))
        if clients:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SERVERS = {"http": rest_server, "grpc": grpc_server}


def make_certificate(folder):
    """Makes a key and a certificate for 127.0.0.1, and returns their paths."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1"
    )
    command = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return folder / "key.pem", folder / "cert.pem"
