"""Positions on grids: by hand, of other sizes, and inside attention."""

import keras
import numpy as np
import pytest
from contracts import as_numpy, assert_close, check_config, normal, randomized, refuses

from keras_transformer.layers import (
    EncoderLayer,
    GridPositions,
    MultiHeadAttention,
    RelativeGridBias,
    resized_grid,
    sinusoidal_positions,
)


def test_sinusoidal_positions_share_the_channels_among_the_axes():
    found = as_numpy(GridPositions(max_wavelength=100.0)(np.zeros((1, 3, 5, 8), "float32")))[0]
    rows, columns = (
        as_numpy(sinusoidal_positions(np.arange(n), 4, 100.0, interleaved=False)) for n in (3, 5)
    )
    for row in range(3):
        for column in range(5):
            assert_close(found[row, column], np.concatenate([rows[row], columns[column]]))
    refuses("divide evenly", GridPositions(), np.zeros((1, 3, 5, 7)))


def test_learned_positions_are_those_of_the_cells_or_interpolated():
    layer = GridPositions((2, 3))
    layer.build((None, None, None, 7))
    randomized(layer)
    table = as_numpy(layer.embeddings)
    x = normal(2, 2, 3, 7)
    assert_close(layer(x), x + table)
    larger = normal(2, 4, 3, 7)
    assert_close(layer(larger), larger + as_numpy(resized_grid(layer.embeddings, (4, 3))))
    inputs = keras.Input((None, None, 7))
    model = keras.Model(inputs, layer(inputs))
    for each in (x, larger):
        assert_close(model(each), layer(each))
    check_config(layer)
    refuses(r"an axis of cells for each one of `grid`", layer, normal(2, 6, 7))


def test_an_interpolated_grid_keeps_lines_and_its_size():
    rows, columns = np.meshgrid(np.arange(4.0), np.arange(6.0), indexing="ij")
    grid = np.stack([rows, columns, 0 * rows + 5], axis=-1).astype("float32")
    assert_close(resized_grid(grid, (4, 6)), grid, 0)
    large = as_numpy(resized_grid(grid, (8, 12)))
    # Away from the edges the distance of neighbours is half as large.
    np.testing.assert_allclose(np.diff(large[..., 0], axis=0)[3:4], 0.5, atol=1e-5)
    np.testing.assert_allclose(np.diff(large[..., 1], axis=1)[:, 4:7], 0.5, atol=1e-5)
    np.testing.assert_allclose(large[..., 2], 5, atol=1e-5)
    refuses("a size for each axis", resized_grid, grid, (8,))
    refuses("interpolation='nearest'", resized_grid, grid, (8, 8), "nearest")


def swin_bias(table, grid, num_heads):
    """The biases of Swin, cell by cell: `(num_heads, cells, cells)`."""
    cells = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    bias = np.zeros((num_heads, len(cells), len(cells)))
    for i, query in enumerate(cells):
        for j, key in enumerate(cells):
            bias[:, i, j] = table[key[0] - query[0] + grid[0] - 1, key[1] - query[1] + grid[1] - 1]
    return bias


def test_a_bias_for_each_distance_along_both_axes():
    grid = (2, 3)
    attention = MultiHeadAttention(4, 5, positions=RelativeGridBias(4, grid), num_key_value_heads=2)
    x = normal(2, 6, 8)
    attention(x, x)
    randomized(attention)
    plain = MultiHeadAttention(4, 5, num_key_value_heads=2)
    plain(x, x)
    plain.set_weights([w for w in attention.get_weights() if w.shape != (3, 5, 4)])
    _, scores = attention(x, x, return_attention_scores=True)
    _, before = plain(x, x, return_attention_scores=True)
    biased = np.exp(np.log(as_numpy(before)) + swin_bias(as_numpy(attention.positions.embeddings), grid, 4))
    assert_close(scores, biased / biased.sum(axis=-1, keepdims=True))


def test_windows_are_attended_axes():
    """Swin: windows of 2 by 3 cells of a grid of 4 by 6, without moving a cell."""
    x = normal(2, 2, 2, 2, 3, 8)
    attention = MultiHeadAttention(2, 4, attention_axes=(2, 4), positions=RelativeGridBias(2, (2, 3)))
    found = as_numpy(attention(x, x))
    rows = x.transpose(0, 1, 3, 2, 4, 5).reshape(8, 6, 8)
    alone = as_numpy(attention(rows, rows)).reshape(2, 2, 2, 2, 3, 8).transpose(0, 1, 3, 2, 4, 5)
    assert_close(found, alone)
    layer = EncoderLayer(attention=attention, d_ff=7, dropout=0.0)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("shape", [(1, 5, 8), (1, 3, 3, 8)])
def test_another_number_of_cells_is_refused(shape):
    attention = MultiHeadAttention(2, 4, positions=RelativeGridBias(2, (2, 3)))
    with pytest.raises(ValueError, match="`RelativeGridBias` is for the 6 cells of its grid"):
        attention(np.ones(shape, "float32"), np.ones(shape, "float32"))
    refuses("num_heads=4, biases=2", MultiHeadAttention, 4, 5, positions=RelativeGridBias(2, (2, 3)))


@pytest.mark.parametrize("grid", [(), 3, (2, 0)])
def test_a_wrong_grid_is_named(grid):
    for make in (GridPositions, lambda grid: RelativeGridBias(2, grid)):
        refuses("`grid` must be", make, grid)
