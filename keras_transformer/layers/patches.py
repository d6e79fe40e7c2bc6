"""Patches of pictures, videos and series: cut side by side or overlapping, and embedded."""

import math

import keras
import numpy as np

from keras_transformer.checks import check, check_positive
from keras_transformer.execution import ops
from keras_transformer.layers.base import Configured
from keras_transformer.layers.projection import Projection


class _Cutting(Configured, keras.layers.Layer):
    """Base of layers that cut their input into patches; `patch_size` and `strides` become tuples of equal length."""

    def set_sizes(self, patch_size, strides):
        """Sets the sizes of a patch and the steps from patch to patch, of one number or of one for each axis."""
        self.patch_size = _sizes("patch_size", patch_size, 2)
        count = len(self.patch_size)
        self.strides = self.patch_size if strides is None else _sizes("strides", strides, count)
        fits = len(self.strides) == count and all(map(int.__le__, self.strides, self.patch_size))
        rule = "`strides` must have a number for each axis of `patch_size`, at most as large: all pixels are read."
        check(fits, rule, strides=strides, patch_size=patch_size)

    def cells(self, shape):
        """Returns how many patches there are along each axis: ints, or None where the size is not known.

        Args:
            shape: `(batch, *sizes, channels)`.

        Raises:
            ValueError: If a size is not that of a whole number of patches, or the rank does not fit.
        """
        count = len(self.patch_size)
        pairs = list(zip(shape[1:-1], self.patch_size, self.strides, strict=False))
        fits = len(shape) == count + 2 and shape[-1] is not None
        fits = fits and all(n is None or (n >= p and (n - p) % s == 0) for n, p, s in pairs)
        steps = "" if self.strides == self.patch_size else f" plus multiples of strides={self.strides}"
        check(
            fits,
            f"`images` must have shape `(batch, *sizes, channels)` with {count} sizes, which are "
            f"{'' if steps else 'multiples of '}patch_size={self.patch_size}{steps}.",
            shape=tuple(shape),
        )
        return tuple(None if n is None else (n - p) // s + 1 for n, p, s in pairs)

    def cut(self, x):
        """Cuts into patches.

        Args:
            x: `(batch, *sizes, channels)`.

        Returns:
            A tensor whose elements are in the order of `(batch, *cells, *patch_size, channels)`, and the cells: ints,
            and int scalar tensors where a size is known only now.
        """
        known = self.cells(x.shape)
        _, *sizes, features = ops.shape(x) if None in known else x.shape
        steps = list(zip(known, sizes, self.patch_size, self.strides, strict=True))
        cells = tuple(_count(n, p, s) if m is None else m for m, n, p, s in steps)
        patches = None
        for m, (_, n, p, s) in reversed(list(zip(cells, steps, strict=True))):
            if s != p:
                x = ops.reshape(x, (-1, n, 1 if patches is None else patches, features))
                places = ops.arange(m, dtype="int32")[:, None] * s + np.arange(p, dtype="int32")
                x = ops.take(x, places, axis=1)
            if patches is not None:
                x = ops.transpose(ops.reshape(x, (-1, m, p, patches, features)), (0, 1, 3, 2, 4))
            patches, features = m if patches is None else m * patches, p * features
        return x, cells


def _count(size, patch, stride):
    """Returns how many patches fit into a size that is known only now; the graph fails unless they cover it."""
    count = ops.maximum((size - patch) // stride + 1, 1)
    ends = [ops.arange(length + 2, dtype="int32") for length in (size, (count - 1) * stride + patch)]
    # Rows of unequal lengths, of which none has one element, cannot be added.
    return (ops.shape(ends[0] + ends[1])[0] - 2 - patch) // stride + 1


@keras.saving.register_keras_serializable("keras_transformer")
class Patches(_Cutting):
    """Cuts pictures, videos or series into patches, side by side or overlapping. It has no weights.

    `keras.layers.Dense(d_model)` behind it embeds the cells of the grid. `PatchEmbedding` does both, and makes one row
    of the grid.

    Args:
        patch_size: Size of a patch along each axis: `(height, width)`, `(frames, height, width)` for tubelets of a
            video, `(steps,)` for a series; or one int for the height and the width of pictures.
        strides: Step from a patch to the next one, an int or one for each axis; `patch_size` when None. Smaller ones
            make patches overlap.

    Call arguments:
        images: `(batch, *sizes, channels)`. A size is `patch_size` plus a multiple of the stride; it may be known only
            when a graph runs, which fails on other sizes.

    Returns:
        `(batch, *cells, prod(patch_size) * channels)`; the features of a cell are its pixels, row by row.

    Raises:
        ValueError: If a size is not positive, a stride is larger than its patch, or the images do not fit.

    >>> Patches((2, 4, 4))(np.ones((1, 6, 8, 12, 3))).shape
    TensorShape([1, 3, 2, 3, 96])
    """

    def __init__(self, patch_size, strides=None, **kwargs):
        super().__init__(**kwargs)
        self.set_sizes(patch_size, strides)

    def call(self, images):
        patches, cells = self.cut(images)
        batch, features = ops.shape(images)[0], math.prod(self.patch_size) * images.shape[-1]
        return ops.reshape(patches, (batch, *cells, features))

    def compute_output_shape(self, images_shape):
        features = math.prod(self.patch_size) * images_shape[-1]
        return (images_shape[0], *self.cells(images_shape), features)


@keras.saving.register_keras_serializable("keras_transformer")
class PatchEmbedding(_Cutting):
    """Cuts pictures, videos or series into patches, multiplies each with one matrix, and adds a bias.

    Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words", section 3.1, equation 1. Patches come row by row. One
    product computes it; a convolution of that stride gives the same (benchmarks/tried.md). With three sizes the patches
    are tubelets of a video (Arnab et al., 2021, "ViViT", section 3.2).

    Args:
        patch_size: Size of a patch along each axis: `(height, width)`, `(frames, height, width)` for tubelets of a
            video, `(steps,)` for a series; or one int for the height and the width of pictures.
        d_model: Width of an embedding.
        kernel_initializer: Initializer of the matrix.
        strides: Step from a patch to the next one, an int or one for each axis; `patch_size` when None. Smaller ones
            make patches overlap.

    Call arguments:
        images: `(batch, *sizes, channels)`. A size is `patch_size` plus a multiple of the stride; it may be known only
            when a graph runs, which fails on other sizes.

    Returns:
        `(batch, patches, d_model)`.

    Raises:
        ValueError: If a size is not positive, a stride is larger than its patch, or the images do not fit.

    >>> PatchEmbedding(2, 5)(np.ones((1, 4, 6, 3))).shape
    TensorShape([1, 6, 5])
    >>> PatchEmbedding(4, 5, strides=2)(np.ones((1, 8, 8, 3))).shape
    TensorShape([1, 9, 5])
    """

    def __init__(self, patch_size, d_model, kernel_initializer="glorot_uniform", strides=None, **kwargs):
        super().__init__(**kwargs)
        self.set_sizes(patch_size, strides)
        self.d_model = d_model
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, images_shape):
        cells = self.cells(images_shape)
        # Letters without c and d, which are taken.
        axes = "qrsthw"[-len(cells) :]
        self.projection = Projection(
            f"...{axes}c,{axes}cd->...d",
            self.d_model,
            bias_axes="d",
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="projection",
        )
        self.projection.build((images_shape[0], _product(cells), *self.patch_size, images_shape[-1]))

    def call(self, images):
        patches, cells = self.cut(images)
        shape = (-1, math.prod(cells), *self.patch_size, images.shape[-1])
        return self.projection(ops.reshape(patches, shape))

    def compute_output_shape(self, images_shape):
        return (images_shape[0], _product(self.cells(images_shape)), self.d_model)


def _sizes(name, value, count):
    """Returns a size for each axis: those given, or one int for `count` axes."""
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value,) * count
    check(1 <= len(sizes) <= 6, f"`{name}` must be an int, or one for each axis.", **{name: value})
    for size in sizes:
        check_positive(**{name: size})
    return sizes


def _product(cells):
    return None if None in cells else math.prod(cells)
