"""The decoding loop, which every strategy, every constraint and every model uses."""

from typing import Any, NamedTuple

import keras

from keras_transformer.checks import check
from keras_transformer.decoding.hypotheses import NEVER, Beams, Prediction, one_of, select
from keras_transformer.decoding.limits import largest
from keras_transformer.execution import ops
from keras_transformer.execution.growth import run_growing


class _State(NamedTuple):
    """The values that one step hands to the next."""

    index: Any  # int32 scalar: the position of `last`
    last: Any  # int32 (batch, width): the newest tokens
    beams: Beams
    extra: Any  # the strategy's own values
    cache: Any


class _FixedCache(NamedTuple):
    """Gives a nest of tensors `(batch, width, ...)`, whose size never changes, the methods of a cache."""

    nest: Any
    # More steps than any search takes, so that the nest need not grow; twice as many are still an int32.
    steps = 2**29

    def reordered(self, parents):
        return _FixedCache(select(self.nest, parents)) if keras.tree.flatten(self.nest) else self

    def grown(self, steps):
        return self


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
        ValueError: If the prompt is longer than `target_len` allows, or a `Sample` has no seed.

    The most likely token after token `i` is here `i + 1`, and 3 ends the row:

    >>> from keras_transformer.decoding import Search
    >>> def step(tokens, cache, index):
    ...     return ops.one_hot(tokens + 1, 5), cache
    >>> decode(step, (), Greedy(), [1], Search(limits=4)).tokens.numpy().tolist()
    [[[2, 3, 0, 0]]]
    """
    constraints, pad_id = tuple(constraints), search.pad_id
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
    search = search._replace(limits=limits)
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
        beams = _after_prompt(prompt, starts, logits[:, 0], target_len, search)
    shape = (batch_size, strategy.width)
    beams = select(beams, ops.zeros(shape, "int32"))
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

    result = run_growing(
        run,
        unfinished,
        state,
        room=lambda state: state.cache.steps,
        grown=lambda state, steps: state._replace(cache=state.cache.grown(steps)),
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
    tokens = select(prompt, ops.minimum(slots + 1 + starts[:, None], prompt_len - 1))
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
