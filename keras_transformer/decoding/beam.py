"""Beam search."""

import dataclasses
import math
from typing import Any, NamedTuple

import keras

from keras_transformer.checks import check, check_choice, check_count, check_range
from keras_transformer.decoding.hypotheses import MOST_RESULTS, NEVER, Beams, Hypotheses, Strategy, top_k
from keras_transformer.execution import ops

NORMALIZATIONS = ("wu", "length")


class Finished(NamedTuple):
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


class Open(NamedTuple):
    """The hypotheses that go on after a step.

    beams: `Beams`; `finished` is True in a place without an open hypothesis.
    sums: float32 `(batch, width)`, log probabilities after penalties; -inf in a place without an open hypothesis.
    tokens, parents: int32 `(batch, width)`, the newest tokens, and the hypotheses that they follow.
    """

    beams: Beams
    sums: Any
    tokens: Any
    parents: Any

    def closed_unless(self, goes_on):
        """Closes the hypotheses of the rows that do not go on, bool `(batch,)`."""
        is_open = ops.logical_and(goes_on[:, None], self.sums > NEVER)
        return self._replace(beams=self.beams._replace(finished=ops.logical_not(is_open)))


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class Beam(Strategy):
    """Keeps the `width` likeliest unfinished hypotheses at each step, and the best finished hypotheses.

    A hypothesis that ends among the `width` best is set aside, and the next likeliest takes its place. A row stops
    when no open hypothesis can still beat the `n_best`-th finished one, however it continues. So the search returns
    what it would return if it ran to the limit. With a width of 1 nothing takes the place: that is greedy search.

    Finished hypotheses are ordered by `log P / ((5 + length) / 6) ** length_penalty` (Wu et al., 2016,
    "Google's Neural Machine Translation System", equation 14), or by `log P / length ** length_penalty`.

    Args:
        width: Number of open hypotheses of a row, at most 10,000.
        length_penalty: 0 for no normalisation; a larger value gives longer outputs.
        n_best: Number of results for each row, at most `width`.
        normalization: "wu" or "length".

    Raises:
        ValueError: If an argument is out of its range.

    >>> Beam(4, n_best=2).n_best
    2
    """

    width: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    normalization: str = "wu"

    def __post_init__(self):
        check_count(1, MOST_RESULTS, width=self.width, n_best=self.n_best)
        check(
            self.n_best <= self.width,
            "`n_best` must be at most `width`.",
            n_best=self.n_best,
            width=self.width,
        )
        check_range(0, length_penalty=self.length_penalty)
        check_choice(NORMALIZATIONS, normalization=self.normalization)

    def divisor(self, lengths):
        """Returns the divisor of a sum of log probabilities for each length, float32 of the shape of `lengths`."""
        lengths = ops.cast(lengths, "float32")
        base = (5.0 + lengths) / 6.0 if self.normalization == "wu" else ops.maximum(lengths, 1.0)
        return base**self.length_penalty

    def begin(self, beams, search):
        # All hypotheses of a row are still the same one: only the first is open.
        sums = ops.where(ops.arange(self.width, dtype="int32") == 0, beams.scores, NEVER)
        # A row can end before the first step: its prompt has an end, or its limit leaves no room.
        ended = ops.logical_and(ops.arange(self.n_best, dtype="int32") == 0, beams.finished[:, :1])
        ranks = ops.where(ended, beams.scores[:, :1] / self.divisor(beams.lengths[:, :1]), NEVER)
        tokens, lengths, scores, _ = ops.take_by_row(beams, ops.zeros_like(ended, "int32"))
        tokens = ops.where(ended[..., None], tokens, search.pad_id)
        return sums, Finished(tokens, ops.where(ended, lengths, 0), ops.where(ended, scores, NEVER), ranks)

    def advance(self, beams, extra, prediction, search):
        """Takes one step.

        Args:
            beams: `Beams`.
            extra: float32 `(batch, width)`, the log probabilities of the open hypotheses after penalties; and
                `Finished`.
            prediction: `Prediction`.
            search: `Search`.

        Returns:
            The new `Beams`, `extra`, newest tokens and parents, both int32 `(batch, width)`.
        """
        sums, finished = extra
        opened, finished = self.extend(beams, sums, prediction, finished, search)
        beams, sums, tokens, parents = opened.closed_unless(self.can_win(opened, finished, search))
        return beams, (sums, finished), tokens, parents

    def extend(self, beams, sums, prediction, finished, search, price=None):
        """Extends all open hypotheses by one token.

        Args:
            beams: `Beams`.
            sums: float32 `(batch, width)`, the log probabilities of the open hypotheses after penalties.
            prediction: `Prediction`.
            finished: `Finished`.
            search: `Search`.
            price: float32 `(batch, vocab_size)`, how much the choice of a token costs; it is not part of the sums.

        Returns:
            The new `Open` and `Finished`.
        """
        sums, parents, tokens = candidates = self._candidates(beams, sums, prediction, search, price)
        possible, broken = sums > NEVER, ops.isnan(sums)
        if prediction.allowed_normalizer is None:
            # Without penalties the sums are the model's.
            scores, written = sums, ops.take_by_row(beams.tokens, parents)
        else:
            scores, written = ops.take_by_row((beams.scores, beams.tokens), parents)
            scores = scores + prediction.log_probs(tokens, parents)
        # All open hypotheses of a row have one length, and the first is open where any is.
        lengths = beams.lengths[:, :1] + ops.cast(possible[:, :1], "int32")
        slots = ops.arange(ops.shape(written)[-1], dtype="int32")
        written = ops.where(ops.equal(slots, lengths[..., None] - 1), tokens[..., None], written)
        ends = ops.logical_and(search.ends(tokens, lengths, lambda: written), possible)
        lengths = ops.broadcast_to(lengths, ops.shape(tokens))
        ranks = ops.where(ends, sums / self.divisor(lengths), NEVER)
        # Logits of NaN end the row with the score NaN.
        ranks = ops.where(broken, math.inf, ranks)
        new = columns(Finished(written, lengths, scores, ranks), 0, self.width)
        finished = best((finished, new), self.n_best)

        # The first candidates that have not ended go on, in their order.
        goes_on = ops.logical_and(possible, ops.logical_not(ends))
        order = -ops.arange(goes_on.shape[1], dtype="float32")
        order, chosen = top_k(ops.where(goes_on, order, NEVER), self.width)
        is_open = order > NEVER
        (sums, parents, tokens), scores, lengths, written = ops.take_by_row(
            (candidates, scores, lengths, written), chosen
        )
        beams = Beams(written, lengths, scores, ops.logical_not(is_open))
        return Open(beams, ops.where(is_open, sums, NEVER), tokens, parents), finished

    def _candidates(self, beams, sums, prediction, search, price):
        """Returns the sums, parents and tokens of the best extensions, best first, `(batch, n)` each.

        A hypothesis can end with each of `eos_ids`. So there are enough to go on even when all of these are among the
        best. With a width of 1 there is one, and nothing goes on when it ends.
        """
        width, vocab_size = prediction.allowed.shape[1:]
        normalizer = prediction.allowed_normalizer
        normalizer = prediction.normalizer if normalizer is None else normalizer
        offset = ops.where(beams.finished, NEVER, sums) - normalizer
        count = 1 if width == 1 else min((1 + len(search.eos_ids)) * width, width * vocab_size)
        logits = prediction.allowed if price is None else prediction.allowed - price[:, None]
        likeliest, tokens = top_k(ops.reshape(logits, (-1, vocab_size)), min(count, vocab_size))
        each = likeliest.shape[-1]
        likeliest = ops.reshape(likeliest, (-1, width, each)) + offset[..., None]
        sums, places = top_k(ops.reshape(likeliest, (-1, width * each)), count)
        parents, tokens = places // each, ops.take_by_row(ops.reshape(tokens, (-1, width * each)), places)
        if price is not None:
            allowed = ops.reshape(prediction.allowed, (-1, width * vocab_size))
            sums = ops.take_by_row(allowed, parents * vocab_size + tokens) + ops.take_by_row(offset, parents)
        return sums, parents, tokens

    def can_win(self, opened, finished, search):
        """Returns whether an open hypothesis can still become one of the best of its row: bool `(batch,)`."""
        # Sums only fall and the divisor only grows: no open hypothesis will rank above this.
        highest = ops.max(opened.sums, axis=1) / self.divisor(search.limits)
        return ops.logical_and(highest > NEVER, highest > finished.ranks[:, -1])

    def end(self, beams, extra, search):
        return Hypotheses(*extra[1][:3])


def columns(nest, start, end):
    """Takes the columns from `start` to `end` of each tensor `(batch, n, ...)`; None stays None."""
    return keras.tree.map_structure(lambda x: None if x is None else x[:, start:end], nest)


def joined(nests):
    """Joins nests of tensors along axis 1."""
    return keras.tree.map_structure(lambda *parts: ops.concatenate(parts, axis=1), *nests)


def best(finished, count):
    """Returns the `count` best hypotheses of several `Finished`; of equal ranks, the earlier first."""
    every = joined(finished)
    return ops.take_by_row(every, top_k(every.ranks, count)[1])
