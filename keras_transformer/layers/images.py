"""Images as they come, to what a model was trained on."""

import keras
from keras import ops

from keras_transformer.checks import check_range
from keras_transformer.layers.patches import height_and_width


def _triangle(distance):
    return ops.maximum(1.0 - distance, 0.0)


def _cubic(distance):
    near = (1.5 * distance - 2.5) * distance**2 + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return ops.where(distance < 1.0, near, ops.where(distance < 2.0, far, 0.0))


KERNELS = {"bilinear": _triangle, "bicubic": _cubic}


@keras.saving.register_keras_serializable("keras_transformer")
class ImagePreprocessing(keras.layers.Layer):
    """`(scale * resized - mean) / deviation`, channel by channel, in float32 whatever the policy.

    It has no weights: put it before a model, and an export takes images as they are.

    Args:
        size: Pixels that images are brought to, an int or `(height, width)`; None to leave them.
        mean: One number, or one for each channel.
        deviation: Likewise, above 0.
        scale: What pixels are multiplied by.
        interpolation: "bilinear" or "bicubic" (Keys, 1981), as PIL has them: where images get smaller, a pixel is made
            of all that it covers.

    Call arguments:
        images: `(batch, height, width, channels)`, whole numbers or floats.

    Returns:
        float32 `(batch, *size, channels)`.

    Raises:
        ValueError: If `size` or a deviation is not positive, there is no such interpolation, or `mean` or
            `deviation` is not of as many numbers as images have channels.
    """

    def __init__(self, size=None, mean=0.0, deviation=1.0, scale=1 / 255, interpolation="bilinear", **kwargs):
        super().__init__(**kwargs)
        self.size = None if size is None else height_and_width(size=size)
        self.mean = _numbers(mean)
        self.deviation = _numbers(deviation)
        for value in self.deviation:
            check_range(0, above=True, deviation=value)
        check_range(0, above=True, scale=scale)
        if interpolation not in KERNELS:
            raise ValueError(
                f"`interpolation` must be one of {sorted(KERNELS)}. Received: interpolation={interpolation!r}."
            )
        self.scale = scale
        self.interpolation = interpolation
        self.autocast = False  # a bfloat16 holds no 256 shades

    def build(self, images_shape):
        channels = images_shape[-1]
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if channels is not None and len(values) not in (1, channels):
                raise ValueError(
                    f"`{name}` must be one number, or one for each of {channels} channels. "
                    f"Received: {name}={values}."
                )
        self.built = True

    def call(self, images):
        x = ops.cast(images, "float32")
        if self.size is not None and tuple(x.shape[1:3]) != self.size:
            shades = 255.0 if "int" in keras.backend.standardize_dtype(images.dtype) else None
            x = self._resized(x, shades)
        mean, deviation = (ops.convert_to_tensor(part, "float32") for part in (self.mean, self.deviation))
        return (x * self.scale - mean) / deviation

    def _resized(self, x, shades):
        """Resized along the rows, then along the columns; whole numbers stay between 0 and `shades`."""
        for equation, axis, new in (("bhwc,pw->bhpc", 2, self.size[1]), ("bhwc,ph->bpwc", 1, self.size[0])):
            x = ops.einsum(equation, x, _shares(ops.shape(x)[axis], new, KERNELS[self.interpolation]))
            x = x if shades is None else ops.clip(x, 0.0, shades)
        return x

    def compute_output_shape(self, images_shape):
        batch, *size, channels = images_shape
        return (batch, *(size if self.size is None else self.size), channels)

    def compute_output_spec(self, images):
        return keras.KerasTensor(self.compute_output_shape(images.shape), "float32")

    def get_config(self):
        return {
            **super().get_config(),
            "size": self.size,
            "mean": self.mean,
            "deviation": self.deviation,
            "scale": self.scale,
            "interpolation": self.interpolation,
        }


def _shares(old, new, kernel):
    """How much of each of `old` pixels in a row each of `new` ones is made of: float32 `(new, old)`, rows of sum 1.

    As products with such matrices resizing is compiled by XLA too, which TensorFlow's own operation is not.
    """
    ratio = ops.cast(old, "float32") / new
    centres = (ops.arange(new, dtype="float32") + 0.5) * ratio
    places = ops.cast(ops.arange(old, dtype="int32"), "float32") + 0.5
    shares = kernel(ops.abs(places - centres[:, None]) / ops.maximum(ratio, 1.0))
    return shares / ops.sum(shares, axis=1, keepdims=True)


def _numbers(value):
    """One number or several, a tuple of float."""
    return tuple(map(float, value)) if isinstance(value, (list, tuple)) else (float(value),)
