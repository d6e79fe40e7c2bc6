"""Constraints: small frozen objects that every hypothesis of a search must satisfy, under any strategy."""

import dataclasses
import functools
import math
import numbers
import sys
from typing import Any

import keras

from keras_transformer.checks import check, check_count, check_positive, check_range
from keras_transformer.decoding.hypotheses import NEVER, RowFields, mask_of
from keras_transformer.execution import ops

# With it 1.3 times 90 is 117, although no binary fraction is exactly 1.3.
ROUNDING = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Constraint(RowFields):
    """Base class of constraints. A constraint limits lengths, changes logits, or forbids tokens.

    A constraint of your own overrides one of the four methods. Several constraints work together: the lowest limit
    holds, the changes of the logits apply one after the other, and then every forbidden token is excluded. A field may
    hold a tensor `(batch, ...)`, a value for each row.
    """

    def begun(self):
        """Returns the constraint for one search, with the tensors that all its steps share, or itself."""
        return self

    def limits(self, source_lengths):
        """Returns the longest output of each row, an int or int32 `(batch,)`; None for no limit.

        Args:
            source_lengths: int32 `(batch,)`, or None where there is no source.
        """
        return None

    def adjusted(self, logits, beams, search):
        """Returns new logits, float32 `(batch, width, vocab_size)`.

        Args:
            logits: float32 `(batch, width, vocab_size)`.
            beams: `Beams`, the hypotheses so far.
            search: `Search`.
        """
        return logits

    def blocked(self, beams, search, vocab_size):
        """Returns the tokens that may not come next, bool broadcastable to `(batch, width, vocab_size)`, or None.

        Args:
            beams: `Beams`, the hypotheses so far.
            search: `Search`.
            vocab_size: int.
        """
        return None

    def ended(self, written, lengths, search):
        """Returns which hypotheses end with their newest token, bool `(batch, width)`, or None for none.

        Args:
            written: Function without arguments that returns the hypotheses with their newest tokens, int32
                `(batch, width, max_length)`.
            lengths: int32 `(batch, width)`, or `(batch, 1)` where all are the same.
            search: `Search`.
        """
        return None


@dataclasses.dataclass(frozen=True)
class _Length(Constraint):
    """Base class of limits of `length + ratio * source length` tokens, rounded down."""

    length: Any = 0
    ratio: float = 0.0

    def __post_init__(self):
        known = self.plain(length="int32")
        check_count(**known)
        check_range(0, ratio=self.ratio)
        rule = "`length` or `ratio` must be positive."
        check(self.ratio or known.get("length", True), rule, length=self.length, ratio=self.ratio)

    def of(self, source_lengths):
        """Returns the length for each source.

        Args:
            source_lengths: int, or int32 `(batch,)`; None where there is no source.

        Returns:
            int32 `(batch,)`; an int where it is the same for all rows.

        Raises:
            ValueError: If the ratio is not 0 and there is no source.
        """
        if not self.ratio:
            return self.length
        check(source_lengths is not None, f"{self} needs `source_lengths`.", source_lengths=source_lengths)
        if isinstance(source_lengths, int):
            return self.length + math.floor(self.ratio * source_lengths + ROUNDING)
        relative = ops.floor(self.ratio * ops.cast(source_lengths, "float32") + ROUNDING)
        return self.length + ops.cast(relative, "int32")


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class MinLength(_Length):
    """Forbids outputs shorter than `length + ratio * source length` tokens; `eos_id` counts.

    Where a row's limit is lower, the limit holds.

    Args:
        length: Number of tokens, an int; or an array or a tensor `(batch,)`, whose values are not checked.
        ratio: Number of tokens for each token of the source; the source's `eos_id` counts.

    Raises:
        ValueError: If either is negative or both are 0.
    """

    def blocked(self, beams, search, vocab_size):
        lengths = ops.convert_to_tensor(self.of(search.source_lengths), "int32")
        early = beams.lengths + 1 < ops.reshape(lengths, (-1, 1))  # (batch, width)
        return ops.logical_and(early[..., None], mask_of(search.eos_ids, vocab_size))


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class MaxLength(_Length):
    """Forbids outputs longer than `length + ratio * source length` tokens; `eos_id` counts.

    Args:
        length: Number of tokens, an int; or an array or a tensor `(batch,)`, whose values are not checked.
        ratio: Number of tokens for each token of the source; the source's `eos_id` counts.

    Raises:
        ValueError: If either is negative or both are 0.
    """

    def limits(self, source_lengths):
        return self.of(source_lengths)


@dataclasses.dataclass(frozen=True)
class _Penalty(Constraint):
    """Base class of penalties for the tokens that an output already has."""

    def _counts(self, beams, vocab_size):
        """Returns how often each id has occurred, int32 `(batch, width, vocab_size)`; `earlier` ids count too."""
        tokens, where = beams.tokens, _written(beams)
        if self.earlier is not None:
            earlier = ops.convert_to_tensor(self.earlier, "int32")[:, None]
            earlier = ops.broadcast_to(earlier, (*ops.shape(tokens)[:2], ops.shape(earlier)[2]))
            tokens = ops.concatenate([tokens, ops.maximum(earlier, 0)], axis=-1)
            where = ops.concatenate([where, earlier >= 0], axis=-1)
        return _counts(tokens, where, vocab_size)

    def _where_used(self, changed, logits, neutral, *values):
        """Returns `changed(*values)`; the logits as they are where the values of all rows are neutral.

        Numbers are given as they are, and the values of rows as `(batch, 1, 1)`.
        """
        values = [x if isinstance(x, numbers.Real) else ops.reshape(x, (-1, 1, 1)) for x in values]
        used = [ops.any(ops.not_equal(x, neutral)) for x in values if not isinstance(x, numbers.Real)]
        if len(used) < len(values):
            return changed(*values)
        return ops.cond(functools.reduce(ops.logical_or, used), lambda: changed(*values), lambda: logits)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(_Penalty):
    """Makes the tokens of the hypothesis less likely to occur again (Keskar et al., 2019, "CTRL", section 4.1).

    Positive logits of these tokens are divided by `penalty`, negative ones are multiplied by it.

    Args:
        penalty: Above 1 for less repetition, below 1 for more; or an array or a tensor `(batch,)`, whose values are not
            checked.
        earlier: Ids that count as tokens of the hypothesis, int32 `(batch, n)`, -1 for none; or None.

    Raises:
        ValueError: If `penalty` is not positive.
    """

    penalty: Any = 1.2
    earlier: Any = None

    def __post_init__(self):
        check_range(0, above=True, **self.plain(penalty="float32"))

    def adjusted(self, logits, beams, search):
        def changed(penalty):
            seen = self._counts(beams, logits.shape[-1]) > 0
            return ops.where(seen, ops.where(logits > 0, logits / penalty, logits * penalty), logits)

        return self._where_used(changed, logits, 1, self.penalty)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class PresencePenalty(_Penalty):
    """Lowers the logits of the tokens of the hypothesis, as the API of OpenAI does.

    A token that has occurred `n` times loses `presence + n * frequency`, one that has not occurred loses nothing
    (OpenAI, "API reference", `presence_penalty` and `frequency_penalty`).

    Args:
        presence: What each token that has occurred loses; below 0 it gains. A number; or an array or a tensor
            `(batch,)`, whose values are not checked.
        frequency: What it loses for each time, as `presence`.
        earlier: Ids that count as tokens of the hypothesis, int32 `(batch, n)`, -1 for none; or None.

    Raises:
        ValueError: If a penalty is not a number.
    """

    presence: Any = 0.0
    frequency: Any = 0.0
    earlier: Any = None

    def __post_init__(self):
        check_range(-sys.float_info.max, **self.plain(presence="float32", frequency="float32"))

    def adjusted(self, logits, beams, search):
        def changed(presence, frequency):
            counts = self._counts(beams, logits.shape[-1])
            times = ops.cast(counts, logits.dtype)
            return logits - ops.where(counts > 0, presence + frequency * times, 0.0)

        return self._where_used(changed, logits, 0, self.presence, self.frequency)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class NoRepeatNgram(Constraint):
    """Forbids the same `size` tokens in a row twice in an output (Paulus et al., 2018, section 2.5).

    Args:
        size: int, the length of the n-grams; 1 forbids every token that has occurred.

    Raises:
        ValueError: If `size` is not positive.
    """

    size: int = 3

    def __post_init__(self):
        check_positive(size=self.size)

    def blocked(self, beams, search, vocab_size):
        """Blocks every token that has already followed the last `size - 1` tokens."""
        tokens, before = beams.tokens, self.size - 1
        follows = _written(beams)
        for back in range(1, before + 1):
            # Compare the token `back` places before each slot with the token `back` places before the end.
            last = ops.take_along_axis(tokens, ops.maximum(beams.lengths - back, 0)[..., None], axis=-1)
            shifted = ops.roll(tokens, back, axis=-1)
            follows = ops.logical_and(follows, ops.equal(shifted, last))
        slots = ops.arange(ops.shape(tokens)[-1], dtype="int32")
        return _occurs(tokens, ops.logical_and(follows, slots >= before), vocab_size)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class SuppressTokens(Constraint):
    """Forbids tokens; the probabilities of the other tokens stay as they are.

    Args:
        token_ids: list or tuple of int.

    Raises:
        ValueError: If there is no id, or one is negative.
    """

    token_ids: tuple = ()

    def __post_init__(self):
        is_list = isinstance(self.token_ids, (list, tuple)) and self.token_ids
        check(is_list, "`token_ids` must be a list of ids.", token_ids=self.token_ids)
        for token_id in self.token_ids:
            check_count(token_ids=token_id)
        object.__setattr__(self, "token_ids", tuple(int(i) for i in self.token_ids))

    def blocked(self, beams, search, vocab_size):
        check_count(0, vocab_size - 1, token_ids=max(self.token_ids))
        return mask_of(self.token_ids, vocab_size)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class ExcludeTokens(SuppressTokens):
    """Forbids tokens, and a search ranks as if the model did not have them: the other tokens share their probability.

    Use it for ids that the training did not teach the model to avoid, such as the padding of Marian's models, whose
    logit is 0. With `SuppressTokens` every other token would lose that share of the probability at each step, and long
    outputs would lose most.

    Args:
        token_ids: list or tuple of int.

    Raises:
        ValueError: If there is no id, one is negative, or they are the whole vocabulary.
    """

    def blocked(self, beams, search, vocab_size):
        return None

    def adjusted(self, logits, beams, search):
        vocab_size = logits.shape[-1]
        check_count(0, vocab_size - 1, **{"number of `token_ids`": len(set(self.token_ids))})
        return ops.where(super().blocked(beams, search, vocab_size), NEVER, logits)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class ForcedFirstToken(Constraint):
    """Forces the first token of an output, such as the token of a language. A prefix wins over it.

    Args:
        token_id: int.

    Raises:
        ValueError: If it is negative.
    """

    token_id: int

    def __post_init__(self):
        check_count(token_id=self.token_id)

    def blocked(self, beams, search, vocab_size):
        check_count(0, vocab_size - 1, token_id=self.token_id)
        first = ops.equal(beams.lengths, 0)[..., None]
        others = ops.not_equal(ops.arange(vocab_size, dtype="int32"), self.token_id)
        return ops.logical_and(first, others)


def _written(beams):
    """Marks the slots that hold a token: bool `(batch, width, max_length)`."""
    return ops.arange(ops.shape(beams.tokens)[-1], dtype="int32") < beams.lengths[..., None]


def _occurs(tokens, where, vocab_size):
    """Marks the ids that are in the slots marked by `where`: bool `(batch, width, vocab_size)`."""
    return _counts(tokens, where, vocab_size) > 0


def _counts(tokens, where, vocab_size):
    """Counts the ids in the slots marked by `where`.

    Args:
        tokens: int32 `(batch, width, max_length)`.
        where: bool `(batch, width, max_length)`.
        vocab_size: int.

    Returns:
        int32 `(batch, width, vocab_size)`.
    """
    batch_size, width, length = ops.shape(tokens)
    rows = ops.arange(batch_size * width, dtype="int32")[:, None]
    # Unmarked slots go to a column of their own.
    ids = ops.where(where, tokens, vocab_size)
    flat = ops.reshape(ids, (-1, length)) + rows * (vocab_size + 1)
    counts = ops.scatter(
        ops.reshape(flat, (-1, 1)),
        ops.ones((batch_size * width * length,), "int32"),
        (batch_size * width * (vocab_size + 1),),
    )
    return ops.reshape(counts, (batch_size, width, vocab_size + 1))[..., :vocab_size]
