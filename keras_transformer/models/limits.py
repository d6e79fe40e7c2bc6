"""How long an output may get: as asked for, by default, and within the positions that a model has."""

import numpy as np
from keras import ops

from keras_transformer.decoding import Constraint, MaxLength, MinLength


def default_limit(source_len, prefix_len, constraints, longest=None):
    """How long an output may get where nobody said: generous for any languages, never endless nor beyond `longest`.

    For ints an int, for tensors a tensor.
    """
    limit = 2 * source_len + 16 + prefix_len
    for constraint in constraints:
        if isinstance(constraint, MinLength):
            least = constraint.of(source_len)
            limit = max(limit, least) if isinstance(limit, int) else ops.maximum(limit, least)
    return at_most(limit, longest)


def at_most(limit, longest):
    """The lesser of two lengths, ints or tensors; None for no limit."""
    if limit is None or longest is None:
        return longest if limit is None else limit
    both = isinstance(limit, int) and isinstance(longest, int)
    return min(limit, longest) if both else ops.minimum(limit, longest)


def most_tokens(room, max_length, longest):
    """How long the outputs of a batch may be, or None for any length.

    Args:
        room: int NumPy `(batch,)`, for how long an output of each row there are positions, or None.
        max_length: How long they may be, or None.
        longest: How many positions the model has.

    Raises:
        ValueError: If there is no room.
    """
    if room is None:
        return max_length
    room = int(room.min())
    if room < 1 or (max_length is not None and max_length > room):
        raise ValueError(
            f"`source` and `max_length` must leave all tokens within the model's {longest} positions. "
            f"Received: max_length={max_length}, where there is room for {max(room, 0)}."
        )
    return room if max_length is None else max_length


def check_targets(targets, pad_id, room, longest):
    """Raises `ValueError` where targets, int `(batch, n, target_len)`, have no room; the rest as `most_tokens`."""
    if room is None:
        return
    lengths = ((targets != pad_id) * np.arange(1, targets.shape[2] + 1)).max(axis=(1, 2))
    if (lengths > room).any():
        raise ValueError(
            f"`source` and `target` must be within the model's {longest} positions. "
            f"Received: targets of {lengths.tolist()} tokens, where there is room for {room.tolist()}."
        )


def check_constraints(constraints, max_length=None):
    """The constraints as a tuple.

    Raises:
        ValueError: If one is no constraint, or a minimum length lies above a maximum.
    """
    if not isinstance(constraints, (list, tuple)):
        raise ValueError(
            f"`constraints` must be a list or a tuple of constraints. Received: {constraints!r}."
        )
    constraints = tuple(constraints)
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"`constraints` must hold constraints such as `MinLength(5)`. Received: {constraint!r}."
            )
    least = max((c.length for c in constraints if isinstance(c, MinLength)), default=0)
    most = [c.length for c in constraints if isinstance(c, MaxLength) and not c.ratio]
    most = min(most + ([] if max_length is None else [max_length]), default=least)
    if least > most:
        raise ValueError(
            f"No output is at least {least} and at most {most} tokens long. "
            f"Received: constraints={list(constraints)}, max_length={max_length}."
        )
    return constraints
