"""Models that are quantized while they are made and read, so that memory never holds all of their floats."""

import keras
import numpy as np

from keras_transformer.checks import check_choice
from keras_transformer.execution.int8 import MAX_INT8_WEIGHT, set_quantization_config
from keras_transformer.keras_internals import sublayers
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.projection import Projection

# Of each kind of layer that is quantized: its matrix, and the scales of that.
MATRICES = {
    Projection: ("kernel", "kernel_scale"),
    TokenEmbedding: ("embeddings", "embeddings_scale"),
    keras.layers.Dense: ("kernel", "kernel_scale"),
}
# Names of these layers in the library's layers and models.
NAMES = (
    *("query", "key", "value", "gate", "attention_output", "inner", "outer", "dense", "widen", "projection"),
    *("tokens", "output_embedding"),
)
PRECISIONS = ("float32", "int8")
# How many rows of an embedding are read at once.
ROWS = 8192


def dtype_of(precision, dtype=None, more_names=()):
    """Returns the `dtype` that gives a model matrices of this precision when they are built.

    Keras describes a quantized model in its files in the same way: by a policy for each path.

    Args:
        precision: "float32", or "int8" to build the matrices of the layers in `NAMES` as int8.
        dtype: The dtype of everything else; None for Keras's default.
        more_names: Names of more layers with matrices.

    Raises:
        ValueError: If `precision` is neither.
    """
    check_choice(PRECISIONS, precision=precision)
    if precision == "float32":
        return dtype
    policy = keras.dtype_policies.get(dtype)
    paths = f"(.*/)?({'|'.join((*NAMES, *more_names))})"
    quantized = keras.dtype_policies.QuantizedDTypePolicy("int8", policy.name)
    return keras.dtype_policies.DTypePolicyMap(policy, {paths: quantized})


class QuantizedMatrices:
    """The int8 matrices of a model, which get the values of matrices of floats.

    Args:
        model: A built model; one without int8 matrices too.
    """

    def __init__(self, model):
        self._owners = {
            id(getattr(layer, MATRICES[type(layer)][0])): layer
            for layer in sublayers(model)
            if type(layer) in MATRICES and layer.quantization_mode == "int8"
        }
        config = model.int8_config()
        for layer in self._owners.values() if config is not None else ():
            set_quantization_config(layer, config)

    def values(self, weight, value):
        """Returns the values of a weight and of its scales, as `quantize` computes them of floats.

        Args:
            weight: A variable of the model.
            value: Its floats, an array of its shape.

        Returns:
            A list of pairs: a variable, and its value.
        """
        if id(weight) not in self._owners:
            return [(weight, value)]
        layer = self._owners[id(weight)]
        variables = [getattr(layer, name) for name in MATRICES[type(layer)]]
        values = (
            _rows_of(value, layer.int8_parts)
            if isinstance(layer, TokenEmbedding)
            else _by_a_twin(layer, value)
        )
        return list(zip(variables, values, strict=True))


def _rows_of(value, parts):
    """Quantizes an embedding, a few rows at a time: each row has a scale of its own."""
    largest = MAX_INT8_WEIGHT[parts]
    limits = {"value_range": (-largest, largest), "to_numpy": True}
    pieces = [
        keras.quantizers.abs_max_quantize(value[start : start + ROWS], axis=-1, **limits)
        for start in range(0, len(value), ROWS)
    ]
    matrices, scales = zip(*pieces, strict=True)
    return np.concatenate(matrices), np.concatenate(scales)[:, 0]


def _by_a_twin(layer, value):
    """Quantizes the kernel of a layer like this one, with floats."""
    twin = type(layer).from_config({**layer.get_config(), "dtype": "float32"})
    twin.build_from_config(layer.get_build_config())
    twin.kernel.assign(value)
    twin.quantize("int8", config=layer.quantization_config)
    return [keras.ops.convert_to_numpy(getattr(twin, name)) for name in MATRICES[type(layer)]]
