"""Beam search, plain and diverse."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.checks import check, check_choice, check_positive, check_range
from keras_transformer.decoding.hypotheses import NEVER, Beams, Hypotheses, Strategy, one_of, select, top_k

NORMALIZATIONS = ("wu", "length")


class _Finished(NamedTuple):
    """The best finished hypotheses of each row so far, best first.

    tokens: int32 `(batch, n, max_length)`.
    lengths: int32 `(batch, n)`.
    scores: float32 `(batch, n)`, sums of the model's log probabilities.
    ranks: float32 `(batch, n)`, the sums after penalties and normalisation, which order the hypotheses; -inf in a
        place that no hypothesis has taken yet.
    """

    tokens: Any
    lengths: Any
    scores: Any
    ranks: Any


class _Open(NamedTuple):
    """The hypotheses of a group, or of all groups, that go on after a step.

    beams: `Beams`; `finished` is True in a place without an open hypothesis.
    sums: float32 `(batch, width)`, log probabilities after penalties; -inf in a place without an open hypothesis.
    tokens, parents: int32 `(batch, width)`, the newest tokens, and the hypotheses that they follow.
    """

    beams: Beams
    sums: Any
    tokens: Any
    parents: Any


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Beam(Strategy):
    """Keeps the `width` likeliest unfinished hypotheses at each step, and the best finished hypotheses.

    A hypothesis that ends among the `width` best is set aside, and the next likeliest takes its place. A row stops
    when no open hypothesis can still beat the `n_best`-th finished one, however it continues. So the search returns
    what it would return if it ran to the limit. With a width of 1 nothing takes the place: that is greedy search.

    Finished hypotheses are ordered by `log P / ((5 + length) / 6) ** length_penalty` (Wu et al., 2016,
    "Google's Neural Machine Translation System", equation 14), or by `log P / length ** length_penalty`.

    With `groups` the search is diverse (Vijayakumar et al., 2018, "Diverse Beam Search"). The groups search one after
    the other at each step. A token costs `diversity` for each hypothesis of an earlier group that took it at this
    step. Two groups can still find the same hypothesis in the end.

    Args:
        width: Number of open hypotheses of a row, in all groups together.
        length_penalty: 0 for no normalisation; a larger value gives longer outputs.
        n_best: Number of results for each row, at most `width`.
        normalization: "wu" or "length".
        groups: Number of groups; it must divide `width`.
        diversity: Penalty between groups, in nats.

    Raises:
        ValueError: If an argument is out of its range.

    >>> Beam(4, n_best=2).n_best
    2
    """

    width: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    normalization: str = "wu"
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self):
        check_positive(width=self.width, n_best=self.n_best, groups=self.groups)
        check(
            self.n_best <= self.width,
            "`n_best` must be at most `width`.",
            n_best=self.n_best,
            width=self.width,
        )
        check(
            not self.width % self.groups,
            "`groups` must divide `width`.",
            groups=self.groups,
            width=self.width,
        )
        check_range(0, length_penalty=self.length_penalty, diversity=self.diversity)
        check_choice(NORMALIZATIONS, normalization=self.normalization)

    @property
    def _group_width(self):
        return self.width // self.groups

    def divisor(self, lengths):
        """Returns the divisor of a sum of log probabilities for each length, float32 of the shape of `lengths`."""
        lengths = ops.cast(lengths, "float32")
        base = (5.0 + lengths) / 6.0 if self.normalization == "wu" else ops.maximum(lengths, 1.0)
        return base**self.length_penalty

    def begin(self, beams, search):
        # All hypotheses of a group are still the same one: only the first is open.
        first = ops.arange(self.width, dtype="int32") % self._group_width == 0
        sums = ops.where(first, beams.scores, NEVER)
        # A row can end before the first step: its prompt has an end, or its limit leaves no room.
        count = -(-self.n_best // self.groups)
        ended = ops.logical_and(ops.arange(count) == 0, beams.finished[:, :1])
        ranks = ops.where(ended, beams.scores[:, :1] / self.divisor(beams.lengths[:, :1]), NEVER)
        tokens, lengths, scores, _ = select(beams, ops.zeros_like(ops.cast(ended, "int32")))
        finished = _Finished(
            ops.where(ended[..., None], tokens, search.pad_id),
            ops.where(ended, lengths, 0),
            ops.where(ended, scores, NEVER),
            ranks,
        )
        return sums, (finished,) * self.groups

    def advance(self, beams, extra, prediction, search):
        """Takes one step.

        Args:
            beams: `Beams`.
            extra: float32 `(batch, width)`, the log probabilities of the open hypotheses after penalties; and a tuple
                with a `_Finished` for each group.
            prediction: `Prediction`.
            search: `Search`.

        Returns:
            The new `Beams`, `extra`, newest tokens and parents, both int32 `(batch, width)`.
        """
        sums, finished = extra
        opened, best, can_win, taken = [], [], [], None
        for group in range(self.groups):
            first = group * self._group_width
            members = (beams, sums, prediction)
            if self.groups > 1:
                members = _columns(members, first, first + self._group_width)
            of_group, of_finished = self._advance_group(*members, finished[group], taken, search)
            # Sums only fall and the divisor only grows: no open hypothesis will rank above this.
            highest = ops.max(of_group.sums, axis=1) / self.divisor(search.limits)
            can_win.append(ops.logical_and(highest > NEVER, highest > of_finished.ranks[:, -1]))
            opened.append(of_group._replace(parents=of_group.parents + first))
            best.append(of_finished)
            if group + 1 < self.groups:
                tokens = ops.where(of_group.beams.finished, -1, of_group.tokens)
                counts = ops.sum(ops.one_hot(tokens, prediction.logits.shape[-1]), axis=1)
                taken = counts if taken is None else taken + counts
        beams, sums, tokens, parents = _joined(opened)
        # A row goes on until all its groups are done, since the tokens of one group change the next group's.
        can_win = functools.reduce(ops.logical_or, can_win)
        beams = beams._replace(finished=ops.logical_not(ops.logical_and(can_win[:, None], sums > NEVER)))
        return beams, (sums, tuple(best)), tokens, parents

    def _advance_group(self, beams, sums, prediction, finished, taken, search):
        """Takes one step of one group. Returns its `_Open` and its `_Finished`."""
        width = self._group_width
        sums, parents, tokens = candidates = self._candidates(beams, sums, prediction, taken, search)
        possible, broken = sums > NEVER, ops.isnan(sums)
        if prediction.allowed_normalizer is None:  # without penalties the sums are the model's
            scores, written = sums, select(beams.tokens, parents)
        else:
            scores, written = select((beams.scores, beams.tokens), parents)
            scores = scores + prediction.log_probs(tokens, parents)
        # All open hypotheses of a row have one length, and the first is open where any is.
        lengths = beams.lengths[:, :1] + ops.cast(possible[:, :1], "int32")
        slots = ops.arange(ops.shape(written)[-1], dtype="int32")
        written = ops.where(ops.equal(slots, lengths[..., None] - 1), tokens[..., None], written)
        ends = ops.logical_or(one_of(tokens, search.eos_ids), lengths >= search.limits[:, None])
        ends = ops.logical_and(ends, possible)
        lengths = ops.broadcast_to(lengths, ops.shape(tokens))
        ranks = ops.where(ends, sums / self.divisor(lengths), NEVER)
        ranks = ops.where(broken, math.inf, ranks)  # logits of NaN end the row with the score NaN
        new = _columns(_Finished(written, lengths, scores, ranks), 0, width)
        finished = _best((finished, new), finished.ranks.shape[1])

        # The first candidates that have not ended go on, in their order.
        goes_on = ops.logical_and(possible, ops.logical_not(ends))
        order = -ops.arange(goes_on.shape[1], dtype="float32")
        order, chosen = top_k(ops.where(goes_on, order, NEVER), width)
        is_open = order > NEVER
        (sums, parents, tokens), scores, lengths, written = select(
            (candidates, scores, lengths, written), chosen
        )
        beams = Beams(written, lengths, scores, ops.logical_not(is_open))
        return _Open(beams, ops.where(is_open, sums, NEVER), tokens, parents), finished

    def _candidates(self, beams, sums, prediction, taken, search):
        """Returns the sums, parents and tokens of the best extensions of a group, best first, `(batch, n)` each.

        A hypothesis can end with each of `eos_ids`. So there are enough to go on even when all of these are among the
        best. With a width of 1 there is one, and nothing goes on when it ends.
        """
        width, vocab_size = prediction.allowed.shape[1:]
        logits = prediction.allowed
        normalizer = prediction.allowed_normalizer
        normalizer = prediction.normalizer if normalizer is None else normalizer
        offset = ops.where(beams.finished, NEVER, sums) - normalizer
        count = 1 if width == 1 else min((1 + len(search.eos_ids)) * width, width * vocab_size)
        if taken is not None:
            logits = logits - self.diversity * taken[:, None]
        best, tokens = top_k(ops.reshape(logits, (-1, vocab_size)), min(count, vocab_size))
        each = best.shape[-1]
        best = ops.reshape(best, (-1, width, each)) + offset[..., None]
        sums, places = top_k(ops.reshape(best, (-1, width * each)), count)
        parents, tokens = places // each, select(ops.reshape(tokens, (-1, width * each)), places)
        if taken is not None:  # the diversity penalty chooses tokens, but is no part of the sums
            allowed = ops.reshape(prediction.allowed, (-1, width * vocab_size))
            sums = select(allowed, parents * vocab_size + tokens) + select(offset, parents)
        return sums, parents, tokens

    def end(self, beams, extra, search):
        return Hypotheses(*_best(extra[1], self.n_best)[:3])


def _columns(nest, start, end):
    """Takes the columns from `start` to `end` of each tensor `(batch, n, ...)`; None stays None."""
    return keras.tree.map_structure(lambda x: None if x is None else x[:, start:end], nest)


def _joined(nests):
    """Joins nests of tensors along axis 1."""
    return keras.tree.map_structure(lambda *parts: ops.concatenate(parts, axis=1), *nests)


def _best(finished, count):
    """Returns the `count` best hypotheses of several `_Finished`; of equal ranks, the earlier first."""
    every = _joined(finished)
    return select(every, top_k(every.ranks, count)[1])
