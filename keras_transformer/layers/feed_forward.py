"""Position-wise feed-forward networks, plain and gated."""

import math

import keras

from keras_transformer.execution import ops
from keras_transformer.layers.base import KeepsShape
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.residual import Dropout


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_tanh(x):
    """GELU in the form with tanh (Hendrycks and Gimpel, 2016, section 2); Keras's "gelu" is the exact one."""
    return ops.gelu(x, approximate=True)


def get_activation(identifier):
    """Returns an activation function: `keras.activations.get`, which also knows the name "gelu_tanh"."""
    return gelu_tanh if identifier == "gelu_tanh" else keras.activations.get(identifier)


def activated(activation, x):
    """Applies an activation; Keras's exact GELU as `x (1 + erf(x / sqrt(2))) / 2`.

    Keras computes that by `erfc`, which takes TensorFlow three times as long on a CPU. In half precision Keras's way is
    the better one: there 1 and an `erf` near -1 would cancel.
    """
    wide = keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")
    if activation is keras.activations.gelu and wide:
        return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))
    return activation(x)


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(KeepsShape, keras.layers.Layer):
    """`activation(x W1 + b1) W2 + b2`, the same at each position.

    "Attention Is All You Need", section 3.3, equation 2.

    Args:
        d_ff: Width of the inner layer.
        activation: Name or function of the activation: one of Keras's, or "gelu_tanh".
        dropout: Share of the inner activations dropped in training.
        use_bias: Whether there are `b1` and `b2`.
        kernel_initializer: Initializer of both matrices.
        output_activation: Activation of the sum with `b2`, such as "gelu"; None for none.

    Call arguments:
        x: `(batch, ..., d_model)`; `d_model` is read from it.
        training: Whether to drop.

    Returns:
        Tensor of the shape of `x`, in the compute dtype.

    Raises:
        ValueError: If `d_ff` is not positive or `dropout` not in [0, 1).

    >>> FeedForward(8)(np.ones((2, 3, 4))).shape
    TensorShape([2, 3, 4])
    """

    def __init__(
        self,
        d_ff,
        activation="relu",
        dropout=0.0,
        *,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        output_activation=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_activation = None if output_activation is None else get_activation(output_activation)
        self.d_ff = d_ff
        self.activation = get_activation(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        self.inner = self._projection("inner", x_shape, self.d_ff)
        self.outer = self._projection("outer", (*x_shape[:-1], self.d_ff), x_shape[-1])
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")

    def _projection(self, name, x_shape, features):
        projection = Projection(
            "...x,xy->...y",
            features,
            bias_axes="y" if self.use_bias else None,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        projection.build(x_shape)
        return projection

    def call(self, x, training=None):
        return self._output(activated(self.activation, self.inner(x)), training)

    def _output(self, x, training):
        y = self.outer(self.drop(x, training=training))
        return y if self.output_activation is None else activated(self.output_activation, y)


@keras.saving.register_keras_serializable("keras_transformer")
class GatedFeedForward(FeedForward):
    """`(activation(x W) * (x V)) W2`, the same at each position: SwiGLU with "silu", GEGLU with "gelu".

    Shazeer, 2020, "GLU Variants Improve Transformer", equation 6.

    Args:
        d_ff: Width of the inner layer; two thirds of a `FeedForward`'s make a layer of the same size.
        activation: Name or function of the gate's activation: one of Keras's, or "gelu_tanh".
        dropout: Share of the gated values dropped in training.
        use_bias: Whether a bias is added to each of the three products.
        kernel_initializer: Initializer of the three matrices.
        output_activation: Activation of the result, such as "gelu"; None for none.

    Call arguments:
        x: `(batch, ..., d_model)`; `d_model` is read from it.
        training: Whether to drop.

    Returns:
        Tensor of the shape of `x`, in the compute dtype.

    Raises:
        ValueError: If `d_ff` is not positive or `dropout` not in [0, 1).

    >>> GatedFeedForward(8)(np.ones((2, 3, 4))).shape
    TensorShape([2, 3, 4])
    """

    def __init__(self, d_ff, activation="silu", dropout=0.0, *, use_bias=False, **kwargs):
        super().__init__(d_ff, activation, dropout, use_bias=use_bias, **kwargs)

    def build(self, x_shape):
        self.gate = self._projection("gate", x_shape, self.d_ff)
        super().build(x_shape)

    def call(self, x, training=None):
        return self._output(activated(self.activation, self.gate(x)) * self.inner(x), training)
