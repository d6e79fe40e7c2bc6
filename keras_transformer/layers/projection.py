"""The dense product of every layer of the library."""

import math
import re
import string

import keras

from keras_transformer.checks import check, check_dense, check_share
from keras_transformer.execution import ops
from keras_transformer.execution.inference import Operands, held
from keras_transformer.execution.int8 import OneProduct, column_sums, int8_product
from keras_transformer.keras_internals import add_sublayer
from keras_transformer.layers.residual import Dropout


@keras.saving.register_keras_serializable("keras_transformer")
class Projection(OneProduct, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense`, computed as one product of two matrices.

    Keras's equation, weights, configuration, `quantize` and files. Two things differ where the equation contracts the
    last axes of the input with the first axes of the kernel, such as `"...x,xhd->...hd"`. The float product is one: an
    einsum trains at three quarters of the speed, because it is a batch of products. And LoRA has its rank: the matrices
    of `enable_lora` are `(inputs, rank)` and `(rank, outputs)` (Hu et al., 2021, "LoRA", section 4.1), where Keras's
    `EinsumDense` has a first matrix for each head and one second matrix for all heads.

    Args:
        equation: Equation of the einsum. With `...` the input may have any rank.
        output_shape: Shape of the output without the batch axis, and without the axes of `...`.
        lora_dropout: Share of the input of LoRA's matrices dropped in training, as in PEFT, but a multiple of 1/256 as
            in `Dropout`: 0.001 drops 1/256. It is used once LoRA is enabled.
        **kwargs: The other arguments of `keras.layers.EinsumDense`, such as `bias_axes` and `kernel_initializer`.

    Call arguments:
        inputs: Tensor of a floating dtype, of the shape that `equation` says.

    Returns:
        Tensor of the shape that `equation` says, in the compute dtype.

    >>> Projection("...x,xy->...y", 3, bias_axes="y")(np.ones((2, 5, 4))).shape
    TensorShape([2, 5, 3])
    """

    any_rank = False
    contracted = 0
    # The layer that drops inputs of LoRA's matrices, or None.
    lora_drop = None
    # Whether `kernel` is a matrix at this moment, for Keras's `enable_lora`.
    _shows_matrix = False

    def __init__(self, equation, output_shape, *, lora_dropout=0.0, **kwargs):
        super().__init__(equation, output_shape, **kwargs)
        check_share(lora_dropout=lora_dropout)
        self.lora_dropout = lora_dropout

    def build(self, input_shape):
        if "..." in self.equation:
            # Keras cannot quantize an equation with an ellipsis. This one multiplies rows, from whatever axes.
            self.any_rank, letter = True, min(set(string.ascii_lowercase) - set(self.equation))
            self.equation = self.equation.replace("...", letter)
            inner = len(self.equation.split(",")[0]) - 1
            input_shape = (None, *input_shape[len(input_shape) - inner :])
        self.contracted = _contracted_axes(self.equation)
        super().build(input_shape)
        self.summed_axes = tuple(range(self.contracted)) or None
        self.outer_shape = tuple(self.kernel.shape[self.contracted :])
        # Keras would warn of each masked input.
        self.supports_masking = True
        self._accept_any_rank()

    def _accept_any_rank(self):
        """Removes Keras's check of the rank, which is the rank of the equation."""
        if self.any_rank:
            self.input_spec = None

    def enable_lora(self, rank, lora_alpha=None, lora_dropout=None, **kwargs):
        """Freezes the kernel and gives it LoRA's matrices, as Keras's `enable_lora`.

        Args:
            rank: Rank of the matrices.
            lora_alpha: Their product counts `lora_alpha / rank` times; `rank` when None.
            lora_dropout: As in the constructor; its value when None.
            **kwargs: `a_initializer` and `b_initializer`.
        """
        if lora_dropout is not None:
            check_share(lora_dropout=lora_dropout)
            self.lora_dropout = lora_dropout
        rule = "`lora_dropout` needs an equation whose contracted axes are the last of the input."
        check(not self.lora_dropout or self._is_own_product, rule, equation=self.equation)
        # Keras has its own product of int4 and its like.
        self._shows_matrix = self._is_own_product
        # Keras 3.16 reads this one instead of `kernel`.
        shape = self._shows_matrix and vars(self).get("kernel_shape")
        if shape:
            self.kernel_shape = tuple(self.kernel.shape)
        try:
            super().enable_lora(rank, lora_alpha=lora_alpha, **kwargs)
        finally:
            self._shows_matrix = False
            if shape:
                self.kernel_shape = shape
        if self.lora_dropout:
            drop = Dropout(self.lora_dropout, dtype=self.compute_dtype, name="lora_drop")
            add_sublayer(self, "lora_drop", drop)

    @property
    def kernel(self):
        """The kernel, with the product of LoRA's matrices where LoRA is enabled."""
        if self._has_matrices:
            return ops.cast(self._plain_kernel + self._lora_sum(), self.compute_dtype)
        kernel = super().kernel
        if self._shows_matrix:
            return ops.reshape(kernel, (math.prod(kernel.shape[: self.contracted]), -1))
        return kernel

    @property
    def _plain_kernel(self):
        return next(weight for weight in self.weights if weight.name == "kernel")

    @property
    def _has_matrices(self):
        """Whether LoRA is enabled, with two matrices for the product of this class."""
        return self.lora_enabled and self._is_own_product

    @property
    def _is_own_product(self):
        return self.contracted > 0 and self.quantization_mode in (None, "int8")

    def _lora_sum(self):
        """Returns what LoRA adds to the kernel."""
        product = ops.matmul(self.lora_kernel_a, self.lora_kernel_b) * (self.lora_alpha / self.lora_rank)
        return ops.reshape(product, self._plain_kernel.shape)

    def call(self, inputs, training=None):
        check_dense(inputs=inputs)
        if not self.contracted:
            return super().call(inputs, training=training)
        return self._projected(inputs, self._operands_of(training))

    def quantized_call(self, inputs, training=None):
        operands = self._operands_of(training)
        if operands is not None:
            return self._projected(inputs, operands)
        if not self.any_rank:
            return self.in_precision_of_scales(super().quantized_call, inputs)
        rows = ops.reshape(inputs, (-1, *inputs.shape[len(inputs.shape) - self.contracted :]))
        return self._with_axes(self.in_precision_of_scales(super().quantized_call, rows), inputs)

    def _operands_of(self, training):
        """Returns the operands that are held, or new ones if some inputs of LoRA's matrices are dropped."""
        drops = bool(training) and self.lora_drop is not None
        return self.operands(drops=True) if drops else held().get(self) or self.operands()

    def operands(self, drops=False):
        is_int8 = self.quantization_mode == "int8"
        if not self.contracted or (self.quantization_mode is not None and self.int8_parts is None):
            return None
        bias = None if self.bias is None else ops.reshape(ops.cast(self.bias, self.compute_dtype), (-1,))
        kernel = (
            self.int8_kernel
            if is_int8
            else ops.cast(self._plain_kernel if drops else self.kernel, self.compute_dtype)
        )
        lora = self._lora(drops) if drops or (is_int8 and self.lora_enabled) else None
        k = math.prod(kernel.shape[: self.contracted])
        if not is_int8:
            return Operands(ops.reshape(kernel, (k, -1)), bias=bias, lora=lora)
        return Operands(
            ops.reshape(ops.convert_to_tensor(kernel), (k, -1)),
            ops.reshape(self.kernel_scale, (-1,)),
            bias,
            sums=column_sums(kernel, self.summed_axes, self.int8_parts),
            parts=self.int8_parts,
            lora=lora,
        )

    def _projected(self, inputs, operands):
        """Computes the layer with given operands."""
        is_matrix = len(inputs.shape) == 2 and self.contracted == 1
        inner = math.prod(inputs.shape[len(inputs.shape) - self.contracted :])
        rows = inputs if is_matrix else ops.reshape(inputs, (-1, inner))
        x = self._with_axes(product_of(rows, operands), inputs)
        return x if self.activation is None else self.activation(x)

    def _lora(self, drops):
        """Returns a function that computes what LoRA adds to the product of rows `(m, k)`."""
        low, high = (ops.cast(x, self.compute_dtype) for x in (self.lora_kernel_a, self.lora_kernel_b))
        factor = self.lora_alpha / self.lora_rank
        drop = self.lora_drop if drops else None

        def product(rows):
            rows = rows if drop is None else drop(rows, training=True)
            return ops.matmul(ops.matmul(rows, low), high) * factor

        return product

    def save_own_variables(self, store):
        is_merged = self._has_matrices and self.quantization_mode == "int8"
        (self._quantized_anew() if is_merged else super()).save_own_variables(store)

    def _quantized_anew(self):
        """Returns a layer without LoRA, whose int8 kernel is that of this one with LoRA, rounded again."""
        config = {name: value for name, value in self.get_config().items() if not name.startswith("lora_")}
        merged = Projection.from_config({**config, "dtype": "float32"})
        plain = self._plain_kernel
        free = len(self.equation.split(",")[0]) - self.contracted
        merged.build((None,) * free + tuple(plain.shape[: self.contracted]))
        scale = ops.reshape(self.kernel_scale, self.outer_shape)
        merged.kernel.assign(ops.cast(plain, "float32") / scale + self._lora_sum())
        if self.bias is not None:
            merged.bias.assign(self.bias)
        merged.quantize("int8", config=self.quantization_config)
        return merged

    def _with_axes(self, rows, inputs):
        """Gives rows of outputs the free axes of the inputs and the axes of the output."""
        free = ops.shape(inputs)[: len(inputs.shape) - self.contracted]
        are_rows = len(free) == len(self.outer_shape) == 1
        return rows if are_rows else ops.reshape(rows, (*free, *self.outer_shape))

    def quantize(self, mode=None, type_check=True, config=None):
        rule = 'With LoRA, `mode` must be "int8". Call `quantize` first, then `enable_lora`.'
        check(not self._has_matrices or mode == "int8", rule, mode=mode)
        rank = len(self.equation.split(",")[0])
        # Keras reads the rank of the equation from it.
        self.input_spec = keras.layers.InputSpec(ndim=rank)
        super().quantize(mode, type_check, config)
        self._accept_any_rank()

    def compute_output_shape(self, input_shape):
        if not self.contracted:
            return super().compute_output_shape(input_shape)
        return (*input_shape[: len(input_shape) - self.contracted], *self.outer_shape)

    def get_config(self):
        config = super().get_config()
        if self.any_rank:
            letter = self.equation[0]
            config["equation"] = self.equation.replace(letter, "...")
        return {**config, "lora_dropout": self.lora_dropout} if self.lora_dropout else config


def _contracted_axes(equation):
    """Returns how many axes of an equation that is one product of matrices are contracted, else 0."""
    inputs, kernel, output = re.split(",|->", equation.replace(" ", ""))
    contracted = "".join(label for label in kernel if label not in output)
    free, new = inputs.removesuffix(contracted), kernel.removeprefix(contracted)
    computable = (free + contracted, contracted + new, free + new) == (inputs, kernel, output)
    return len(contracted) if computable else 0


def product_of(rows, operands):
    """Multiplies rows `(m, k)` by the kernel of `Operands` and adds the bias: `(m, n)`, of the dtype of the rows."""
    if operands.scale is None:
        x = ops.matmul(rows, operands.kernel, transpose_y=operands.transposed)
    else:
        x = int8_product(operands, rows)
    x = x if operands.lora is None else x + operands.lora(rows)
    return x if operands.bias is None else x + operands.bias


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
    product = product_of(ops.reshape(x, (-1, x.shape[-1])), operands)
    outers = [part.outer_shape for part in layer.joint_products]
    parts = ops.split(product, list(map(math.prod, outers)), axis=-1)
    return [ops.reshape(part, (*free, *outer)) for part, outer in zip(parts, outers, strict=True)]
