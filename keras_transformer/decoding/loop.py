"""The decoding loop: one for every strategy, every constraint and every model."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.backend import in_xla
from keras_transformer.decoding.beams import NEVER, Beams, Prediction, Search, select

# A cache that can grow starts with room for this many steps, then doubles: attention sees little beside its live part.
FIRST_STEPS = 64


class _State(NamedTuple):
    """What a turn of the loop hands to the next."""

    index: Any  # int32 scalar: the position of `last`
    last: Any  # int32 (batch, width): the newest tokens
    beams: Beams
    extra: Any  # what the strategy keeps besides
    cache: Any


def decode(
    step,
    cache,
    strategy,
    prompt,
    max_length,
    *,
    starts=None,
    constraints=(),
    row_limits=None,
    source_lengths=None,
    keys=None,
    seed=0,
    eos_id=3,
    pad_id=0,
):
    """Extends each row token by token until all rows have ended.

    A row ends with `eos_id` or at its limit; it is then padded, and costs its neighbours nothing but the
    width of the batch: no row's tokens depend on another's.

    Args:
        step: `step(tokens, cache, index) -> (logits, cache)`: ids `(batch, width, length)`, of each hypothesis
            those that stand at position `index` and after, to logits `(batch, width, length, vocab_size)`. A
            prompt comes first, at index 0, as one hypothesis a row; then each step has one token a hypothesis.
        cache: What `step` keeps between calls: any nest of tensors `(batch, width, ...)`, or an object with
            `reordered(parents)` (hypotheses change places) and `grown(steps)` (room for more), as `TreeCache`.
        strategy: Which tokens to take, such as `Greedy()`.
        prompt: int32 `(batch, prompt_len)`, what each row begins with: `bos_id` alone, or a prompt, which is
            read in one pass. Rows of different lengths are padded on the left. `(batch,)` for single tokens.
        max_length: Longest output, `eos_id` and what follows the prompt's first token included; an int or an int
            scalar tensor.
        starts: int32 `(batch,)`, where each row of `prompt` starts; None where none is padded.
        constraints: Objects of `decoding.constraints`, which every token must satisfy.
        row_limits: int32 `(batch,)`, a limit for each row, or None.
        source_lengths: int32 `(batch,)`, what limits relative to the source refer to, or None.
        keys: uint32 `(batch,)`, from which a row's random numbers follow; the row's number when None.
        seed: int or int32 scalar, from which all random numbers follow.
        eos_id: The token that ends a row.
        pad_id: The token that fills it up.

    Returns:
        `Hypotheses`.
    """
    prompt = ops.convert_to_tensor(prompt, "int32")
    prompt = prompt[:, None] if len(prompt.shape) == 1 else prompt
    batch_size, prompt_len = ops.shape(prompt)
    if isinstance(prompt_len, int) and isinstance(max_length, int) and prompt_len - 1 > max_length:
        raise ValueError(
            "`prompt` must leave what follows its first token within `max_length`. "
            f"Received: a prompt of {prompt_len} tokens, max_length={max_length}."
        )
    shape = (batch_size, strategy.width)
    search = Search(
        _limits(batch_size, max_length, row_limits, constraints, source_lengths),
        source_lengths,
        ops.cast(ops.arange(batch_size, dtype="int32"), "uint32") if keys is None else keys,
        ops.cast(seed, "int32"),
        eos_id,
        pad_id,
    )
    beams = Beams(
        ops.full((batch_size, 1, max_length), pad_id, "int32"),
        ops.zeros((batch_size, 1), "int32"),
        ops.zeros((batch_size, 1), "float32"),
        search.limits[:, None] <= 0,
    )
    if not (isinstance(prompt_len, int) and prompt_len == 1):
        starts = ops.zeros((batch_size,), "int32") if starts is None else starts
        logits, cache = step(prompt[:, None, :-1], cache, 0)
        beams = _after_prompt(prompt, starts, logits[:, 0], max_length, search)
    beams = beams.select(ops.zeros(shape, "int32"))
    state = _State(
        index=ops.cast(prompt_len - 1, "int32"),
        last=ops.broadcast_to(prompt[:, -1:], shape),
        beams=beams,
        extra=strategy.begin(beams, search),
        cache=cache,
    )

    def unfinished(state):
        return ops.logical_not(ops.all(state.beams.finished))

    def outcome(state):
        return state.beams, state.extra

    def turn(state):
        logits, cache = step(state.last[..., None], state.cache, state.index)
        prediction = _predict(logits[:, :, 0], state.beams, constraints, search)
        beams, extra, tokens, parents = strategy.advance(state.beams, state.extra, prediction, search)
        if parents is not None:
            cache = _reordered(cache, parents)
        return _State(state.index + 1, tokens, beams, extra, cache)

    def run(state, steps):
        """Turns until all rows have ended, or the cache's `steps` steps are used up."""
        end = prompt_len - 1 + steps
        return _loop(lambda s: ops.logical_and(s.index < end, unfinished(s)), turn, state)

    def grown(state, steps):
        return state._replace(cache=state.cache.grown(steps))

    def run_growing(state, steps):
        """Runs with room for `steps` steps, and where a row goes on with twice as many, as often as need be."""
        state = run(grown(state, steps), steps)
        if steps >= max_length:
            return outcome(state)
        more = min(2 * steps, max_length)
        return ops.cond(unfinished(state), lambda: run_growing(state, more), lambda: outcome(state))

    def grow_and_run(state):
        steps = state.cache.steps
        used_up = state.index - (prompt_len - 1) >= steps
        steps = ops.where(used_up, ops.minimum(2 * steps, max_length), steps)
        return run(grown(state, steps), steps)

    if not hasattr(cache, "grown"):
        beams, extra = outcome(_loop(unfinished, turn, state))
    elif isinstance(max_length, int):  # sizes are known: one loop for each, as a compiler needs it
        beams, extra = run_growing(state, min(FIRST_STEPS, max_length))
    elif in_xla():  # known to the compiler alone: one loop
        beams, extra = outcome(run(grown(state, max_length), max_length))
    else:
        state = grown(state, ops.minimum(FIRST_STEPS, max_length))
        beams, extra = outcome(_loop(unfinished, grow_and_run, state))
    return strategy.end(beams, extra, search)


def _limits(batch_size, max_length, row_limits, constraints, source_lengths):
    """The longest output of each row, int32 `(batch,)`."""
    limits = ops.broadcast_to(ops.cast(max_length, "int32"), (batch_size,))
    others = [row_limits, *(constraint.limits(source_lengths) for constraint in constraints)]
    for other in others:
        if other is not None:
            limits = ops.minimum(limits, ops.cast(other, "int32"))
    return limits


def _after_prompt(prompt, starts, logits, max_length, search):
    """The hypotheses, one a row, that a prompt leaves: what follows its first token, and its log probability."""
    prompt_len = ops.shape(prompt)[1]
    following = ops.arange(1, prompt_len, dtype="int32")[None]
    real = following > starts[:, None]
    logits = ops.cast(logits, "float32")
    log_probs = ops.take_along_axis(logits, prompt[:, 1:, None], axis=-1)[..., 0]
    log_probs = log_probs - ops.logsumexp(logits, axis=-1)
    lengths = prompt_len - 1 - starts
    slots = ops.arange(max_length, dtype="int32")[None]
    tokens = select(prompt, ops.minimum(slots + 1 + starts[:, None], prompt_len - 1))
    ended = ops.logical_and(ops.equal(prompt[:, -1], search.eos_id), lengths > 0)
    return Beams(
        ops.where(slots < lengths[:, None], tokens, search.pad_id)[:, None],
        ops.minimum(lengths, max_length)[:, None],
        ops.sum(ops.where(real, log_probs, 0.0), axis=1)[:, None],
        ops.logical_or(ended, lengths >= search.limits)[:, None],
    )


def _predict(logits, beams, constraints, search):
    """The model's logits and what the constraints leave of them."""
    logits = allowed = ops.cast(logits, "float32")
    for constraint in constraints:
        allowed = constraint.adjusted(allowed, beams, search)
    allowed_normalizer = None if allowed is logits else ops.logsumexp(allowed, axis=-1)
    for constraint in constraints:
        blocked = constraint.blocked(beams, search, logits.shape[-1])
        if blocked is not None:
            allowed = ops.where(blocked, NEVER, allowed)
    return Prediction(logits, allowed, ops.logsumexp(logits, axis=-1), allowed_normalizer)


def _reordered(cache, parents):
    if hasattr(cache, "reordered"):
        return cache.reordered(parents)
    return select(cache, parents) if keras.tree.flatten(cache) else cache


def _loop(condition, body, state):
    """`ops.while_loop` over one state."""
    return _State(*ops.while_loop(lambda *s: condition(_State(*s)), lambda *s: body(_State(*s)), state))
