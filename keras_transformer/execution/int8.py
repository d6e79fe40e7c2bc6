"""int8: how layers with one product are quantized, and how they multiply."""

import keras
import numpy as np

from keras_transformer.execution import native, ops
from keras_transformer.keras_internals import keep_precision

# The largest number of an int8 part of the rows, by the number of parts.
STEPS = {1: 127, 2: 63}

# The largest int8 weight, by the number of parts. The rows are made unsigned: `STEPS` is added to them. CPUs without
# VNNI add the products in pairs, in 16 bits. There larger weights overflow, and nothing reports it.
MAX_INT8_WEIGHT = {1: 63, 2: 127}


@keras.saving.register_keras_serializable("keras_transformer")
class TwoPartQuantizer(keras.quantizers.AbsMaxQuantizer):
    """Rounds the inputs of int8 layers to two int8 parts: a coarse one, and a fine one for the remainder.

    One int8 part has 255 steps. In language models a few inputs are many times as large as the others, which then have
    few steps left. Two parts have 15,877 steps together, 14 bits. They are rows of the same product, so a step of
    decoding, which waits for the weights to be read, does not take twice as long, but 1.1 to 1.4 times in
    our measurements. Weights may then be as large as 127 in place of 63, because the numbers of each part are half as
    large.

        config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=TwoPartQuantizer())
        model.quantize("int8", config=config)

    The layers of this library compute so. Keras's own layers see an `AbsMaxQuantizer`, with one part.

    Args:
        **kwargs: The arguments of `keras.quantizers.AbsMaxQuantizer`. If one differs from its default, all layers
            compute in Keras's way, with one part.
    """


def two_parts():
    """Returns the configuration of `quantize("int8")` that rounds the inputs of products to two parts."""
    return keras.quantizers.Int8QuantizationConfig(activation_quantizer=TwoPartQuantizer())


def parts_of(config):
    """Returns in how many parts a product rounds its rows; None where the user chose other quantizers.

    Args:
        config: A `keras.quantizers.Int8QuantizationConfig`, or None.
    """
    if config is None:
        return 1
    kinds, inputs = {keras.quantizers.AbsMaxQuantizer: 1, TwoPartQuantizer: 2}, config.activation_quantizer
    if config.weight_quantizer is not None or type(inputs) not in kinds:
        return None
    defaults = keras.quantizers.AbsMaxQuantizer().get_config()
    # A quantizer from a file has lists for tuples.
    same = all(np.array_equal(value, getattr(inputs, name)) for name, value in defaults.items())
    return kinds[type(inputs)] if same and inputs.axis is None else None


class OneProduct:
    """Mixin for layers of Keras that compute one product: it comes before Keras's class.

    `operands()` returns the weights of the product, or None where Keras's own way computes it.
    """

    # Axes of the kernel that the product sums over: their weights share a scale. None where Keras's way computes it.
    summed_axes = None

    def operands(self):
        """Returns the `Operands` of the product; None where this class does not compute it."""
        raise NotImplementedError

    @property
    def int8_kernel(self):
        """The first int8 weight. Keras's own names for it would add LoRA, or are private."""
        return next(weight for weight in self.weights if weight.dtype == "int8")

    @property
    def int8_parts(self):
        """In how many parts the product rounds its rows; None if Keras computes it, or the kernel has floats."""
        return parts_of(self.quantization_config) if self.quantization_mode == "int8" else None

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras refuses subclasses. These have the weights that Keras's own layers have.
        parts = None if mode != "int8" or self.summed_axes is None else parts_of(config)
        narrow = config if parts is None else narrow_weights(config, self.summed_axes)
        super().quantize(mode, type_check=False, config=narrow)
        if parts is not None:
            # A layer from a file has the same.
            self.quantization_config = config if parts > 1 else None

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


def column_sums(kernel, axes, parts):
    """Returns what the backend's own int8 product needs, float32 `(n,)`; None where it does not multiply here.

    Args:
        kernel: `keras.Variable` of dtype int8.
        axes: The axes of the kernel that the product sums over.
        parts: In how many parts the rows are rounded.
    """
    return native.int8_column_sums(kernel, axes, MAX_INT8_WEIGHT[parts])


def int8_product(operands, rows):
    """Multiplies rows by an int8 kernel; the gradient is that of a product with its floats, as in Keras.

    Args:
        operands: `Operands` of an int8 kernel.
        rows: `(m, k)`.

    Returns:
        `(m, n)`, of the dtype of the rows.
    """
    if operands.multiply is not None:
        return _rounded_product(operands.multiply, rows, operands.parts)
    multiply = kernel_product(operands)

    @ops.written_gradient
    def product(rows):
        def gradient(upstream):
            scaled = upstream / ops.cast(operands.scale, upstream.dtype)
            kernel = ops.cast(native.after(operands.kernel, upstream), upstream.dtype)
            return ops.matmul(scaled, kernel, transpose_y=not operands.transposed)

        return _rounded_product(multiply, rows, operands.parts), gradient

    return product(rows)


def kernel_product(operands):
    """Makes a function that rounds rows and multiplies them by an int8 kernel, without a gradient.

    It returns `rows @ kernel / (127 * scale)`, float32 `(m, n)`, for float32 rows of numbers from `-steps` to `steps`.
    """
    kernel, scale, transposed = operands.kernel, operands.scale, operands.transposed
    steps = STEPS[operands.parts]
    if operands.sums is not None:
        return native.int8_product(kernel, scale, operands.sums, steps, transposed)
    kernel = ops.transpose(kernel, (1, 0)) if transposed else kernel

    def product(rows):
        sums = ops.matmul(ops.cast(_rounded(rows, steps), "int8"), kernel)  # int32
        return ops.cast(sums, "float32") / (127.0 * ops.cast(scale, "float32"))

    return product


def _rounded_product(multiply, rows, parts):
    """Multiplies rows by an int8 kernel, each row rounded to int8 with a scale of its own, in one or two parts."""
    # Keras's `abs_max_quantize` would also clip, but nothing here can be larger than `steps`. It adds epsilon to the
    # largest value. Here epsilon is the least that this value can be, which takes one operation less; a row whose
    # values are near epsilon is then rounded a little better.
    x = ops.cast(rows, "float32")
    largest = ops.max(ops.abs(x), axis=-1, keepdims=True, initial=keras.config.epsilon())
    steps = STEPS[parts]
    x = x * (steps / largest)
    if parts == 1:
        product = multiply(x)
    else:
        coarse = _rounded(x, steps)
        rest = (x - coarse) * (2.0 * steps)
        product, rest = ops.split(multiply(ops.concatenate([coarse, rest], axis=0)), 2, axis=0)
        product = (product + rest / (2.0 * steps)) * (127.0 / steps)
    return ops.cast(product * largest, rows.dtype)


def _rounded(x, steps):
    """Rounds numbers from `-steps` to `steps`, as `native.int8_product` does."""
    return ops.floor(x + (steps + 0.5)) - steps


def narrow_weights(config, axis):
    """Returns a configuration that limits int8 weights to `MAX_INT8_WEIGHT`.

    Args:
        config: A `keras.quantizers.Int8QuantizationConfig` without a quantizer of the weights, or None.
        axis: The axes of a kernel whose weights share a scale.
    """
    largest = MAX_INT8_WEIGHT[parts_of(config)]
    weights = keras.quantizers.AbsMaxQuantizer(axis=axis, value_range=(-largest, largest))
    inputs = keras.quantizers.AbsMaxQuantizer() if config is None else config.activation_quantizer
    return keras.quantizers.Int8QuantizationConfig(weights, inputs)


def set_quantization_config(layer, config):
    """Gives a configuration to a layer that is quantized already, as a layer from a file is."""
    layer.quantization_config = config
    layer.inputs_quantizer = config.activation_quantizer
