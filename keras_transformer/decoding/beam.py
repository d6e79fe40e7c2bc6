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
    one after the other, and a token costs `diversity` for each hypothesis of an earlier group that goes on with it
    in this step. Two groups can still find the same hypothesis in the end.

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
            of_group = self._members(group, (beams, extra.sums, prediction))
            outcomes.append(self._advance_group(*of_group, extra.finished[group], taken, search))
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

    def _members(self, group, nest):
        """What belongs to a group's hypotheses."""
        if self.groups == 1:
            return nest
        members = slice(group * self._group_width, (group + 1) * self._group_width)
        return keras.tree.map_structure(lambda part: None if part is None else part[:, members], nest)

    def _advance_group(self, beams, sums, prediction, finished, taken, search):
        """One step of one group: its beams, sums and finished hypotheses, the newest tokens and the parents."""
        sums, parents, tokens = candidates = self._candidates(beams, sums, prediction, taken)
        possible = sums > NEVER
        if prediction.allowed_normalizer is None:  # nothing is penalised: the model's sums
            scores, written = sums, select(beams.tokens, parents)
        else:
            log_probs = prediction.log_probs(tokens, parents)
            scores, written = select((beams.scores, beams.tokens), parents)
            scores = scores + log_probs
        # All open hypotheses of a row are of one length, and the first is open where any is.
        lengths = beams.lengths[:, :1] + ops.cast(possible[:, :1], "int32")
        slots = ops.arange(ops.shape(written)[-1], dtype="int32")
        written = ops.where(ops.equal(slots, lengths[..., None] - 1), tokens[..., None], written)
        ends = ops.logical_or(ops.equal(tokens, search.eos_id), lengths >= search.limits[:, None])
        ends = ops.logical_and(ends, possible)
        lengths = ops.broadcast_to(lengths, ops.shape(tokens))
        width = self._group_width
        ranks = ops.where(ends, sums / self.divisor(lengths), NEVER)
        new = _Finished(*(part[:, :width] for part in (written, lengths, scores, ranks)))
        finished = self._best_of(finished, new)

        # Those that go on: the first of the candidates that have not ended, in their order.
        goes_on = ops.logical_and(possible, ops.logical_not(ends))
        order = -ops.arange(goes_on.shape[1], dtype="float32")
        order, going_on = top_k(ops.where(goes_on, order, NEVER), width)
        opened = order > NEVER
        (sums, parents, tokens), scores, lengths, written = select(
            (candidates, scores, lengths, written), going_on
        )
        beams = Beams(written, lengths, scores, ops.logical_not(opened))
        return beams, ops.where(opened, sums, NEVER), finished, tokens, parents

    def _candidates(self, beams, sums, prediction, taken):
        """The best extensions, twice the width, so that whichever end as many as before go on; the one best where
        the width is one, so that nothing goes on where it ends."""
        width, vocab_size = prediction.allowed.shape[1:]
        logits = prediction.allowed
        normalizer = prediction.allowed_normalizer
        normalizer = prediction.normalizer if normalizer is None else normalizer
        offset = ops.where(beams.finished, NEVER, sums) - normalizer
        count = 1 if width == 1 else min(2 * width, width * vocab_size)
        if taken is not None:
            logits = logits - self.diversity * taken[:, None]
        best, tokens = top_k(ops.reshape(logits, (-1, vocab_size)), min(count, vocab_size))
        each = best.shape[-1]
        best = ops.reshape(best, (-1, width, each)) + offset[..., None]
        best = ops.reshape(best, (-1, width * each))
        tokens = ops.reshape(tokens, (-1, width * each))
        totals, places = top_k(best, count)
        parents, tokens = places // each, select(tokens, places)
        if taken is not None:  # the penalty chooses, and is no part of the sum
            allowed = ops.reshape(prediction.allowed, (-1, width * vocab_size))
            totals = select(allowed, parents * vocab_size + tokens) + select(offset, parents)
        return _Candidates(totals, parents, tokens)

    def _best_of(self, *finished):
        """As many of several `_Finished` as the first holds, the best; of equals, the earlier."""
        every = _Finished(*(ops.concatenate(parts, axis=1) for parts in zip(*finished, strict=True)))
        _, best = top_k(every.ranks, finished[0].ranks.shape[1])
        return select(every, best)

    def end(self, beams, extra, search):
        every = _Finished(*(ops.concatenate(parts, axis=1) for parts in zip(*extra.finished, strict=True)))
        _, best = top_k(every.ranks, self.n_best)
        return select(Hypotheses(*every[:3]), best)
