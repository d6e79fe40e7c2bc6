"""int8: how layers with one product are quantized, and how they multiply."""

import keras

from keras_transformer.execution import native, ops
from keras_transformer.keras_internals import keep_precision

# Largest int8 weight. CPUs without VNNI add products of int8 in pairs, in 16 bits. There larger weights overflow, and
# nothing reports it.
MAX_INT8_WEIGHT = 63


class OneProduct:
    """Mixin for layers of Keras that compute one product: it comes before Keras's class.

    `operands()` returns the weights of the product, or None where Keras's own way computes it.
    """

    # Axes of the kernel that the product sums over: their weights share a scale. None where Keras's way computes it.
    summed_axes = None

    def operands(self):
        """Returns the `Operands` of the product; None where this class does not compute it."""
        raise NotImplementedError

    def is_plain_int8(self, kernel):
        """Returns whether the layer is quantized as the library does it, and the backend multiplies by its kernel."""
        plain = not self.lora_enabled and self.quantization_config is None
        return self.quantization_mode == "int8" and plain and is_native(kernel)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras refuses subclasses. These have the weights that Keras's own layers have.
        narrow, narrowed = config, False
        if mode == "int8" and self.summed_axes is not None:
            narrow, narrowed = narrow_weights(config, self.summed_axes)
        super().quantize(mode, type_check=False, config=narrow)
        if narrowed:
            self.quantization_config = None  # a layer from a file has none either

    def quantized_build(self, *args, **kwargs):
        super().quantized_build(*args, **kwargs)
        if self.quantization_mode in (None, "int8"):
            for weight in self.weights:
                if weight.name.endswith("_scale"):
                    keep_precision(weight)

    def in_precision_of_scales(self, function, x):
        """Calls Keras's own way to compute in int8, whose scales are float32, in any precision.

        Keras computes the gradient of `x` in the dtype of the scales.
        """
        if self.quantization_mode != "int8":
            return function(x)
        return ops.cast(function(ops.cast(x, ops.at_least_float32(self.compute_dtype))), self.compute_dtype)


def is_native(kernel):
    """Returns whether the backend has an int8 product of its own here, which multiplies by this variable."""
    return native.multiplies_int8(kernel, MAX_INT8_WEIGHT)


def int8_product(operands, rows):
    """Multiplies rows by an int8 kernel; the gradient is that of a product with its floats, as in Keras.

    Args:
        operands: `Operands` of an int8 kernel.
        rows: `(m, k)`.

    Returns:
        `(m, n)`, of the dtype of the rows.
    """
    if operands.multiply is not None:
        return _rounded_product(operands.multiply, rows)
    multiply = kernel_product(operands)

    @ops.written_gradient
    def product(rows):
        def gradient(upstream):
            scaled = upstream / ops.cast(operands.scale, upstream.dtype)
            kernel = ops.cast(operands.kernel, upstream.dtype)
            return ops.matmul(scaled, kernel if operands.transposed else ops.transpose(kernel, (1, 0)))

        return _rounded_product(multiply, rows), gradient

    return product(rows)


def kernel_product(operands):
    """Makes a function that multiplies whole rows by an int8 kernel, without a gradient.

    It returns `rows @ kernel / (127 * scale)`, float32 `(m, n)`, for float32 rows of whole numbers from -127 to 127.
    """
    kernel, scale, transposed = operands.kernel, operands.scale, operands.transposed
    if operands.is_native:
        return native.int8_product(kernel, scale, transposed)
    kernel = ops.transpose(kernel, (1, 0)) if transposed else kernel

    def product(rows):
        sums = ops.matmul(ops.cast(rows, "int8"), kernel)  # int32
        return ops.cast(sums, "float32") / (127.0 * ops.cast(scale, "float32"))

    return product


def _rounded_product(multiply, rows):
    """Multiplies rows by an int8 kernel, each row rounded to int8 with a scale of its own."""
    # Keras's `abs_max_quantize` would also clip, but nothing here can be larger than 127. It adds epsilon to the
    # largest value. Here epsilon is the least that this value can be, which takes one operation less; a row whose
    # values are near epsilon is then rounded a little better.
    x = ops.cast(rows, "float32")
    largest = ops.max(ops.abs(x), axis=-1, keepdims=True, initial=keras.config.epsilon())
    return ops.cast(multiply(ops.round(x * (127.0 / largest))) * largest, rows.dtype)


def narrow_weights(config, axis):
    """Limits int8 weights to `MAX_INT8_WEIGHT`, unless the user chose quantizers.

    Args:
        config: A `keras.quantizers.Int8QuantizationConfig`, or None.
        axis: The axes of a kernel whose weights share a scale.

    Returns:
        The configuration, and whether it is the library's own.
    """
    default = keras.quantizers.AbsMaxQuantizer()
    activations = default if config is None else config.activation_quantizer
    plain = type(activations) is type(default) and activations.get_config() == default.get_config()
    if not plain or (config is not None and config.weight_quantizer is not None):
        return config, False
    weights = keras.quantizers.AbsMaxQuantizer(axis=axis, value_range=(-MAX_INT8_WEIGHT, MAX_INT8_WEIGHT))
    return keras.quantizers.Int8QuantizationConfig(weights, activations), True


# Whether an int8 product can be computed, and exported, here.
can_multiply_int8 = native.has_int8_product


def has_int8_weights(model):
    """Returns whether a model is quantized to int8, at least in part."""
    return any(weight.dtype == "int8" for weight in model.weights)
