"""Models that are quantized while they are made and read, so that memory never holds all of their floats."""

import contextlib

import keras

from keras_transformer.keras_internals import after_build, sublayers
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.projection import Projection

# Of each kind of layer that is quantized: its matrix, and the scales of that.
MATRICES = {
    Projection: {"kernel": "kernel_scale"},
    TokenEmbedding: {"embeddings": "embeddings_scale"},
    keras.layers.Dense: {"kernel": "kernel_scale"},
}
PRECISIONS = ("float32", "int8")


def quantizing(precision):
    """Returns a context in which each layer is quantized as soon as it is built; nothing happens for "float32".

    Raises:
        ValueError: If `precision` is neither "float32" nor "int8".
    """
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be one of {PRECISIONS}. Received: precision={precision!r}.")

    def quantize(layer):
        if type(layer) in MATRICES and layer.quantization_mode is None:
            layer.quantize("int8")

    return contextlib.nullcontext() if precision == "float32" else after_build(quantize)


class QuantizedMatrices:
    """The int8 matrices of a model, which get the values of matrices of floats.

    Args:
        model: A built model; one without int8 matrices too.
    """

    def __init__(self, model):
        self._owners = {
            id(getattr(layer, name)): (layer, name)
            for layer in sublayers(model)
            if type(layer) in MATRICES and layer.quantization_mode == "int8"
            for name in MATRICES[type(layer)]
        }

    def values(self, weight, value):
        """Returns the values of a weight and its other variables, as `quantize` computes them of floats.

        Args:
            weight: A variable of the model.
            value: Its floats, an array of its shape.

        Returns:
            A list of pairs: a variable, and its value.
        """
        if id(weight) not in self._owners:
            return [(weight, value)]
        layer, name = self._owners[id(weight)]
        config = {**layer.get_config(), "dtype": "float32", "trainable": True}
        twin = type(layer).from_config(config)
        twin.build_from_config(layer.get_build_config())
        getattr(twin, name).assign(value)
        twin.quantize("int8")
        scale = MATRICES[type(layer)][name]
        names = (name, scale)
        return [(getattr(layer, each), keras.ops.convert_to_numpy(getattr(twin, each))) for each in names]
