"""Loads an export into TensorFlow's C++ runtime, as TensorFlow Serving does. No TensorFlow Python is in the process.

The loader (`cxx_run.py`) is not part of this repository. The environment variable `CXX_RUN_DIR` names its folder.
"""

import copy
import os
import sys
from pathlib import Path

TOOLS = Path(os.environ.get("CXX_RUN_DIR", "."))


def load(path, *names, xla=False):
    """Returns a runtime that holds a SavedModel, and its signatures with these names."""
    if not (TOOLS / "cxx_run.py").exists():
        raise SystemExit(f"The loader is missing: {TOOLS}/cxx_run.py. Set CXX_RUN_DIR to its folder.")
    sys.path.insert(0, str(TOOLS))
    import cxx_run
    import numpy.random  # noqa: F401, crashes if it is loaded after TensorFlow's library

    signatures = [cxx_run.signature(str(path), name) for name in names]
    return cxx_run.Runtime(str(path), xla), *signatures


def of_a_thread(runtime):
    """Returns a runtime with the same session and a status of its own, for another thread."""
    own = copy.copy(runtime)
    own.st = runtime.L.TF_NewStatus()
    return own
