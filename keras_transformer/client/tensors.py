"""NumPy arrays of the inputs and outputs of a server."""

import os

import numpy as np

from keras_transformer.checks import check, printable
from keras_transformer.client.attempts import LONGEST_MESSAGE
from keras_transformer.recordings import wav_of
from keras_transformer.untrusted import bytes_of

INT32 = np.iinfo(np.int32)


def input_array(name, value):
    """Makes an array of an input.

    Strings become bytes: a str is encoded as UTF-8, half of a surrogate pair as the bytes that it would have. NumPy's
    own string arrays drop zero bytes at the end of a string, so strings are in arrays of objects. Python's numbers
    become int32 and float32, as in TensorFlow.

    >>> input_array("text", ["a", b"b"])
    array([b'a', b'b'], dtype=object)

    Args:
        name: Name of the input, for errors.
        value: Nested lists, or an object with a dtype, which is kept.

    Returns:
        A NumPy array.

    Raises:
        ValueError: If the value is not a rectangular array of strings, numbers or booleans.
    """
    try:
        array = np.asarray(value) if hasattr(value, "dtype") else np.array(value, dtype=object)
        if array.dtype.kind in "US":
            array = array.astype(object)
        if array.dtype == object:
            kinds = {isinstance(leaf, (str, bytes)) for leaf in array.ravel()}
            if kinds == {True}:
                leaves = np.empty(array.size, dtype=object)
                leaves[:] = [_bytes(leaf) for leaf in array.ravel()]
                return leaves.reshape(array.shape)
            # It raises for a ragged list, and gives None the dtype object.
            array = _narrow(np.array(array.tolist()))
        if array.dtype.kind in "biuf":
            return array
    except ValueError:
        pass
    raise ValueError(
        f"`{name}` must be a rectangular array of strings, numbers or booleans. Received: {name}={value!r:.200}."
    )


def _bytes(text):
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _narrow(array):
    """Casts float64 to float32, and int64 to int32 if all numbers fit."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    fits = array.dtype == np.int64 and (
        array.size == 0 or INT32.min <= array.min() <= array.max() <= INT32.max
    )
    return array.astype(np.int32) if fits else array


def joined(batches):
    """Joins the outputs of several batches.

    If batches differ in another dimension than the first, the result is as wide as the widest. Narrower ones are padded
    with 0, False or b"".

    >>> joined([([1], {"ids": np.array([[7]])}), ([0], {"ids": np.array([[8, 9]])})])["ids"]
    array([[8, 9],
           [7, 0]])

    Args:
        batches: A list of pairs: row numbers, and a dict of arrays. Row `i` of each array is row `rows[i]` of the
            result.

    Returns:
        A dict from an output's name to its array.

    Raises:
        ValueError: If the batches have different outputs, or an output has not one row for each row of its batch.
    """
    names = sorted(batches[0][1])
    if any(sorted(outputs) != names for _, outputs in batches):
        raise ValueError(f"batches differ in their outputs: {[sorted(outputs) for _, outputs in batches]}")
    return {name: _joined(name, [(rows, outputs[name]) for rows, outputs in batches]) for name in names}


def _joined(name, batches):
    for rows, array in batches:
        if array.ndim == 0 or len(array) != len(rows) or array.ndim != batches[0][1].ndim:
            raise ValueError(f"output {name!r} has shape {array.shape} for a batch of {len(rows)} rows")
    width = [max(sizes) for sizes in zip(*(array.shape[1:] for _, array in batches), strict=True)]
    dtype = np.result_type(*(array for _, array in batches))
    whole = np.full((sum(len(rows) for rows, _ in batches), *width), b"" if dtype.kind == "O" else 0, dtype)
    for rows, array in batches:
        whole[(rows, *(slice(size) for size in array.shape[1:]))] = array
    return whole


def files_of(name, files):
    """Returns the bytes of files, a list. Recordings of other kinds become WAV files.

    Args:
        name: Name of the argument: `recordings` or `images`.
        files: List of paths or of bytes.

    Raises:
        ValueError: If it is something else, a path is not that of a regular file, or a file is too large or damaged.
        ImportError: If a recording has to be decoded and soundfile is not installed.
        OSError: If a file cannot be read.
    """
    several = isinstance(files, (list, tuple))
    fits = several and all(isinstance(each, (str, bytes, os.PathLike)) for each in files)
    check(fits, f"`{name}` must be a list of paths or of bytes.", **{name: files})
    return [wav_of(each) if name == "recordings" else bytes_of(each) for each in files]


def check_rows(url, output, rows, name, outputs, kind):
    """Raises `OSError` unless an output has one value of a kind, as NumPy's `dtype.kind`, for each row."""
    array = outputs.get(output)
    if array is None or array.shape != (rows,) or array.dtype.kind != kind:
        raise OSError(
            f"{url} must answer {rows} {name} with as many {output}s. "
            f"Received: { {key: (array.dtype.name, array.shape) for key, array in outputs.items()}!r:.200}."
        )


def errors_of_rows(outputs):
    """Yields the number of each row that has an `error`, and the error as a printable str."""
    for row, error in enumerate(outputs.get("error", ())):
        if error:
            yield row, printable(error.decode("utf-8", "replace"), LONGEST_MESSAGE)
