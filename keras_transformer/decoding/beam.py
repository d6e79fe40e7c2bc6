"""Beam search, plain and diverse."""

import dataclasses
import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.checks import check_positive, check_range
from keras_transformer.decoding.beams import NEVER, Beams, Hypotheses, select, top_k
from keras_transformer.decoding.strategies import Strategy

NORMALIZATIONS = ("wu", "length")


class _Finished(NamedTuple):
    """The best finished hypotheses of each row so far, best first.

    tokens `(batch, n, max_length)`, lengths and scores `(batch, n)` as in `Hypotheses`; ranks: float32 `(batch, n)`,
    what orders them, -inf where there is none yet.
    """

    tokens: Any
    lengths: Any
    scores: Any
    ranks: Any


class _Extra(NamedTuple):
    sums: Any  # float32 (batch, width): log probabilities of the open hypotheses, after penalties
    finished: tuple  # of _Finished, one a group


class _Candidates(NamedTuple):
    """The best extensions of a group's hypotheses, best first; all `(batch, n)`."""

    sums: Any
    parents: Any
    tokens: Any


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Beam(Strategy):
    """Keeps the `width` likeliest unfinished hypotheses at each step, and the best finished ones for good.

    A hypothesis that ends among the `width` best is set aside, frozen, and another takes its place. A row stops
    when no open hypothesis can still beat the `n_best`-th finished one, however it goes on: what is found is
    what a search to the limit would find. (With a width of one nothing takes the place: that is greedy search.)

    Finished hypotheses are ordered by `log P / ((5 + length) / 6) ** length_penalty` (Wu et al., 2016,
    "Google's Neural Machine Translation System", equation 14), or by `log P / length ** length_penalty`.

    With `groups` the search is diverse (Vijayakumar et al., 2018, "Diverse Beam Search"): the groups search
    one after the other, and a token costs `diversity` for each time an earlier group took it in this step.

    Args:
        width: Open hypotheses a row, of all groups together.
        length_penalty: 0 for none; the larger, the longer the outputs.
        n_best: Results for each row, at most `width`.
        normalization: "wu" or "length".
        groups: Number of groups; must divide `width`.
        diversity: Penalty, in nats, between groups.

    Raises:
        ValueError: If an argument is out of its range.
    """

    width: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    normalization: str = "wu"
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self):
        check_positive(width=self.width, n_best=self.n_best, groups=self.groups)
        if self.n_best > self.width:
            raise ValueError(
                f"`n_best` must be at most `width`. Received: n_best={self.n_best}, width={self.width}."
            )
        if self.width % self.groups:
            raise ValueError(
                f"`groups` must divide `width`. Received: groups={self.groups}, width={self.width}."
            )
        check_range(0, length_penalty=self.length_penalty, diversity=self.diversity)
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"`normalization` must be one of {NORMALIZATIONS}. "
                f"Received: normalization={self.normalization!r}."
            )

    @property
    def _group_width(self):
        return self.width // self.groups

    def divisor(self, lengths):
        """What a sum of log probabilities is divided by, float32, for each length."""
        lengths = ops.cast(lengths, "float32")
        base = (5.0 + lengths) / 6.0 if self.normalization == "wu" else ops.maximum(lengths, 1.0)
        return base**self.length_penalty

    def begin(self, beams, search):
        # All hypotheses of a group are still the same one: the first alone is open.
        first = ops.arange(self.width, dtype="int32") % self._group_width == 0
        sums = ops.where(first, beams.scores, NEVER)
        n = -(-self.n_best // self.groups)
        # What ended before it began (a prompt with an end, no room) is what its row has found.
        ended = ops.logical_and(ops.arange(n) == 0, beams.finished[:, :1])
        ranks = ops.where(ended, beams.scores[:, :1] / self.divisor(beams.lengths[:, :1]), NEVER)
        tokens, lengths, scores, _ = beams.select(ops.zeros_like(ops.cast(ended, "int32")))
        finished = _Finished(
            ops.where(ended[..., None], tokens, search.pad_id),
            ops.where(ended, lengths, 0),
            ops.where(ended, scores, NEVER),
            ranks,
        )
        return _Extra(sums, (finished,) * self.groups)

    def advance(self, beams, extra, prediction, search):
        outcomes, taken = [], None
        for group in range(self.groups):
            members = slice(group * self._group_width, (group + 1) * self._group_width)
            outcomes.append(
                self._advance_group(
                    Beams(*(part[:, members] for part in beams)),
                    extra.sums[:, members],
                    extra.finished[group],
                    type(prediction)(*(part[:, members] for part in prediction)),
                    taken,
                    search,
                )
            )
            if group + 1 < self.groups:
                chosen = ops.where(outcomes[-1][0].finished, -1, outcomes[-1][3])
                counts = ops.sum(ops.one_hot(chosen, prediction.logits.shape[-1]), axis=1)
                taken = counts if taken is None else taken + counts
        of_group, sums, finished, tokens, parents = zip(*outcomes, strict=True)
        beams = Beams(*(ops.concatenate(parts, axis=1) for parts in zip(*of_group, strict=True)))
        sums, tokens = ops.concatenate(sums, axis=1), ops.concatenate(tokens, axis=1)
        parents = ops.concatenate([p + group * self._group_width for group, p in enumerate(parents)], axis=1)
        # A row goes on until all its groups are done: what one takes is what the next must avoid.
        going_on = [self._can_win(group, search) for group in outcomes]
        going_on = functools.reduce(ops.logical_or, going_on)
        closed = ops.logical_not(ops.logical_and(going_on[:, None], sums > NEVER))
        beams = beams._replace(finished=closed)
        return beams, _Extra(sums, finished), ops.where(closed, search.pad_id, tokens), parents

    def _can_win(self, outcome, search):
        """Whether an open hypothesis of a group can still become one of its best: bool `(batch,)`.

        Sums only fall and the divisor only grows, so none will rank above its sum over the largest divisor.
        """
        _, sums, finished, _, _ = outcome
        highest = ops.max(sums, axis=1) / self.divisor(search.limits)
        return ops.logical_and(highest > NEVER, highest > finished.ranks[:, -1])

    def _advance_group(self, beams, sums, finished, prediction, taken, search):
        """One step of one group: its beams, sums and finished hypotheses, the newest tokens and the parents."""
        width = self._group_width
        candidates = self._candidates(beams, sums, prediction, taken)
        log_probs = prediction.log_probs(candidates.tokens, candidates.parents)

        extended = beams.select(candidates.parents).extended(candidates.tokens, log_probs, search)
        possible = candidates.sums > NEVER
        ends = ops.logical_and(extended.finished, possible)
        finished = self._add(finished, extended, candidates.sums, ends, width)

        # Those that go on: the first of the candidates that have not ended, in their order.
        goes_on = ops.logical_and(possible, ops.logical_not(ends))
        order = -ops.cast(ops.arange(goes_on.shape[1]), "float32")
        order, going_on = top_k(ops.where(goes_on, order, NEVER), width)
        open_sums = ops.where(order > NEVER, select(candidates.sums, going_on), NEVER)
        beams = extended.select(going_on)
        beams = beams._replace(finished=ops.logical_not(open_sums > NEVER))
        tokens, parents = (select(part, going_on) for part in (candidates.tokens, candidates.parents))
        return beams, open_sums, finished, tokens, parents

    def _candidates(self, beams, sums, prediction, taken):
        """The best extensions: one fewer than twice the width, so that with those that end taken off as many as
        before go on (and none, where there was but one)."""
        width, vocab_size = prediction.allowed.shape[1:]
        logits = prediction.allowed
        offset = ops.where(beams.finished, NEVER, sums) - prediction.allowed_normalizer
        count = min(2 * width - 1, width * vocab_size)
        if taken is not None:
            logits = logits - self.diversity * taken[:, None]
        best, tokens = top_k(ops.reshape(logits, (-1, vocab_size)), min(count, vocab_size))
        each = best.shape[-1]
        best = ops.reshape(best, (-1, width, each)) + offset[..., None]
        best = ops.reshape(best, (-1, width * each))
        tokens = ops.reshape(tokens, (-1, width * each))
        totals, places = top_k(best, count)
        parents, tokens = places // each, select(tokens, places)
        if taken is not None:  # the penalty chooses, but is not part of the sum
            totals = totals + self.diversity * select(taken, tokens)
            totals = ops.where(select(best, places) > NEVER, totals, NEVER)
        return _Candidates(totals, parents, tokens)

    def _add(self, finished, extended, sums, ends, width):
        """The finished hypotheses and those of the first `width` candidates that end, the best of them."""
        first = ops.arange(ends.shape[1]) < width
        ranks = ops.where(ops.logical_and(ends, first), sums / self.divisor(extended.lengths), NEVER)[
            :, :width
        ]
        new = _Finished(*(part[:, :width] for part in extended[:3]), ranks)
        both = _Finished(*(ops.concatenate(pair, axis=1) for pair in zip(finished, new, strict=True)))
        _, best = top_k(both.ranks, finished.ranks.shape[1])
        return _Finished(*(select(part, best) for part in both))

    def end(self, beams, extra, search):
        every = _Finished(*(ops.concatenate(parts, axis=1) for parts in zip(*extra.finished, strict=True)))
        _, best = top_k(every.ranks, self.n_best)
        return Hypotheses(*(select(part, best) for part in every[:3]))
