"""Position-wise feed-forward networks, plain and gated."""

import keras
from keras import ops

from keras_transformer.checks import check_positive, check_share
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.product import product


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_tanh(x):
    """GELU in the form with tanh (Hendrycks and Gimpel, 2016, section 2); Keras's "gelu" is the exact one."""
    return ops.gelu(x, approximate=True)


def activation_of(identifier):
    """`keras.activations.get`, to which "gelu_tanh" is a name too."""
    return gelu_tanh if identifier == "gelu_tanh" else keras.activations.get(identifier)


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """`activation(x W1 + b1) W2 + b2`, the same at each position.

    "Attention Is All You Need", section 3.3, equation 2.

    Args:
        d_ff: Width of the inner layer.
        activation: Name or function of the activation: Keras's, or "gelu_tanh".
        dropout: Share of the inner activations dropped in training.
        use_bias: Whether there are `b1` and `b2`.
        kernel_initializer: Initializer of both matrices.

    Call arguments:
        x: `(batch, length, d_model)`; `d_model` is read from it.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `d_ff` is not positive or `dropout` not in [0, 1).
    """

    def __init__(
        self,
        d_ff,
        activation="relu",
        dropout=0.0,
        *,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(d_ff=d_ff)
        check_share(dropout=dropout)
        self.d_ff = d_ff
        self.activation = activation_of(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        self.inner = self._add_dense("inner", x_shape, self.d_ff)
        self.outer = self._add_dense("outer", (*x_shape[:-1], self.d_ff), x_shape[-1])
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")
        self.built = True

    def _add_dense(self, name, x_shape, features):
        dense = keras.layers.Dense(
            features,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(x_shape)
        return dense

    def call(self, x, training=None):
        return self._dense(self.outer, self.drop(self._inner_values(x), training=training))

    def _inner_values(self, x):
        """`(batch, length, d_ff)`: what `outer` is to be called with."""
        return self.activation(self._dense(self.inner, x))

    def _dense(self, layer, x):
        """Keras's layer, but for its product."""
        x = product(x, layer.kernel, self.compute_dtype)
        return x + ops.cast(layer.bias, self.compute_dtype) if self.use_bias else x

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable("keras_transformer")
class GatedFeedForward(FeedForward):
    """`(activation(x W) * (x V)) W2`, the same at each position: SwiGLU with "silu", GEGLU with "gelu".

    Shazeer, 2020, "GLU Variants Improve Transformer", equation 6.

    Args:
        d_ff: Width of the inner layer; two thirds of a `FeedForward`'s make a layer of its size.
        activation: As in `FeedForward`, of the gate alone.
        dropout: Share of the gated values dropped in training.
        use_bias: Whether a bias is added to each of the three products.
        kernel_initializer: Initializer of the three matrices.

    Call arguments:
        x: `(batch, length, d_model)`; `d_model` is read from it.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `d_ff` is not positive or `dropout` not in [0, 1).
    """

    def __init__(
        self,
        d_ff,
        activation="silu",
        dropout=0.0,
        *,
        use_bias=False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            d_ff, activation, dropout, use_bias=use_bias, kernel_initializer=kernel_initializer, **kwargs
        )

    def build(self, x_shape):
        self.gate = self._add_dense("gate", x_shape, self.d_ff)
        super().build(x_shape)

    def _inner_values(self, x):
        return self.activation(self._dense(self.gate, x)) * self._dense(self.inner, x)
