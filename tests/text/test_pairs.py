"""Packing of texts and pairs: marks, segments, and which text is cut."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.text import ByteTokenizer, WordPieceTokenizer, pack, pack_ids

FIRST = tf.ragged.constant([[11, 12, 13], [14], []], tf.int32)
SECOND = tf.ragged.constant([[21], [22, 23, 24, 25], [26]], tf.int32)


def listed(packed):
    return [packed[name].numpy().tolist() for name in ("token_ids", "segment_ids")]


def test_pairs_by_hand():
    ids, segments = listed(pack_ids(FIRST, SECOND))
    assert ids == [
        [2, 11, 12, 13, 3, 21, 3, 0],
        [2, 14, 3, 22, 23, 24, 25, 3],
        [2, 3, 26, 3, 0, 0, 0, 0],
    ]
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


def test_the_longer_text_is_cut_first():
    ids, segments = listed(pack_ids(FIRST, SECOND, 6))
    assert ids[:2] == [[2, 11, 12, 3, 21, 3], [2, 14, 3, 22, 23, 3]]
    assert segments[:2] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]
    ids, _ = listed(pack_ids(FIRST, None, 4))
    assert ids == [[2, 11, 12, 3], [2, 14, 3, 0], [2, 3, 0, 0]]
    ids, _ = listed(pack_ids(FIRST, SECOND, 3))
    assert ids == [[2, 3, 3]] * 3


@settings(deadline=None, max_examples=60, derandomize=True)
@given(lengths=st.tuples(st.integers(0, 9), st.integers(0, 9)), max_length=st.integers(3, 21))
def test_no_text_loses_more_than_it_must(lengths, max_length):
    """One id at a time from the longer one's end; of two as long, the second keeps its last one."""
    first, second = (list(range(10 * i, 10 * i + n)) for i, n in zip((1, 2), lengths, strict=True))
    packed = pack_ids(tf.constant([first], tf.int32), tf.constant([second], tf.int32), max_length)
    a, b = lengths
    room = max_length - 3
    if a + b > room:
        short = min(a, b, room // 2)
        long = room - short
        a, b = (short, long) if a <= b else (long, short)
    assert packed["token_ids"].numpy().tolist() == [[2, *first[:a], 3, *second[:b], 3]]
    assert packed["segment_ids"].numpy().tolist() == [[0] * (a + 2) + [1] * (b + 1)]


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


def test_it_works_in_a_saved_module(tmp_path):
    tokenizer = WordPieceTokenizer.train(["the cat sat on the mat", "the dog"] * 3, 60)
    module = tf.Module()
    strings = tf.TensorSpec((None,), tf.string)
    module.texts = tf.function(lambda first: pack(tokenizer, first, max_length=7), [strings])
    module.pairs = tf.function(lambda first, second: pack(tokenizer, first, second, 9), [strings, strings])
    tf.saved_model.save(module, str(tmp_path / "module"))
    again = tf.saved_model.load(str(tmp_path / "module"))
    first, second = (
        tf.constant(["the cat", "", "the cat sat on the mat"]),
        tf.constant(["dog", "cat", "the dog"]),
    )
    for found, expected in (
        (again.texts(first), pack(tokenizer, first, max_length=7)),
        (again.pairs(first, second), pack(tokenizer, first, second, 9)),
    ):
        for name, ids in expected.items():
            np.testing.assert_array_equal(found[name], ids)
            assert ids.shape[1] <= 9


def test_their_pairs_are_cut_and_marked_alike():
    transformers = pytest.importorskip("transformers")
    tokenizer = WordPieceTokenizer.train(["the cat sat on the mat by the dog"] * 3, 80)
    theirs = transformers.BertTokenizer(
        vocab={p: i for i, p in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    )
    words = ["the", "cat", "sat", "on", "mat", "by", "dog"]
    rng = np.random.default_rng(0)
    pairs = [[" ".join(rng.choice(words, n)) for n in rng.integers(0, 9, 2)] for _ in range(40)]
    for max_length in (5, 8, 11):
        found = pack(tokenizer, *map(tf.constant, zip(*pairs, strict=True)), max_length)
        expected = theirs(
            *map(list, zip(*pairs, strict=True)),
            truncation="longest_first",
            max_length=max_length,
            padding="longest",
        )
        np.testing.assert_array_equal(found["token_ids"], expected["input_ids"])
        np.testing.assert_array_equal(found["segment_ids"], expected["token_type_ids"])
