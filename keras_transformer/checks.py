"""Checks of arguments that many constructors make. Each names the argument, the rule and the received value."""

import contextlib
import inspect
import math
import numbers
import sys
import unicodedata
import warnings

# A warning names the line that called these packages.
LIBRARIES = ("keras_transformer", "keras", "tensorflow")
# Number of characters of a received value in a message.
LONGEST = 200
# A model may have this many numbers, whatever is stored.
SMALL_MODEL = 10**7
# A stored model may have this many layers.
MOST_LAYERS = 1000
# Number of characters of a message, whose rule may name keys of a file.
LONGEST_MESSAGE = 1900


def check(holds, rule, /, **received):
    """Raises `ValueError` with a rule and the values that broke it, unless the rule holds.

    Args:
        holds: Whether the rule holds.
        rule: A sentence that names the argument and says what it must be.
        **received: The values by their names, which may be keys of a file; each value is cut at 200 characters.

    >>> check(False, "`groups` must divide `width`.", groups=3, width=4)
    Traceback (most recent call last):
    ValueError: `groups` must divide `width`. Received: groups=3, width=4.
    """
    if not holds:
        values = ", ".join(f"{name}={_shortened(repr(value))}" for name, value in received.items())
        raise ValueError(printable(f"{rule} Received: {values}.", LONGEST_MESSAGE))


def warn(message):
    """Warns, and names the line that called this library, through Keras or TensorFlow too."""
    frame, level = inspect.currentframe().f_back, 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def check_positive(**sizes):
    """Raises `ValueError` for a size that is not a positive integer.

    >>> check_positive(num_layers=0)
    Traceback (most recent call last):
    ValueError: `num_layers` must be a positive integer. Received: num_layers=0.
    """
    for name, size in sizes.items():
        _check(_is_int(size, 1, math.inf), name, size, "a positive integer")


def check_share(**shares):
    """Raises `ValueError` for a share that is not in [0, 1)."""
    for name, share in shares.items():
        _check(_is_real(share) and 0.0 <= share < 1.0, name, share, "in [0, 1)")


def check_range(low, high=math.inf, *, above=False, **values):
    """Raises `ValueError` for a number that is not in [low, high].

    Args:
        low: The lowest value.
        high: The highest value.
        above: True if `low` itself is not allowed.
        **values: The numbers by their names.
    """
    for name, value in values.items():
        # An integer of any size may be too large for a float.
        largest = min(high, sys.float_info.max)
        fits = _is_real(value) and low <= value <= largest
        fits = fits and not (above and value == low)
        _check(fits, name, value, f"a number {'above' if above else 'at least'} {low}{_at_most(high)}")


def check_count(low=0, high=math.inf, **values):
    """Raises `ValueError` for a value that is not an integer in [low, high].

    Args:
        low: The lowest value.
        high: The highest value.
        **values: The integers by their names.
    """
    for name, value in values.items():
        _check(_is_int(value, low, high), name, value, f"an integer at least {low}{_at_most(high)}")


def check_ids(vocab_size, **token_ids):
    """Raises `ValueError` for a token id that is not in a vocabulary of this size."""
    for name, token_id in token_ids.items():
        rule = f"an id of the vocabulary, from 0 to {vocab_size - 1}"
        _check(_is_int(token_id, 0, vocab_size - 1), name, token_id, rule)


def check_known_ids(vocab_size, pad_id=None, /, **token_ids):
    """Raises `ValueError` for tensors of ids that are not in a vocabulary. Tensors of a graph have no values yet.

    Args:
        vocab_size: Number of ids.
        pad_id: An id that may be outside of the vocabulary; None for none.
        **token_ids: int tensors of any shapes, by their names.

    >>> check_known_ids(5, prompt=[[3, 5]])
    Traceback (most recent call last):
    ValueError: `prompt` must hold ids from 0 to 4. Received: lowest=3, highest=5.
    """
    for name, x in token_ids.items():
        ids = known_values(x)
        ids = ids if ids is None or pad_id is None else ids[ids != pad_id]
        if ids is not None and ids.size:
            lowest, highest = int(ids.min()), int(ids.max())
            rule = f"`{name}` must hold ids from 0 to {vocab_size - 1}."
            check(lowest >= 0 and highest < vocab_size, rule, lowest=lowest, highest=highest)


def check_choice(choices, **values):
    """Raises `ValueError` for a value that is not one of some choices, a list or a tuple."""
    for name, value in values.items():
        _check(value in choices, name, value, f"one of {choices}")


def check_labels(count, **labels):
    """Raises `ValueError` for labels that are not one str for each of `count` classes. Labels may be equal."""
    for name, given in labels.items():
        fits = len(given) == count and all(isinstance(label, str) for label in given)
        _check(fits, name, given, f"a str for each of num_classes={count}")


def check_dense(**tensors):
    """Raises `ValueError` for a ragged tensor, whose rows differ in length.

    >>> import numpy as np
    >>> check_dense(token_ids=np.zeros((2, 3)), padding_mask=None)
    """
    for name, x in tensors.items():
        if hasattr(x, "row_splits") or getattr(x, "ragged", False):
            rule = f"`{name}` must be a dense tensor, not a ragged one. Pad its rows, as `to_tensor()` does."
            check(False, rule, **{f"{name}.shape": tuple(x.shape)})


def check_sequence(**tensors):
    """Raises `ValueError` for a tensor that is not `(batch, length, d_model)`, such as ids or the cells of a grid."""
    for name, x in tensors.items():
        rule = f"`{name}` must have shape `(batch, length, d_model)`."
        check(len(x.shape) == 3, rule, shape=tuple(x.shape))


def check_numbers(model, most):
    """Raises `ValueError` for a model of more numbers than `most`, before it has memory. A small model may be larger.

    Args:
        model: A built model, whose variables have shapes only.
        most: The number of numbers that the stored bytes allow.
    """
    described, most = sum(math.prod(variable.shape) for variable in model.variables), max(most, SMALL_MODEL)
    rule = f"The described model must have at most {most} numbers, for what is stored."
    check(described <= most, rule, numbers=described)


def is_usable(values):
    """Returns whether an array of floats holds no NaN and no infinity.

    Minus infinity is allowed: as a bias of logits it means a token that is never chosen.
    """
    import numpy as np  # `--help` needs none

    return bool(np.isfinite(np.max(np.asarray(values), initial=0)))


def check_finite_weights(model, path):
    """Raises `ValueError` if a weight that was read from a file is not usable: NaN or infinite.

    Args:
        model: A model with the weights of the file.
        path: Path of the file.
    """
    values = {weight.path: weight for weight in model.weights if "float" in str(weight.dtype)}
    wrong = [name for name, each in values.items() if not is_usable(each)]
    check(not wrong, f"The weights in {path} must be neither NaN nor infinite.", weights=wrong)


def known_values(x):
    """Returns a tensor as a float64 array; None for a tensor of a graph, whose values are not known yet.

    >>> known_values([1, 2]).tolist()
    [1.0, 2.0]
    """
    import numpy as np  # `--help` needs none

    try:
        return np.asarray(x, dtype="float64")
    except (TypeError, NotImplementedError, ValueError):
        return None


def height_and_width(**size):
    """Returns `(height, width)` of a size: one int for both, or a pair.

    Raises:
        ValueError: If it is neither, or not positive.
    """
    ((name, value),) = size.items()
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    check(len(pair) == 2, f"`{name}` must be an int or `(height, width)`.", **{name: value})
    check_positive(**{name: pair[0]})
    check_positive(**{name: pair[1]})
    return pair


def printable(text, longest=math.inf):
    r"""Escapes the characters that a terminal would obey instead of showing them, such as line ends and colours.

    >>> printable("a\tb \x1b[31m")
    'a\\tb \\x1b[31m'

    Args:
        text: A str, such as a message of another program.
        longest: The largest number of characters of `text` that are kept.

    Returns:
        A str that can be printed on one line.
    """
    cut = text if len(text) <= longest else f"{text[:longest]}..."
    return "".join(
        character
        if character.isprintable() or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode()
        for character in cut
    )


@contextlib.contextmanager
def short_errors():
    """Makes the message of a `ValueError` short and printable: it may hold what a stranger wrote, as it is."""
    try:
        yield
    except ValueError as error:
        message = printable(str(error), LONGEST_MESSAGE)
        if message == str(error):
            raise
        raise ValueError(message) from None


def _check(fits, name, value, rule):
    check(fits, f"`{name}` must be {rule}.", **{name: value})


def _shortened(text):
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_int(value, low, high):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= value <= high


def _at_most(high):
    return "" if high == math.inf else f", at most {high}"
