"""Batches of pairs: all pairs, few shapes, little padding, an order that can be repeated."""

import collections
import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from contracts import check_refused, refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import Batches, Frame

BOS, EOS = 2, 3


class Numbers:
    """Reads "5 7" as the ids 5 and 7, plus an offset."""

    vocab_size = 1000

    def __init__(self, offset=0):
        self.offset = offset

    def tokenize(self, strings):
        rows = [[int(word) + self.offset for word in string.split()] for string in strings]
        return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


def pair(number, source_len, target_len):
    """A pair that differs from every other number's."""
    source = [str(10 + number)] * source_len
    target = [str(1000 + number)] * target_len
    return " ".join(source), " ".join(target)


def some_pairs(count=40):
    return [pair(i, 1 + i * 7 % 11, 1 + i * 5 % 13) for i in range(count)]


def ids_of(pairs):
    return collections.Counter(tuple(tuple(map(int, side.split())) for side in p) for p in pairs)


def epoch_of(batches, epoch=0):
    return [(x["source"], x["target"], y) for x, y in batches.arrays(epoch)]


def unpadded(row):
    """The row up to its padding, which may stand nowhere else."""
    real = np.flatnonzero(row)
    length = real[-1] + 1 if len(real) else 0
    assert len(real) == length, f"padding inside {row}"
    return row[:length].tolist()


def pairs_in(epoch):
    """The pairs of the rows, checked to be laid out as training wants them."""
    found = collections.Counter()
    for source, shifted, target in epoch:
        assert source.dtype == shifted.dtype == target.dtype == np.int32
        assert len(source) == len(shifted) == len(target) and shifted.shape == target.shape
        for s, given_, wanted in zip(*map(list, (source, shifted, target)), strict=True):
            s, given_, wanted = map(unpadded, (s, given_, wanted))
            if not s:
                assert given_ == wanted == [], "a row of padding is padding on both sides"
                continue
            assert s[-1] == EOS and wanted[-1] == EOS
            assert given_ == [BOS, *wanted[:-1]]
            found[tuple(s[:-1]), tuple(wanted[:-1])] += 1
    return found


def test_source_and_target_are_read_by_their_own_tokenizers():
    ((source, _, target),) = epoch_of(Batches([("5 6", "7")], (Numbers(), Numbers(100))))
    assert source[0].tolist() == [5, 6, EOS]
    assert target[0].tolist() == [107, EOS]


@pytest.mark.parametrize("too_long", ["skip", "truncate"])
@pytest.mark.parametrize("frames", [
    {},
    {"source_start": (7,), "source_end": (8, 9), "target_start": (6, 5)},
    {"source_end": ()},
    {"pad_id": EOS},
    {"pad_id": 9, "bos_id": 8, "eos_id": 4},
], ids=["usual", "longer", "no source_end", "pad is eos", "other ids"])  # fmt: skip
def test_each_row_has_the_ids_of_its_pair_in_their_frame(frames, too_long):
    sizes = {"batch_tokens": 70, "max_length": 11, "num_buckets": 3}
    with warnings.catch_warnings(action="ignore"):  # of the longer pairs
        batches = Batches(some_pairs(31), Numbers(), **sizes, too_long=too_long, frame=Frame(**frames))
    pad, bos, eos = (frames.get(f"{name}_id", i) for name, i in (("pad", 0), ("bos", BOS), ("eos", EOS)))
    source = frames.get("source_start", ()), frames.get("source_end", (eos,))
    around = source, (frames.get("target_start", ()), (eos,))
    for step, (bucket, indices) in enumerate(batches.plan(0)):
        rows, *widths = batches.shapes[bucket]
        framed = [
            [[*start, *map(int, side.split()[: 11 - len(start) - len(end)]), *end] for side in sides]
            for sides, (start, end) in zip(zip(*batches.texts(0, step), strict=True), around, strict=True)
        ]
        framed.append([[bos, *target[:-1]] for target in framed[1]])
        for count in (len(indices), len(indices) // 2, 0):  # the rest is padding
            inputs, targets = batches.batch(bucket, indices[:count])
            arrays = inputs["source"], targets, inputs["target"]
            for array, sides, width in zip(arrays, framed, [*widths, widths[1]], strict=True):
                expected = [side + [pad] * (width - len(side)) for side in sides[:count]]
                expected += [[pad] * width] * (rows - count)
                assert array.dtype == "int32" and array.tolist() == expected


def test_a_batch_holds_as_many_rows_as_fit():
    batches = Batches([pair(i, 4, 6) for i in range(20)], Numbers(), batch_tokens=50, max_length=20)
    assert batches.shapes == [(7, 5, 7)]
    assert batches.steps == 3


def test_more_buckets_pad_less():
    sizes = {"batch_tokens": 100, "max_length": 20}
    paddings = [Batches(some_pairs(400), Numbers(), **sizes, num_buckets=n).padding for n in (1, 3, 8)]
    assert paddings[0] > paddings[1] > paddings[2]


def flat(epoch):
    return [array.tolist() for arrays in epoch for array in arrays]


def test_one_bucket_has_a_shape_known_beforehand():
    batches = Batches(some_pairs(), Numbers(), batch_tokens=64, max_length=20, num_buckets=1)
    dataset = batches.dataset(epochs=1)
    declared, _ = dataset.element_spec
    for inputs, _ in dataset:
        assert all(spec.shape == inputs[side].shape for side, spec in declared.items())
    several, _ = Batches(some_pairs(), Numbers(), batch_tokens=64, max_length=20).dataset().element_spec
    assert several["source"].shape.as_list() == [None, None]


def test_the_order_follows_from_seed_and_epoch_alone():
    def batches(seed):
        return Batches(some_pairs(), Numbers(), batch_tokens=50, max_length=20, seed=seed)

    reference = flat(epoch_of(batches(5)))
    np.random.seed(1)
    keras.utils.set_random_seed(2)
    again = batches(5)
    epoch_of(again, 4)
    assert flat(epoch_of(again)) == reference
    assert flat(epoch_of(again, 1)) != reference
    assert flat(epoch_of(batches(6))) != reference


def test_batches_of_a_bucket_change_between_epochs():
    batches = Batches([pair(i, 3, 3) for i in range(20)], Numbers(), batch_tokens=16, max_length=4)
    first, second = ({frozenset(s[:, 0]) for s, _, _ in epoch_of(batches, epoch)} for epoch in range(2))
    assert first != second


def test_a_dataset_has_the_arrays_of_its_epochs():
    batches = Batches(some_pairs(), Numbers(), batch_tokens=50, max_length=20)
    epochs = [epoch_of(batches, epoch) for epoch in range(4)]
    for dataset, expected in (
        (batches.dataset(epochs=4), epochs),
        (batches.dataset(first_epoch=2, epochs=2), epochs[2:]),
        (batches.dataset(first_epoch=3).take(batches.steps), epochs[3:]),
        (batches.dataset(first_epoch=3, epochs=1, first_step=2), [epochs[3][2:]]),
    ):
        found = [(x["source"].numpy(), x["target"].numpy(), y.numpy()) for x, y in dataset]
        assert flat(found) == flat([batch for epoch in expected for batch in epoch])
    assert batches.dataset(epochs=3).cardinality() == 3 * batches.steps
    assert batches.dataset().cardinality() == tf.data.INFINITE_CARDINALITY


LONG = [pair(0, 3, 3), pair(1, 9, 3), pair(2, 3, 9), pair(3, 4, 4), pair(4, 5, 5)]


@pytest.mark.parametrize(
    ("too_long", "word", "kept", "counts"),
    [
        ("skip", "skipped", [LONG[0], LONG[3]], (2, 3, 0)),
        ("truncate", "truncated", [LONG[0], pair(1, 4, 3), pair(2, 3, 4), LONG[3], pair(4, 4, 4)], (5, 0, 3)),
    ],
)
def test_longer_pairs_are_skipped_or_truncated_with_their_number(too_long, word, kept, counts):
    with pytest.warns(UserWarning, match=rf"Of 5 pairs: 3 longer than `max_length`=5 tokens \({word}\)"):
        batches = Batches(LONG, Numbers(), batch_tokens=50, max_length=5, too_long=too_long)
    assert pairs_in(epoch_of(batches)) == ids_of(kept)
    assert (batches.kept, batches.skipped, batches.truncated) == counts


def test_longer_pairs_are_an_error_with_their_number_and_the_longest():
    with pytest.raises(ValueError, match=r"3 of 5 pairs.*`max_length`=5.*10"):
        Batches(LONG, Numbers(), batch_tokens=50, max_length=5, too_long="error")
    with warnings.catch_warnings(action="error"):
        assert Batches(LONG, Numbers(), batch_tokens=50, max_length=10, too_long="error").kept == 5


def test_empty_sides_are_left_out_and_counted():
    pairs = [pair(0, 3, 3), ("", "5"), ("5", " "), ("", ""), pair(1, 9, 1)]
    with pytest.warns(UserWarning, match=r"Of 5 pairs: 3 with an empty side \(skipped\), 1 longer"):
        batches = Batches(pairs, Numbers(), batch_tokens=50, max_length=5)
    assert pairs_in(epoch_of(batches)) == ids_of(pairs[:1])
    assert (batches.kept, batches.skipped) == (1, 4)


LENGTHS = st.integers(0, 12)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    lengths=st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=30),
    max_length=st.integers(2, 14),
    more_tokens=st.integers(0, 60),
    num_buckets=st.integers(1, 6),
    too_long=st.sampled_from(["skip", "truncate"]),
    seed=st.integers(0, 3),
)
def test_nothing_is_lost_or_invented(lengths, max_length, more_tokens, num_buckets, too_long, seed):
    pairs = [pair(i, *both) for i, both in enumerate(lengths)]
    limit = max_length - 1
    usable = [(i, s, t) for i, (s, t) in enumerate(lengths) if s and t]
    if too_long == "truncate":
        expected = [pair(i, min(s, limit), min(t, limit)) for i, s, t in usable]
    else:
        expected = [pair(i, s, t) for i, s, t in usable if max(s, t) <= limit]
    arguments = {"batch_tokens": max_length + more_tokens, "max_length": max_length, "seed": seed}
    arguments |= {"num_buckets": num_buckets, "too_long": too_long}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if not expected:
            refuses(f"Received: {len(pairs)} pairs", Batches, pairs, Numbers(), **arguments)
            return
        batches = Batches(pairs, Numbers(), **arguments)
    epoch = epoch_of(batches, seed)
    assert pairs_in(epoch) == ids_of(expected)
    assert batches.kept == len(expected)
    assert batches.kept + batches.skipped == len(pairs)
    assert bool(caught) == bool(batches.skipped or batches.truncated)
    assert len(batches.shapes) <= num_buckets
    assert {(*s.shape, t.shape[1]) for s, t, _ in epoch} == set(batches.shapes)
    assert len(epoch) == batches.steps
    assert all(max(s.size, t.size) <= max_length + more_tokens for s, _, t in epoch)
    assert batches.tokens == sum((t != 0).sum() for _, _, t in epoch)
    ids = np.concatenate([side.ravel() for source, _, target in epoch for side in (source, target)])
    assert batches.padding == pytest.approx((ids == 0).mean())


@pytest.mark.filterwarnings("ignore:Of ")
def test_pairs_and_arguments_that_make_no_batch_are_refused():
    check_refused(
        lambda **arguments: Batches(some_pairs(), Numbers(), **arguments),
        *({"too_long": "drop"}, {"max_length": 1}, {"num_buckets": 0}),
        {"batch_tokens": 31, "max_length": 32},
        {"frame": {"source_start": (4,)}},
    )
    tokenizers = ([Numbers()], (Numbers(), None), (Numbers(),) * 3)
    check_refused(
        functools.partial(Batches, some_pairs()),
        *({"tokenizers": each} for each in tokenizers),
        tokenizers=(Numbers(), Numbers()),
    )
    for pairs, message in (
        ([], "Received: 0 pairs"),
        ([("", "5")], "Received: 1 pairs, 1 of them with an empty side, 0 longer"),
        ([pair(0, 9, 9), ("5", "")], "Received: 2 pairs, 1 of them with an empty side, 1 longer"),
        *(
            ([("1", "2"), wrong], "`pairs` must hold pairs")
            for wrong in (("1",), ("1", None), "12", (*"123",))
        ),
    ):
        refuses(message, Batches, pairs, Numbers(), batch_tokens=50, max_length=5)
