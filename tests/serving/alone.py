"""An export in a process that knows TensorFlow and tensorflow-text alone, or neither."""

import json
import pathlib
import subprocess
import sys

CXX_RUN = pathlib.Path(__file__).parents[3] / "shared" / "tools" / "cxx_run.py"

# Runs an export as a server does that knows TensorFlow and tensorflow-text and nothing of this package.
ALONE = """
import ctypes, json, pathlib, sys
import tensorflow as tf
import tensorflow_text

folder, with_xla, texts = sys.argv[1], sys.argv[2] == "xla", json.loads(sys.argv[3])
if not with_xla:  # what tensorflow_model_server does unless it is started with --xla_cpu_compilation_enabled
    library = ctypes.CDLL(str(pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")))
    library._ZN10tensorflow21DisableXlaCompilationEv()
function = tf.saved_model.load(folder).signatures["serving_default"]
try:
    found = function(text=tf.constant(texts))
    result = {name: value.numpy().tolist() for name, value in found.items()}
    result["translation"] = [text.decode() for text in result["translation"]]
except tf.errors.OpError as error:
    result = {"error": str(error)}
result["modules"] = [name for name in sys.modules if name.split(".")[0] == "keras_transformer"]
print("RESULT" + json.dumps(result))
"""


def run_alone(folder, texts, xla, tmp_path):
    """Calls the export in a process of its own, which cannot import this package."""
    command = [sys.executable, "-I", "-c", ALONE, str(folder), "xla" if xla else "no xla", json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.split("RESULT")[1])
    assert result.pop("modules") == []
    return result


def run_in_cxx(folder, texts, tmp_path):
    """Calls the export without TensorFlow's Python; None where the tool for it is not at hand."""
    if not CXX_RUN.exists():
        return None
    command = [sys.executable, str(CXX_RUN), str(folder)]
    feeds = json.dumps({"text": texts})
    done = subprocess.run(command, input=feeds, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])["outputs"]
