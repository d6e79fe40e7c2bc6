"""Writes files and folders that appear whole or not at all, and locks folders."""

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

TEMPORARY = ".tmp-"
LOCK = ".lock"
NONBLOCK, NOFOLLOW = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)  # Windows has neither


@contextlib.contextmanager
def replaced(path):
    """Yields a temporary path to write to, and renames it to `path` at the end.

    The temporary path is in the folder of `path`. Its name starts with `.tmp-` and keeps the suffixes of `path`. After
    an error the temporary file is removed, and an older file at `path` stays unchanged.

    Args:
        path: The file or the new folder to write, a path. A file replaces an older file. A folder replaces nothing:
            check first that none exists.

    Yields:
        The temporary `Path`. Its parent exists.

    Raises:
        ValueError: If `path` is a URL.
        OSError: If it cannot be written, for example on a full disk. The error names `path`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replaced(path) as temporary:
    ...     written = temporary.write_text("whole")
    ...     path.exists()
    False
    >>> path.read_text()
    'whole'
    """
    path = Path(path)
    check_local(path)
    _make(path.parent, path)
    temporary = temporary_path(path)
    try:
        with naming(path, temporary):
            yield temporary
            settle(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_json(path, content):
    """Writes a JSON value to a file, as `replaced` does."""
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_local(path):
    """Raises `ValueError` for a URL: it would become a local folder with a name such as `gs:`.

    >>> check_local("gs://bucket/run")
    Traceback (most recent call last):
    ValueError: The path must be on a disk of this machine, or on one that is mounted. Received: gs://bucket/run.

    Args:
        path: A path. `pathlib` makes one slash of the two in a URL.
    """
    path = Path(path)
    # A single letter is a drive of Windows.
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        received = str(path).replace(":/", "://", 1)
        raise ValueError(
            f"The path must be on a disk of this machine, or on one that is mounted. Received: {received}."
        )


def settle(path, target):
    """Renames a file or folder to its final name, after everything in it is on the disk.

    Args:
        path: The written file or folder, a path.
        target: The final path, on the same file system. A file replaces an older file: check first.
    """
    path, target = Path(path), Path(target)
    for each in [path, *path.rglob("*")]:
        _sync(each)
    os.replace(path, target)
    _sync(target.parent)


@contextlib.contextmanager
def naming(path, temporary=None):
    """Adds a path to an `OSError` that names none, such as the error of a full disk.

    Args:
        path: The path.
        temporary: A file or folder that becomes `path` later. An error that names it, or a file in it, gets the name
            that the user knows. None if there is none.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else None
        if temporary is None or named is None or not named.is_relative_to(temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path / named.relative_to(temporary))) from error


def open_own(path):
    """Opens a file to append bytes without a buffer. It is created where it is missing, and has no other name.

    Raises:
        OSError: If it is a link, or cannot be opened.
        ValueError: If it is a device or a pipe, or has another name (a hard link).
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOFOLLOW | NONBLOCK, 0o666)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise ValueError(f"{path} must be a regular file with no other name.")
    return open(descriptor, "ab", buffering=0)


@contextlib.contextmanager
def locked(folder, private=False):
    """Locks a folder until the `with` block or the process ends.

    The lock is on the file `.lock` in the folder. The file is created if it is missing, and it stays. If the block
    raises an error before it wrote anything into a new folder, the folder is removed. On a system or a file system
    without locks, such as Windows, nothing is locked.

    Args:
        folder: The folder, a path. It is created if it is missing.
        private: Whether the folder must be the user's own and no link, so that no other user writes into it. A folder
            that this call makes is not checked: some file systems choose the owner and the mode themselves.

    Raises:
        ValueError: If another process has locked the folder, `folder` is a URL, or it is not private.
    """
    folder = Path(folder)
    check_local(folder)
    in_use = f"`folder` must not be in use by another process. Received: folder={str(folder)!r}."
    is_new = not folder.exists()
    is_made = private and _makes_private(folder)
    _make(folder, folder)
    if private and not is_made:
        _check_private(folder)
    with open_own(folder / LOCK) as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(in_use) from None
            except OSError:
                # Some clusters have file systems without locks.
                pass
            # The owner of the lock removed the folder in between.
            if not os.fstat(file.fileno()).st_nlink:
                raise ValueError(in_use)
        try:
            yield
        except BaseException:
            if is_new and [path.name for path in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder)
            raise


def temporaries(folder, name="*"):
    """Lists the temporary files and folders that a killed process left in a folder.

    Args:
        folder: The folder, a path.
        name: Their final name. All of them by default.

    Returns:
        A list of `Path`.
    """
    name = name if name == "*" else glob.escape(name)
    return list(Path(folder).glob(f"{TEMPORARY}{'[0-9a-f]' * 8}-{name}"))


def temporary_path(path):
    """Returns a new path in the folder of `path`, which `temporaries` lists, a `Path`."""
    return Path(path).with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{Path(path).name}")


def holds_others(folder):
    """Returns whether a folder exists and holds more than a lock and temporary files.

    Args:
        folder: The folder, a `pathlib.Path`.
    """
    return folder.exists() and bool(set(folder.iterdir()) - {*temporaries(folder), folder / LOCK})


def remove_temporaries(folder, name="*"):
    """Removes the temporary files and folders that a killed process left in a folder.

    Args:
        folder: The folder, a path.
        name: The final name of those to remove. All of them by default.
    """
    for path in temporaries(folder, name):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _makes_private(folder):
    """Makes a folder that only its owner can use, and those above it. Returns False where one is there already."""
    _make(folder.parent, folder)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    return True


def _check_private(folder):
    """Raises `ValueError` for a folder that another user owns or can write into, and for a link."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or (fcntl is not None and status.st_uid != os.geteuid()):
        raise ValueError(f"{folder} must be a folder that you own, and not a link.")
    if fcntl is not None and status.st_mode & 0o022:
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        raise ValueError(f"{folder} must be a folder that only you can write into. Received: mode {mode}.")


def _make(folder, path):
    """Makes a folder and those above it. An error names `path`, which the user knows, and not the folder above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sync(path):
    """Waits until a file or folder is on the disk.

    A crash of the machine must not leave a renamed file whose content was never written. Some file systems, such as
    shared folders of virtual machines, cannot wait for a folder: then nothing waits for it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not Path(path).is_dir():
            raise
    finally:
        os.close(descriptor)
