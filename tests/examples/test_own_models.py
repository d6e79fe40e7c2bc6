"""The examples with the encoder in a Keras model of one's own: their data."""

import numpy as np
import tag_spaces
import time_series


def test_series_tell_the_order_of_the_valves_and_lose_steps():
    series, labels = time_series.generated(40, np.random.default_rng(0))
    assert {rows.shape[1] for rows in series} == {time_series.CHANNELS}
    assert labels.min() >= 0 and labels.max() < 6
    rows = time_series.without_steps(series, np.random.default_rng(0))
    missing = (rows == 0).all(axis=-1)
    lengths = [len(values) for values in series]
    assert rows.shape[:2] == (40, max(lengths))
    assert all(missing[i, length:].all() for i, length in enumerate(lengths))
    share = np.mean(np.concatenate([missing[i, :length] for i, length in enumerate(lengths)]))
    assert 0.1 < share < 0.3


def test_a_file_of_the_archive_is_read(tmp_path):
    for part, last in (("TRAIN", "b"), ("TEST", "a")):
        path = tmp_path / f"Small_{part}.ts"
        path.write_text(
            f"#made\n@classLabel true a b\n@data\n1,2,3:4,5,6:a\n7,8:9,10:{last}\n", encoding="utf-8"
        )
    (series, labels), (_, test_labels) = time_series.load(tmp_path)
    np.testing.assert_array_equal(series[0], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(series[1], [[7, 9], [8, 10]])
    assert labels.tolist() == [0, 1] and test_labels.tolist() == [0, 0]


def test_tags_are_where_a_space_follows():
    numbers = {character: i for i, character in enumerate("저는책을", start=2)}
    ids, tags = tag_spaces.arrays(["저는 책을 봐", "책"], numbers)
    assert ids[0, :6].tolist() == [2, 3, 4, 5, tag_spaces.UNKNOWN, tag_spaces.PAD]
    assert tags[0, :6].tolist() == [0, 1, 0, 1, 0, tag_spaces.NO_TAG]
    assert tags[1, :2].tolist() == [0, tag_spaces.NO_TAG]
