"""The only file of the core that names a Keras backend."""

import contextvars
import functools

import keras
from keras import ops

_IN_XLA = contextvars.ContextVar("in_xla", default=False)
_BACKEND = keras.backend.backend()


def compiles(jit_compile):
    """Returns whether to compile with XLA: `jit_compile`, or where it is None, whether there is a GPU or TPU.

    JAX always compiles.
    """
    if _BACKEND == "jax":
        return True
    if jit_compile is None:
        return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
    return bool(jit_compile)


def in_xla():
    """Returns whether XLA runs the code at hand, as far as this library knows; on JAX it always does."""
    return _BACKEND == "jax" or _IN_XLA.get()


def summed_over_replicas(x):
    """Sums a tensor over all replicas of a step under `tf.distribute`.

    JAX needs nothing here: a step under `keras.distribution` is one program over the joint batch.

    Returns:
        The sum, and the number of replicas; `x` and 1 where there is one replica and on other backends.
    """
    if _BACKEND == "tensorflow":
        import tensorflow as tf

        replica = tf.distribute.get_replica_context()  # None outside a step
        if replica is not None and replica.num_replicas_in_sync > 1:
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, x), replica.num_replicas_in_sync
    return x, 1


if _BACKEND == "tensorflow":
    custom_gradient = ops.custom_gradient
    recomputed = functools.partial  # gradients that are written out say themselves what they compute again
else:

    def custom_gradient(function):
        """Returns a function without its written-out gradient: XLA derives one that is as fast.

        A derived gradient can itself be differentiated, forwards too (`jax.jvp`).

        Args:
            function: Function of tensors to a value and a gradient function.
        """
        return lambda *tensors: function(*tensors)[0]

    def recomputed(function):
        """Returns a function whose intermediate values are computed again for the gradient, instead of kept."""
        import jax

        return jax.checkpoint(function)


def written_gradient(function):
    """Returns a function with its written-out gradient on every backend, where a derived one needs more memory.

    Args:
        function: Function of one tensor to a value and a function of the value's gradient to the tensor's.
    """

    @ops.custom_gradient
    def differentiable(x):
        value, gradient = function(x)
        return value, lambda *args, upstream=None: gradient(args[0] if upstream is None else upstream)

    return differentiable


def adam_in_one_pass():
    """Returns a function that updates one weight as Adam does, in one pass; None where the backend has none.

    It takes the weight, its two moments and its gradient, and the scalars under the names of TensorFlow's operation.
    """
    if _BACKEND != "tensorflow":
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
        function: Function of tensors to a nest of tensors.
        model: The layer or model whose weights it reads; their values may change between calls.
        jit_compile: True for XLA, False for a graph without it.

    Returns:
        Function of the same arguments.
    """
    if _BACKEND == "tensorflow":
        import tensorflow as tf

        def traced(*args):
            token = _IN_XLA.set(jit_compile)
            try:
                return function(*args)
            finally:
                _IN_XLA.reset(token)

        # A partial has no code object. TensorFlow counts traces for each code object, and would warn of retracing as
        # soon as five of these functions exist.
        traced = functools.partial(traced)
        return tf.function(traced, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False)
    if _BACKEND == "jax":
        import jax

        @jax.jit
        def stateless(values, *args):
            # The weights are arguments: closed over, they would be frozen into the compiled program.
            with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
                return function(*args)

        return lambda *args: stateless([v.value for v in model.variables], *args)
    return function
