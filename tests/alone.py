"""Exports where this package is not: in a process of TensorFlow alone, in the runtime of TensorFlow Serving."""

import json
import os
import pathlib
import subprocess
import sys

from keras_transformer.serving.verify import Served

# Folder of `cxx_run.py`, a loader for TensorFlow's C++ runtime that is no part of this repository; or None.
CXX_RUN_DIR = os.environ.get("CXX_RUN_DIR")

# Runs an export as a server does that knows TensorFlow and tensorflow-text and nothing of this package.
ALONE = """
import ctypes, json, pathlib, sys
import tensorflow as tf
import tensorflow_text

folder, with_xla, texts = sys.argv[1], sys.argv[2] == "xla", json.loads(sys.argv[3])
if not with_xla:  # what tensorflow_model_server does unless it is started with --xla_cpu_compilation_enabled
    library = ctypes.CDLL(str(pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")))
    library._ZN10tensorflow21DisableXlaCompilationEv()
config = tf.compat.v1.ConfigProto()  # TensorFlow Serving reads this file from 2.19 on
config_file = pathlib.Path(folder, "assets.extra", "saved_model_config.pb")
config.graph_options.rewrite_options.disable_meta_optimizer = config_file.exists()
session, results = tf.compat.v1.Session(graph=tf.Graph(), config=config), {}  # what a server has
with session.graph.as_default():
    signatures = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def
for signature in sys.argv[4:]:
    outputs = {name: info.name for name, info in signatures[signature].outputs.items()}
    try:
        found = session.run(outputs, {signatures[signature].inputs["text"].name: texts})
        result = {name: value.tolist() for name, value in found.items()}
        for name in {"translation", "continuation"} & result.keys():
            result[name] = [text.decode() for text in result[name]]
    except tf.errors.OpError as error:
        result = {"error": str(error)}
    results[signature] = result
assert not [name for name in sys.modules if name.split(".")[0] == "keras_transformer"]
print("RESULT" + json.dumps(results))
"""


def run_alone(folder, texts, xla, tmp_path, *signatures):
    """Calls signatures of an export in a process of its own, which cannot import this package; a dict of answers."""
    command = [sys.executable, "-I", "-c", ALONE, str(folder), "xla" if xla else "no xla", json.dumps(texts)]
    command += signatures
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.split("RESULT")[1])


def answers(export, tmp_path, signature="serving_default", xla=False, **inputs):
    """Returns what a signature of an export answers, a dict of nested lists: by TensorFlow's C++ runtime where
    `CXX_RUN_DIR` is set, else by a session in this process, which runs the same graph."""
    if CXX_RUN_DIR:
        program = str(pathlib.Path(CXX_RUN_DIR) / "cxx_run.py")
        command = [sys.executable, program, str(export), "--signature", signature, *["--xla"] * xla]
        done = subprocess.run(
            command, input=json.dumps(inputs), capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])["outputs"]
    given = {name: _bytes(value) for name, value in inputs.items()}
    return {name: _plain(value.tolist()) for name, value in Served(export).answer(signature, given).items()}


def _bytes(value):
    """Encodes the strings of nested lists. Bytes that are not UTF-8 are lone surrogates in them, as in JSON."""
    if isinstance(value, list):
        return [_bytes(each) for each in value]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _plain(value):
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value
