"""Products by the weights of layers, whose operands may be prepared once for many calls."""

import math
from typing import Any, NamedTuple

from keras_transformer.execution import ops
from keras_transformer.execution.int8 import int8_product, kernel_product
from keras_transformer.execution.modes import held


class Operands(NamedTuple):
    """The weights of a product, in the form that the product reads.

    kernel: `(k, n)`, floats or int8; `(n, k)` where `transposed`.
    scale: float32 `(n,)`, the factor that each column of an int8 kernel was multiplied with; None for floats.
    bias: `(n,)`, or None.
    transposed: Whether the axes of the kernel are exchanged; for int8 alone.
    multiply: Function that multiplies rows by the int8 kernel, without a gradient; None for a product with one.
    sums: float32 `(n,)`, the sum of each column of an int8 kernel, for the backend's own product; None where it cannot
        multiply by this kernel.
    parts: In how many int8 parts the rows are rounded, for an int8 kernel: 1 or 2.
    lora: Function of the rows that computes what LoRA adds to the product by an int8 kernel; or None.
    """

    kernel: Any
    scale: Any = None
    bias: Any = None
    transposed: bool = False
    multiply: Any = None
    sums: Any = None
    parts: int = 1
    lora: Any = None

    def product(self, rows):
        """Multiplies rows `(m, k)` by the kernel and adds the bias: `(m, n)`, of the dtype of the rows."""
        x = ops.matmul(rows, self.kernel) if self.scale is None else int8_product(self, rows)
        x = x if self.lora is None else x + self.lora(rows)
        return x if self.bias is None else x + self.bias

    def without_gradient(self):
        """Returns operands whose product has no gradient."""
        return self if self.scale is None else self._replace(multiply=kernel_product(self))

    def joined(self, others):
        """Returns the operands of one product for this one and others of the same input, or None if they differ."""
        every = (self, *others)
        kinds = {
            (each.scale is None, each.bias is None, each.sums is None, each.parts, each.kernel.shape[0])
            for each in every
        }
        if len(kinds) > 1 or any(each.lora is not None for each in every):
            return None
        vectors = {"scale": self.scale, "bias": self.bias, "sums": self.sums}
        joined = {
            name: ops.concatenate([getattr(each, name) for each in every])
            for name, vector in vectors.items()
            if vector is not None
        }
        return self._replace(kernel=ops.concatenate([each.kernel for each in every], axis=1), **joined)


def joint_product(layer, x):
    """Computes all of a layer's `joint_products` of one input as one product.

    Args:
        layer: The layer.
        x: `(batch, ..., features)`.

    Returns:
        The list of their outputs; None where `inference` holds no joint product for this layer.
    """
    operands = held().get(layer)
    if operands is None:
        return None
    free = ops.shape(x)[:-1]
    product = operands.product(ops.reshape(x, (-1, x.shape[-1])))
    outers = [part.outer_shape for part in layer.joint_products]
    parts = ops.split(product, list(map(math.prod, outers)), axis=-1)
    return [ops.reshape(part, (*free, *outer)) for part, outer in zip(parts, outers, strict=True)]
