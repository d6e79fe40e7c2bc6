"""How long the outputs of a search may be."""

import dataclasses
import numbers
from typing import Any

import numpy as np

from keras_transformer.checks import check, check_positive
from keras_transformer.decoding.constraints import Constraint, MaxLength, MinLength
from keras_transformer.execution import ops

MOST_TOKENS = 10**6  # of an output


@dataclasses.dataclass(frozen=True, eq=False)
class Limits:
    """How long the outputs of a search may be. Lengths may be ints or tensors: ints give ints.

    Args:
        max_length: int or int32 `(batch,)`, the longest output. None for twice the length of each source plus 16 plus
            the length of its prefix, or for the minimum length if that is larger.
        constraints: List or tuple of constraints.
        positions: Number of positions of the model; None for any number.
        shares_positions: Whether an output continues its source in the same positions, as in a language model.

    Raises:
        ValueError: If `max_length` is not positive, a constraint is not a `Constraint`, or a minimum length lies above
            a maximum.

    >>> Limits().of(5), Limits(positions=20).of(5), Limits(9).of(5)
    (26, 20, 9)
    """

    max_length: Any = None
    constraints: tuple = ()
    positions: int | None = None
    shares_positions: bool = False

    def __post_init__(self):
        if isinstance(self.max_length, (numbers.Number, str)):
            check_positive(max_length=self.max_length)
            rule = f"`max_length` must be at most {MOST_TOKENS}, so that a number from a file does not fill the memory."
            check(self.max_length <= MOST_TOKENS, rule, max_length=self.max_length)
        is_list = isinstance(self.constraints, (list, tuple))
        check(is_list, "`constraints` must be a list of constraints.", constraints=self.constraints)
        for constraint in self.constraints:
            is_constraint = isinstance(constraint, Constraint)
            check(
                is_constraint,
                "`constraints` must hold constraints such as `MinLength(5)`.",
                constraint=constraint,
            )
        object.__setattr__(self, "constraints", tuple(self.constraints))
        self._check_constraints(self.max_length)

    def of(self, source_len, prefix_len=0):
        """Returns the longest output of a batch whose sources and prefixes are at most this long."""
        if self.max_length is not None:
            return largest(self.max_length)
        return at_most(largest(self._default(source_len, prefix_len)), self.positions)

    def of_rows(self, source_lengths, prefix_lengths=0):
        """Returns the longest output of each row.

        Args:
            source_lengths: int32 `(batch,)`. A source of padding alone gets its prefix alone, because it only fills up
                a batch; in a language model it is an empty prompt.
            prefix_lengths: int32 `(batch,)`, or 0.

        Returns:
            int32 `(batch,)`; an int where all rows have the same.
        """
        limits = self.max_length
        if limits is None:
            limits = self._default(source_lengths, prefix_lengths)
        limits = at_most(limits, self.room(source_lengths))
        return limits if self.shares_positions else ops.where(source_lengths > 0, limits, prefix_lengths)

    def room(self, source_lengths):
        """Returns the number of output tokens that the model has positions for, or None for any number."""
        if self.positions is None or not self.shares_positions:
            return self.positions
        # The last token of an output needs no position.
        return self.positions + 1 - ops.maximum(source_lengths, 1)

    def longest(self, source_lengths):
        """Returns the longest output that every row of a batch may have, an int, or None for any length.

        Raises:
            ValueError: If the model has no positions for it, or a minimum length lies above it.
        """
        room = self.room(source_lengths)
        if room is None:
            return self.max_length
        room = int(ops.min(room))
        rule = (
            f"`source` and `max_length` must leave all tokens within the model's {self.positions} positions."
        )
        fits = room >= (1 if self.max_length is None else self.max_length)
        check(fits, rule, max_length=self.max_length, room=max(room, 0))
        longest = room if self.max_length is None else self.max_length
        self._check_constraints(longest)
        return longest

    def _default(self, source_len, prefix_len):
        """Returns a limit that is enough for any pair of languages."""
        limit = 2 * source_len + 16 + prefix_len
        for constraint in self.constraints:
            if isinstance(constraint, MinLength):
                shortest = constraint.of(source_len)
                known = isinstance(limit, int) and isinstance(shortest, int)
                limit = max(limit, shortest) if known else ops.maximum(limit, shortest)
        return limit

    def _check_constraints(self, longest):
        known = [c for c in self.constraints if isinstance(getattr(c, "length", None), numbers.Integral)]
        shortest = max((c.length for c in known if isinstance(c, MinLength)), default=0)
        limits = [c.length for c in known if isinstance(c, MaxLength) and not c.ratio]
        limits += [longest] if isinstance(longest, numbers.Integral) else []
        highest = min(limits, default=shortest)
        rule = f"No output is at least {shortest} and at most {highest} tokens long."
        check(shortest <= highest, rule, constraints=self.constraints, max_length=longest)


def largest(lengths):
    """Returns the largest of some lengths, an int where it is known and else an int32 scalar.

    >>> largest([3, 5]), largest(4)
    (5, 4)
    """
    if isinstance(lengths, (numbers.Integral, list, tuple, np.ndarray)):
        return int(np.max(lengths))
    return ops.max(lengths) if len(lengths.shape) else lengths


def at_most(length, highest):
    """Returns the smaller of two lengths, ints or tensors; `highest` may be None."""
    if highest is None:
        return length
    known = isinstance(length, int) and isinstance(highest, int)
    return min(length, highest) if known else ops.minimum(length, highest)
