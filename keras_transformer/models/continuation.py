"""Generation without an encoder: an output goes on with its prompt."""

import functools

import numpy as np
from keras import ops

from keras_transformer.decoding import Greedy, decode, row_keys
from keras_transformer.models.generation import (
    Generation,
    Scores,
    left_padded,
    lengths_of,
    log_probs_of,
    seed_of,
)
from keras_transformer.models.limits import at_most, default_limit
from keras_transformer.models.tree_search import tree_search


class Continuation(Generation):
    """Adds `generate` and `score` to a model that has `hidden`, `decode`, `decoder`, `output_embedding`, `vocab_size`,
    `pad_id`, `bos_id` and `eos_id`."""

    def room(self, source):
        if self.longest is None:
            return None
        lengths = ((source != self.pad_id) * np.arange(1, source.shape[1] + 1)).max(axis=1)
        return self.longest + 1 - np.maximum(lengths, 1)  # the last token of an output needs no position

    def generate(
        self,
        source,
        strategy=Greedy(),  # noqa: B008
        max_length=None,
        jit_compile=None,
        *,
        constraints=(),
    ):
        """Goes on with each prompt.

        Args:
            source: int `(batch, source_len)`, prompts of any lengths, padded on the right. What is padding alone begins
                with `bos_id`.
            strategy: How to choose tokens: `Greedy()`, `Beam()`, `Sample()`.
            max_length: Most tokens after a prompt, `eos_id` included. None for twice the prompt's length plus 16; never
                beyond the last position of a model that learned its positions.
            jit_compile: True to compile with XLA (each new shape compiles once), False for the portable
                graph, None for XLA where there is an accelerator.
            constraints: What every continuation must satisfy, such as `[NoRepeatNgram(3)]`.

        Returns:
            `Hypotheses(tokens, lengths, scores)` of what follows the prompts: int32 `(batch, n_best, max_length)`,
            int32 `(batch, n_best)`, float32 `(batch, n_best)`.

        Raises:
            ValueError: If `source` is not of rank 2 or empty, `max_length` is not positive or goes beyond the last
                position, or the constraints contradict one another.
        """
        return super().generate(source, strategy, max_length, jit_compile, constraints=constraints)

    def score(self, source, target, jit_compile=None):
        """How likely the model finds given continuations: one pass, no search.

        Args:
            source: int `(batch, source_len)`, prompts as in `generate`.
            target: int `(batch, target_len)`, or `(batch, n, target_len)` for several continuations of each prompt,
                such as the tokens of `Hypotheses`; with `eos_id` where it counts, padded on the right. An empty one
                scores 0.
            jit_compile: As in `generate`.

        Returns:
            `Scores(scores, token_scores, None)`: log probabilities of what follows the prompts, given these and what
            came before. There are no alignments without a source.

        Raises:
            ValueError: If a shape does not fit, or a target goes beyond the last position.
        """
        return super().score(source, target, jit_compile)

    def search(self, source, strategy, max_length=None, *, constraints=(), seed=None):
        """What `generate` compiles: tensors in, tensors out, for use inside a graph. Arguments as there; `seed` as for
        `Transformer.search`. Where there is a last position a row ends there, and one without room is empty."""
        lengths = lengths_of(source, self.pad_id)
        row_limits = max_length
        if max_length is None:
            max_length = default_limit(ops.shape(source)[1], 0, constraints, self.longest)
            row_limits = default_limit(lengths, 0, constraints)
        if self.longest is not None:
            row_limits = at_most(row_limits, self.longest + 1 - ops.maximum(lengths, 1))
        step, cache, last = self.start(source, strategy.width)
        return decode(
            step,
            cache,
            strategy,
            last,
            max_length,
            constraints=constraints,
            row_limits=row_limits,
            source_lengths=lengths,
            keys=row_keys(source, self.pad_id),
            seed=seed_of(strategy, seed),
            eos_id=self.eos_id,
            pad_id=self.pad_id,
        )

    def start(self, source, width=1):
        """Reads prompts, and prepares the step that continues them.

        Args:
            source: int `(batch, source_len)`, padded on the right.
            width: Number of hypotheses for each prompt.

        Returns:
            `step(tokens, cache, index) -> (logits, cache)`, as `decoding.decode` takes it; the cache of all tokens but
            each prompt's last; and these, int32 `(batch, 1)`.
        """
        batch_size, length = ops.shape(source)
        prompt, starts = self._prompts(source)
        kernel = self.output_embedding.output_kernel()
        decode_rows = functools.partial(self.decode, output_kernel=kernel, training=False)
        step, cache = tree_search(decode_rows, self.decoder, batch_size, width, length - 1, starts)
        if not (isinstance(length, int) and length == 1):
            _, cache = step(prompt[:, None, :-1], cache, 0)
        return lambda tokens, cache, index: step(tokens, cache, index + length - 1), cache, prompt[:, -1:]

    def _prompts(self, source):
        """Prompts moved to the right end, none of them empty, and where they start there."""
        empty = ops.equal(source[:, :1], self.pad_id)
        source = ops.concatenate([ops.where(empty, self.bos_id, source[:, :1]), source[:, 1:]], axis=1)
        lengths = ops.maximum(lengths_of(source, self.pad_id), 1)  # where `bos_id` is `pad_id` too
        return left_padded(source, lengths, self.pad_id)

    def score_all(self, source, target):
        batch_size, n, target_len = ops.shape(target)
        prompt, starts = (ops.repeat(x, n, axis=0) for x in self._prompts(source))
        flat = ops.reshape(target, (batch_size * n, target_len))
        slots = ops.arange(ops.shape(source)[1] + target_len - 1, dtype="int32")
        x = self.hidden(
            ops.concatenate([prompt, flat[:, :-1]], axis=1),
            positions=ops.maximum(slots - starts[:, None], 0),
            attention_mask=(slots >= starts[:, None])[:, None, None],
            training=False,
        )
        logits = self.output_embedding.logits(x[:, ops.shape(source)[1] - 1 :])
        log_probs, _ = log_probs_of(flat, logits, self.pad_id)
        return Scores(
            ops.reshape(ops.sum(log_probs, axis=1), (batch_size, n)),
            ops.reshape(log_probs, (batch_size, n, target_len)),
            None,
        )
