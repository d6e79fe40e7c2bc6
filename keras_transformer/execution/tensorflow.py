"""The backend's own operations on TensorFlow. `jax.py` has the same names."""

import contextlib
import contextvars
import functools
from copy import copy as copy_options

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

# TensorFlow has no public way to change how the functions that one thread calls are optimized.
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels
from tensorflow.python.framework.ops import SymbolicTensor
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from keras_transformer.execution.tensorflow_calls import shared_function  # noqa: F401 (a name of `native`)
from keras_transformer.execution.tensorflow_training import (  # noqa: F401 (names of `native`)
    adam_in_one_pass,
    gradient_of,
    has_replicas,
    leaves_onednn_off,
    sum_of_replicas,
    summed_over_replicas,
)

# Bytes of an int8 kernel from which on its products share a copy. The call of a function takes 30 microseconds.
COPIED_ONCE = 2**22

# Facts about the graph that is being made: whether `compiled` traces it for XLA, whether nobody takes a gradient of it,
# and whether int8 weights keep their values as long as it exists.
_XLA, _WITHOUT_GRADIENT, _CONSTANT_WEIGHTS = (
    contextvars.ContextVar(name, default=False) for name in ("xla", "without_gradient", "constant_weights")
)
without_gradient = _WITHOUT_GRADIENT.get

# TensorFlow keeps fewer tensors and computes fewer passes where a gradient is written out.
GAINS_BY_WRITTEN_GRADIENTS = True

# Whether XLA compiles a training step of shared functions once. Here it would compile every step anew.
SHARES_IN_XLA = False

executing_eagerly = tf.executing_eagerly

# The class of a tensor of a graph that is being made.
Traced = SymbolicTensor


def open_graph():
    """Returns the graph that is being made; outside of one, TensorFlow's default graph."""
    return tf.compat.v1.get_default_graph()


def is_of_open_graph(x):
    """Returns whether a `Traced` is of the graph that is being made, which does not know its whole shape."""
    is_here = x.graph is open_graph()
    return is_here and x.shape.rank is not None and None in tuple(x.shape)


def compiles(jit_compile):
    """Returns whether to compile with XLA: `jit_compile`, or where it is None, whether there is a GPU or TPU."""
    return has_accelerator() if jit_compile is None else bool(jit_compile)


def has_accelerator():
    """Returns whether there is a GPU or a TPU."""
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())


def in_xla():
    """Returns whether XLA runs the code at hand."""
    # The second is a function of the user, `tf.function(jit_compile=True)`, or Keras's of `compile(jit_compile=True)`.
    return _XLA.get() or (not tf.executing_eagerly() and GraphOrParentsInXlaContext(open_graph()))


def makes_inference_graph():
    """Returns whether a graph without a gradient and without XLA is being made."""
    return without_gradient() and not tf.executing_eagerly() and not in_xla()


@contextlib.contextmanager
def _set(*facts):
    """Gives context variables other values for the code inside: pairs of a variable and its value."""
    tokens = [(variable, variable.set(value)) for variable, value in facts]
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


def inference_graph(differentiable=False):
    """Lets graphs that are made inside treat int8 weights as constants, and leave out gradients.

    Such a graph has faster operations without a gradient, and no gradients that are written out: TensorFlow keeps each
    of these until the process ends, and with it the graph that it belongs to. TensorFlow raises where a gradient is
    taken all the same.

    Args:
        differentiable: Whether somebody may take a gradient of them.
    """
    return _set((_CONSTANT_WEIGHTS, True), (_WITHOUT_GRADIENT, not differentiable))


def compiled(function, model, jit_compile, differentiable=False, lengths=()):
    """Compiles a function of tensors that reads a model's weights.

    Args:
        function: Function of tensors to a nest of tensors.
        model: The layer or model whose weights it reads. The values of floats may change between calls. Make a new
            function when int8 weights change: see `unchanged`.
        jit_compile: True for XLA, False for a graph without it.
        differentiable: Whether somebody may take the gradient of the function. Without it the function's values are
            constants for a `tf.GradientTape`.
        lengths: Numbers of arguments whose tensors have any length, their second axis. A graph without XLA is traced
            once for all lengths, not for the first one alone.

    Returns:
        Function of the same arguments.
    """

    def traced(*args):
        with _set((_XLA, jit_compile)), inference_graph(differentiable):
            return function(*args)

    # A partial has no code object. TensorFlow counts traces for each code object, and would warn of retracing as
    # soon as five of these functions exist.
    traced = functools.partial(traced)
    call = tf.function(traced, jit_compile=jit_compile, reduce_retracing=not jit_compile, autograph=False)
    known = set()

    def call_open(*args):
        """Calls the function, traced for all lengths."""
        if lengths and not jit_compile and not tf.config.functions_run_eagerly():
            specs = [
                tf.nest.map_structure(_with_any_length, arg) if i in lengths else arg
                for i, arg in enumerate(args)
            ]
            kinds = str([(x.shape, x.dtype) for x in tf.nest.flatten(specs) if hasattr(x, "shape")])
            if kinds not in known:
                call.get_concrete_function(*specs)
                known.add(kinds)
        return call(*args)

    if differentiable:
        return call_open

    def unwatched(*args):
        # The scope pauses the tapes around it. A graph around it has to contain the call.
        with optimized_quickly(), tf.init_scope() if tf.executing_eagerly() else contextlib.nullcontext():
            return call_open(*args)

    return unwatched


def _with_any_length(x):
    """Returns the kind of a tensor `(batch, length, ...)`, which says nothing of its length."""
    return tf.TensorSpec((x.shape[0], None, *x.shape[2:]), x.dtype)


@contextlib.contextmanager
def optimized_quickly(passes=1):
    """Lets TensorFlow take less time to optimize the functions that this thread calls for the first time inside.

    By default it rewrites a function twice, and tries what gains nothing on a CPU. A function must always be called in
    the same way, or TensorFlow optimizes it once more.

    Args:
        passes: How often to rewrite a function: 1, or 0 for a function that is called once.
    """
    scope = context.context()
    before = scope.function_call_options
    options = copy_options(before)
    options.config_proto_serialized = _quick_config(before.config_proto_serialized, passes)
    scope.function_call_options = options
    try:
        yield
    finally:
        scope.function_call_options = before


@functools.lru_cache(maxsize=8)
def _quick_config(serialized, passes):
    config = ConfigProto.FromString(serialized)
    rewrites = config.graph_options.rewrite_options
    rewrites.disable_meta_optimizer = rewrites.disable_meta_optimizer or not passes
    rewrites.meta_optimizer_iterations = RewriterConfig.ONE
    if not has_accelerator():
        rewrites.memory_optimization = RewriterConfig.NO_MEM_OPT
        rewrites.layout_optimizer = rewrites.implementation_selector = RewriterConfig.OFF
        rewrites.scoped_allocator_optimization = RewriterConfig.OFF
    return config


# blocks.py writes its gradient out, and computes there again what it needs.
recomputed = functools.partial


# Keras computes the sizes of parts by operations of the graph.
split = tf.split
mean, sin, cos, tanh = ops.mean, ops.sin, ops.cos, ops.tanh


def in_replicas():
    """Returns whether a step is computed in several replicas: their weights must stay variables."""
    return tf.distribute.get_strategy().num_replicas_in_sync > 1


def tensor_of(variable):
    """Returns the value of a variable of Keras or TensorFlow as a tensor."""
    return tf.convert_to_tensor(variable)


def copy(x):
    """Returns a copy of a tensor that shares no memory with it, with a constant or with another copy."""
    return x if in_xla() else tf.raw_ops.DeepCopy(x=x)


def after(x, other):
    """Returns a tensor that is ready when another one is.

    TensorFlow computes what depends on weights alone as soon as a step begins, and keeps it until it is used: the
    floats of all int8 kernels at once.
    """
    with tf.control_dependencies([other]):
        return tf.identity(x)


def write_in_place(x, indices, rows):
    """Writes rows into a tensor that `copy` made, and returns it. Nothing else may read `x` afterwards.

    TensorFlow's scatter copies the whole tensor first.

    Args:
        x: `(n, dim)`.
        indices: int32 `(m, 1)`.
        rows: `(m, dim)`.
    """
    return tf.raw_ops.InplaceUpdate(x=x, i=tf.reshape(indices, (-1,)), v=rows)


def transpose(x, axes):
    """Transposes a tensor, faster in a graph for inference.

    TensorFlow leaves floats to oneDNN, which prepares each call again for 50 microseconds. It moves integers itself.
    """
    if x.dtype != tf.float32 or not makes_inference_graph():
        return ops.transpose(x, axes)
    moved = tf.bitcast(tf.transpose(tf.bitcast(x, tf.int32), axes), tf.float32)
    # Bits have no gradient, and TensorFlow would take it for zero where a user's `tf.function` that was traced here
    # is called in training. As a second output of one operation `x` makes it raise.
    message = "A search or a servable traced this `tf.function` for inference. Trace it again to train."
    return tf.raw_ops.IdentityN(input=[moved, tf.raw_ops.PreventGradient(input=x, message=message)])[0]


def product_of_few_rows(x, y, transpose_y=False):
    """Multiplies matrices of few rows; oneDNN's product takes longer to start than these take to compute.

    Args:
        x: `(..., rows, n)`.
        y: `(..., n, m)`; with `transpose_y` `(..., m, n)`.
        transpose_y: Whether to exchange the last two axes of `y` first.

    Returns:
        `(..., rows, m)`.
    """
    one = x.shape[-2] == 1
    # The gradient of several rows, vector by vector, would need as many copies of `y`.
    if x.dtype != tf.float32 or in_xla() or not (one or without_gradient()):
        return tf.matmul(x, y, transpose_b=transpose_y)
    if one:
        return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=x.dtype, adj_y=transpose_y)
    # Vector by vector, which is faster here.
    x, y = tf.expand_dims(x, -2), tf.expand_dims(y, -3)
    return tf.squeeze(tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=x.dtype, adj_y=transpose_y), -2)


def side_by_side(function, arrays, results):
    """Applies a function to two parts at the same time, where two cores are free.

    Args:
        function: Takes a list of tensors, the same part of each array, and returns a tuple of tensors.
        arrays: A list of tensors `(parts, ...)`.
        results: The shape and the dtype of each result of the function.

    Returns:
        A tuple of tensors `(parts, ...)`.
    """
    results = tuple(tf.TensorSpec(*result) for result in results)
    return tf.map_fn(function, arrays, fn_output_signature=results, parallel_iterations=2)


def int8_column_sums(kernel, axes, largest):
    """Returns the sums that `int8_product` needs; None where it cannot multiply: on a GPU, in XLA, in replicas.

    A graph asks once, when it is made. Where its int8 weights keep their values the sums are constants in it.

    Args:
        kernel: `keras.Variable` of dtype int8.
        axes: The axes of the kernel that the product sums over.
        largest: The largest weight that is multiplied without an error on every CPU.

    Returns:
        float32 `(n,)`.
    """
    if in_xla() or not has_int8_product() or not _is_plain(kernel.value):
        return None
    with tf.init_scope():
        # The kernel's values, in a graph too.
        if tf.reduce_max(tf.abs(tf.cast(kernel.value, tf.int16))) > largest:
            return None
        sums = _column_sums(kernel.value, axes).numpy() if _CONSTANT_WEIGHTS.get() else None
    return _column_sums(kernel.value, axes) if sums is None else sums


def _column_sums(kernel, axes):
    sums = tf.reduce_sum(tf.cast(kernel, tf.int32), axes)
    return tf.cast(tf.reshape(sums, (-1,)), tf.float32)


def _is_plain(value):
    """Returns whether a value is a variable of one device: not a tensor, not a variable of several replicas."""
    return isinstance(value, tf.Variable) and not isinstance(value, tf.distribute.DistributedValues)


@functools.cache
def has_int8_product():
    """Returns whether oneDNN's int8 product is here: TensorFlow for Linux on x86-64, and no GPU."""
    return not has_accelerator() and bool(kernels.get_registered_kernels_for_op("_QuantizedMatMul").kernel)


def int8_product(kernel, scale, sums, steps, transposed=False):
    """Makes a function that rounds rows and multiplies them by an int8 kernel.

    It is oneDNN's product, as the operation `_QuantizedMatMul`, which has no function in Python. CPUs multiply unsigned
    rows by signed kernels; without VNNI oneDNN takes up to six times as long for signed rows. So `steps` is added to
    the rows, and the bias takes its product with the kernel away again.

    oneDNN copies the kernel into an order of its own. With `constant_weights` each operation does so once, and all
    calls for a kernel of `COPIED_ONCE` bytes or more are calls of one function of the graph, so they share a copy.

    Args:
        kernel: int8 `(k, n)`, or `(n, k)` where `transposed`, of small numbers: `int8_column_sums`.
        scale: `(n,)`, the factor that each column was multiplied with.
        sums: float32 `(n,)`, the sum of each column.
        steps: The largest number of the rows, at most 127.
        transposed: Whether the kernel is `(n, k)`.

    Returns:
        A function. It takes float32 rows `(m, k)` of numbers from `-steps` to `steps`, rounds them to whole numbers and
        returns `rows @ kernel / (127 * scale)`, float32 `(m, n)`.
    """
    constant, kernel = _CONSTANT_WEIGHTS.get(), tf.convert_to_tensor(kernel)
    # The largest number of each column.
    reach = 127.0 / tf.cast(scale, tf.float32)
    bias = sums * (-steps / 127.0**2) * reach
    node = functools.partial(_int8_node, transposed=transposed, constant=constant)
    if constant and not tf.executing_eagerly() and (kernel.shape.num_elements() or 0) >= COPIED_ONCE:
        rows = tf.TensorSpec((None, kernel.shape[int(transposed)]), tf.quint8)
        node = tf.function(
            node,
            input_signature=[rows, *map(tf.TensorSpec.from_tensor, (kernel, bias, reach))],
            autograph=False,
            experimental_attributes={"_noinline": True},
        )

    def product(rows):
        rows = tf.cast(rows + (steps + 0.5), tf.quint8)  # cuts the fraction off
        if tf.executing_eagerly():
            return _eager_int8_product(transposed)(rows, kernel, bias, reach)
        result = node(rows, kernel, bias, reach)
        result.set_shape((rows.shape[0], reach.shape[0]))
        return result

    return product


def _int8_node(rows, kernel, bias, reach, transposed, constant):
    """Adds `_QuantizedMatMul` to the graph."""
    uint8, int8, float32 = (
        AttrValue(type=dtype.as_datatype_enum) for dtype in (tf.quint8, tf.qint8, tf.float32)
    )

    def types(*values):
        return AttrValue(list=AttrValue.ListValue(type=[value.type for value in values]))

    # The kernel's range is from 0 to `reach`; oneDNN reads the larger absolute value.
    zeros = tf.zeros(reach.shape) if reach.shape.is_fully_defined() else tf.zeros_like(reach)
    operation = open_graph().create_op(
        "_QuantizedMatMul",
        [
            rows,
            # No loop of TensorFlow carries a qint8.
            tf.bitcast(kernel, tf.qint8),
            bias,
            # The range of the rows: 127 stands for 1.
            *map(tf.constant, (0.0, 255.0 / 127.0)),
            zeros,
            reach,
        ],
        dtypes=[tf.float32],
        name="int8_product",
        attrs={
            "Tdevice_inputs": types(uint8, int8, float32),
            "Thost_inputs": types(*[float32] * 4),
            "Tdevice_outputs": types(float32),
            "Thost_outputs": types(),
            "T1": uint8,
            "T2": int8,
            **dict.fromkeys(("Tbias", "U", "Tout"), float32),
            **dict.fromkeys(("is_weight_const", "is_bias_const"), AttrValue(b=constant)),
            "transpose_b": AttrValue(b=transposed),
            "fused_ops": AttrValue(list=AttrValue.ListValue(s=[b"BiasAdd", b"Dequantize"])),
            "input_quant_mode": AttrValue(s=b"SCALED"),
        },
    )
    return operation.outputs[0]


@functools.cache
def _eager_int8_product(transposed):
    """Returns the product as a graph, also where `tf.function` runs eagerly. No kernel is constant in it."""
    rows, kernel = (tf.TensorSpec((None, None), dtype) for dtype in (tf.quint8, tf.int8))
    vector = tf.TensorSpec((None,), tf.float32)
    return tf.function(
        functools.partial(_int8_node, transposed=transposed, constant=False),
        input_signature=[rows, kernel, vector, vector],
        autograph=False,
    ).get_concrete_function()


def unchanged(variables):
    """Returns a function that says whether int8 variables still have the values that they have now.

    The function keeps the old tensors. So TensorFlow puts new values into new memory, and a new address means new
    values.

    Args:
        variables: List of `keras.Variable`; other dtypes are left out.
    """
    if not has_int8_product():
        return lambda: True
    narrow = [v.value for v in variables if keras.backend.standardize_dtype(v.dtype) == "int8"]
    handles = [value.handle for value in narrow if _is_plain(value)]

    def memory(handle):
        tensor = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int8)
        return tensor, np.asarray(memoryview(tensor)).ctypes.data

    then = [memory(handle) for handle in handles]
    return lambda: all(memory(handle)[1] == place for handle, (_, place) in zip(handles, then, strict=True))
