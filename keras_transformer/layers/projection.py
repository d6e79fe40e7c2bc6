"""The dense product of every layer of the library."""

import contextlib
import contextvars
import math
import re
import string
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.backend import (
    in_xla,
    int8_product,
    multiplies_int8,
    product_of_few_rows,
    written_gradient,
)
from keras_transformer.keras_internals import HeldWeights, constant_weights_of, keep_precision, sublayers
from keras_transformer.shapes import reshaped

# Size of a kernel from which on a single row is multiplied in halves outside XLA.
LARGE = 2**21

# Largest int8 weight. CPUs without VNNI add products of int8 in pairs, in 16 bits. There larger weights overflow, and
# nothing reports it.
LARGEST_WEIGHT = 63

_HELD = contextvars.ContextVar("held", default=None)


class HasOperands:
    """Base of layers whose `operands()` are the weights of one product, which `held_operands` can hold."""

    def is_plain_int8(self, kernel):
        """Returns whether the layer is quantized as the library does it, and the backend multiplies by its kernel."""
        plain = not self.lora_enabled and self.quantization_config is None
        return self.quantization_mode == "int8" and plain and multiplies_int8(kernel, LARGEST_WEIGHT)


@keras.saving.register_keras_serializable("keras_transformer")
class Projection(HasOperands, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense`, computed as one product of two matrices.

    Keras's equation, weights, configuration, `quantize`, `enable_lora` and files. Only the float product differs, and
    only where the equation contracts the last axes of the input with the first axes of the kernel, such as
    `"...x,xhd->...hd"`: an einsum trains at three quarters of the speed, because it is a batch of products.

    Args:
        equation: Equation of the einsum. With `...` the first input decides the rank.
        output_shape: Shape of the output without the batch axis, and without the axes of `...`.
        **kwargs: The other arguments of `keras.layers.EinsumDense`, such as `bias_axes` and `kernel_initializer`.

    Call arguments:
        inputs: Tensor of a floating dtype, of the shape that `equation` says.

    Returns:
        Tensor of the shape that `equation` says, in the compute dtype.

    >>> Projection("...x,xy->...y", 3, bias_axes="y")(np.ones((2, 5, 4))).shape
    TensorShape([2, 5, 3])
    """

    contracted = 0

    def build(self, input_shape):
        if "..." in self.equation:
            # Keras cannot quantize an equation with an ellipsis.
            free = len(input_shape) - len(self.equation.split(",")[0].removeprefix("..."))
            labels = "".join(sorted(set(string.ascii_lowercase) - set(self.equation)))[:free]
            self.equation = self.equation.replace("...", labels)
            self.partial_output_shape = (*([None] * (free - 1)), *self.partial_output_shape)
        super().build(input_shape)
        self.contracted = _contracted_axes(self.equation)
        self.outer_shape = tuple(self.kernel.shape[self.contracted :])
        self.supports_masking = True  # Keras would warn of each masked input

    def call(self, inputs, training=None):
        check_dense(inputs)
        if not self.contracted:
            return super().call(inputs, training=training)
        return self._projected(inputs, held(self) or self.operands())

    def quantized_call(self, inputs, training=None):
        operands = held(self) or self.operands()
        if operands is None:
            return super().quantized_call(inputs, training=training)
        return self._projected(inputs, operands)

    def quantized_build(self, *args, **kwargs):
        super().quantized_build(*args, **kwargs)
        if self.quantization_mode in (None, "int8") and hasattr(self, "kernel_scale"):
            keep_precision(self.kernel_scale)

    def operands(self):
        """Returns the `Operands` of the product; None where this class does not compute it."""
        quantized = self.quantization_mode is not None
        if not self.contracted or (quantized and not self.is_plain_int8(self.kernel)):
            return None
        kernel = (
            ops.convert_to_tensor(self.kernel) if quantized else ops.cast(self.kernel, self.compute_dtype)
        )
        k = math.prod(kernel.shape[: self.contracted])
        return Operands(
            ops.reshape(kernel, (k, -1)),
            ops.reshape(self.kernel_scale, (-1,)) if quantized else None,
            None if self.bias is None else ops.reshape(ops.cast(self.bias, self.compute_dtype), (-1,)),
        )

    def _projected(self, inputs, operands):
        """Computes the layer with given operands."""
        free = ops.shape(inputs)[: len(inputs.shape) - self.contracted]
        inner = math.prod(inputs.shape[len(free) :])
        rows = inputs if len(inputs.shape) == 2 and self.contracted == 1 else ops.reshape(inputs, (-1, inner))
        x = operands.product(rows)
        if len(free) != 1 or len(self.outer_shape) != 1:
            x = reshaped(x, (*free, *self.outer_shape))
        return x if self.activation is None else self.activation(x)

    def compute_output_shape(self, input_shape):
        shape = super().compute_output_shape(input_shape)
        # Keras gives the free axes but the first no size.
        free = len(input_shape) - self.contracted if self.contracted else 0
        return (*input_shape[:free], *shape[free:])

    def quantize(self, mode, type_check=True, config=None):
        # Keras refuses subclasses. This one has the weights that Keras's own layer has.
        narrowed = False
        if mode == "int8" and self.contracted:
            config, narrowed = narrow_weights(config, tuple(range(self.contracted)))
        super().quantize(mode, type_check=False, config=config)
        if narrowed:
            self.quantization_config = None  # a layer from a file has none either


class Operands(NamedTuple):
    """The weights of a product, in the form that the product reads.

    kernel: `(k, n)`, floats or int8; `(n, k)` where `transposed`.
    scale: float32 `(n,)`, the factor that each column of an int8 kernel was multiplied with; None for floats.
    bias: `(n,)`, or None.
    transposed: Whether the axes of the kernel are exchanged; for int8 alone.
    multiply: What `backend.int8_product` made of an int8 kernel, for products without a gradient; or None.
    """

    kernel: Any
    scale: Any = None
    bias: Any = None
    transposed: bool = False
    multiply: Any = None

    def ready(self):
        """Returns the operands with what multiplies by an int8 kernel."""
        if self.scale is None:
            return self
        return self._replace(multiply=int8_product(self.kernel, self.scale, self.transposed))

    def joined(self, others):
        """Returns the operands of one product for this one and others of the same input, or None if they differ."""
        every = (self, *others)
        if len({(each.scale is None, each.bias is None) for each in every}) > 1:
            return None
        kernel = ops.concatenate([each.kernel for each in every], axis=1)
        scale = None if self.scale is None else ops.concatenate([each.scale for each in every])
        bias = None if self.bias is None else ops.concatenate([each.bias for each in every])
        return Operands(kernel, scale, bias)

    def product(self, rows):
        """Multiplies rows `(m, k)` with the kernel and adds the bias: `(m, n)`, of the dtype of the rows."""
        if self.scale is None:
            x = matrix_product(rows, self.kernel)
        elif self.multiply is None:
            x = self._differentiable_product(rows)
        else:
            x = self.rounded_product(rows)
        return x if self.bias is None else x + self.bias

    def rounded_product(self, rows):
        """Multiplies rows with an int8 kernel, each row rounded to int8 with a scale of its own; without a gradient."""
        # Keras's `abs_max_quantize` would also clip, but nothing here can be larger than 127. It adds epsilon to the
        # largest value. Here epsilon is the least that this value can be, which takes one operation less; a row whose
        # values are near epsilon is then rounded a little better.
        x = ops.cast(rows, "float32")
        largest = ops.max(ops.abs(x), axis=-1, keepdims=True, initial=keras.config.epsilon())
        return ops.cast(self.multiply(ops.round(x * (127.0 / largest))) * largest, rows.dtype)

    def _differentiable_product(self, rows):
        """Multiplies with an int8 kernel; the gradient is that of a product with its floats, as in Keras."""
        operands = self.ready()

        @written_gradient
        def product(rows):
            def gradient(upstream):
                scaled = upstream / ops.cast(operands.scale, upstream.dtype)
                kernel = ops.cast(operands.kernel, upstream.dtype)
                return ops.matmul(scaled, kernel if operands.transposed else ops.transpose(kernel))

            return operands.rounded_product(rows), gradient

        return product(rows)


def has_int8_weights(model):
    """Returns whether a model is quantized to int8, at least in part."""
    return any(weight.dtype == "int8" for weight in model.weights)


@contextlib.contextmanager
def held_operands(model, together=True):
    """Reads the weights of a model once, for the calls inside, and computes the operands of all its products.

    A loop inside then reads no weight. TensorFlow would keep the order of these reads, and so run two loops one after
    the other. What a layer of a user's class may change is read where it is used.

    Args:
        model: A built layer or model.
        together: Whether to compute products that share an input as one: their layer lists them in
            `products_together`. It copies their kernels, which a loop of many steps outweighs.
    """
    held = {layer: layer.operands() for layer in sublayers(model) if isinstance(layer, HasOperands)}
    for layer in sublayers(model) if together else ():
        first, *others = [held.get(part) for part in getattr(layer, "products_together", ())] or [None]
        if first is not None and None not in others:
            held[layer] = first.joined(others)
    token = _HELD.set({layer: operands.ready() for layer, operands in held.items() if operands is not None})
    values = [(weight, ops.cast(weight, weight.dtype)) for weight in constant_weights_of(model)]
    try:
        with HeldWeights(values):
            yield
    finally:
        _HELD.reset(token)


def project_together(layer, x):
    """Computes all of a layer's `products_together` of one input as one product.

    Args:
        layer: The layer.
        x: `(batch, ..., features)`.

    Returns:
        The list of their outputs; None where no operands are held.
    """
    operands = held(layer)
    if operands is None:
        return None
    free = ops.shape(x)[:-1]
    product = operands.product(ops.reshape(x, (-1, x.shape[-1])))
    outers = [part.outer_shape for part in layer.products_together]
    ends = [sum(map(math.prod, outers[: i + 1])) for i in range(len(outers) - 1)]
    parts = ops.split(product, ends, axis=-1)
    return [reshaped(part, (*free, *outer)) for part, outer in zip(parts, outers, strict=True)]


def held(layer):
    """Returns the operands that `held_operands` computed for a layer, or None."""
    return (_HELD.get() or {}).get(layer)


def narrow_weights(config, axis):
    """Sets `LARGEST_WEIGHT` in Keras's configuration of int8, unless that has quantizers of its own.

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
    weights = keras.quantizers.AbsMaxQuantizer(axis=axis, value_range=(-LARGEST_WEIGHT, LARGEST_WEIGHT))
    return keras.quantizers.Int8QuantizationConfig(weights, activations), True


def check_dense(x):
    """Raises `ValueError` for a ragged tensor."""
    if hasattr(x, "row_splits") or getattr(x, "ragged", False):
        raise ValueError(
            "The input must be a dense tensor. Fill its rows up, as `x.to_tensor()` does, and pass a `padding_mask`. "
            f"Received: a ragged tensor of shape={tuple(x.shape)}."
        )


def matrix_product(rows, kernel):
    """Multiplies `(m, k)` with a kernel `(k, n)`.

    A single row, as decoding one sentence has it, takes as long as reading the kernel. A product reads it in one
    thread. A batch of two halves, which are then added, is read in several: under XLA, and else from a few megabytes
    on (docs/decisions.md).
    """
    k, n = kernel.shape
    if rows.shape[0] == 1 and k % 2 == 0 and (in_xla() or k * n >= LARGE):
        halves = product_of_few_rows(ops.reshape(rows, (2, 1, k // 2)), ops.reshape(kernel, (2, k // 2, n)))
        return halves[0] + halves[1]
    return ops.matmul(rows, kernel)


def _contracted_axes(equation):
    """Number of contracted axes of an equation that `matrix_product` can compute, else 0."""
    inputs, kernel, output = re.split(",|->", equation.replace(" ", ""))
    contracted = "".join(label for label in kernel if label not in output)
    free, new = inputs.removesuffix(contracted), kernel.removeprefix(contracted)
    computable = (free + contracted, contracted + new, free + new) == (inputs, kernel, output)
    return len(contracted) if computable else 0
