"""Beam search whose outputs hold given phrases."""

import dataclasses
import math
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.checks import check, known_values
from keras_transformer.decoding.beam import Beam, Finished, Open, best
from keras_transformer.decoding.hypotheses import NEVER, Beams, mask_of, one_of, top_k
from keras_transformer.execution import ops
from keras_transformer.masks import lengths_of

# How many of the likeliest tokens of each hypothesis are candidates, in addition to the ends.
MOST_LIKELY = 8


class _Candidates(NamedTuple):
    """The possible extensions of the hypotheses of a row, `n` for each row.

    tokens, parents: int32 `(batch, n)`, a token and the hypothesis that it follows.
    sums: float32 `(batch, n)`, log probabilities after penalties; -inf for an extension that is not allowed.
    met: bool `(batch, n, phrases)`, the phrases that the extended hypothesis holds.
    needed: int32 `(batch, n)`, the number of tokens that the extended hypothesis needs for the other phrases.
    rest: float32 `(batch, n)`, an estimate of the log probability of these tokens: for each the highest that the
        search has seen, 0 for one that it has not seen.
    completes: bool `(batch, n)`, whether the extension completes a phrase that its hypothesis lacked.
    """

    tokens: Any
    parents: Any
    sums: Any
    met: Any
    needed: Any
    rest: Any
    completes: Any


@keras.saving.register_keras_serializable("keras_transformer")
@dataclasses.dataclass(frozen=True)
class PhraseBeam(Beam):
    """A beam search whose outputs hold given phrases (Post and Vilar, 2018, "Fast Lexically Constrained Decoding").

    Hypotheses that hold equally many tokens of the phrases of their row form a bank. The banks share the `width` open
    hypotheses evenly, the best hypothesis of the highest bank always keeps its place, and no hypothesis ends without
    its phrases. So an output holds every phrase of its row, in any order and once at least, unless the phrases together
    are longer than the row's limit or a constraint forbids one of their tokens. A row whose phrases are too long is
    searched without them. A phrase that a prefix holds is written already.

    A row without phrases stops as in `Beam`. For a row with phrases the search keeps the highest probability
    that each token of a phrase had so far. It assumes that an open hypothesis writes its missing phrases with these
    probabilities and then ends. The row stops when no open hypothesis would then beat the `n_best`-th finished one. So
    it can miss an output that is better because it is longer, or in which a token of a phrase is likelier than before.

    A `width` above the number of tokens of a row's phrases leaves a place for each bank. With fewer places the phrases
    come early in the output. Without `phrases` it is a `Beam`. With them each hypothesis goes on with its eight
    likeliest tokens or fewer, also in a row that has no phrase.

    Args:
        width: Number of open hypotheses of a row.
        length_penalty: As in `Beam`.
        n_best: As in `Beam`.
        normalization: As in `Beam`.
        phrases: int `(batch, phrases, length)`, the phrases of each row, each padded on the right with `pad_id`; one of
            padding alone is none. None for no phrases.
        inner_ids: Ids of tokens that may not follow the first place of a phrase in the output directly, a sequence of
            int. With those that go on inside a word, the phrase `Rat` does not become `Rathaus`. The end of a prefix is
            not looked at.
        closed_ids: Ids of tokens, a sequence of int. Any token may follow a phrase that ends with one of them. With `€`
            the phrase `€` may become `€50`.

    Raises:
        ValueError: If an argument is out of its range.

    >>> PhraseBeam(8, phrases=[[[20, 21], [30, 0]]]).phrases.shape
    TensorShape([1, 2, 2])
    """

    phrases: Any = dataclasses.field(default=None, repr=False)
    # These ids can be half of a vocabulary.
    inner_ids: tuple[int, ...] = dataclasses.field(default=(), repr=False)
    closed_ids: tuple[int, ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self):
        super().__post_init__()
        for name in ("inner_ids", "closed_ids"):
            ids = tuple(map(int, getattr(self, name)))
            check(min(ids, default=0) >= 0, f"`{name}` must hold ids.", **{name: ids})
            object.__setattr__(self, name, ids)
        if self.phrases is not None:
            phrases = ops.convert_to_tensor(self.phrases)
            rule = "`phrases` must be ids `(batch, phrases, length)`, without an empty axis."
            fits = len(phrases.shape) == 3 and 0 not in phrases.shape
            fits = fits and "int" in keras.backend.standardize_dtype(phrases.dtype)
            check(fits, rule, shape=tuple(phrases.shape), dtype=phrases.dtype)
            object.__setattr__(self, "phrases", ops.cast(phrases, "int32"))

    def prepared(self, vocab_size, pad_id, eos_ids):
        """Checks the phrases, whose values a graph may not know."""
        ids = None if self.phrases is None else known_values(self.phrases)
        if ids is None:
            return self
        real = ids != pad_id
        rules = {
            f"ids from 0 to {vocab_size - 1}": ((ids >= 0) & (ids < vocab_size)).all(),
            "padding on the right alone": (real[..., 1:] <= real[..., :-1]).all(),
            "no token that ends an output": not np.isin(ids[real], eos_ids).any(),
        }
        for rule, holds in rules.items():
            check(holds, f"`phrases` must have {rule}.", phrases=ids.astype("int64").tolist())
        return self

    def begin(self, beams, search):
        extra = super().begin(beams, search)
        if self.phrases is None:
            return extra
        met = _held(beams, self.phrases, search.pad_id)  # (batch, phrases)
        needed = ops.sum(ops.where(met, 0, lengths_of(self.phrases, search.pad_id)), axis=1)
        fit = needed <= search.limits - beams.lengths[:, 0]
        met = ops.logical_or(met, ops.logical_not(fit)[:, None])
        shape = (*ops.shape(beams.lengths), ops.shape(met)[1])
        best_log_probs = ops.full(ops.shape(self.phrases), NEVER, "float32")
        return (
            *extra,
            ops.broadcast_to(met[:, None], shape),
            best_log_probs,
            ops.logical_not(ops.all(met, axis=1)),
            ops.zeros_like(beams.finished),
        )

    def advance(self, beams, extra, prediction, search):
        """Takes one step.

        Args:
            beams: `Beams`.
            extra: float32 `(batch, width)`, the log probabilities of the open hypotheses after penalties; `Finished`;
                bool `(batch, width, phrases)`, the phrases that each of them holds; float32 `(batch, phrases, length)`,
                the highest log probability of each token of the phrases so far, -inf at first; bool `(batch,)`,
                whether a row lacked a phrase when it began; and bool `(batch, width)`, whether the newest token of an
                open hypothesis completed a phrase and is none of `closed_ids`.
            prediction: `Prediction`.
            search: `Search`.

        Returns:
            The new `Beams`, `extra`, newest tokens and parents, both int32 `(batch, width)`.
        """
        if self.phrases is None:
            return super().advance(beams, extra, prediction, search)
        self.prepared(prediction.allowed.shape[-1], search.pad_id, search.eos_ids)
        sums, finished, met, best_log_probs, lacked, completed = extra
        if self.inner_ids:
            prediction = self._outside_words(prediction, completed)
        candidates, best_log_probs = self._extensions(beams, sums, met, best_log_probs, prediction, search)
        # Logits of NaN end the row with the score NaN, as in `Beam`.
        broken = ops.isnan(candidates.sums)
        candidates = candidates._replace(sums=ops.where(broken, math.inf, candidates.sums))
        places = ops.cast(ops.argsort(-candidates.sums, axis=1), "int32")
        candidates = _Candidates(*ops.take_by_row(tuple(candidates), places))
        bank = ops.max(candidates.needed, axis=1, keepdims=True) - candidates.needed
        possible = candidates.sums > NEVER
        # All open hypotheses of a row have one length, and the first is open where any is.
        lengths = beams.lengths[:, :1] + ops.cast(possible[:, :1], "int32")
        ends = search.ends(
            candidates.tokens, lengths, lambda: _extended(candidates, lengths, beams, prediction).tokens
        )
        ends = ops.logical_or(ends, ops.equal(candidates.sums, math.inf))
        ends = ops.logical_and(possible, ends)
        ended = ops.logical_and(ends, _rank_in_bank(bank, possible, self._banks) < self.width)
        finished = self._with_ended(candidates, ended, lengths, beams, prediction, finished)
        goes_on = ops.logical_and(possible, ops.logical_not(ends))
        order = _turns(bank, goes_on, self._banks)
        order, chosen = ops.top_k(ops.where(goes_on, -order, NEVER), self.width)
        is_open = order > NEVER
        candidates = _Candidates(*ops.take_by_row(tuple(candidates), ops.cast(chosen, "int32")))
        extended = _extended(candidates, lengths, beams, prediction)
        opened = Open(
            extended._replace(finished=ops.logical_not(is_open)),
            ops.where(is_open, candidates.sums, NEVER),
            candidates.tokens,
            candidates.parents,
        )
        shortest = lengths + candidates.needed + 1  # with the end
        longest = ops.where(lacked[:, None], shortest, search.limits[:, None])
        highest = ops.where(is_open, (opened.sums + candidates.rest) / self.divisor(longest), NEVER)
        can_win = ops.max(highest, axis=1) > finished.ranks[:, -1]
        beams, sums, tokens, parents = opened.closed_unless(can_win)
        completed = candidates.completes
        if self.closed_ids:
            closed = ops.take(self._mask("closed_ids", prediction), tokens)
            completed = ops.logical_and(completed, ops.logical_not(closed))
        extra = sums, finished, candidates.met, best_log_probs, lacked, completed
        return beams, extra, tokens, parents

    def _outside_words(self, prediction, completed):
        """Returns a `Prediction` that forbids `inner_ids` to the hypotheses that have just completed a phrase.

        Args:
            prediction: `Prediction`.
            completed: bool `(batch, width)`, whether the newest token of a hypothesis completed a phrase.
        """
        blocked = ops.logical_and(completed[..., None], self._mask("inner_ids", prediction))
        return prediction._replace(allowed=ops.where(blocked, NEVER, prediction.allowed))

    def _mask(self, name, prediction):
        """Returns which ids of the vocabulary are among the ids of an argument, bool `(vocab_size,)`."""
        ids, vocab_size = getattr(self, name), prediction.allowed.shape[-1]
        rule = f"`{name}` must be below the number of ids."
        check(max(ids) < vocab_size, rule, largest=max(ids), vocab_size=vocab_size)
        return mask_of(ids, vocab_size)

    @property
    def _banks(self):
        """The largest number of banks of a row."""
        _, number, length = ops.shape(self.phrases)
        return number * length + 1

    def _extensions(self, beams, sums, met, best_log_probs, prediction, search):
        """Returns the `_Candidates`: the likeliest tokens of each hypothesis, and the next token of each phrase.

        The second result is `best_log_probs` after this step. The arguments are those of `advance` and parts of its
        `extra`.
        """
        batch_size, width = ops.shape(beams.lengths)
        vocab_size = prediction.allowed.shape[-1]
        allowed = ops.reshape(prediction.allowed, (-1, width * vocab_size))
        normalizer = prediction.allowed_normalizer
        normalizer = prediction.normalizer if normalizer is None else normalizer
        offset = ops.where(beams.finished, NEVER, 0.0) - normalizer  # (batch, width)

        def log_probs(tokens):
            """Returns the log probability of each token `(batch, width, n)`, flat, and the hypothesis it follows."""
            parents = ops.broadcast_to(ops.arange(width, dtype="int32")[:, None], ops.shape(tokens))
            tokens, parents = (ops.reshape(x, (batch_size, -1)) for x in (tokens, parents))
            log_probs = ops.take_by_row(allowed, parents * vocab_size + tokens)
            return log_probs + ops.take_by_row(offset, parents), parents

        each = min(min(MOST_LIKELY, self.width) + len(search.eos_ids), vocab_size)
        likeliest = top_k(ops.reshape(prediction.allowed, (-1, vocab_size)), each)[1]
        likeliest = ops.reshape(likeliest, (batch_size, width, each))
        lengths = lengths_of(self.phrases, search.pad_id)  # (batch, phrases)
        begun, here, following = _next_tokens(beams, self.phrases, lengths)
        wanted = _are_new(following, likeliest, met)
        tokens = ops.concatenate([likeliest, following], axis=-1)  # (batch, width, candidates)
        usable = ops.concatenate([ops.ones_like(likeliest, "bool"), wanted], axis=-1)

        seen = ops.reshape(log_probs(following)[0], ops.shape(following))  # (batch, width, phrases)
        seen = ops.where(here, seen[..., None], NEVER)  # (batch, width, phrases, length)
        best_log_probs = ops.maximum(best_log_probs, ops.max(seen, axis=1))  # (batch, phrases, length)

        met, needed, rest, completes = self._progress(tokens, begun, met, best_log_probs, lengths)
        # Both are (batch, width * candidates), as all that follows.
        added, parents = log_probs(tokens)
        tokens, needed, rest, usable, completes = (
            ops.reshape(x, (batch_size, -1)) for x in (tokens, needed, rest, usable, completes)
        )
        room = search.limits[:, None] - beams.lengths[:, :1] - 1
        fits = needed <= ops.where(one_of(tokens, search.eos_ids), 0, room)
        sums = ops.where(ops.logical_and(usable, fits), ops.take_by_row(sums, parents) + added, NEVER)
        met = ops.reshape(met, (batch_size, -1, ops.shape(self.phrases)[1]))
        return _Candidates(tokens, parents, sums, met, needed, rest, completes), best_log_probs

    def _progress(self, tokens, begun, met, best_log_probs, lengths):
        """Finds how far each extended hypothesis is with its phrases.

        Args:
            tokens: int32 `(batch, width, candidates)`, the new token of each.
            begun: bool `(batch, width, phrases, length)`, as `_next_tokens` returns it.
            met: bool `(batch, width, phrases)`, the phrases that a hypothesis holds without the new token.
            best_log_probs: float32 `(batch, phrases, length)`, the highest log probability of each token so far.
            lengths: int32 `(batch, phrases)`, the number of tokens of each phrase.

        Returns:
            `met`, `needed`, `rest` and `completes` of the `_Candidates`, `(batch, width, candidates, ...)`.
        """
        lengths = lengths[:, None, None]  # (batch, 1, 1, phrases)
        places = ops.arange(ops.shape(self.phrases)[2], dtype="int32")
        equal = ops.equal(self.phrases[:, None, None], tokens[..., None, None])
        # The shape is (batch, width, candidates, phrases, length).
        hit = ops.logical_and(begun[:, :, None], equal)
        written = ops.max(ops.where(hit, places + 1, 0), axis=-1)  # (batch, width, candidates, phrases)
        whole = ops.equal(written, lengths)
        completes = ops.any(ops.logical_and(whole, ops.logical_not(met[:, :, None])), axis=-1)
        met = ops.logical_or(met[:, :, None], whole)  # (batch, width, candidates, phrases)
        missing = ops.where(met, 0, lengths)
        needed = ops.sum(missing, axis=-1) - ops.max(ops.where(met, 0, written), axis=-1)

        costs = ops.where(best_log_probs > NEVER, best_log_probs, 0.0)[:, None, None]
        # The shape is (batch, width, candidates, phrases, length).
        costs = ops.where(met[..., None], 0.0, costs)
        paid = ops.sum(ops.where(places < written[..., None], costs, 0.0), axis=-1)
        rest = ops.sum(costs, axis=(-2, -1)) - ops.min(paid, axis=-1)
        return met, needed, rest, completes

    def _with_ended(self, candidates, ended, lengths, beams, prediction, finished):
        """Returns `Finished` with the hypotheses that end, bool `(batch, n)`."""
        order, chosen = ops.top_k(ops.where(ended, candidates.sums, NEVER), self.width)
        candidates = _Candidates(*ops.take_by_row(tuple(candidates), ops.cast(chosen, "int32")))
        extended = _extended(candidates, lengths, beams, prediction)
        ranks = ops.where(order > NEVER, order / self.divisor(extended.lengths), NEVER)
        new = Finished(extended.tokens, extended.lengths, extended.scores, ranks)
        return best((finished, new), self.n_best)


def _held(beams, phrases, pad_id):
    """Finds the phrases that the first hypothesis of each row holds.

    Args:
        beams: `Beams`.
        phrases: int32 `(batch, phrases, length)`.
        pad_id: int, the id of padding.

    Returns:
        bool `(batch, phrases)`.
    """
    tokens, lengths = beams.tokens[:, 0], beams.lengths[:, 0]
    ends = lengths[:, None, None] - lengths_of(phrases, pad_id)[..., None]  # (batch, phrases, 1)
    target_len, longest = ops.shape(tokens)[1], ops.shape(phrases)[2]
    starts, places = ops.arange(target_len, dtype="int32"), ops.arange(longest, dtype="int32")
    parts = ops.take(tokens, ops.minimum(starts[:, None] + places, target_len - 1), axis=1)
    phrases = phrases[:, :, None]  # (batch, phrases, 1, length)
    equal = ops.logical_or(ops.equal(parts[:, None], phrases), ops.equal(phrases, pad_id))
    return ops.any(ops.logical_and(ops.all(equal, axis=-1), starts <= ends), axis=-1)


def _next_tokens(beams, phrases, lengths):
    """Finds the next token of each phrase in each hypothesis.

    Args:
        beams: `Beams`.
        phrases: int32 `(batch, phrases, length)`.
        lengths: int32 `(batch, phrases)`, the number of tokens of each phrase.

    Returns:
        begun: bool `(batch, width, phrases, length)`: at place `j`, whether the last `j` tokens of a hypothesis are the
            first `j` tokens of the phrase, which has more.
        here: bool `(batch, width, phrases, length)`, True at the last such place alone.
        following: int32 `(batch, width, phrases)`, the token of the phrase at that place.
    """
    places = ops.arange(ops.shape(phrases)[2], dtype="int32")
    slots = beams.lengths[..., None] - 1 - places  # (batch, width, length)
    recent = ops.take_along_axis(beams.tokens, ops.maximum(slots, 0), axis=-1)
    # The shape is (batch, width, length), the newest token first.
    recent = ops.where(slots >= 0, recent, -1)
    # Of the last j tokens, the i-th is so far from the end: (length, length).
    back = places[:, None] - 1 - places
    last = ops.take(recent, ops.maximum(back, 0), axis=-1)  # (batch, width, length, length)
    equal = ops.equal(last[:, :, None], phrases[:, None, :, None])
    begun = ops.all(ops.logical_or(back < 0, equal), axis=-1)
    inside = places < lengths[..., None]  # (batch, phrases, length)
    begun = ops.logical_and(begun, inside[:, None])
    steps = ops.max(ops.where(begun, places, 0), axis=-1)  # (batch, width, phrases)
    following = ops.take_along_axis(phrases[:, None], steps[..., None], axis=-1)[..., 0]
    return begun, ops.equal(steps[..., None], places), following


def _are_new(following, likeliest, met):
    """Marks the next tokens of phrases that are not candidates already.

    Args:
        following: int32 `(batch, width, phrases)`, the next token of each phrase.
        likeliest: int32 `(batch, width, n)`, the candidates without phrases.
        met: bool `(batch, width, phrases)`, the phrases that a hypothesis holds.

    Returns:
        bool `(batch, width, phrases)`; False for a phrase that is met.
    """
    likely = ops.any(ops.equal(following[..., None], likeliest[:, :, None]), axis=-1)
    number = ops.arange(ops.shape(following)[2], dtype="int32")
    earlier = ops.logical_and(ops.logical_not(met)[:, :, None], number < number[:, None])
    same = ops.equal(following[:, :, None], following[..., None])  # (batch, width, phrases, phrases)
    again = ops.logical_or(likely, ops.any(ops.logical_and(earlier, same), axis=-1))
    return ops.logical_not(ops.logical_or(met, again))


def _rank_in_bank(bank, counted, banks):
    """Returns the rank of each candidate among the counted ones of its bank, which are in their order from the best.

    Args:
        bank: int32 `(batch, n)`.
        counted: bool `(batch, n)`.
        banks: Number of banks, an int or an int32 scalar.

    Returns:
        int32 `(batch, n)`, from 0; of no meaning for a candidate that is not counted.
    """
    same = ops.equal(bank[..., None], ops.arange(banks, dtype="int32"))
    members = ops.logical_and(same, counted[..., None])  # (batch, n, banks)
    ranks = ops.cumsum(ops.cast(members, "int32"), axis=1)
    return ops.sum(ops.where(members, ranks, 0), axis=-1) - 1


def _turns(bank, goes_on, banks):
    """Returns the order in which candidates take the places of the beam, float32 `(batch, n)`.

    The best of the highest bank is the first: so the phrases are completed in every row. Then the banks take turns from
    the lowest, each with its next best.
    """
    rank = _rank_in_bank(bank, goes_on, banks)
    turn = rank * banks + bank
    highest = ops.max(ops.where(goes_on, bank, -1), axis=1, keepdims=True)
    is_first = ops.logical_and(ops.equal(rank, 0), ops.equal(bank, highest))
    return ops.cast(ops.where(is_first, -1, turn), "float32")


def _extended(candidates, lengths, beams, prediction):
    """Returns the `Beams` of candidates, whose new lengths are int32 `(batch, 1)`."""
    scores, written = ops.take_by_row((beams.scores, beams.tokens), candidates.parents)
    slots = ops.arange(ops.shape(written)[-1], dtype="int32")
    written = ops.where(ops.equal(slots, lengths[..., None] - 1), candidates.tokens[..., None], written)
    scores = scores + prediction.log_probs(candidates.tokens, candidates.parents)
    lengths = ops.broadcast_to(lengths, ops.shape(candidates.tokens))
    return Beams(written, lengths, scores, ops.zeros_like(lengths, "bool"))
