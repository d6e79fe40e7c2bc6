"""The decoding loop, which every strategy, every constraint and every model uses, and how long its outputs may be."""

import dataclasses
import numbers
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check, check_known_ids, check_positive, known_values
from keras_transformer.decoding.constraints import Constraint, MaxLength, MinLength
from keras_transformer.decoding.hypotheses import NEVER, Beams, Prediction, one_of
from keras_transformer.execution import ops
from keras_transformer.execution.inference import run_growing

MOST_TOKENS = 10**6  # of an output


class _State(NamedTuple):
    """The values that one step hands to the next."""

    # The position of `last`, an int32 scalar.
    index: Any
    # The newest tokens, int32 (batch, width).
    last: Any
    beams: Beams
    extra: Any  # the strategy's own values
    cache: Any


class _FixedCache(NamedTuple):
    """Gives a nest of tensors `(batch, width, ...)`, whose size never changes, the methods of a cache."""

    nest: Any
    # More steps than any search takes, so that the nest need not grow; twice as many are still an int32.
    steps = 2**29

    def reordered(self, parents):
        return _FixedCache(ops.take_by_row(self.nest, parents)) if keras.tree.flatten(self.nest) else self

    def grown(self, steps):
        return self

    grown_further = grown


def decode(step, cache, strategy, prompt, search, *, target_len=None, starts=None, constraints=()):
    """Extends each row token by token until every row has ended.

    A row ends with one of `eos_ids` or at its limit. Then it is padded until the other rows have ended. The tokens of a
    row do not depend on the other rows.

    Args:
        step: `step(tokens, cache, index) -> (logits, cache)`. `tokens`, int32 `(batch, width, length)`, are the ids of
            each hypothesis at position `index` and after it; `logits` are `(batch, width, length, vocab_size)`. The
            first call reads a prompt of several tokens but its last, at index 0, with a width of 1. Every later call
            has one token for each hypothesis.
        cache: The values that `step` keeps between calls. A nest of tensors `(batch, width, ...)` of fixed size, or an
            object such as `TreeCache` with `reordered(parents)`, which moves hypotheses, `grown(steps)`, which makes
            room, and `steps`, the number of steps for which there is room.
        strategy: A `Strategy`, which chooses the tokens, such as `Greedy()`.
        prompt: int32 `(batch, prompt_len)`, the first tokens of each row: `bos_id` alone, or more. Rows of different
            lengths are padded on the left. `(batch,)` for one token each.
        search: A `Search`: the limits of the rows, and the ids that end and fill them.
        target_len: int or int32 scalar, the number of columns of the result; no output is longer. None for the largest
            limit. An int gives a graph constant shapes.
        starts: int32 `(batch,)`, the position of each row's first token in `prompt`; None where no row is padded.
        constraints: `Constraint` objects that every output must satisfy.

    Returns:
        `Hypotheses`: tokens int32 `(batch, n_best, target_len)`, lengths int32 `(batch, n_best)` and scores float32
        `(batch, n_best)`, best first.

    Raises:
        ValueError: If the prompt is longer than `target_len` allows, or a `Sample` has no seed; or, outside of a graph,
            if an id of the prompt after its first, of a phrase or of a constraint is not in the vocabulary.

    The most likely token after token `i` is here `i + 1`, and 3 ends the row:

    >>> from keras_transformer.decoding import Search
    >>> def step(tokens, cache, index):
    ...     return ops.one_hot(tokens + 1, 5), cache
    >>> decode(step, (), Greedy(), [1], Search(limits=4)).tokens.numpy().tolist()
    [[[2, 3, 0, 0]]]
    """
    constraints, pad_id = tuple(constraint.begun() for constraint in constraints), search.pad_id
    prompt = ops.convert_to_tensor(prompt, "int32")
    prompt = prompt[:, None] if len(prompt.shape) == 1 else prompt
    batch_size, prompt_len = ops.shape(prompt)
    limits = search.limits
    if target_len is None:
        target_len = largest(limits)
    else:
        limits = ops.minimum(limits, target_len)
    if isinstance(prompt_len, int) and isinstance(target_len, int):
        rule = "`prompt` must have at most `target_len` tokens after its first."
        check(prompt_len - 1 <= target_len, rule, prompt_len=prompt_len, target_len=target_len)
    limits = ops.broadcast_to(ops.cast(limits, "int32"), (batch_size,))
    for constraint in constraints:
        limit = constraint.limits(search.source_lengths)
        if limit is not None:
            limits = ops.minimum(limits, ops.cast(limit, "int32"))
    search = search._replace(limits=limits, constraints=constraints)
    step, cache = with_methods(step, cache)
    if isinstance(prompt_len, int) and prompt_len == 1:
        beams = Beams(
            ops.full((batch_size, 1, target_len), pad_id, "int32"),
            ops.zeros((batch_size, 1), "int32"),
            ops.zeros((batch_size, 1), "float32"),
            limits[:, None] <= 0,
        )
    else:
        logits, cache = step(prompt[:, None, :-1], cache, 0)
        ids = known_values(prompt)
        if ids is not None:
            check_known_ids(logits.shape[-1], pad_id, prompt=ids[:, 1:])
        beams = _after_prompt(prompt, starts, logits[:, 0], target_len, search)
    shape = (batch_size, strategy.width)
    beams = ops.take_by_row(beams, ops.zeros(shape, "int32"))
    state = _State(
        index=ops.cast(prompt_len - 1, "int32"),
        last=ops.broadcast_to(prompt[:, -1:], shape),
        beams=beams,
        extra=strategy.begin(beams, search),
        cache=cache,
    )

    def unfinished(state):
        return ops.logical_not(ops.all(state.beams.finished))

    def turn(state):
        logits, cache = step(state.last[..., None], state.cache, state.index)
        prediction = _predict(logits[:, :, 0], state.beams, constraints, search)
        beams, extra, tokens, parents = strategy.advance(state.beams, state.extra, prediction, search)
        cache = cache if parents is None else cache.reordered(parents)
        return _State(state.index + 1, ops.where(beams.finished, pad_id, tokens), beams, extra, cache)

    def run(state):
        """Takes steps until every row has ended or the room in the cache is used up."""
        end = prompt_len - 1 + state.cache.steps

        def goes_on(state):
            return ops.logical_and(state.index < end, unfinished(state))

        return ops.while_loop(goes_on, lambda state: (turn(state),), (state,))[0]

    def grown(state, steps, further):
        """Gives a state more room: the cache that `decode` was called with is copied, and goes on as the loop's own."""
        cache = state.cache
        grow = getattr(cache, "grown_further", cache.grown) if further else cache.grown
        return state._replace(cache=grow(steps))

    result = run_growing(
        run,
        unfinished,
        state,
        room=lambda state: state.cache.steps,
        grown=grown,
        result=lambda state: (state.beams, state.extra),
        limit=target_len,
    )
    return strategy.end(*result, search)


def with_methods(step, cache):
    """Wraps a cache that is a nest of tensors in a `_FixedCache`, and its step in a function that unwraps it.

    A cache that has the methods of one stays as it is.
    """
    if hasattr(cache, "grown"):
        return step, cache

    def wrapped(tokens, cache, index):
        logits, nest = step(tokens, cache.nest, index)
        return logits, _FixedCache(nest)

    return wrapped, _FixedCache(cache)


def _after_prompt(prompt, starts, logits, target_len, search):
    """Returns the `Beams` with one hypothesis for each row: the tokens of its prompt after the first."""
    batch_size, prompt_len = ops.shape(prompt)
    starts = ops.zeros((batch_size,), "int32") if starts is None else starts
    following = ops.arange(1, prompt_len, dtype="int32")[None]
    real = following > starts[:, None]
    logits = ops.cast(logits, "float32")
    log_probs = ops.take_along_axis(logits, prompt[:, 1:, None], axis=-1)[..., 0]
    log_probs = log_probs - ops.logsumexp(logits, axis=-1)
    lengths = prompt_len - 1 - starts
    slots = ops.arange(target_len, dtype="int32")[None]
    tokens = ops.take_by_row(prompt, ops.minimum(slots + 1 + starts[:, None], prompt_len - 1))
    ended = ops.logical_and(one_of(prompt[:, -1], search.eos_ids), lengths > 0)
    return Beams(
        ops.where(slots < lengths[:, None], tokens, search.pad_id)[:, None],
        ops.minimum(lengths, target_len)[:, None],
        ops.sum(ops.where(real, log_probs, 0.0), axis=1)[:, None],
        ops.logical_or(ended, lengths >= search.limits)[:, None],
    )


def _predict(logits, beams, constraints, search):
    """Applies the constraints to the model's logits: penalties first, then forbidden tokens."""
    logits = allowed = ops.cast(logits, "float32")
    for constraint in constraints:
        allowed = constraint.adjusted(allowed, beams, search)
    allowed_normalizer = None if allowed is logits else ops.logsumexp(allowed, axis=-1)
    for constraint in constraints:
        blocked = constraint.blocked(beams, search, logits.shape[-1])
        if blocked is not None:
            allowed = ops.where(blocked, NEVER, allowed)
    return Prediction(logits, allowed, ops.logsumexp(logits, axis=-1), allowed_normalizer)


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
                a batch; in a language model it is an empty prompt. None for a source without a length.
            prefix_lengths: int32 `(batch,)`, or 0.

        Returns:
            int32 `(batch,)`; an int where all rows have the same.
        """
        limits = self.max_length
        if limits is None:
            limits = self._default(source_lengths, prefix_lengths)
        limits = at_most(limits, self.room(source_lengths))
        whole = self.shares_positions or source_lengths is None
        return limits if whole else ops.where(source_lengths > 0, limits, prefix_lengths)

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
