"""The one file of the core that names a Keras backend: Keras has no call that compiles a function."""

import keras


def accelerated():
    """Whether this process computes on a GPU or TPU."""
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())


def compiled(function, model, jit_compile):
    """Compiles a function of tensors that reads a model's weights.

    Args:
        function: A function of tensors to a nest of tensors.
        model: The layer or model whose weights it reads; they may change between calls.
        jit_compile: True for XLA, False for a graph without it. JAX always compiles with XLA.

    Returns:
        A function of the same arguments.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=jit_compile, reduce_retracing=not jit_compile)
    if backend == "jax":
        import jax

        @jax.jit
        def stateless(values, *args):
            # The weights are arguments: closed over, they would be frozen into the compiled program.
            with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
                return function(*args)

        return lambda *args: stateless([v.value for v in model.variables], *args)
    return function
