"""A loop whose state grows while it runs: a cache that is too large makes each of its steps slower."""

from keras_transformer.execution import native, ops

# The state has room for this many steps first, then for twice as many each time. Attention reads all slots of a cache,
# used or not.
FIRST_STEPS = 64


def run_growing(run, unfinished, state, room, grown, result, limit):
    """Runs a loop with more and more room, until it is finished or has taken `limit` steps.

    Args:
        run: `run(state)` takes steps until the loop is finished or the room is used up, and returns the state.
        unfinished: `unfinished(state)`, bool scalar.
        state: A nest of tensors.
        room: `room(state)`, the number of steps that the state has room for, an int or int32 scalar.
        grown: `grown(state, steps)` returns the state with room for `steps` steps.
        result: `result(state)`, the nest to return; its shapes do not depend on the room.
        limit: The largest number of steps, an int or int32 scalar.

    Returns:
        What `result` returns for the last state.
    """

    def run_sizes(state, steps):
        """Runs with room for `steps` steps; where it is unfinished then, with twice the room, up to `limit`."""
        state = run(grown(state, steps))
        if not isinstance(steps, int) or steps == limit:
            return result(state)
        more = min(2 * steps, limit)
        return ops.cond(unfinished(state), lambda: run_sizes(state, more), lambda: result(state))

    if isinstance(limit, int):  # a loop for each size, with static shapes
        return run_sizes(state, min(max(FIRST_STEPS, room(state)), limit))
    if native.in_xla():  # XLA needs one shape, and the size is unknown
        return run_sizes(state, limit)
    # A loop over sizes with open shapes; its first turn doubles the room to `FIRST_STEPS`.
    state = grown(state, ops.minimum(FIRST_STEPS // 2, limit))
    (state,) = ops.while_loop(
        unfinished, lambda state: (run(grown(state, ops.minimum(2 * room(state), limit))),), (state,)
    )
    return result(state)
