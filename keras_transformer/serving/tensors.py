"""What goes into a server's tensors and what comes out of them, as NumPy arrays."""

import numpy as np

INT32 = np.iinfo(np.int32)


def input_array(name, value):
    """The array of an input: strings as bytes; Python's numbers as TensorFlow takes them, int32 and float32.

    A str is sent as UTF-8, what UTF-8 has no bytes for (half of a surrogate pair) as the bytes it would have. NumPy's
    own string arrays drop zero bytes at the end of a string, so strings stand in arrays of objects.

    Args:
        name: Of the input, for messages.
        value: Nested lists, or anything with a dtype, which is kept.

    Raises:
        ValueError: If it is no rectangle of strings, numbers or booleans.
    """
    try:
        array = np.asarray(value) if hasattr(value, "dtype") else np.array(value, dtype=object)
        if array.dtype.kind in "US":
            array = array.astype(object)
        if array.dtype == object:
            kinds = {isinstance(leaf, (str, bytes)) for leaf in array.flat}
            if kinds == {True}:
                leaves = np.empty(array.size, dtype=object)
                leaves[:] = [_bytes(leaf) for leaf in array.flat]
                return leaves.reshape(array.shape)
            array = _narrow(np.array(array.tolist()))  # a ragged one has no shape, and None no dtype
        if array.dtype.kind in "biuf":
            return array
    except ValueError:
        pass
    raise ValueError(
        f"`{name}` must be a rectangular array of strings, numbers or booleans. Received: {name}={value!r}."
    )


def _bytes(text):
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _narrow(array):
    if array.dtype == np.float64:
        return array.astype(np.float32)
    small = array.dtype == np.int64 and (
        array.size == 0 or INT32.min <= array.min() <= array.max() <= INT32.max
    )
    return array.astype(np.int32) if small else array


def joined(parts):
    """One dict of arrays from those of several batches.

    Args:
        parts: A list of (rows, outputs): row `i` of each output is row `rows[i]` of the result. Where batches differ in
            another dimension, the result is as wide as the widest; what is added is 0, False or b"".

    Raises:
        ValueError: If the outputs of a batch are not one row for each row it was sent, or not those of another.
    """
    names = sorted(parts[0][1])
    if any(sorted(outputs) != names for _, outputs in parts):
        raise ValueError(f"batches differ in their outputs: {[sorted(outputs) for _, outputs in parts]}")
    return {name: _joined(name, [(rows, outputs[name]) for rows, outputs in parts]) for name in names}


def _joined(name, parts):
    for rows, array in parts:
        if array.ndim == 0 or len(array) != len(rows) or array.ndim != parts[0][1].ndim:
            raise ValueError(f"output {name!r} has shape {array.shape} for a batch of {len(rows)} rows")
    width = [max(sizes) for sizes in zip(*(array.shape[1:] for _, array in parts), strict=True)]
    dtype = np.result_type(*(array for _, array in parts))
    found = np.full((sum(len(rows) for rows, _ in parts), *width), b"" if dtype.kind == "O" else 0, dtype)
    for rows, array in parts:
        found[(rows, *(slice(size) for size in array.shape[1:]))] = array
    return found
