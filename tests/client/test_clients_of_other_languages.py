"""What docs/clients.md shows: the requests of each signature, and programs in other languages, with a server."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import urllib.request

import pytest

pytest.importorskip("tensorflow_serving")
from servers import SERVERS, Backend
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
from tensorflow_serving.apis import get_model_status_pb2, model_pb2, predict_pb2

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
PROTO = ROOT / "examples" / "clients" / "prediction.proto"
NODE_MODULES = os.environ.get("NODE_MODULES")  # a folder with @grpc/grpc-js and @grpc/proto-loader
TEXTS = ["A dog runs.", "Hello."]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def urls(request):
    """The addresses of a server of the export, over both protocols, without their schemes."""
    backend = Backend({"en_de": {1: request.getfixturevalue("served_model")}}, {"stable": 1})
    with SERVERS["http"](backend) as rest, SERVERS["grpc"](backend) as rpc:
        yield {"8501": rest.partition("//")[2], "8500": rpc.partition("//")[2]}


def program(code, urls, path):
    """Writes a program of the page, for these servers."""
    for port, address in urls.items():
        code = code.replace(f"localhost:{port}", address)
    path.write_text(code, encoding="utf-8")
    return path


def output_of(*command, **options):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, encoding="utf-8", timeout=600, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def test_the_messages_of_the_file_are_those_of_tensorflow_serving():
    text = PROTO.read_text(encoding="utf-8")
    found = dict(re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    known = {
        "PredictRequest": predict_pb2.PredictRequest,
        "PredictResponse": predict_pb2.PredictResponse,
        "ModelSpec": model_pb2.ModelSpec,
        "TensorProto": tensor_pb2.TensorProto,
        "TensorShapeProto": tensor_shape_pb2.TensorShapeProto,
        "GetModelStatusRequest": get_model_status_pb2.GetModelStatusRequest,
        "GetModelStatusResponse": get_model_status_pb2.GetModelStatusResponse,
        "ModelVersionStatus": get_model_status_pb2.ModelVersionStatus,
    }
    assert found.keys() == known.keys() | {"Version"}
    for name, message in known.items():
        fields = re.findall(
            r"^ +(?:repeated )?(?:map<string, )?(\w+)>? (\w+) = (\d+);", found[name], re.MULTILINE
        )
        for kind, field, number in fields:
            descriptor = message.DESCRIPTOR.fields_by_name.get(field)
            if descriptor is None:  # of `Dim`, which is inside of another message
                descriptor = message.Dim.DESCRIPTOR.fields_by_name[field]
            assert descriptor.number == int(number), (name, field)
            scalars = {"int64": 3, "bool": 8, "bytes": 12, "string": 9, "float": 2}
            # A field of an enum or of small integers is written as an int32 is.
            assert kind in found or kind == "Dim" or descriptor.type == scalars.get(kind, descriptor.type)
    services = dict(re.findall(r"service (\w+) \{\n  rpc (\w+)", text))
    assert services == {"PredictionService": "Predict", "ModelService": "GetModelStatus"}


def shape_of(value):
    """What two answers of a signature have in common: names, ranks and types."""
    if isinstance(value, dict):
        return {name: shape_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape_of(each) for each in value[:1]]
    return type(value).__name__


@pytest.mark.slow
def test_each_signature_answers_as_the_page_says(urls, served_model):
    shown = [[json.loads(line) for line in block.splitlines()] for block in blocks("json")]
    assert {request["signature_name"] for request, _ in shown} == set(served_model.signatures)
    for request, answer in shown:
        url = f"http://{urls['8501']}/v1/models/en_de:predict"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(request).encode())) as response:
            found = json.load(response)
        assert shape_of(found) == shape_of(answer), request


@pytest.fixture(scope="module")
def expected(translator):
    return translator.translate(TEXTS)


@pytest.mark.slow
@needs("curl")
def test_curl(urls, expected, tmp_path):
    (code,) = re.findall(r"```\n(curl .*?)```", PAGE, re.DOTALL)
    answer = json.loads(output_of("bash", program(code, urls, tmp_path / "ask.sh")))
    assert [row["translation"] for row in answer["predictions"]] == expected


@pytest.mark.slow
@needs("node")
def test_javascript_over_rest(urls, expected, tmp_path):
    code, _ = blocks("js")
    assert output_of("node", program(code, urls, tmp_path / "ask.mjs")).splitlines() == expected


@pytest.mark.slow
@needs("node")
@pytest.mark.skipif(NODE_MODULES is None, reason="NODE_MODULES names no folder with @grpc/grpc-js")
def test_javascript_over_grpc(urls, expected, tmp_path):
    _, code = blocks("js")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(PROTO, tmp_path)
    path = program(code, urls, tmp_path / "ask.mjs")
    assert output_of("node", path, cwd=tmp_path).splitlines() == expected


@pytest.mark.slow
@needs("go")
def test_go_over_rest(urls, expected, tmp_path):
    code, _ = blocks("go")
    environment = {**os.environ, "GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod"}
    path = program(code, urls, tmp_path / "ask.go")
    assert output_of("go", "run", path, env=environment, cwd=tmp_path).splitlines() == expected


@pytest.mark.slow
@needs("javac")
def test_java(urls, expected, tmp_path):
    (code,) = blocks("java")
    answer = json.loads(output_of("java", program(code, urls, tmp_path / "Ask.java")))
    assert answer["outputs"]["translation"] == expected
