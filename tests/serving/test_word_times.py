"""Dynamic time warping and the words of tokens, beside NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.serving.word_times import begins_word, token_times, warped


def path_of(costs):
    """Returns the column where the cheapest path enters each row: the textbook's table and the way back."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    for i in range(rows):
        for j in range(columns):
            total[i + 1, j + 1] = costs[i, j] + min(total[i, j], total[i, j + 1], total[i + 1, j])
    i, j, entered = rows, columns, np.zeros(rows, int)
    while i and j:
        entered[i - 1] = j - 1
        i, j = min(((i - 1, j - 1), (i - 1, j), (i, j - 1)), key=lambda place: total[place])
    return entered


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (4, 4), (5, 40), (12, 6), (9, 257)])
def test_the_path_is_the_cheapest(rows, columns):
    for seed in range(5):
        costs = np.random.default_rng(seed).normal(size=(rows, columns)).astype("float32")
        np.testing.assert_array_equal(warped(tf.constant(costs)), path_of(costs))


def test_tokens_begin_where_the_heads_look():
    """Two heads see three tokens after two of a prompt, each for four of twelve places; places beyond are noise."""
    generator = np.random.default_rng(0)
    scores = generator.uniform(0, 0.05, (2, 5, 16))
    for token in range(3):
        scores[:, 1 + token, 4 * token : 4 * token + 4] += 0.5
    scores[:, :, 12:] = generator.uniform(0, 1, (2, 5, 4))
    found = token_times(tf.constant(scores, tf.float32), 1, 12).numpy()
    assert found.tolist()[:3] == [0, 4, 8] and len(found) == 3


def test_a_word_begins_after_a_blank_or_with_a_character():
    written = tf.constant([b"a", b" b", "가".encode(), "가".encode()[:2], "가".encode()[2:], b"", b"."])
    blank = begins_word(written, tf.zeros(7, tf.bool)).numpy()
    assert blank.tolist() == [False, True, False, False, False, False, False]
    character = begins_word(written, tf.ones(7, tf.bool)).numpy()
    assert character.tolist() == [True, True, True, True, False, True, True]
