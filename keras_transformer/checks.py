"""Checks of arguments that many constructors make."""

import math
import numbers


def check_positive(**sizes):
    """Raises `ValueError` for a size that is not a positive integer; names it, the rule and what was received."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={size!r}.")


def check_share(**shares):
    """Raises `ValueError` for a share that is not in [0, 1)."""
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, numbers.Real) or not 0.0 <= share < 1.0:
            raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={share!r}.")


def check_range(low, high=math.inf, *, above=False, **values):
    """Raises `ValueError` for a number that is not in [low, high]; with `above`, not in (low, high]."""
    for name, value in values.items():
        real = not isinstance(value, bool) and isinstance(value, numbers.Real)
        if not real or not math.isfinite(value) or not low <= value <= high or (above and value == low):
            rule = f"{'above' if above else 'at least'} {low}" + (
                "" if high == math.inf else f", at most {high}"
            )
            raise ValueError(f"`{name}` must be a number {rule}. Received: {name}={value!r}.")


def check_count(low=0, high=math.inf, **values):
    """Raises `ValueError` for a value that is not an integer in [low, high]."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= value <= high:
            rule = f"at least {low}" + ("" if high == math.inf else f", at most {high}")
            raise ValueError(f"`{name}` must be an integer {rule}. Received: {name}={value!r}.")


def check_ids(vocab_size, **token_ids):
    """Raises `ValueError` for a token id that is not in a vocabulary of this size."""
    for name, token_id in token_ids.items():
        if (
            isinstance(token_id, bool)
            or not isinstance(token_id, numbers.Integral)
            or not 0 <= token_id < vocab_size
        ):
            raise ValueError(
                f"`{name}` must be an id of the vocabulary, from 0 to {vocab_size - 1}. "
                f"Received: {name}={token_id!r}."
            )


def check_labels(count, **labels):
    """Raises `ValueError` for labels that are not as many str as there are classes; two classes may have one name."""
    for name, given in labels.items():
        if len(given) != count or not all(isinstance(label, str) for label in given):
            raise ValueError(
                f"`{name}` must be a str for each of num_classes={count}. Received: {name}={given!r}."
            )


def height_and_width(**size):
    """Returns `(height, width)` of a size: one int for both, or a pair.

    Raises:
        ValueError: If it is neither, or not positive.
    """
    ((name, value),) = size.items()
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be an int or `(height, width)`. Received: {name}={value!r}.")
    check_positive(**{name: pair[0]})
    check_positive(**{name: pair[1]})
    return pair
