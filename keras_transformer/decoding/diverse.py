"""Diverse beam search: groups of beams that avoid one another's tokens."""

import dataclasses
import functools

import keras

from keras_transformer.checks import check, check_positive, check_range
from keras_transformer.decoding.beam import Beam, best, columns, joined
from keras_transformer.decoding.hypotheses import Hypotheses, Strategy
from keras_transformer.execution import ops


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class DiverseBeam(Strategy):
    """Searches with groups of beams, so that the results differ (Vijayakumar et al., 2018, "Diverse Beam Search").

    The groups search one after the other at each step. A token costs `diversity` for each hypothesis of an earlier
    group that took it at this step. Two groups can still find the same hypothesis in the end.

    Args:
        width: Number of open hypotheses of a row, in all groups together.
        groups: Number of groups; it must divide `width`.
        diversity: Penalty between groups, in nats.
        length_penalty: 0 for no normalisation; a larger value gives longer outputs.
        n_best: Number of results for each row, at most `width`. Each group keeps its share.
        normalization: "wu" or "length", as in `Beam`.

    Raises:
        ValueError: If an argument is out of its range.

    >>> DiverseBeam(6, groups=3, n_best=4).beam
    Beam(width=2, length_penalty=0.6, n_best=2, normalization='wu')
    """

    width: int = 4
    groups: int = 2
    diversity: float = 0.5
    length_penalty: float = 0.6
    n_best: int = 1
    normalization: str = "wu"

    def __post_init__(self):
        check_positive(groups=self.groups)
        check_range(0, diversity=self.diversity)
        Beam(self.width, self.length_penalty, self.n_best, self.normalization)  # checks these
        check(
            self.width % self.groups == 0,
            "`groups` must divide `width`.",
            groups=self.groups,
            width=self.width,
        )

    @property
    def beam(self):
        """The `Beam` of each group."""
        share = -(-self.n_best // self.groups)
        return Beam(self.width // self.groups, self.length_penalty, share, self.normalization)

    def begin(self, beams, search):
        groups = self._of_groups(beams)
        # A row that has ended before the first step is a result of the first group alone.
        groups[1:] = (group._replace(finished=ops.zeros_like(group.finished)) for group in groups[1:])
        sums, finished = zip(*(self.beam.begin(group, search) for group in groups), strict=True)
        return ops.concatenate(sums, axis=1), finished

    def advance(self, beams, extra, prediction, search):
        """Takes one step.

        Args:
            beams: `Beams`.
            extra: float32 `(batch, width)`, the log probabilities of the open hypotheses after penalties; and a tuple
                with the `Finished` of each group.
            prediction: `Prediction`.
            search: `Search`.

        Returns:
            The new `Beams`, `extra`, newest tokens and parents, both int32 `(batch, width)`.
        """
        beam, vocab_size = self.beam, prediction.logits.shape[-1]
        opened, finished, can_win, taken, price = [], [], [], None, None
        groups = self._of_groups((beams, extra[0], prediction))
        for i, (group, of_finished) in enumerate(zip(groups, extra[1], strict=True)):
            if opened:
                tokens = ops.where(opened[-1].beams.finished, -1, opened[-1].tokens)
                counts = ops.sum(ops.one_hot(tokens, vocab_size, dtype="float32"), axis=1)
                taken = counts if taken is None else taken + counts
                price = self.diversity * taken
            of_open, of_finished = beam.extend(*group, of_finished, search, price)
            can_win.append(beam.can_win(of_open, of_finished, search))
            opened.append(of_open._replace(parents=of_open.parents + i * beam.width))
            finished.append(of_finished)
        # A row goes on until all its groups are done, because the tokens of one group change the next group's.
        goes_on = functools.reduce(ops.logical_or, can_win)
        beams, sums, tokens, parents = joined(opened).closed_unless(goes_on)
        return beams, (sums, tuple(finished)), tokens, parents

    def end(self, beams, extra, search):
        return Hypotheses(*best(extra[1], self.n_best)[:3])

    def _of_groups(self, nest):
        """Returns the columns of each group of a nest of tensors `(batch, width, ...)`."""
        size = self.width // self.groups
        return [columns(nest, first, first + size) for first in range(0, self.width, size)]
