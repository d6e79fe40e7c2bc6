"""What the strategies share, and the simplest of them."""

import dataclasses

import keras
from keras import ops

from keras_transformer.decoding.beams import NEVER, Hypotheses, select, top_k


@dataclasses.dataclass(frozen=True, eq=False)
class Strategy:
    """Which tokens a search takes: a small frozen object, handed to `decode`.

    `width` hypotheses a row go through the loop, `n_best` come out. `begin` gives what the strategy keeps beside
    the beams, `advance` takes a step, `end` picks the results.
    """

    width = 1
    n_best = 1

    def begin(self, beams, search):
        """What to keep beside the beams: a nest of tensors."""
        return ()

    def advance(self, beams, extra, prediction, search):
        """One step: the new beams and what goes with them, the tokens to go on from, and who came from where.

        Args:
            beams: `Beams`.
            extra: What `begin` or the step before gave.
            prediction: `Prediction`, for each hypothesis.
            search: `Search`.

        Returns:
            `Beams`; the new `extra`; int32 `(batch, width)`, each hypothesis's newest token; int32
            `(batch, width)`, each one's parent, or None where all keep their places.
        """
        raise NotImplementedError

    def end(self, beams, extra, search):
        """The `Hypotheses` of a finished search, best first; empty where the constraints left nothing."""
        found = beams.scores > NEVER
        tokens = ops.where(found[..., None], beams.tokens, search.pad_id)
        hypotheses = Hypotheses(tokens, ops.where(found, beams.lengths, 0), beams.scores)
        return hypotheses if self.width == 1 else select(hypotheses, top_k(beams.scores, self.n_best)[1])

    def get_config(self):
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Greedy(Strategy):
    """Takes the likeliest token at each step; of equals, the lowest id."""

    def advance(self, beams, extra, prediction, search):
        vocab_size = prediction.allowed.shape[-1]
        _, best = top_k(ops.reshape(prediction.allowed, (-1, vocab_size)), 1)
        return (*extend(beams, best, prediction, search), None)


def extend(beams, tokens, prediction, search):
    """Goes on from each hypothesis with one token of its own, int32 `(batch, width)`."""
    beams = beams.extended(tokens, prediction.log_probs(tokens), search)
    return beams, (), ops.where(beams.finished, search.pad_id, tokens)
