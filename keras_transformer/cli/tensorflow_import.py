"""Imports TensorFlow quietly."""

import contextlib
import os
import sys
import tempfile


def import_tensorflow(trains=False):
    """Imports TensorFlow and tensorflow-text without the notices that they write to standard error.

    `TF_CPP_MIN_LOG_LEVEL` does not silence the notices that come while the libraries are loaded. If the import fails,
    they are written to standard error after all.

    Args:
        trains: Whether the command trains. Then oneDNN computes products on every CPU, unless the user said otherwise:
            TensorFlow leaves it off on a CPU with AVX2 alone, where a step takes 0.82 times as long with it.
    """
    if trains:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with tempfile.TemporaryFile() as notices:
        try:
            with _redirected(2, notices.fileno()):
                import tensorflow  # noqa: F401
                import tensorflow_text  # noqa: F401
        except Exception:
            notices.seek(0)
            sys.stderr.write(notices.read().decode("utf-8", "replace"))
            raise


@contextlib.contextmanager
def _redirected(descriptor, target):
    """Makes a file descriptor another file. A closed descriptor stays closed."""
    try:
        kept = os.dup(descriptor)
    except OSError:
        yield
        return
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
