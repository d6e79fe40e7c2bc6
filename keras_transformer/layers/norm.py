"""Layer normalisation with a gradient written out."""

import keras
from keras import ops

from keras_transformer.backend import custom_gradient


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

        flat = ops.cast(ops.reshape(inputs, (-1, features)), "float32")
        weights = (ops.cast(weight, "float32") for weight in (self.gamma, self.beta))
        return ops.cast(ops.reshape(normalized(flat, *weights), ops.shape(inputs)), self.compute_dtype)

    def get_config(self):
        config = keras.layers.Layer.get_config(self)
        return {**config, "epsilon": self.epsilon}
