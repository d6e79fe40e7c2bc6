"""The base class of all strategies, and greedy search."""

import dataclasses

import keras
from keras import ops

from keras_transformer.decoding.hypotheses import NEVER, Hypotheses, select, top_k


@dataclasses.dataclass(frozen=True, eq=False)
class Strategy:
    """Base class of strategies: small frozen objects that choose the tokens of a search.

    A search has `width` hypotheses for each row and returns the best `n_best`. It calls `begin` once, `advance` at
    each step and `end` once. A strategy of your own overrides `advance`, and the others where it needs to.
    """

    width = 1
    n_best = 1

    def begin(self, beams, search):
        """Returns the first `extra`: a nest of tensors that the strategy keeps beside the beams.

        Args:
            beams: `Beams`.
            search: `Search`.
        """
        return ()

    def advance(self, beams, extra, prediction, search):
        """Takes one step.

        Args:
            beams: `Beams`.
            extra: The value that `begin` or the previous step returned.
            prediction: `Prediction` for each hypothesis.
            search: `Search`.

        Returns:
            The new `Beams`; the new `extra`; int32 `(batch, width)`, the newest token of each hypothesis; int32
            `(batch, width)`, the parent of each hypothesis, or None where every hypothesis keeps its place.
        """
        raise NotImplementedError

    def end(self, beams, extra, search):
        """Returns the `Hypotheses` of a finished search, best first.

        A hypothesis with the score -inf becomes empty: the constraints left it no token.

        Args:
            beams: `Beams`.
            extra: The value that the last step returned.
            search: `Search`.
        """
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
    """Takes the likeliest token at each step; of equally likely tokens, the lowest id.

    >>> Greedy()
    Greedy()
    """

    def advance(self, beams, extra, prediction, search):
        vocab_size = prediction.allowed.shape[-1]
        _, tokens = top_k(ops.reshape(prediction.allowed, (-1, vocab_size)), 1)
        return beams.extended(tokens, prediction.log_probs(tokens), search), (), tokens, None
