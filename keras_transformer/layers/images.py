"""Images: their preprocessing."""

import keras
import numpy as np

from keras_transformer.checks import check, check_choice, check_range, height_and_width
from keras_transformer.execution import ops
from keras_transformer.layers.base import Configured


def _triangle(distance):
    return ops.maximum(1.0 - distance, 0.0)


def _cubic(distance):
    near = (1.5 * distance - 2.5) * distance**2 + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return ops.where(distance < 1.0, near, ops.where(distance < 2.0, far, 0.0))


KERNELS = {"bilinear": _triangle, "bicubic": _cubic}


@keras.saving.register_keras_serializable("keras_transformer")
class ImagePreprocessing(Configured, keras.layers.Layer):
    """`(scale * resized - mean) / deviation`, channel by channel, in float32 whatever the policy.

    It has no weights. Put it before a model, so that an export takes images as they are.

    Args:
        size: Height and width in pixels after resizing, an int or `(height, width)`; None to keep the size.
        mean: One number, or one for each channel.
        deviation: One number above 0, or one for each channel.
        scale: Factor of the pixels.
        interpolation: "bilinear" or "bicubic" (Keys, 1981), computed as PIL does: a pixel of a smaller image is a
            weighted mean of all the pixels that it covers.

    Call arguments:
        images: `(batch, height, width, channels)`, whole numbers or floats.

    Returns:
        float32 `(batch, *size, channels)`.

    Raises:
        ValueError: If `size` or a deviation is not positive, the interpolation is unknown, or `mean` or `deviation` has
            neither one number nor one for each channel.

    >>> ImagePreprocessing(size=2)(np.zeros((1, 4, 4, 3), "uint8")).shape
    TensorShape([1, 2, 2, 3])
    """

    def __init__(self, size=None, mean=0.0, deviation=1.0, scale=1 / 255, interpolation="bilinear", **kwargs):
        super().__init__(**kwargs)
        self.size = None if size is None else height_and_width(size=size)
        self.mean = _numbers(mean)
        self.deviation = _numbers(deviation)
        for value in self.deviation:
            check_range(0, above=True, deviation=value)
        check_choice(sorted(KERNELS), interpolation=interpolation)
        self.scale = scale
        self.interpolation = interpolation
        # A bfloat16 holds no 256 shades.
        self.autocast = False

    def build(self, images_shape):
        channels = images_shape[-1]
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            fits = channels is None or len(values) in (1, channels)
            check(
                fits,
                f"`{name}` must be one number, or one for each of {channels} channels.",
                **{name: values},
            )
        self.built = True

    def call(self, images):
        x = ops.cast(images, "float32")
        if self.size is not None and tuple(x.shape[1:3]) != self.size:
            dtype = keras.backend.standardize_dtype(images.dtype)
            shades = float(np.iinfo(dtype).max) if "int" in dtype else None
            x = self._resized(x, shades)
        mean, deviation = (ops.convert_to_tensor(part, "float32") for part in (self.mean, self.deviation))
        return (x * self.scale - mean) / deviation

    def _resized(self, x, shades):
        """Resizes along the rows, then along the columns; whole numbers stay between 0 and `shades`."""
        for equation, axis, new in (("bhwc,pw->bhpc", 2, self.size[1]), ("bhwc,ph->bpwc", 1, self.size[0])):
            x = ops.einsum(
                equation, x, shares_of_pixels(ops.shape(x)[axis], new, KERNELS[self.interpolation])
            )
            x = x if shades is None else ops.clip(x, 0.0, shades)
        return x

    def compute_output_shape(self, images_shape):
        batch, *size, channels = images_shape
        return (batch, *(size if self.size is None else self.size), channels)

    def compute_output_spec(self, images):
        return keras.KerasTensor(self.compute_output_shape(images.shape), "float32")


def shares_of_pixels(old, new, kernel):
    """The share of each of `old` pixels of a row in each of `new` pixels: float32 `(new, old)`, rows of sum 1.

    Resizing is a product with this matrix, which XLA compiles too. It does not compile TensorFlow's own operation.

    Args:
        old: Number of pixels, an int or an int scalar tensor.
        new: Number of pixels, an int or an int scalar tensor.
        kernel: One of `KERNELS`.
    """
    ratio = ops.cast(old, "float32") / ops.cast(new, "float32")
    places = [ops.cast(ops.arange(count, dtype="int32"), "float32") + 0.5 for count in (old, new)]
    shares = kernel(ops.abs(places[0] - ratio * places[1][:, None]) / ops.maximum(ratio, 1.0))
    return shares / ops.sum(shares, axis=1, keepdims=True)


def _numbers(value):
    """Turns one number or several into a tuple of float."""
    return tuple(map(float, value)) if np.ndim(value) else (float(value),)
