import numpy as np
import pytest
from contracts import as_numpy, mask_of, with_mask
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


def test_causal_window():
    mask = masks.combine(masks.look_ahead_mask(4), masks.local_mask(4, 2))
    table = """
        1 0 0 0
        1 1 0 0
        0 1 1 0
        0 0 1 1
    """
    np.testing.assert_array_equal(as_numpy(mask)[0, 0], matrix(table))


@pytest.mark.parametrize("window", [0, -3])
def test_local_mask_refuses_a_window_that_sees_nothing(window):
    with pytest.raises(ValueError, match=rf"`window` must be a positive integer.*window={window}\."):
        masks.local_mask(5, window)


def test_combine_of_nothing_is_no_restriction():
    assert masks.combine() is None
    assert masks.combine(None, None) is None


def test_combine_allows_what_all_allow():
    a = np.array([[True, True, False, False]])
    b = np.array([[True, False, True, False]])
    np.testing.assert_array_equal(as_numpy(masks.combine(a, b)), [[True, False, False, False]])
    np.testing.assert_array_equal(as_numpy(masks.combine(None, a)), a)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 7), (1, 1, 5, 7)), ((2, 5, 7), (2, 1, 5, 7)), ((2, 3, 5, 7), (2, 3, 5, 7))],
)
@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_an_attention_mask_gets_the_rank_of_scores(shape, expected, dtype):
    mask = np.random.default_rng(0).integers(0, 2, shape)
    result = as_numpy(masks.as_attention_mask(ops.convert_to_tensor(mask.astype(dtype))))
    np.testing.assert_array_equal(result, mask.astype(bool).reshape(expected))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5, 7, 11)])
def test_attention_masks_of_other_ranks_are_refused(shape):
    with pytest.raises(ValueError) as error:
        masks.as_attention_mask(ops.ones(shape, "bool"))
    assert str(error.value).endswith(f"Received: shape={shape}.")


@pytest.mark.parametrize("shape", [(2, 7), (2, 1, 1, 7)])
@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_a_token_mask_gets_rank_2(shape, dtype):
    mask = np.random.default_rng(0).integers(0, 2, shape)
    result = as_numpy(masks.as_token_mask(mask.astype(dtype)))
    np.testing.assert_array_equal(result, mask.astype(bool).reshape(2, 7))


def test_the_padding_mask_is_a_token_mask():
    ids = np.array([[5, 7, 0], [3, 0, 4]])
    np.testing.assert_array_equal(as_numpy(masks.as_token_mask(masks.padding_mask(ids))), ids != 0)


@pytest.mark.parametrize("shape", [(7,), (2, 5, 7), (2, 3, 1, 7), (2, 1, 5, 7)])
def test_token_masks_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="`memory_padding_mask` must have shape") as error:
        masks.as_token_mask(ops.ones(shape, "bool"), "memory_padding_mask")
    assert str(error.value).endswith(f"Received: shape={shape}.")


def test_additive_masks_of_tokens_are_refused():
    """Zeros and minus infinities would be read the other way round."""
    with pytest.raises(
        ValueError, match=r"must be boolean, True where a token is real. Received: dtype=float32\."
    ):
        masks.as_token_mask(np.zeros((2, 5), "float32"))


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


def test_an_additive_mask_is_refused_and_one_of_ones_is_not():
    ones = np.tril(np.ones((3, 3)))
    np.testing.assert_array_equal(as_numpy(masks.as_attention_mask(ones))[0, 0], ones.astype(bool))
    with pytest.raises(ValueError, match=r"`attention_mask` must be boolean or 0 and 1"):
        masks.as_attention_mask(np.triu(np.full((3, 3), -1e9), 1))
