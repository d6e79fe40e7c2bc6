"""The options that a request to a server may give each row. Servables and clients read this table."""

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.checks import check_count


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
    "top_k": Option("int32", 0, "from 0, for all tokens that the export draws from, to their number", 0),
    "top_p": Option("float32", 1.0, "above 0 and at most 1", 0, 1, True),
    "min_p": Option("float32", 0.0, "from 0 to 1", 0, 1),
    "seed": Option("int64", 0, "an integer"),
    "repetition_penalty": Option("float32", 1.0, "above 0 and at most 100", 0, 100, True),
    "presence_penalty": Option("float32", 0.0, "from -100 to 100", -100, 100),
    "frequency_penalty": Option("float32", 0.0, "from -100 to 100", -100, 100),
    "stop": Option("string", "", "at most 4 strings of at most 64 bytes, with zero bytes between them"),
    "logprobs": Option("int32", -1, "from 0 to 20, the number of likeliest tokens, or -1 for none", -1, 20),
}
MOST_STOPS, LONGEST_STOP = 4, 64
MOST_ANSWERS = 10_000


def columns(size, **values):
    """Makes the inputs of a request with options.

    >>> inputs = columns(2, max_length=[9, 8])
    >>> inputs["max_length"], inputs["top_p"]
    (array([9, 8], dtype=int32), array([1., 1.], dtype=float32))

    Args:
        size: Number of rows.
        **values: Options by name: one value for all rows, or a list with one for each. The strings of `stop` for a row
            are a tuple, or a single str.

    Returns:
        A dict from the name of each option to its NumPy array `(size,)`.

    Raises:
        ValueError: If an option is unknown, its value is out of range, or it has not one value for each row.
    """
    unknown = sorted(values.keys() - OPTIONS.keys())
    if unknown:
        raise ValueError(f"The options are {', '.join(OPTIONS)}. Received: {', '.join(unknown)}.")
    return {name: _column(size, name, values.get(name)) for name in OPTIONS}


def repeated(texts, n=1, seed=None, **values):
    """Makes the rows of a request with `n` answers to each text.

    >>> texts, inputs = repeated(["a", "b"], n=2, seed=7)
    >>> texts, inputs["seed"]
    (['a', 'a', 'b', 'b'], array([7, 8, 7, 8]))

    Args:
        texts: List of str.
        n: int, the number of answers. Those to a text lie side by side and have the seeds `seed`, `seed + 1`, ...
        seed: As another option; None for a new one for each text.
        **values: The other options, as for `columns`.

    Returns:
        The texts, a list; and a dict from the name of each option to its NumPy array.

    Raises:
        ValueError: If `n` is out of range, or `columns` raises.
    """
    check_count(1, MOST_ANSWERS, n=n)
    if seed is None:
        seed = np.random.default_rng().integers(2**31, size=len(texts))
    inputs = {name: np.repeat(column, n) for name, column in columns(len(texts), seed=seed, **values).items()}
    inputs["seed"] += np.tile(np.arange(n), len(texts))
    return [text for text in texts for _ in range(n)], inputs


def _column(size, name, value):
    option = OPTIONS[name]
    value = option.neutral if value is None else value
    if name == "stop":
        value = [_joined(each) for each in value] if isinstance(value, list) else _joined(value)
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


def _joined(stop):
    """Joins the strings of a tuple with zero bytes; anything else is returned as it is."""
    if not isinstance(stop, tuple) or not all(isinstance(text, (str, bytes)) for text in stop):
        return stop
    return b"\0".join(
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in stop
    )
