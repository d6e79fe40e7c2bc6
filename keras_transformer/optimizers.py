"""Adam and AdamW that update each weight in one pass."""

import keras
from keras import ops

from keras_transformer.execution import native
from keras_transformer.keras_internals import adam_moments


def unwrapped(optimizer):
    """Returns the optimizer that applies the gradients: the inner one of a `LossScaleOptimizer`, else the same."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class _OnePass:
    """Replaces Keras's update, which reads each weight about ten times, by TensorFlow's single operation."""

    def finalize_variable_values(self, var_list):
        """Gives the weights their moving average, if there is one, in memory of their own.

        Keras's weights and averages share an array on JAX. The next step frees it with the weight, and the average is
        gone.
        """
        super().finalize_variable_values(var_list)
        for weight in var_list if self.use_ema else ():
            weight.assign(ops.copy(weight))

    def update_step(self, gradient, variable, learning_rate):
        update = None if self.amsgrad else native.adam_in_one_pass()
        if update is None:
            super().update_step(gradient, variable, learning_rate)
            return
        step = ops.cast(self.iterations + 1, variable.dtype)
        update(
            variable,
            *adam_moments(self, variable),
            gradient,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            epsilon=self.epsilon,
        )


@keras.saving.register_keras_serializable("keras_transformer")
class Adam(_OnePass, keras.optimizers.Adam):
    """`keras.optimizers.Adam`, several times as fast on TensorFlow: one operation updates each weight.

    The arguments, the state and the results are Keras's. On other backends, and with `amsgrad=True`, the update is
    Keras's too. The method is Kingma and Ba, 2015, "Adam: A Method for Stochastic Optimization", algorithm 1:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        w = w - learning_rate * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)

    The Transformer's settings are `beta_1=0.9, beta_2=0.98, epsilon=1e-9` ("Attention Is All You Need", section 5.3).

    Args:
        learning_rate: A float, a schedule such as `WarmupSchedule`, or a function without arguments.
        **kwargs: The other arguments of `keras.optimizers.Adam`, such as `beta_1`, `beta_2` and `global_clipnorm`.

    >>> weight = keras.Variable([1.0, 2.0])
    >>> Adam(0.1).apply([ops.convert_to_tensor([3.0, -4.0])], [weight])
    >>> [round(float(w), 4) for w in weight.numpy()]
    [0.9, 2.1]
    """


@keras.saving.register_keras_serializable("keras_transformer")
class AdamW(_OnePass, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW`, several times as fast on TensorFlow: one operation updates each weight.

    AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019, "Decoupled Weight Decay Regularization"):
    each step also subtracts `learning_rate * weight_decay * w` from a weight `w`. The arguments, the state and the
    results are Keras's. On other backends, and with `amsgrad=True`, the update is Keras's too.

    Args:
        learning_rate: A float, a schedule such as `WarmupSchedule`, or a function without arguments.
        weight_decay: A float, the rate of the decay.
        **kwargs: The other arguments of `keras.optimizers.AdamW`, such as `beta_1`, `beta_2` and `global_clipnorm`.

    >>> weight = keras.Variable([1.0, 2.0])
    >>> AdamW(0.1, weight_decay=0.5).apply([ops.convert_to_tensor([3.0, -4.0])], [weight])
    >>> [round(float(w), 4) for w in weight.numpy()]
    [0.85, 2.0]
    """
