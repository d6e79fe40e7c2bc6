"""The options that a request to a server may give each row. Servables and clients read this table."""

from typing import Any, NamedTuple

import numpy as np


class Option(NamedTuple):
    """One option of a row.

    dtype: Name of the input's dtype in TensorFlow.
    neutral: The value of a row that does not use the option.
    rule: The values that a row may have, the end of a sentence.
    low, high: The smallest and the largest value; None for no such limit.
    above: Whether `low` itself is not allowed.
    """

    dtype: str
    neutral: Any
    rule: str
    low: float | None = None
    high: float | None = None
    above: bool = False


SIGNATURE = "options"
OPTIONS = {
    "prefix": Option(
        "string", "", "a text that the vocabulary can write and that leaves room within `max_length`"
    ),
    "max_length": Option(
        "int32",
        0,
        "from 1 to the limit of the row, or 0 for it: the `max_length` of the export, or without one twice the tokens "
        "of the text plus 16",
        0,
    ),
    "min_length": Option("int32", 0, "from 0 to the largest length of the row", 0),
    "temperature": Option("float32", 0.0, "a finite number, at least 0", 0),
    "top_p": Option("float32", 1.0, "above 0 and at most 1", 0, 1, True),
    "seed": Option("int64", 0, "an integer"),
}


def columns(size, **values):
    """Makes the inputs of a request with options.

    >>> inputs = columns(2, max_length=[9, 8])
    >>> inputs["max_length"], inputs["top_p"]
    (array([9, 8], dtype=int32), array([1., 1.], dtype=float32))

    Args:
        size: Number of rows.
        **values: Options by name: one value for all rows, or a list with one for each.

    Returns:
        A dict from the name of each option to its NumPy array `(size,)`.

    Raises:
        ValueError: If an option is unknown, its value is out of range, or it has not one value for each row.
    """
    unknown = sorted(values.keys() - OPTIONS.keys())
    if unknown:
        raise ValueError(f"The options are {', '.join(OPTIONS)}. Received: {', '.join(unknown)}.")
    return {name: _column(size, name, values.get(name)) for name in OPTIONS}


def _column(size, name, value):
    option = OPTIONS[name]
    value = option.neutral if value is None else value
    column = np.empty(size, object)
    try:
        column[:] = [value] * size if isinstance(value, (str, bytes)) else value
        if option.dtype != "string":
            exact = column.astype(option.dtype)
            if option.dtype.startswith("int") and not (exact == column).all():
                raise ValueError
            return exact
        if all(isinstance(text, (str, bytes)) for text in column):
            return column
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"`{name}` must be {option.dtype}: one value, or one for each of {size} rows. Received: {name}={value!r:.200}."
    )
