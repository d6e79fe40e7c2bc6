"""The decoding loop, which every strategy, every constraint and every model uses."""

import numbers
from typing import Any, NamedTuple

import keras

from keras_transformer.checks import check
from keras_transformer.decoding.constraints import ends_early
from keras_transformer.decoding.hypotheses import NEVER, Beams, Prediction, Search, one_of, select
from keras_transformer.decoding.limits import largest
from keras_transformer.decoding.phrases import PhraseBeam
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


def decode(
    step,
    cache,
    strategy,
    prompt,
    max_length,
    *,
    target_len=None,
    starts=None,
    constraints=(),
    min_length=None,
    temperature=None,
    top_p=None,
    phrases=None,
    source_lengths=None,
    keys=None,
    seed=None,
    eos_id=3,
    pad_id=0,
):
    """Extends each row token by token until every row has ended.

    A row ends with `eos_id` or at its limit. Then it is padded until the other rows have ended. The tokens of a row
    do not depend on the other rows. `max_length`, `min_length`, `temperature`, `top_p` and `seed` are one value for all
    rows, or `(batch,)`, a value for each row.

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
        max_length: int32, the longest output. The tokens of the prompt after its first count, and `eos_id` counts. A
            row whose limit is not positive gets no token.
        target_len: int or int32 scalar, the number of columns of the result; no output is longer. None for the largest
            `max_length`. An int gives a graph constant shapes.
        starts: int32 `(batch,)`, the position of each row's first token in `prompt`; None where no row is padded.
        constraints: `Constraint` objects that every output must satisfy.
        min_length: int32, the shortest output, `eos_id` included. A lower limit of a row wins over it.
        temperature: float32, in place of that of `Sample`. A row with 0 takes the likeliest token at each step, as
            `Greedy` does.
        top_p: float32, above 0 and at most 1, in place of that of `Sample`.
        phrases: int32 `(batch, phrases, length)`, what each output must hold, for a `PhraseBeam`. A phrase is padded on
            the right; one of padding alone is none. None for no phrases.
        source_lengths: int32 `(batch,)`, for constraints that are relative to the source, or None.
        keys: uint32 `(batch,)`. The random numbers of a row depend on its key and on the seed. None for the row's
            number.
        seed: int32, in place of that of `Sample`.
        eos_id: int, the token that ends a row, or a sequence of them.
        pad_id: int, the token after the end.

    Returns:
        `Hypotheses`: tokens int32 `(batch, n_best, target_len)`, lengths int32 `(batch, n_best)` and scores float32
        `(batch, n_best)`, best first.

    Raises:
        ValueError: If the prompt is longer than `max_length` allows, there is a `temperature` or a `top_p` and the
            strategy has none, or there are `phrases` and the strategy is no `PhraseBeam`.

    The most likely token after token `i` is here `i + 1`, and 3 ends the row:

    >>> def step(tokens, cache, index):
    ...     return ops.one_hot(tokens + 1, 5), cache
    >>> decode(step, (), Greedy(), prompt=[1], max_length=4).tokens.numpy().tolist()
    [[[2, 3, 0, 0]]]
    """
    constraints = tuple(constraints)
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        rule = f"`{name}` must be None for a strategy that does not draw tokens."
        check(value is None or hasattr(strategy, name), rule, strategy=strategy)
    check(
        phrases is None or isinstance(strategy, PhraseBeam),
        "`phrases` must be None for a strategy that is no `PhraseBeam`.",
        strategy=strategy,
    )
    if seed is None:
        seed = getattr(strategy, "seed", None) or 0
    prompt = ops.convert_to_tensor(prompt, "int32")
    prompt = prompt[:, None] if len(prompt.shape) == 1 else prompt
    batch_size, prompt_len = ops.shape(prompt)
    if target_len is None:
        target_len = largest(max_length)
    else:
        max_length = ops.minimum(max_length, target_len)
    if isinstance(prompt_len, int) and isinstance(target_len, int):
        rule = "`prompt` must have at most `max_length` tokens after its first."
        check(prompt_len - 1 <= target_len, rule, prompt_len=prompt_len, max_length=target_len)
    step, cache = with_methods(step, cache)

    def by_row(x, dtype):
        return None if x is None else ops.broadcast_to(ops.cast(x, dtype), (batch_size,))

    limits = by_row(max_length, "int32")
    for constraint in constraints:
        limit = constraint.limits(source_lengths)
        if limit is not None:
            limits = ops.minimum(limits, ops.cast(limit, "int32"))
    if keys is None:
        keys = ops.cast(ops.arange(batch_size, dtype="int32"), "uint32")
    search = Search(
        limits,
        source_lengths,
        keys,
        seed=ops.cast(seed, "int32"),
        eos_ids=(int(eos_id),) if isinstance(eos_id, numbers.Integral) else tuple(eos_id),
        pad_id=pad_id,
        min_length=min_length,
        temperature=by_row(temperature, "float32"),
        top_p=by_row(top_p, "float32"),
        phrases=None if phrases is None else ops.convert_to_tensor(phrases, "int32"),
    )
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
    if search.min_length is not None:
        blocked = ends_early(beams, search.min_length, search.eos_ids, logits.shape[-1])
        allowed = ops.where(blocked, NEVER, allowed)
    return Prediction(logits, allowed, ops.logsumexp(logits, axis=-1), allowed_normalizer)
