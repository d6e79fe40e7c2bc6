"""A model's weights in an export: their fingerprint, their precision, and how they are stored."""

import contextlib
import gc
import hashlib
import inspect
import tempfile
import warnings
from pathlib import Path

import keras
import tensorflow as tf

PRECISIONS = ("float32", "bfloat16", "int8")


def fingerprint(model):
    """Computes a hash of a model's weights.

    Args:
        model: A built `keras.Model`.

    Returns:
        A hexadecimal str. It is the same for the same float32 values in the same layers.
    """
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(f"{weight.path.partition('/')[2]} {tuple(weight.shape)}\n".encode())
        digest.update(weight.numpy().astype("<f4").tobytes())
    return digest.hexdigest()


def quantized_copy(model):
    """Returns a copy of a model with int8 kernels and embeddings, as `model.quantize("int8")` makes them.

    Args:
        model: A built `keras.Model` of this library.
    """
    copy = keras.models.clone_model(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "merged.weights.h5"
        # Keras adds low-rank adapters to the kernels here.
        model.save_weights(path)
        copy.load_weights(path)
    with warnings.catch_warnings():
        # Keras 3.15 says the first, Keras 3.16 the second.
        for message in ("does not have a `quantize` method", "do not support quantization"):
            warnings.filterwarnings("ignore", message=f".*{message}")
        # Keras 3.16 prints a report.
        silent = {"verbose": False} if "verbose" in inspect.signature(copy.quantize).parameters else {}
        with _old_objects_kept():
            copy.quantize("int8", **silent)
    return copy


@contextlib.contextmanager
def _old_objects_kept():
    """Lets garbage collections look at new objects alone. Keras collects once for each layer that it quantizes."""
    # The program has frozen objects of its own, which must stay frozen.
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def store_weights(model, narrow):
    """Prepares a model's weights for an export.

    With `narrow`, matrices are stored as bfloat16. A server widens them to float32 once, when it loads the export: a
    search reads the weights many times, and CPUs multiply bfloat16 slower (docs/decisions/0022-bfloat16-is-stored.md).

    Args:
        model: A built `keras.Model`.
        narrow: Whether to store matrices of floats as bfloat16.

    Returns:
        A function without arguments that returns the tensors to compute with, in the order of `model.weights`; None if
        the model computes with its variables. And a `tf.Module` that tracks the stored weights.
    """
    module = tf.Module()
    if not narrow:
        module.weights = [weight.value for weight in model.weights]
        return None, module
    module.weights = [_narrowed(weight) for weight in model.weights]
    module.stored = [weight.stored for weight in module.weights]
    return lambda: [weight.read() for weight in module.weights], module


def _narrowed(weight):
    """Makes a `_WidenedWeight` of a variable: a matrix of floats as bfloat16, all else as it is."""
    values = weight.numpy()
    if "float" not in weight.dtype:
        return _WidenedWeight(values, weight.dtype)
    matrix = weight.path.endswith(("kernel", "embeddings"))
    return _WidenedWeight(values.astype(tf.bfloat16.as_numpy_dtype if matrix else "float32"), "float32")


class _WidenedWeight(tf.saved_model.experimental.TrackableResource):
    """A weight that is computed when the export is loaded.

    Args:
        values: NumPy array in the dtype to store.
        dtype: The dtype of the weight, a str.
    """

    def __init__(self, values, dtype):
        super().__init__()
        # The name is a hash of the content: two weights of one export share a variable if they are equal. TensorFlow
        # adds a number to it when it loads an export in Python, so no two loaded exports share a variable.
        content = f"{dtype} {values.dtype} {values.shape} ".encode() + values.tobytes()
        self._name = hashlib.sha256(content).hexdigest()
        self._dtype = tf.as_dtype(dtype)
        self.stored = tf.Variable(values, trainable=False)
        # By default the first reader makes it, in its own graph.
        self._resource_handle = self._create_resource()

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(dtype=self._dtype, shape=self.stored.shape, shared_name=self._name)

    def _initialize(self):
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=self._widened())

    def _destroy_resource(self):
        # TensorFlow never frees a variable with a name by itself.
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle)

    def _widened(self):
        return tf.cast(self.stored, self._dtype)

    def read(self):
        """Returns the tensor of the weight."""

        def widened():
            return tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=self._dtype)

        # In Python a caller may keep only a signature of the loaded export. The stored weight stays with the signature,
        # but the variable is destroyed with the export, and the weight is computed for each request.
        exists = tf.raw_ops.VarIsInitializedOp(resource=self.resource_handle)
        return tf.ensure_shape(tf.cond(exists, widened, self._widened), self.stored.shape)
