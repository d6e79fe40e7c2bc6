"""Packing of texts and pairs: marks, segments, and which text is cut."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.text import ByteTokenizer, WordPieceTokenizer, pack, pack_ids

FIRST = tf.ragged.constant([[11, 12, 13], [14], []], tf.int32)
SECOND = tf.ragged.constant([[21], [22, 23, 24, 25], [26]], tf.int32)


def listed(packed):
    return [packed[name].numpy().tolist() for name in ("token_ids", "segment_ids")]


def test_pairs_by_hand():
    ids, segments = listed(pack_ids(FIRST, SECOND))
    assert ids == [[2, 11, 12, 13, 3, 21, 3, 0], [2, 14, 3, 22, 23, 24, 25, 3], [2, 3, 26, 3, 0, 0, 0, 0]]
    assert segments == [[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0, 0]]
    assert {x.dtype for x in pack_ids(FIRST, SECOND).values()} == {tf.int32}


def test_pairs_with_two_separators_by_hand():
    ids, segments = listed(pack_ids(FIRST, SECOND, 7, separators=2))
    assert ids == [[2, 11, 12, 3, 3, 21, 3], [2, 14, 3, 3, 22, 23, 3], [2, 3, 3, 26, 3, 0, 0]]
    assert segments == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]]


def test_texts_by_hand():
    ids, segments = listed(pack_ids(FIRST, pad_id=9, cls_id=5, sep_id=6))
    assert ids == [[5, 11, 12, 13, 6], [5, 14, 6, 9, 9], [5, 6, 9, 9, 9]]
    assert segments == [[0] * 5] * 3


@pytest.mark.parametrize("max_length", range(3, 22))
@pytest.mark.sampled
def test_no_text_loses_more_than_it_must(max_length):
    """One id at a time from the longer one's end; of two as long, the second keeps its last one."""
    pairs = [(range(10, 10 + a), range(20, 20 + b)) for a in range(10) for b in range(10)]
    sides = (tf.ragged.constant(side, tf.int32) for side in zip(*pairs, strict=True))
    for (first, second), ids, segments in zip(pairs, *listed(pack_ids(*sides, max_length)), strict=True):
        a, b = len(first), len(second)
        room = max_length - 3
        if a + b > room:
            short = min(a, b, room // 2)
            long = room - short
            a, b = (short, long) if a <= b else (long, short)
        padding = [0] * (min(max_length, 21) - a - b - 3)
        assert ids == [2, *first[:a], 3, *second[:b], 3, *padding]
        assert segments == [0] * (a + 2) + [1] * (b + 1) + padding


@pytest.mark.parametrize("form", ["list", "array", "padded"])
def test_ids_come_in_any_form(form):
    rows = FIRST.to_list()
    given = {"list": rows, "array": FIRST.to_tensor(0).numpy(), "padded": FIRST.to_tensor(0)}[form]
    assert listed(pack_ids(given)) == listed(pack_ids(FIRST))


def test_a_single_text_gives_a_single_row():
    ids, segments = listed(pack_ids([11, 12], [21]))
    assert (ids, segments) == ([2, 11, 12, 3, 21, 3], [0, 0, 0, 0, 1, 1])
    tokenizer = ByteTokenizer()
    ids, segments = listed(pack(tokenizer, "a", "b"))
    assert (ids, segments) == ([2, 101, 3, 102, 3], [0, 0, 0, 1, 1])


def test_no_texts_give_no_rows_and_texts_without_a_partner_are_refused():
    none = tf.zeros((0, 3), tf.int32)
    assert [x.shape.as_list() for x in pack_ids(none, none).values()] == [[0, 3]] * 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same number of rows"):
        pack_ids(FIRST, SECOND[:1])


@pytest.mark.parametrize(("second", "max_length"), [(None, 1), (SECOND, 2), (None, 0), (SECOND, 2.5)])
def test_there_is_room_for_the_marks(second, max_length):
    with pytest.raises(ValueError, match=f"max_length={max_length}"):
        pack_ids(FIRST, second, max_length)


@pytest.mark.slow
def test_packing_in_a_function_of_unknown_sizes():
    tokenizer = WordPieceTokenizer.train(["the cat sat on the mat", "the dog"] * 3, 60)
    strings = tf.TensorSpec((None,), tf.string)
    texts = tf.function(lambda first: pack(tokenizer, first, max_length=7), [strings])
    pairs = tf.function(lambda first, second: pack(tokenizer, first, second, 9), [strings, strings])
    first = tf.constant(["the cat", "", "the cat sat on the mat"])
    second = tf.constant(["dog", "cat", "the dog"])
    for found, expected in (
        (texts(first), pack(tokenizer, first, max_length=7)),
        (pairs(first, second), pack(tokenizer, first, second, 9)),
    ):
        for name, ids in expected.items():
            np.testing.assert_array_equal(found[name], ids)
            assert ids.shape[1] <= 9


def test_pairs_are_cut_and_marked_as_in_transformers():
    transformers = pytest.importorskip("transformers")
    tokenizer = WordPieceTokenizer.train(["the cat sat on the mat by the dog"] * 3, 80)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    there = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})
    words = ["the", "cat", "sat", "on", "mat", "by", "dog"]
    rng = np.random.default_rng(0)
    pairs = [[" ".join(rng.choice(words, n)) for n in rng.integers(0, 9, 2)] for _ in range(40)]
    for max_length in (5, 8, 11):
        sides = [*map(list, zip(*pairs, strict=True))]
        found = pack(tokenizer, *map(tf.constant, sides), max_length)
        expected = there(*sides, truncation="longest_first", max_length=max_length, padding="longest")
        np.testing.assert_array_equal(found["token_ids"], expected["input_ids"])
        np.testing.assert_array_equal(found["segment_ids"], expected["token_type_ids"])
