import re

import keras
import numpy as np
import pytest
from contracts import as_numpy, mask_of, refuses, with_mask
from keras import ops

from keras_transformer import keras_internals, masks

SOS, ME, AM, A, STUDENT = 2, 5, 7, 11, 13


def matrix(rows):
    """Lines of 0 and 1 as a bool matrix."""
    return np.array([[mark == "1" for mark in row.split()] for row in rows.strip().splitlines()])


def test_padding_mask_is_true_on_real_tokens():
    mask = as_numpy(masks.padding_mask([[5, 7, 0, 0, 0], [3, 0, 4, 0, 9], [0, 0, 0, 0, 0]]))
    assert mask.shape == (3, 1, 1, 5)
    np.testing.assert_array_equal(mask[:, 0, 0, :], matrix("1 1 0 0 0\n1 0 1 0 1\n0 0 0 0 0"))
    assert mask.dtype == bool


def test_padding_mask_knows_another_pad_id():
    mask = as_numpy(masks.padding_mask([[0, 7, 1]], pad_id=1))
    np.testing.assert_array_equal(mask, [[[[True, True, False]]]])


def test_lengths_reach_to_the_last_real_token():
    ids = [[[5, 0, 7, 0], [0, 0, 0, 0]], [[1, 1, 1, 1], [0, 1, 1, 1]]]
    assert as_numpy(masks.lengths_of(ids)).tolist() == [[3, 0], [4, 4]]
    assert as_numpy(masks.lengths_of(ids, pad_id=1)).tolist() == [[4, 4], [0, 1]]


def test_look_ahead_mask_shows_each_word_of_a_sentence_what_came_before():
    """`<SOS> I am a student`: each row is a query, each column a key."""
    words = [SOS, ME, AM, A, STUDENT]
    mask = as_numpy(masks.look_ahead_mask(len(words)))
    assert mask.shape == (1, 1, 5, 5)
    table = """
        1 0 0 0 0
        1 1 0 0 0
        1 1 1 0 0
        1 1 1 1 0
        1 1 1 1 1
    """
    np.testing.assert_array_equal(mask[0, 0], matrix(table))
    seen = {
        query: [w for w, sees in zip(words, mask[0, 0, i], strict=True) if sees]
        for i, query in enumerate(words)
    }
    assert seen == {
        SOS: [SOS],
        ME: [SOS, ME],
        AM: [SOS, ME, AM],
        A: [SOS, ME, AM, A],
        STUDENT: [SOS, ME, AM, A, STUDENT],
    }


@pytest.mark.parametrize("start_index", [2, np.int32(2)])
def test_look_ahead_mask_of_a_later_chunk(start_index):
    mask = as_numpy(masks.look_ahead_mask(3, source_len=7, start_index=start_index))
    np.testing.assert_array_equal(
        mask[0, 0],
        matrix("""
            1 1 1 0 0 0 0
            1 1 1 1 0 0 0
            1 1 1 1 1 0 0
        """),
    )


def test_look_ahead_mask_takes_its_start_from_a_tensor():
    step = ops.convert_to_tensor(3, "int32")
    mask = as_numpy(masks.look_ahead_mask(1, source_len=5, start_index=step))
    np.testing.assert_array_equal(mask[0, 0], matrix("1 1 1 1 0"))


def test_look_ahead_and_padding_combine_to_one_matrix():
    mask = masks.combine(masks.look_ahead_mask(4), None, masks.padding_mask([[3, 0, 5, 7]]))
    table = """
        1 0 0 0
        1 0 0 0
        1 0 1 0
        1 0 1 1
    """
    np.testing.assert_array_equal(as_numpy(mask)[0, 0], matrix(table))


def test_local_mask_reaches_window_minus_one_to_either_side():
    np.testing.assert_array_equal(
        as_numpy(masks.local_mask(5, window=2)),
        matrix("""
            1 1 0 0 0
            1 1 1 0 0
            0 1 1 1 0
            0 0 1 1 1
            0 0 0 1 1
        """)[None, None],
    )


def test_local_mask_of_window_one_is_the_diagonal():
    np.testing.assert_array_equal(as_numpy(masks.local_mask(3, 1))[0, 0], np.eye(3, dtype=bool))


def test_local_mask_of_a_later_chunk():
    mask = masks.local_mask(2, window=3, start_index=3, source_len=7)
    np.testing.assert_array_equal(as_numpy(mask)[0, 0], matrix("0 1 1 1 1 1 0\n0 0 1 1 1 1 1"))


@pytest.mark.parametrize("window", [0, -3])
def test_local_mask_refuses_a_window_that_sees_nothing(window):
    refuses(rf"`window` must be a positive integer.*window={window}\.", masks.local_mask, 5, window)


def test_combine_of_nothing_is_no_restriction():
    assert masks.combine() is None
    assert masks.combine(None, None) is None


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_combine_gives_bool(dtype):
    mask = ops.cast([[1, 0]], dtype)
    for combined in (masks.combine(mask), masks.combine(None, mask), masks.combine(mask, mask)):
        assert combined.dtype == ops.convert_to_tensor([True]).dtype
        np.testing.assert_array_equal(as_numpy(combined), [[True, False]])


def test_combine_allows_what_all_allow():
    a = np.array([[True, True, False, False]])
    b = np.array([[True, False, True, False]])
    np.testing.assert_array_equal(as_numpy(masks.combine(a, b)), [[True, False, False, False]])
    np.testing.assert_array_equal(as_numpy(masks.combine(None, a)), a)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "expected"), [((5, 7), (1, 1, 5, 7)), ((2, 5, 7), (2, 1, 5, 7)), ((2, 3, 5, 7), (2, 3, 5, 7))]
)
@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_an_attention_mask_gets_the_rank_of_scores(shape, expected, dtype):
    mask = np.random.default_rng(0).integers(0, 2, shape)
    result = as_numpy(masks.as_attention_mask(ops.convert_to_tensor(mask.astype(dtype))))
    np.testing.assert_array_equal(result, mask.astype(bool).reshape(expected))


@pytest.mark.parametrize("shape", [(2, 7), (2, 1, 1, 7)])
@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_a_token_mask_gets_rank_2(shape, dtype):
    mask = np.random.default_rng(0).integers(0, 2, shape)
    result = as_numpy(masks.as_token_mask(mask.astype(dtype)))
    np.testing.assert_array_equal(result, mask.astype(bool).reshape(2, 7))


READERS = [
    ("attention_mask", masks.as_attention_mask),
    ("padding_mask", masks.as_token_mask),
    ("masks", masks.combine),
    ("masks", lambda mask: masks.combine(None, mask)),
    ("masks", lambda mask: masks.combine(mask == 0, mask)),
]


@pytest.mark.parametrize("lowest", [-10000, -1])
@pytest.mark.parametrize("dtype", ["int8", "int32", "float32"])
@pytest.mark.parametrize(("name", "read"), READERS)
def test_additive_masks_are_refused(name, read, dtype, lowest):
    """They have 0 where a mask has 1, so they would be read the other way round."""
    lowest = max(lowest, -128) if dtype == "int8" else lowest
    mask = ops.convert_to_tensor(np.triu(np.full((3, 3), lowest), 1).astype(dtype))
    message = rf"`{name}` must be boolean.*Received: dtype='{dtype}'"
    message += "" if (name, dtype) == ("padding_mask", "float32") else rf", lowest={lowest}.*, highest=0"
    refuses(message, read, mask)


def test_floats_of_0_and_1_are_an_attention_mask_and_no_mask_of_tokens():
    ones = np.tril(np.ones((3, 3), "float32"))
    np.testing.assert_array_equal(as_numpy(masks.as_attention_mask(ones))[0, 0], ones.astype(bool))
    refuses(r"True where a token is real. Received: dtype='float32'\.", masks.as_token_mask, ones)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "read"),
    [*READERS[:2], READERS[3], ("token_ids", masks.padding_mask), ("segment_ids", masks.segment_mask)],
)
def test_ragged_tensors_are_refused(name, read):
    import tensorflow as tf

    ragged = tf.ragged.constant([[1, 1], [1]])
    refuses(rf"`{name}` must be a dense.* Received: {name}\.shape=\(2, None\)\.", read, ragged)


IDS = [("token_ids", masks.padding_mask), ("segment_ids", masks.segment_mask)]
OTHER_SHAPES = [
    *(("attention_mask", masks.as_attention_mask, shape) for shape in ((5,), (2, 3, 5, 7, 11))),
    *(
        ("memory_mask", lambda mask: masks.as_token_mask(mask, "memory_mask"), shape)
        for shape in ((7,), (2, 5, 7), (2, 3, 1, 7), (2, 1, 5, 7))
    ),
    *((name, read, shape) for name, read in IDS for shape in ((3,), (2, 3, 1))),
]


@pytest.mark.parametrize(("name", "read", "shape"), OTHER_SHAPES)
def test_other_shapes_are_refused(name, read, shape):
    sentence = rf"^`{name}` must have shape .*Received: shape={re.escape(str(shape))}\.$"
    refuses(sentence, read, ops.ones(shape, "int32"))


@pytest.mark.parametrize(
    "make", [masks.look_ahead_mask, lambda length: masks.local_mask(length, 2)], ids=["look_ahead", "local"]
)
def test_an_open_length_is_refused_and_a_lambda_layer_knows_it(make):
    inputs = keras.Input((None, 5))
    for length in (ops.shape(inputs)[1], ops.sum(inputs)):
        refuses(r"`length` must be an int.* `use_causal_mask=True`.*Lambda", make, length)
    mask = keras.layers.Lambda(lambda x: make(ops.shape(x)[1]), output_shape=lambda shape: (1, None, None))
    model = keras.Model(inputs, mask(inputs))
    np.testing.assert_array_equal(as_numpy(model(np.ones((2, 3, 5)))), as_numpy(make(3)))


@pytest.mark.tensorflow
def test_no_axis_is_added_by_indexing():
    """TensorFlow Lite cannot convert such a slice."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((), tf.int32)])
    def every_mask(ids, length):
        look_ahead, local = masks.look_ahead_mask(length), masks.local_mask(length, 2)
        of_rank = [masks.as_attention_mask(mask) for mask in (look_ahead[0, 0], look_ahead[0], look_ahead)]
        padding = masks.padding_mask(ids)
        return look_ahead, local, padding, masks.segment_mask(ids), masks.as_token_mask(padding), of_rank

    operations = every_mask.get_concrete_function().graph.get_operations()
    assert not [op.name for op in operations if op.type == "StridedSlice" and op.get_attr("new_axis_mask")]


def test_no_mask_stays_none():
    assert masks.as_attention_mask(None) is None
    assert masks.as_token_mask(None) is None


def test_implicit_mask_is_read_and_left_where_it_is():
    x = ops.ones((2, 3, 5))
    assert keras_internals.implicit_mask(x) is None
    mask = ops.convert_to_tensor([[True, False, True], [False, False, True]])
    masked = with_mask(x, mask)
    assert keras_internals.implicit_mask(masked) is mask
    assert mask_of(masked) is mask


def test_segment_mask_shows_each_text_itself_alone():
    mask = as_numpy(masks.segment_mask([[1, 1, 2, 0], [3, 3, 3, 3]]))
    assert mask.shape == (2, 1, 4, 4)
    np.testing.assert_array_equal(mask[0, 0], matrix("1 1 0 0\n1 1 0 0\n0 0 1 0\n0 0 0 1"))
    assert mask[1].all()
