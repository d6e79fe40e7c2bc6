"""Files and folders that appear whole or not at all."""

import contextlib
import os
import secrets
import shutil
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

TEMPORARY = ".tmp-"
LOCK = ".lock"


@contextlib.contextmanager
def replaced(path):
    """Gives a temporary path beside `path`; what is there at the end takes its place, in one rename.

    A temporary name keeps the suffixes of `path` and starts with `.tmp-`. After an error nothing is left of it, and
    what stood at `path` still stands.

    Args:
        path: The file or new folder to write. An existing folder cannot be replaced: check first.

    Yields:
        The temporary `Path`; its parent exists.

    Raises:
        OSError: If it cannot be written, as on a full disk; names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}")
    try:
        with naming(path):
            yield temporary
            settle(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def settle(path, target):
    """Gives a file or folder its final name in one rename, once all of it is on the disk.

    Args:
        path: What is written already, on the same file system.
        target: The final name. What file stands there is replaced: check first.
    """
    path, target = Path(path), Path(target)
    for written in [path, *path.rglob("*")]:
        _sync(written)
    os.replace(path, target)
    _sync(target.parent)


@contextlib.contextmanager
def naming(path):
    """Adds a path to an `OSError` that names none: a full disk does not say what it has no room for."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def locked(folder):
    """Keeps a folder for whoever entered this, until the end of it or of the process.

    The lock is on a file `.lock` in the folder, which is created when missing and stays. Where the system or the
    file system knows no locks, nothing is kept.

    Args:
        folder: The folder; created when missing.

    Raises:
        ValueError: If another keeps it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"`folder` must not be in use by another process. Received: folder={str(folder)!r}."
                ) from None
            except OSError:  # a file system without locks, as some clusters have
                pass
        yield


def temporaries(folder):
    """What a killed process left half written in a folder: a list of paths."""
    return list(Path(folder).glob(f"{TEMPORARY}{'[0-9a-f]' * 8}-*"))


def remove_temporaries(folder):
    """Removes what a killed process left half written in a folder."""
    for left in temporaries(folder):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _sync(path):
    """Waits until a file or folder is on the disk: a rename must not be there before what it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
