"""How the C library of the process keeps memory."""

import ctypes
import os
import platform

# Parameters of `mallopt(3)`.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
LARGEST = 2**31 - 1
STEP_BYTES = 64 * 2**20


def keep_freed_memory():
    """Lets glibc keep freed memory for the next allocation.

    By default it takes each large block, such as the logits of a batch, from the system and gives it back at the end:
    the system fills every page with zeros again, in each training step. The process needs more memory in exchange.
    Variables of the environment such as `MALLOC_MMAP_MAX_` count more: with one of them nothing is changed.

    Returns:
        Whether it was done. It is not done without glibc, so only on Linux.

    Source: the manual page mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    parameters = {MMAP_MAX: 0, TRIM_THRESHOLD: LARGEST, TOP_PAD: STEP_BYTES}
    return all([mallopt(parameter, value) == 1 for parameter, value in parameters.items()])
