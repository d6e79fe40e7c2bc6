"""The position-wise feed-forward network."""

import keras
from keras import ops

from keras_transformer.checks import check_positive, check_share
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.product import product


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """`activation(x W1 + b1) W2 + b2`, the same at each position.

    "Attention Is All You Need", section 3.3, equation 2.

    Args:
        d_ff: Width of the inner layer.
        activation: Name or function of the activation.
        dropout: Share of the inner activations dropped in training.
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
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(d_ff=d_ff)
        check_share(dropout=dropout)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        common = {"dtype": self.dtype_policy}
        self.inner = keras.layers.Dense(
            self.d_ff,
            activation=self.activation,
            kernel_initializer=self.kernel_initializer.clone(),
            name="inner",
            **common,
        )
        self.outer = keras.layers.Dense(
            x_shape[-1], kernel_initializer=self.kernel_initializer.clone(), name="outer", **common
        )
        self.drop = Dropout(self.dropout, name="drop", **common)
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))
        self.built = True

    def call(self, x, training=None):
        return self._dense(self.outer, self.drop(self._dense(self.inner, x), training=training))

    def _dense(self, layer, x):
        """Keras's layer, but for its product."""
        x = product(x, layer.kernel, self.compute_dtype) + ops.cast(layer.bias, self.compute_dtype)
        return layer.activation(x)

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
