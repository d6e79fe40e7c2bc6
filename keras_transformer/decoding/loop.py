"""The decoding loop: one for every strategy."""

from typing import Any, NamedTuple

from keras import ops


class Hypotheses(NamedTuple):
    """What decoding found, best first.

    tokens: int32 `(batch, n_best, max_length)`, without `bos_id`, `pad_id` after `eos_id`.
    lengths: int32 `(batch, n_best)`, counting `eos_id`.
    scores: float32 `(batch, n_best)`, sums of log probabilities.
    """

    tokens: Any
    lengths: Any
    scores: Any


class _State(NamedTuple):
    """What a turn of the loop hands to the next."""

    index: Any  # int32 scalar: the position of `last`
    last: Any  # int32 (batch, width): the newest tokens
    tokens: Any  # int32 (batch, width, max_length)
    lengths: Any  # int32 (batch, width)
    scores: Any  # float32 (batch, width)
    finished: Any  # bool (batch, width)
    cache: Any


def decode(step, cache, strategy, start_tokens, max_length, *, row_limits=None, eos_id=3, pad_id=0):
    """Extends each row token by token until all rows have ended.

    A row ends with `eos_id` or at its limit; it is then padded, and costs its neighbours nothing but the
    width of the batch: no row's tokens depend on another's.

    Args:
        step: `step(tokens, cache, index) -> (logits, cache)`: ids `(batch * width, length)` that stand at
            position `index` and after, to logits `(batch * width, length, vocab_size)`.
        cache: What `step` keeps between calls, for `batch * width` rows; any nest of tensors.
        strategy: Which tokens to take, such as `Greedy()`.
        start_tokens: int32 `(batch,)`, the first token of each row (`bos_id`).
        max_length: Longest output, `eos_id` included; an int or an int scalar tensor.
        row_limits: int32 `(batch,)`, a limit for each row, or None.
        eos_id: The token that ends a row.
        pad_id: The token that fills it up.

    Returns:
        `Hypotheses`.
    """
    width = strategy.width
    batch_size = ops.shape(start_tokens)[0]
    shape = (batch_size, width)
    last = ops.broadcast_to(ops.cast(start_tokens, "int32")[:, None], shape)
    limits = max_length if row_limits is None else ops.minimum(row_limits, max_length)[:, None]
    positions = ops.arange(max_length, dtype="int32")
    initial = _State(
        index=ops.zeros((), "int32"),
        last=last,
        tokens=ops.full((batch_size, width, max_length), pad_id, "int32"),
        lengths=ops.zeros(shape, "int32"),
        scores=ops.zeros(shape, "float32"),
        finished=ops.broadcast_to(ops.less_equal(limits, 0), shape),
        cache=cache,
    )

    def unfinished(*state):
        return ops.logical_not(ops.all(_State(*state).finished))

    def turn(*state):
        state = _State(*state)
        logits, cache = step(ops.reshape(state.last, (-1, 1)), state.cache, state.index)
        logits = ops.cast(ops.reshape(logits, (*shape, logits.shape[-1])), "float32")
        choice = strategy.choose(logits)
        last = ops.where(state.finished, pad_id, choice.tokens)
        index = state.index + 1
        return _State(
            index=index,
            last=last,
            tokens=ops.where(positions == state.index, last[..., None], state.tokens),
            lengths=state.lengths + ops.cast(ops.logical_not(state.finished), "int32"),
            scores=state.scores + ops.where(state.finished, 0.0, choice.scores),
            finished=state.finished | (last == eos_id) | (index >= limits),
            cache=cache,
        )

    end = _State(*ops.while_loop(unfinished, turn, initial))
    return Hypotheses(end.tokens, end.lengths, end.scores)
