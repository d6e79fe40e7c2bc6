"""A model's weights: their fingerprint; stored in fewer bytes and widened once, when they are loaded."""

import hashlib

import numpy as np
import tensorflow as tf

FORMATS = ("float32", "bfloat16", "int8")


def fingerprint(model):
    """A hash of a model's weights, hexadecimal: the same for the same float32 values of the same layers."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(f"{weight.path.partition('/')[2]} {tuple(weight.shape)}\n".encode())
        digest.update(weight.numpy().astype("<f4").tobytes())
    return digest.hexdigest()


def stored(model, weights):
    """A model's weights as an export stores them.

    A server restores what is stored and widens it to float32, once: a search reads the weights many times, and CPUs
    multiply float32 fastest. Matrices alone are narrowed. In int8, a weight is a whole number from -127 to 127 times
    the scale of its channel: the token in an embedding, the output in a kernel.

    Args:
        model: The model.
        weights: "float32", "bfloat16" or "int8".

    Returns:
        A function to the float32 tensors to compute with, in the order of `model.weights`, or None for the variables
        themselves; and a `tf.Module` that tracks what is stored.

    Raises:
        ValueError: If `weights` is none of these.
    """
    if weights not in FORMATS:
        raise ValueError(f"`weights` must be one of {FORMATS}. Received: weights={weights!r}.")
    module = tf.Module()
    if weights == "float32":
        module.weights = [weight.value for weight in model.weights]
        return None, module
    module.weights = [_stored(weight, weights) for weight in model.weights]
    module.parts = [part for each in module.weights for part in each.parts]
    return lambda: [each.read() for each in module.weights], module


def _stored(weight, weights):
    values = weight.numpy().astype("float32")
    if not weight.path.endswith(("kernel", "embeddings")):
        return _Widened(values)
    if weights == "bfloat16":
        return _Widened(values.astype(tf.bfloat16.as_numpy_dtype))
    return _Widened(*quantized(values, _summed_axes(weight)))


def _summed_axes(weight):
    """The axes of a matrix that are not its channels'."""
    rank = len(weight.shape)
    if weight.path.endswith("embeddings"):  # the rows are the tokens, and the outputs of the logits
        return (rank - 1,)
    return tuple(range(rank - 1)) if weight.path.endswith("output_kernel") else (0,)


def quantized(values, axes):
    """Whole numbers from -127 to 127, int8, and float32 scales: their product is nearest to the values."""
    scales = np.abs(values).max(axis=axes, keepdims=True) / 127.0
    return np.round(values / np.where(scales == 0, 1.0, scales)).astype("int8"), scales.astype("float32")


class _Widened(tf.saved_model.experimental.TrackableResource):
    """A float32 variable that is made from what is stored when the model is loaded, and is not stored itself."""

    def __init__(self, *parts):
        super().__init__()
        # Named by its content: where two models are loaded, none takes the other's values for its own.
        self._name = hashlib.sha256(
            b"".join(f"{part.dtype} {part.shape} ".encode() + part.tobytes() for part in parts)
        ).hexdigest()
        self.parts = [tf.Variable(part, trainable=False) for part in parts]
        self._initialize()

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=self.parts[0].shape, shared_name=self._name)

    def _initialize(self):
        values = tf.cast(self.parts[0], tf.float32)
        if len(self.parts) > 1:
            values *= self.parts[1]
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=values)

    def read(self):
        value = tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=tf.float32)
        return tf.ensure_shape(value, self.parts[0].shape)
