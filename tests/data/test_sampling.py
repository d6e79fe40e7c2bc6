"""Batches of pairs that are segmented anew in each epoch."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import Batches

SPECIAL = {0, 2, 3}
BATCH_TOKENS = 64


class Splitting:
    """Reads "5*3" as 5, 5, 5; a draw has some more or fewer of them: what differs is the length."""

    vocab_size = 1000

    def tokenize(self, strings):
        rows = [[int(word)] * int(count) for word, count in (s.split("*") for s in strings)]
        return tf.ragged.constant(rows, tf.int32, ragged_rank=1)

    def sampled(self, strings, alpha, seed):
        more = np.random.default_rng(seed).integers(-2, 7, len(strings))
        rows = [(int(word), int(count)) for word, count in (s.split("*") for s in strings)]
        return [np.full(max(1, n + m), word, "int32") for (word, n), m in zip(rows, more, strict=True)]


def made(lengths, seed=0, **arguments):
    pairs = [(f"{10 + i}*{s}", f"{10 + i}*{t}") for i, (s, t) in enumerate(lengths)]
    arguments = {"batch_tokens": BATCH_TOKENS, "max_length": 24, "num_buckets": 4, **arguments}
    return Batches(pairs, Splitting(), seed=seed, sampling=0.1, **arguments)


def some_lengths(count=300):
    return np.random.default_rng(1).integers(1, 12, (count, 2)).tolist()


def epoch_of(batches, epoch, first_step=0):
    return [(x["source"], y) for x, y in batches.arrays(epoch, first_step)]


def numbers(batch):
    """The pairs in a batch, each known by the one id that both of its sides have."""
    rows = [[set(row.tolist()) - SPECIAL for row in side] for side in batch]
    assert rows[0] == rows[1]
    return [number for row in rows[0] for number in row]


def padding_of(epoch):
    return np.mean(np.concatenate([side.ravel() == 0 for batch in epoch for side in batch]))


@pytest.mark.slow
@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 23), st.integers(1, 23)), min_size=1, max_size=40),
    num_buckets=st.integers(1, 6),
    seed=st.integers(0, 3),
)
def test_each_epoch_has_all_pairs_in_as_many_batches_of_the_same_shapes(lengths, num_buckets, seed):
    batches = made(lengths, num_buckets=num_buckets, seed=seed)
    for epoch in range(4):
        pairs = batches.segmented(epoch)
        made_of = [batches.batch(*planned, pairs) for planned in batches.plan(epoch, pairs)]
        assert len(made_of) == batches.steps
        shapes = [(*x["source"].shape, y.shape[1]) for x, y in made_of]
        assert set(shapes) == set(batches.shapes) and len(batches.shapes) <= num_buckets
        assert all(rows * max(source, target) <= BATCH_TOKENS for rows, source, target in shapes)
        seen = collections.Counter(n for x, y in made_of for n in numbers((x["source"], y)))
        assert seen == collections.Counter(range(10, 10 + len(lengths)))


def test_draws_that_do_not_fit_are_replaced_by_the_likeliest_segmentation():
    lengths = some_lengths()
    batches = made(lengths)
    usual = {10 + i: both for i, both in enumerate(lengths)}
    for epoch in (0, 1, 5):
        drawn = {10 + i: [*map(len, sides)] for i, sides in enumerate(batches.segmented(epoch))}
        used = []
        for batch in epoch_of(batches, epoch):
            for side, rows in enumerate(batch):
                for row in rows[rows[:, 0] != 0]:
                    length = int((row != 0).sum()) - 1  # eos
                    assert length in (drawn[row[0]][side], usual[row[0]][side])
                    used.append(length == drawn[row[0]][side])
        assert np.mean(used) > (0.95 if epoch else 0.999)


def test_padding_and_tokens_are_those_of_the_first_epoch_and_near_those_of_others():
    batches = made(some_lengths())
    first, later = epoch_of(batches, 0), epoch_of(batches, 3)
    assert batches.padding == pytest.approx(padding_of(first))
    assert batches.padding == pytest.approx(padding_of(later), abs=0.03)
    tokens = [sum((target != 0).sum() for _, target in epoch) for epoch in (first, later)]
    assert batches.tokens == tokens[0]
    assert batches.tokens == pytest.approx(tokens[1], rel=0.05)


def test_draws_follow_from_seed_and_epoch():
    def flat(epoch):
        return [side.tolist() for batch in epoch for side in batch]

    batches = made(some_lengths(60))
    second = flat(epoch_of(batches, 1))
    again = made(some_lengths(60))
    assert flat(epoch_of(again, 1)) == second
    assert flat(epoch_of(again, 1, first_step=3)) == second[6:]
    assert flat(epoch_of(again, 2)) != second
    assert flat(epoch_of(made(some_lengths(60), seed=1), 1)) != second


def test_the_texts_of_a_step_are_those_of_its_batch():
    batches = made(some_lengths(60))
    for step, batch in enumerate(epoch_of(batches, 2)):
        assert [int(source.split("*")[0]) for source, _ in batches.texts(2, step)] == numbers(batch)
