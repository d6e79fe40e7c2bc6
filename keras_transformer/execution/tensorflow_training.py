"""What a training step asks of TensorFlow. `tensorflow.py` hands these names on."""

import os
import platform

import keras
import tensorflow as tf

# TensorFlow has no public way to ask.
from tensorflow.python.util._pywrap_util_port import IsMklEnabled


def summed_over_replicas(x):
    """Sums a tensor over all replicas of a step under `tf.distribute`.

    Returns:
        The sum, and the number of replicas; `x` and 1 where there is one replica.
    """
    replica = tf.distribute.get_replica_context()  # None outside a step
    if replica is not None and replica.num_replicas_in_sync > 1:
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, x), replica.num_replicas_in_sync
    return x, 1


def gradient_of(function):
    """Returns a function of one tensor that computes the gradient of a function to a scalar."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        return tape.gradient(value, x)

    return gradient


def has_replicas(model):
    """Returns whether a model was made in the scope of a strategy of `tf.distribute` with several replicas."""
    return model.distribute_strategy.num_replicas_in_sync > 1


def sum_of_replicas(values):
    """Returns the sums of tensors over the replicas of a step, and the number of replicas.

    Args:
        values: List of tensors, `tf.IndexedSlices` and None.
    """
    context = tf.distribute.get_replica_context()
    given = [tf.convert_to_tensor(value) for value in values if value is not None]
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, given) if given else [])
    return [value if value is None else next(sums) for value in values], context.num_replicas_in_sync


def adam_in_one_pass():
    """Returns a function that updates one weight as Adam does, in one pass.

    It takes the weight, its two moments and its gradient, and the scalars under the names of TensorFlow's operation.
    """

    def handle(variable):
        return (variable.value if isinstance(variable, keras.Variable) else variable).handle

    def update(weight, mean, variance, gradient, **scalars):
        tf.raw_ops.ResourceApplyAdam(
            var=handle(weight),
            m=handle(mean),
            v=handle(variance),
            grad=tf.cast(tf.convert_to_tensor(gradient), weight.dtype),
            # `tf.cast` alone would take a Python number through float32.
            **{
                name: tf.convert_to_tensor(scalar, weight.dtype)
                if isinstance(scalar, float)
                else tf.cast(scalar, weight.dtype)
                for name, scalar in scalars.items()
            },
        )

    return update


def leaves_onednn_off():
    """Returns whether TensorFlow leaves oneDNN's products off on this CPU, and nobody asked for that."""
    has_onednn = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    return has_onednn and "TF_ENABLE_ONEDNN_OPTS" not in os.environ and not IsMklEnabled()
