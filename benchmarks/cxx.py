"""Exports in TensorFlow's C++ runtime, which is TensorFlow Serving's: no Python of TensorFlow's or ours beside it.

What loads and runs them lies outside the project (`cxx_run.py`, see README.md).
"""

import copy
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "shared" / "tools"


def load(path, *names, xla=False):
    """A runtime that holds a SavedModel, and its signatures of these names."""
    if not (TOOLS / "cxx_run.py").exists():
        raise SystemExit(f"What runs exports in the C++ runtime is missing: {TOOLS}/cxx_run.py")
    sys.path.insert(0, str(TOOLS))
    import cxx_run
    import numpy.random  # noqa: F401, loaded after TensorFlow's library it crashes

    signatures = [cxx_run.signature(str(path), name) for name in names]
    return cxx_run.Runtime(str(path), xla), *signatures


def of_a_thread(runtime):
    """The same session with a status of its own."""
    own = copy.copy(runtime)
    own.st = runtime.L.TF_NewStatus()
    return own
