"""Reads files that a stranger may have written: regular files of bounded sizes, JSON, and entries of archives."""

import contextlib
import hashlib
import io
import json
import os
import stat
import zipfile
import zlib

import numpy as np

from keras_transformer.checks import printable

# Number of bytes of a file that is read whole. The largest tokenizer.json known has 35 MB.
SMALL = 2**26
# Number of bytes of a recording: an hour of stereo at 48 kHz with 32 bits has 1.4e9.
LARGEST_RECORDING = 2**31
# Number of characters of the name of a file.
LONGEST_NAME = 255
NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # Windows has none


# What zipfile raises for an archive that is damaged, or that it cannot read, such as one of a later version.
BAD_ZIP = (RuntimeError, EOFError, zipfile.BadZipFile, zlib.error)


def read_small(path, limit=SMALL):
    """Reads the bytes of a regular file of a bounded size. A link is followed: caches of checkpoints hold links.

    Args:
        path: A path.
        limit: The largest number of bytes.

    Raises:
        ValueError: If it is a device, a pipe or a folder, or has more bytes.
        OSError: If it cannot be opened.
    """
    with open_regular(path, limit) as file:
        # Python takes the memory of as many bytes as it is asked for.
        return file.read(min(os.fstat(file.fileno()).st_size, limit))


def bytes_of(file, limit=SMALL):
    """Returns the bytes of a file that is given as bytes or by its path, read as by `read_small`; None for others."""
    if isinstance(file, bytes):
        return file
    return read_small(file, limit) if isinstance(file, (str, os.PathLike)) else None


def open_regular(path, limit=None):
    """Opens a regular file to read bytes. Raises `ValueError` for another one, or for more bytes than the limit."""
    try:
        # Without NONBLOCK, a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | NONBLOCK)
    except FileNotFoundError:
        raise FileNotFoundError(f"{printable(str(path))} must be a file that exists.") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or (limit is not None and status.st_size > limit):
        os.close(descriptor)
        size = "" if limit is None else f" of at most {limit} bytes"
        raise ValueError(f"{printable(str(path))} must be a regular file{size}.")
    return open(descriptor, "rb")


def read_text(path):
    """Reads a small file of UTF-8, a str. Raises `ValueError` for other bytes, and as `read_small`."""
    try:
        return read_small(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{printable(str(path))} must hold UTF-8. Received: {error}.") from None


def read_json(path, kind=dict):
    """Reads the JSON value of a small file.

    Args:
        path: A path.
        kind: The class of the value, such as `dict`.

    Raises:
        ValueError: If the file cannot be read, or holds no JSON or a value of another class.
    """
    return _of_kind(path, lambda: read_text(path), kind)


def read_json_entry(path, name):
    """Reads the JSON object in a file of a zip archive, a dict. Raises `ValueError` as `read_entry` and `read_json`."""
    return _of_kind(f"{name} of {path}", lambda: read_entry(path, name), dict)


def read_entry(path, name):
    """Reads the bytes of a file in a zip archive.

    Raises:
        ValueError: If there is no such file in the archive, it cannot be read, or it is compressed and large: a few
            bytes could fill the memory. Keras and NumPy write without compression.
    """
    rule = f"{printable(str(path))} must hold {name}, without compression or of at most {SMALL} bytes."
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            if not _is_bounded(archive.getinfo(name)):
                raise ValueError(rule)
            return archive.read(name)
    except (KeyError, *BAD_ZIP) as error:
        raise ValueError(f"{rule} Received: {error!r:.200}.") from None


def open_arrays(path, name):
    """Opens the NumPy archive that is a file in a zip archive, an `NpzFile`. Raises `ValueError` as `read_entry`."""
    content = io.BytesIO(read_entry(path, name))
    with contextlib.suppress(*BAD_ZIP), zipfile.ZipFile(content) as arrays:
        if all(map(_is_bounded, arrays.infolist())):
            content.seek(0)
            return np.load(content)
    rule = f"an archive of NumPy, whose arrays are without compression or of at most {SMALL} bytes"
    raise ValueError(f"{name} of {printable(str(path))} must be {rule}.")


def read_array(arrays, name, path):
    """Reads an array of an `NpzFile`. Raises `ValueError`, with the path of the file, if there is none."""
    try:
        array = arrays[name]
    except Exception as error:
        # NumPy raises errors of many classes.
        raise ValueError(f"{path} must hold the array {name!r}. Received: {error!r:.200}.") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind in "cOSU":
        raise ValueError(f"{path} must hold numbers as {name!r}. Received: {array!r:.200}.")
    return array


def is_name(name):
    """Whether a value is the name of an entry of a folder, which leads to no other folder.

    >>> is_name("1_Pooling"), is_name(".."), is_name("a/b")
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and name.isprintable()
        and len(name) <= LONGEST_NAME
        and name not in ("", ".", "..")
        and not {*name} & {*"/\\"}
    )


def sha256_of(path):
    """Returns the SHA-256 of a file, a hexadecimal str. Raises `ValueError` for a device, a pipe or a folder."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_kind(place, read, kind):
    """Returns the JSON value of a text that a function reads. Raises `ValueError` unless it is of a kind."""
    try:
        value = json.loads(read())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(printable(f"Cannot read {place}: {error!s:.500}")) from None
    if not isinstance(value, kind):
        name = {dict: "object", list: "array"}[kind]
        raise ValueError(printable(f"{place} must hold a JSON {name}. Received: a {type(value).__name__}."))
    return value


def _is_bounded(entry):
    """Whether reading an entry of a zip archive takes little more memory than the archive, or little at all."""
    return entry.compress_type == zipfile.ZIP_STORED or entry.file_size <= SMALL
