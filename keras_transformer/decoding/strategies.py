"""Strategies: small frozen objects that choose the next tokens."""

import dataclasses
from typing import Any, NamedTuple

import keras
from keras import ops


class Choice(NamedTuple):
    """One token for each hypothesis.

    tokens: int32 `(batch, width)`.
    scores: float32 `(batch, width)`, the log probability of each.
    """

    tokens: Any
    scores: Any


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Greedy:
    """Takes the likeliest token at each step; of equals, the lowest id."""

    width = 1

    def choose(self, logits):
        """The next tokens.

        Args:
            logits: float32 `(batch, width, vocab_size)`.

        Returns:
            A `Choice`.
        """
        tokens = ops.cast(ops.argmax(logits, axis=-1), "int32")
        scores = ops.max(logits, axis=-1) - ops.logsumexp(logits, axis=-1)
        return Choice(tokens, scores)

    def get_config(self):
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        return cls(**config)
