"""The command `train` lets the process keep freed memory."""

import os
import platform
import subprocess
import sys

import pytest

from keras_transformer.execution.memory import keep_freed_memory

# Prints the number of bytes that glibc took from the system for one large block.
PROGRAM = """
import ctypes, sys
import numpy as np

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

glibc = ctypes.CDLL(None)
glibc.mallinfo2.restype = Mallinfo2
if sys.argv[1] == "kept":
    from keras_transformer.execution.memory import keep_freed_memory
    assert keep_freed_memory() is (sys.argv[2] == "done")
before = glibc.mallinfo2().hblkhd
block = np.empty(64 * 2**20, "int8")
print(glibc.mallinfo2().hblkhd - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="The C library is not glibc.")
@pytest.mark.parametrize(
    ("mode", "environment", "is_mapped"),
    [("usual", {}, True), ("kept", {}, False), ("kept", {"MALLOC_MMAP_THRESHOLD_": "1000000"}, True)],
)
def test_large_blocks_are_kept(mode, environment, is_mapped):
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}, **environment}
    done = "untouched" if is_mapped else "done"
    command = [sys.executable, "-c", PROGRAM, mode, done]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr
    assert (int(found.stdout) >= 64 * 2**20) is is_mapped


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="The C library is not glibc.")
def test_a_variable_of_the_environment_counts_more(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert keep_freed_memory() is False
