"""The dense product of every layer of the library."""

import math
import re
import string

import keras
from keras import ops

from keras_transformer.backend import in_xla


@keras.saving.register_keras_serializable("keras_transformer")
class Projection(keras.layers.EinsumDense):
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
        self.supports_masking = True  # Keras would warn of each masked input

    def call(self, inputs, training=None):
        check_dense(inputs)
        if not self.contracted:
            return super().call(inputs, training=training)
        x = matrix_product(inputs, self.kernel, self.contracted)
        if self.bias is not None:
            x = x + self.bias
        return x if self.activation is None else self.activation(x)

    def compute_output_shape(self, input_shape):
        shape = super().compute_output_shape(input_shape)
        # Keras gives the free axes but the first no size.
        free = len(input_shape) - self.contracted if self.contracted else 0
        return (*input_shape[:free], *shape[free:])

    def quantize(self, mode, type_check=True, **kwargs):
        # Keras refuses subclasses. This one has the weights that Keras's own layer has.
        super().quantize(mode, type_check=False, **kwargs)


def check_dense(x):
    """Raises `ValueError` for a ragged tensor."""
    if hasattr(x, "row_splits") or getattr(x, "ragged", False):
        raise ValueError(
            "The input must be a dense tensor. Fill its rows up, as `x.to_tensor()` does, and pass a `padding_mask`. "
            f"Received: a ragged tensor of shape={tuple(x.shape)}."
        )


def matrix_product(x, kernel, contracted=1):
    """Multiplies the last axes of `x` with the first axes of a kernel, as one product of two matrices.

    A single row, as decoding one sentence has it, takes as long as reading the kernel. There XLA uses one thread for a
    product that stands alone, and all threads for a batch of two halves, which are then added (docs/decisions.md).

    Args:
        x: `(..., *inner)`.
        kernel: `(*inner, *outer)`, of the dtype of `x`.
        contracted: Number of axes of `inner`.

    Returns:
        `(..., *outer)`.
    """
    inner, outer = kernel.shape[:contracted], kernel.shape[contracted:]
    k, n = math.prod(inner), math.prod(outer)
    free = ops.shape(x)[: len(x.shape) - contracted]
    rows = x if len(x.shape) == 2 and contracted == 1 else ops.reshape(x, (-1, k))
    matrix = kernel if len(kernel.shape) == 2 else ops.reshape(kernel, (k, n))
    if rows.shape[0] == 1 and k % 2 == 0 and in_xla():
        halves = ops.matmul(ops.reshape(rows, (2, 1, k // 2)), ops.reshape(matrix, (2, k // 2, n)))
        product = halves[0] + halves[1]
    else:
        product = ops.matmul(rows, matrix)
    return product if len(free) == len(outer) == 1 else ops.reshape(product, (*free, *outer))


def _contracted_axes(equation):
    """Number of contracted axes of an equation that `matrix_product` can compute, else 0."""
    inputs, kernel, output = re.split(",|->", equation.replace(" ", ""))
    contracted = "".join(label for label in kernel if label not in output)
    free, new = inputs.removesuffix(contracted), kernel.removeprefix(contracted)
    computable = (free + contracted, contracted + new, free + new) == (inputs, kernel, output)
    return len(contracted) if computable else 0
