"""The runtime of TensorFlow Serving, with an export in it."""

import json
import pathlib
import subprocess
import sys

import tensorflow as tf

CXX_RUN = pathlib.Path(__file__).parents[3] / "shared" / "tools" / "cxx_run.py"


def answers(export, tmp_path, signature="serving_default", xla=False, **inputs):
    """What a signature of an export answers, a dict of nested lists: without TensorFlow's Python where the tool for it
    is at hand, else by the loader of its Python."""
    if CXX_RUN.exists():
        command = [sys.executable, str(CXX_RUN), str(export), "--signature", signature, *["--xla"] * xla]
        done = subprocess.run(
            command, input=json.dumps(inputs), capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])["outputs"]
    function = tf.saved_model.load(str(export)).signatures[signature]
    specs = function.structured_input_signature[1]
    found = function(**{name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()})
    return {name: _plain(value.numpy().tolist()) for name, value in found.items()}


def _plain(value):
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value
