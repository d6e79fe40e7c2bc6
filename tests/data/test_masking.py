"""Masking: what is chosen, what becomes of it, and what it follows from."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf
from contracts import check_refused, refuses

from keras_transformer.data import Masking

VOCAB, MASK = 101, 4
SPECIAL = [0, 1, 2, 3, MASK]
TOKENIZER = types.SimpleNamespace(vocab_size=VOCAB, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=MASK)


def rows(count=400, length=40, seed=0):
    """Texts of different lengths between [CLS] and [SEP], padded, with a few unknown words and masks."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB, (count, length))
    ids = np.where(rng.random(ids.shape) < 0.05, rng.choice([1, MASK], ids.shape), ids)
    lengths = rng.integers(3, length + 1, (count, 1))
    ids[:, 0] = 2
    ids = np.where(np.arange(length) == lengths - 1, 3, ids)
    return np.where(np.arange(length) < lengths, ids, 0).astype("int32")


def masked(ids, seed=(0, 0), **arguments):
    return (x.numpy() for x in Masking(TOKENIZER, **arguments).mask(ids, seed))


def test_a_share_of_each_rows_ordinary_tokens_is_chosen():
    ids = rows()
    _, targets = masked(ids)
    ordinary = (~np.isin(ids, SPECIAL)).sum(axis=1)
    chosen = (targets != 0).sum(axis=1)
    rounded = np.round(np.float32(0.15) * ordinary.astype("float32"))
    np.testing.assert_array_equal(chosen, np.where(ordinary, np.maximum(1, rounded), 0))
    assert ordinary.min() < 3


def test_a_vocabulary_may_have_no_begin_and_no_end():
    """Keras's TextVectorization has 0 for padding and 1 for unknown words, and no other special id."""
    tokenizer = types.SimpleNamespace(vocab_size=9, pad_id=0, unk_id=1, mask_id=8, bos_id=None)
    ids = np.array([[2, 3, 1, 7, 0]], "int32")
    inputs, targets = (x.numpy() for x in Masking(tokenizer, 1.0, masked=1.0, replaced=0.0).mask(ids, (0, 0)))
    np.testing.assert_array_equal(inputs, [[8, 8, 1, 8, 0]])
    np.testing.assert_array_equal(targets, [[2, 3, 0, 7, 0]])
    inputs, _ = (
        x.numpy() for x in Masking(tokenizer, 1.0, masked=0.0, replaced=1.0).mask(rows() % 9, (0, 0))
    )
    assert {2, 3} <= {*inputs.ravel()}


def test_special_ids_are_never_chosen_and_targets_are_what_stood_there():
    ids = rows()
    inputs, targets = masked(ids, share=1.0)
    special = np.isin(ids, SPECIAL)
    np.testing.assert_array_equal(targets, np.where(special, 0, ids))
    np.testing.assert_array_equal(inputs[special], ids[special])


def test_chosen_tokens_become_masks_others_or_stay():
    ids = rows(2000)
    inputs, targets = masked(ids)
    np.testing.assert_array_equal(inputs[targets == 0], ids[targets == 0])
    chosen = targets != 0
    became, was = inputs[chosen], ids[chosen]
    assert len(was) > 5000
    np.testing.assert_allclose((became == MASK).mean(), 0.8, atol=0.02)
    np.testing.assert_allclose((became == was).mean(), 0.1, atol=0.02)
    others = became[(became != MASK) & (became != was)]
    np.testing.assert_allclose(len(others) / len(was), 0.1, atol=0.02)
    assert set(others) == set(range(5, VOCAB))  # all ordinary ids, no special one


def test_every_place_is_chosen_alike():
    ids = np.tile(np.arange(5, 25, dtype="int32"), (4000, 1))
    _, targets = masked(ids)
    np.testing.assert_allclose((targets != 0).mean(axis=0), 0.15, atol=0.03)


def test_shares_may_be_others():
    ids = rows()
    inputs, targets = masked(ids, share=0.5, masked=0.0, replaced=0.0)
    np.testing.assert_array_equal(inputs, ids)
    inputs, targets = masked(ids, masked=1.0, replaced=0.0)
    assert set(inputs[targets != 0]) == {MASK}
    inputs, targets = masked(ids, masked=0.0, replaced=1.0)
    assert not np.isin(inputs[targets != 0], SPECIAL).any()


def test_masks_follow_from_seed_and_number_and_differ_between_epochs():
    ids = rows(64)
    dataset = tf.data.Dataset.from_tensor_slices(ids).batch(16).repeat(2)
    batches = [(x.numpy(), y.numpy()) for x, y in dataset.apply(Masking(TOKENIZER, seed=7))]
    assert len(batches) == 8
    for number, batch in enumerate(batches):
        part = ids[16 * (number % 4) :][:16]
        np.testing.assert_array_equal(batch, [*masked(part, (7, number))])
    targets = [y for _, y in batches]
    assert not np.array_equal(targets[0], targets[4])  # the same rows, an epoch later
    _, other = masked(ids[:16], (8, 0))
    assert not np.array_equal(targets[0], other)


def test_segments_go_through_and_single_rows_are_masked_too():
    ids = rows(8)
    elements = {"token_ids": ids, "segment_ids": np.ones_like(ids)}
    dataset = tf.data.Dataset.from_tensor_slices(elements).apply(Masking(TOKENIZER))
    for (inputs, targets), row in zip(dataset, ids, strict=True):
        assert inputs["segment_ids"].numpy().tolist() == [1] * 40
        changed = inputs["token_ids"].numpy() != row
        assert not changed[targets.numpy() == 0].any()


def test_shares_out_of_range_are_named():
    make = functools.partial(Masking, TOKENIZER)
    check_refused(make, {"share": 0.0}, {"share": 1.5}, {"masked": -0.1})
    refuses(r"`masked \+ replaced` must be", make, masked=0.8, replaced=0.3)


@pytest.mark.parametrize("name", ["mask_id", "pad_id"])
def test_a_tokenizer_without_a_special_id_is_named(name):
    for others in ({}, {name: None}):
        tokenizer = types.SimpleNamespace(**{k: v for k, v in vars(TOKENIZER).items() if k != name}, **others)
        refuses(f"`tokenizer` must have .*without {name}", Masking, tokenizer)
