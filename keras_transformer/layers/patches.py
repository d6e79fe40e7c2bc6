"""Images as sequences: patches, each a vector."""

import operator

import keras
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.layers.product import product


def height_and_width(**size):
    """`(height, width)` of a size that is one int for both, or a pair; `ValueError` for one that is not positive."""
    ((name, value),) = size.items()
    pair = (value, value) if not isinstance(value, (list, tuple)) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"`{name}` must be an int or `(height, width)`. Received: {name}={value!r}.")
    check_positive(**{name: pair[0]})
    check_positive(**{name: pair[1]})
    return pair


@keras.saving.register_keras_serializable("keras_transformer")
class PatchEmbedding(keras.layers.Layer):
    """Cuts images into patches side by side, and multiplies each with one matrix.

    Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words", section 3.1, equation 1. Patches come row by row. As one
    product; a convolution of that stride does the same (docs/decisions.md).

    Args:
        patch_size: Pixels of a patch, an int or `(height, width)`.
        d_model: Width of an embedding.
        kernel_initializer: Initializer of the matrix, applied to `(height * width * channels, d_model)`.

    Call arguments:
        images: `(batch, height, width, channels)`, whose height and width are known multiples of the patch's.

    Returns:
        `(batch, patches, d_model)`.

    Raises:
        ValueError: If a size is not positive, or the images are no such multiples.
    """

    def __init__(self, patch_size, d_model, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.patch_size = height_and_width(patch_size=patch_size)
        check_positive(d_model=d_model)
        self.d_model = d_model
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, images_shape):
        self._grid(images_shape)
        shape = (*self.patch_size, images_shape[-1])
        initializer = self.kernel_initializer.clone()
        matrix = (shape[0] * shape[1] * shape[2], self.d_model)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*shape, self.d_model),
            initializer=lambda shape, dtype=None: ops.reshape(initializer(matrix, dtype), shape),
        )
        self.bias = self.add_weight(name="bias", shape=(self.d_model,), initializer="zeros")
        self.built = True

    def _grid(self, shape):
        """How many patches stand below one another, and how many side by side."""
        sides = tuple(shape[1:3])
        if len(shape) != 4 or None in shape[1:] or any(map(operator.mod, sides, self.patch_size)):
            raise ValueError(
                "`images` must have shape `(batch, height, width, channels)`, height and width multiples of "
                f"patch_size={self.patch_size}. Received: shape={tuple(shape)}."
            )
        return tuple(map(operator.floordiv, sides, self.patch_size))

    def call(self, images):
        rows, columns = self._grid(images.shape)
        height, width = self.patch_size
        channels = images.shape[-1]
        x = ops.reshape(images, (-1, rows, height, columns, width, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        x = ops.reshape(x, (-1, rows * columns, height, width, channels))
        return product(x, self.kernel, self.compute_dtype) + ops.cast(self.bias, self.compute_dtype)

    def compute_output_shape(self, images_shape):
        rows, columns = self._grid(images_shape)
        return (images_shape[0], rows * columns, self.d_model)

    def get_config(self):
        return {
            **super().get_config(),
            "patch_size": self.patch_size,
            "d_model": self.d_model,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
