"""The one file of the core that names a Keras backend: Keras has no call that compiles a function."""

import contextlib
import contextvars

import keras
from keras import ops

_IN_XLA = contextvars.ContextVar("in_xla", default=False)


def compiles(jit_compile):
    """Whether to compile with XLA: as asked for, and where nobody asked, where there is a GPU or TPU.

    JAX always compiles.
    """
    if keras.backend.backend() == "jax":
        return True
    if jit_compile is None:
        return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
    return bool(jit_compile)


def in_xla():
    """Whether what runs now will be run by XLA, as far as this library knows; JAX is XLA throughout."""
    return _IN_XLA.get() or keras.backend.backend() == "jax"


@contextlib.contextmanager
def _traced_for_xla(jit_compile):
    token = _IN_XLA.set(jit_compile)
    try:
        yield
    finally:
        _IN_XLA.reset(token)


def summed_over_replicas(x):
    """The sum of a tensor over all replicas of a step under `tf.distribute`, and their number.

    Where there is one replica, and on other backends, `x` itself and 1. JAX needs nothing here: a step under
    `keras.distribution` is one program over the joint batch.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        replica = tf.distribute.get_replica_context()  # None outside a step
        if replica is not None and replica.num_replicas_in_sync > 1:
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, x), replica.num_replicas_in_sync
    return x, 1


def custom_gradient(function):
    """`keras.ops.custom_gradient`, for gradients of one argument: backends hand over what flows back differently.

    Args:
        function: Of tensors to a value and to a function of the value's gradient to those of the tensors.

    Returns:
        The function of tensors to the value.
    """

    @ops.custom_gradient
    def differentiable(*tensors):
        value, gradient = function(*tensors)

        def backward(*args, upstream=None):
            return gradient(args[0] if upstream is None else upstream)

        return value, backward

    return differentiable


def adam_in_one_pass():
    """A function that updates one weight as Adam does, in one pass; None where the backend has none.

    It takes the weight, its two moments and its gradient, and the scalars under the names of TensorFlow's operation.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    def handle(variable):
        return (variable.value if isinstance(variable, keras.Variable) else variable).handle

    def update(weight, mean, variance, gradient, **scalars):
        tf.raw_ops.ResourceApplyAdam(
            var=handle(weight),
            m=handle(mean),
            v=handle(variance),
            grad=tf.cast(tf.convert_to_tensor(gradient), weight.dtype),
            **{name: tf.cast(scalar, weight.dtype) for name, scalar in scalars.items()},
        )

    return update


def compiled(function, model, jit_compile):
    """Compiles a function of tensors that reads a model's weights.

    Args:
        function: A function of tensors to a nest of tensors.
        model: The layer or model whose weights it reads; they may change between calls.
        jit_compile: True for XLA, False for a graph without it, as `compiles` gave it.

    Returns:
        A function of the same arguments.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        def traced(*args):
            with _traced_for_xla(jit_compile):
                return function(*args)

        return tf.function(traced, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False)
    if backend == "jax":
        import jax

        @jax.jit
        def stateless(values, *args):
            # The weights are arguments: closed over, they would be frozen into the compiled program.
            with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
                return function(*args)

        return lambda *args: stateless([v.value for v in model.variables], *args)
    return function
