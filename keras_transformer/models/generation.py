"""Generation: what a model needs to write sequences, whatever the model."""

import functools

from keras import ops

from keras_transformer.backend import compiled, compiles
from keras_transformer.checks import check_positive
from keras_transformer.decoding import Greedy, decode

# A compiled `generate` pads its sources to a multiple of this: each new shape costs a compilation.
SOURCE_LENGTH_STEP = 16


class Generation:
    """Adds `generate` to a model that has `start(source, max_length)`, `pad_id`, `bos_id` and `eos_id`."""

    @functools.cached_property
    def _generators(self):
        return functools.lru_cache(maxsize=16)(self._make_generator)

    def search(self, source, strategy, max_length=None):
        """What `generate` compiles: tensors in, tensors out, for use inside a graph.

        Args:
            source: int32 `(batch, source_len)`.
            strategy: As in `generate`.
            max_length: As in `generate`.

        Returns:
            `Hypotheses`.
        """
        row_limits = None
        if max_length is None:
            max_length = _default_limit(ops.shape(source)[1])
            real = ops.sum(ops.cast(ops.not_equal(source, self.pad_id), "int32"), axis=1)
            row_limits = _default_limit(real)
        step, cache = self.start(source, max_length)
        start_tokens = ops.full((ops.shape(source)[0],), self.bos_id, "int32")
        return decode(
            step,
            cache,
            strategy,
            start_tokens,
            max_length,
            row_limits=row_limits,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
        )

    def generate(self, source, strategy=Greedy(), max_length=None, jit_compile=None):  # noqa: B008
        """Writes a target for each source.

        Args:
            source: int `(batch, source_len)`, padded on the right.
            strategy: How to choose tokens.
            max_length: Longest output, `eos_id` included. None for twice each row's own length plus 16.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.

        Returns:
            `Hypotheses(tokens, lengths, scores)`: int32 `(batch, n_best, max_length)`, int32
            `(batch, n_best)`, float32 `(batch, n_best)`.

        Raises:
            ValueError: If `source` is not of rank 2 or empty, or `max_length` is not positive.
        """
        source = ops.convert_to_tensor(source, "int32")
        if len(source.shape) != 2 or 0 in source.shape:
            raise ValueError(
                "`source` must have shape `(batch, source_len)`, without an empty axis. "
                f"Received: shape={tuple(source.shape)}."
            )
        if max_length is not None:
            check_positive(max_length=max_length)
        if not hasattr(strategy, "choose"):
            raise ValueError(f"`strategy` must be a strategy such as `Greedy()`. Received: {strategy!r}.")
        jit_compile = compiles(jit_compile)
        length = source.shape[1]
        if jit_compile:
            padding = -length % SOURCE_LENGTH_STEP
            source = ops.pad(source, ((0, 0), (0, padding)), constant_values=self.pad_id)
        found = self._generators(strategy, max_length, jit_compile)(source)
        limit = _default_limit(length) if max_length is None else max_length
        return found._replace(tokens=found.tokens[:, :, :limit])

    def _make_generator(self, strategy, max_length, jit_compile):
        return compiled(lambda source: self.search(source, strategy, max_length), self, jit_compile)


def _default_limit(source_len):
    """How long an output may get where nobody said: generous for any pair of languages, never endless."""
    return 2 * source_len + 16
