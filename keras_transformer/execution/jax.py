"""The backend's own operations on JAX, and plain ones on other backends. `tensorflow.py` has the same names."""

import contextlib
import functools
import itertools

import keras
from keras import ops

if keras.backend.backend() == "jax":
    import jax
    from jax.interpreters.partial_eval import DynamicJaxprTracer
else:
    # Another backend of Keras: layers compute, and nothing is compiled.
    jax = None


# The class of a tensor of a computation that `jax.jit` is tracing. Outside of it `jax.grad` traces too, in each call.
Traced = () if jax is None else DynamicJaxprTracer

# XLA derives gradients that are as fast, and that can themselves be differentiated, forwards too (`jax.jvp`).
GAINS_BY_WRITTEN_GRADIENTS = False

# Whether XLA compiles a training step of shared functions once.
SHARES_IN_XLA = True


def executing_eagerly():
    """Returns whether no graph is being made: on JAX any computation may be traced."""
    return False


def compiles(jit_compile):
    """Returns whether to compile with XLA: JAX always does."""
    return True


def in_xla():
    """Returns whether XLA runs the code at hand."""
    return jax is not None


def without_gradient():
    """Returns False: any function may be differentiated."""
    return False


def makes_inference_graph():
    """Returns whether a graph without a gradient and without XLA is being made."""
    return False


def compiled(function, model, jit_compile, differentiable=False, lengths=()):
    """Compiles a function of tensors that reads a model's weights.

    Args:
        function: Function of tensors to a nest of tensors.
        model: The layer or model whose weights it reads. Their values may change between calls.
        jit_compile: Not read.
        differentiable: Not read.
        lengths: Not read.

    Returns:
        Function of the same arguments.
    """
    if jax is None:
        return function

    @jax.jit
    def stateless(values, *args):
        # The weights are arguments: closed over, they would be frozen into the compiled program.
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return function(*args)

    return lambda *args: stateless([v.value for v in model.variables], *args)


def shared_function(function, size, differentiable):
    """Makes a function of the computation at hand, which is traced for its first call and used for all like it.

    Args:
        function: Function of nests of tensors and ints. As on TensorFlow, it is traced again for other ints.
        size: Not read.
    """

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def traced(structure, leaves, tensors):
        tensors = iter(tensors)
        leaves = [next(tensors) if leaf is ... else leaf for leaf in leaves]
        return function(*jax.tree.unflatten(structure, leaves))

    def shared(*args):
        leaves, structure = jax.tree.flatten(args)
        tensors = [leaf for leaf in leaves if not isinstance(leaf, int)]
        return traced(structure, tuple(leaf if isinstance(leaf, int) else ... for leaf in leaves), tensors)

    return shared


def inference_graph(differentiable=False):
    """Returns a context that changes nothing: no graph is made for inference."""
    return contextlib.nullcontext()


def optimized_quickly(passes=1):
    """Returns a context that changes nothing: XLA optimizes."""
    return contextlib.nullcontext()


def summed_over_replicas(x):
    """Returns a tensor and 1: a step under `keras.distribution` is one program over the joint batch."""
    return x, 1


def gradient_of(function):
    """Returns a function of one tensor that computes the gradient of a function to a scalar.

    Raises:
        NotImplementedError: If the backend is neither TensorFlow nor JAX.
    """
    if jax is None:
        backend = keras.backend.backend()
        raise NotImplementedError(f"Gradients need TensorFlow or JAX as the backend. Received: {backend}.")
    return jax.grad(function)


def recomputed(function):
    """Returns a function whose intermediate values are computed again for the gradient, instead of kept."""
    return function if jax is None else jax.checkpoint(function)


def after(x, other):
    """Returns the tensor: XLA decides when to compute it."""
    return x


def copy(x):
    """Returns the tensor: nothing changes one in place."""
    return x


write_in_place = ops.scatter_update
transpose = ops.transpose
# Those of Keras compute float64 in float32 on JAX.
sin, cos, tanh = (getattr(ops if jax is None else jax.numpy, name) for name in ("sin", "cos", "tanh"))


def split(x, sizes, axis):
    """Splits a tensor into parts of some sizes, or into a number of parts."""
    ends = sizes if isinstance(sizes, int) else list(itertools.accumulate(sizes))[:-1]
    return ops.split(x, ends, axis=axis)


def mean(x, axis=None, keepdims=False):
    """Computes the mean, in float64 for float64."""
    return (ops if jax is None else jax.numpy).mean(x, axis=axis, keepdims=keepdims)


def product_of_few_rows(x, y, transpose_y=False):
    """Multiplies `(..., rows, n)` by `(..., n, m)`, or with `transpose_y` by `(..., m, n)`."""
    return ops.matmul(x, ops.swapaxes(y, -1, -2) if transpose_y else y)


def side_by_side(function, arrays, results):
    """Is not called: no graph is made for inference."""
    raise NotImplementedError


def int8_column_sums(kernel, axes, largest):
    """Returns None: there is no `int8_product`."""
    return None


def has_int8_product():
    """Returns whether there is an `int8_product`."""
    return False


def int8_product(kernel, scale, sums, steps, transposed=False):
    """Is not called: `int8_column_sums` is None."""
    raise NotImplementedError


def unchanged(variables):
    """Returns a function that says that compiled functions may go on: they read the weights in each call."""
    return lambda: True


def has_replicas(model):
    """Returns False: under `keras.distribution` a gradient is that of the whole batch."""
    return False


def adam_in_one_pass():
    """Returns None: the backend has no such operation."""


def leaves_onednn_off():
    """Returns False: it is about TensorFlow."""
    return False


def open_graph():
    """Returns None: JAX makes no graph."""


def is_of_open_graph(x):
    """Returns False: JAX knows each shape."""
    return False


def in_replicas():
    """Returns False: a step under `keras.distribution` is one program."""
    return False


def tensor_of(variable):
    """Returns the value of a `keras.Variable`."""
    return variable.value
