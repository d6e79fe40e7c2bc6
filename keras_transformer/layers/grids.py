"""Positions on grids, such as the rows and columns of a picture's patches."""

import math

import keras
import numpy as np

from keras_transformer.checks import check, check_choice, check_positive
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.layers.embedding import Added, sinusoidal_positions
from keras_transformer.layers.images import KERNELS, shares_of_pixels
from keras_transformer.layers.positions import AttentionPositions, RelativePositionBias


def resized_grid(vectors, sizes, interpolation="bicubic"):
    """Interpolates the vectors of a grid to a grid of other sizes, as an image of so many channels.

    So positions that were learned on small pictures serve larger ones (Dosovitskiy et al., 2021, section 3.2).

    Args:
        vectors: `(*grid, features)`, such as the weight of a `GridPositions` or a `RelativeGridBias`.
        sizes: Size of each axis of the new grid, ints or int scalar tensors.
        interpolation: "bicubic" or "bilinear", as in `ImagePreprocessing`.

    Returns:
        `(*sizes, features)`, float32 or wider; the same vectors for the same sizes.

    Raises:
        ValueError: If there is not one size for each axis, or the interpolation is unknown.

    >>> resized_grid(np.array([[1.0], [3.0]]), (4,), "bilinear").numpy().ravel().tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    check_choice(sorted(KERNELS), interpolation=interpolation)
    x = ops.convert_to_tensor(vectors)
    x = ops.cast(x, at_least_float32(x.dtype))
    rule = "`sizes` must have a size for each axis of the grid of `vectors`."
    check(len(sizes) == len(x.shape) - 1, rule, sizes=sizes, shape=tuple(x.shape))
    for axis, size in enumerate(sizes):
        if not isinstance(size, int) or size != x.shape[axis]:
            shares = ops.cast(shares_of_pixels(x.shape[axis], size, KERNELS[interpolation]), x.dtype)
            x = ops.moveaxis(ops.tensordot(shares, x, axes=[[1], [axis]]), 0, axis)
    return x


@keras.saving.register_keras_serializable("keras_transformer")
class GridPositions(Added):
    """Adds positions to the cells of a grid, such as the patches of a picture or the tubelets of a video.

    With `grid` each cell has a learned vector, and on a grid of another size the vectors are interpolated (Dosovitskiy
    et al., 2021, section 3.2). Without it the positions are sinusoidal: each axis has an equal share of the channels,
    in the order of the axes, with all sines before all cosines (Carion et al., 2020, "DETR", section A.4).

    Args:
        grid: Sizes of the grid, a tuple of int, for learned positions; None for sinusoidal ones.
        max_wavelength: The longest wavelength of sinusoidal positions divided by 2π.

    Call arguments:
        x: `(batch, *cells, d_model)`. With `grid` as many axes of cells as it has, of the same or of other sizes.

    Returns:
        `(batch, *cells, d_model)`, `x` plus its positions, in the compute dtype.

    Raises:
        ValueError: If a size is not positive, `x` has other axes, or its channels cannot be shared by the axes.

    >>> GridPositions((2, 3))(np.zeros((1, 4, 6, 8))).shape
    TensorShape([1, 4, 6, 8])
    """

    def __init__(self, grid=None, max_wavelength=10000.0, **kwargs):
        super().__init__(**kwargs)
        self.grid = None if grid is None else checked_grid(grid)
        self.max_wavelength = max_wavelength

    def build(self, x_shape):
        if self.grid is not None:
            self.embeddings = self.add_weight(
                name="embeddings",
                shape=(*self.grid, x_shape[-1]),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
                autocast=False,
            )

    def check_input(self, x):
        axes = len(x.shape) - 2
        if self.grid is not None:
            rule = "`x` must have shape `(batch, *cells, d_model)`, with an axis of cells for each one of `grid`."
            check(axes == len(self.grid), rule, shape=tuple(x.shape), grid=self.grid)
        else:
            rule = "`x` must have shape `(batch, *cells, d_model)`, whose `d_model` its axes of cells divide evenly."
            check(axes > 0 and x.shape[-1] % axes == 0, rule, shape=tuple(x.shape))

    def call(self, x):
        self.check_input(x)
        _, *cells, d_model = ops.shape(x)
        if self.grid is not None:
            return self._sum(x, resized_grid(self.embeddings, cells))
        dtype, width = at_least_float32(self.compute_dtype), d_model // len(cells)
        vectors = []
        for axis, count in enumerate(cells):
            places = ops.arange(count, dtype="int32")
            waves = sinusoidal_positions(places, width, self.max_wavelength, interleaved=False, dtype=dtype)
            waves = ops.expand_dims(waves, [i for i in range(len(cells)) if i != axis])
            vectors.append(ops.broadcast_to(waves, (*cells, width)))
        return self._sum(x, ops.concatenate(vectors, axis=-1))


@keras.saving.register_keras_serializable("keras_transformer")
class RelativeGridBias(AttentionPositions):
    """A learned bias for each head and each distance between two cells of a grid, along all axes; layers may share one.

    Liu et al., 2021, "Swin Transformer", section 3.2, equation 4. `MultiHeadAttention(positions=...)` takes it for
    inputs whose length is the number of cells, row by row, and for inputs whose attended axes are the grid's. For a
    larger grid interpolate the weight `embeddings` with `resized_grid`.

    Args:
        num_heads: Number of heads.
        grid: Sizes of the grid, a tuple of int, such as `(7, 7)` for a window.

    Raises:
        ValueError: If a size is not positive, or an input has another number of cells.

    >>> positions = RelativeGridBias(2, (3, 2))
    >>> attention = MultiHeadAttention(2, 4, positions=positions)
    >>> attention(np.ones((1, 6, 8)), np.ones((1, 6, 8))).shape, positions.embeddings.shape
    (TensorShape([1, 6, 8]), TensorShape([5, 3, 2]))
    """

    over_grid = True

    def __init__(self, num_heads, grid, **kwargs):
        super().__init__(**kwargs)
        # Biases are added in float32.
        self.autocast = False
        self.num_heads = num_heads
        self.grid = checked_grid(grid)

    def build(self, x_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(*(2 * size - 1 for size in self.grid), self.num_heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            autocast=False,
        )

    check_heads = RelativePositionBias.check_heads

    def check_lengths(self, target_len, source_len):
        cells = math.prod(self.grid)
        rule = f"`RelativeGridBias` is for the {cells} cells of its grid, and for no others."
        check(
            all(length in (None, cells) for length in (target_len, source_len)),
            rule,
            target_len=target_len,
            source_len=source_len,
            grid=self.grid,
        )

    def bias_function(self, num_heads):
        """Returns the biases themselves, float32 `(1, num_heads, cells, cells)`: no distance alone decides them."""
        self.check_heads(num_heads, None)
        places = np.indices(self.grid).reshape(len(self.grid), -1)
        steps = places[:, None, :] - places[:, :, None] + np.array(self.grid)[:, None, None] - 1
        table = ops.reshape(self.embeddings, (-1, num_heads))
        index = np.ravel_multi_index(tuple(steps), self.embeddings.shape[:-1]).astype("int32")
        by_head = ops.take(ops.cast(table, at_least_float32(self.compute_dtype)), index, axis=0)
        return ops.transpose(by_head, (2, 0, 1))[None]


def checked_grid(grid):
    """Returns the sizes of a grid as a tuple.

    Raises:
        ValueError: If they are not positive ints.
    """
    check(isinstance(grid, (list, tuple)) and grid, "`grid` must be a tuple of sizes.", grid=grid)
    for size in grid:
        check_positive(grid=size)
    return tuple(grid)
