"""The layout of each weight when a model is spread over devices with `keras.distribution`."""

import re

import keras

from keras_transformer.keras_internals import sublayers
from keras_transformer.layers import TokenEmbedding

# The axis of a weight that is split: heads, the inner width of a feed-forward network, the vocabulary (Shoeybi et al.,
# 2019, "Megatron-LM", section 3). A split weight and the one after it need one sum of their products, no more.
SPLIT_AXIS = {
    "query/kernel": 1,
    "query/bias": 0,
    "key/kernel": 1,
    "key/bias": 0,
    "value/kernel": 1,
    "value/bias": 0,
    "attention_output/kernel": 0,
    "inner/kernel": 1,
    "inner/bias": 0,
    "gate/kernel": 1,
    "gate/bias": 0,
    "outer/kernel": 0,
}
# The same of a `TokenEmbedding`, whatever its name; tables of positions stay whole.
TOKEN_AXIS = {"embeddings": 0, "bias": 0, "reverse_embeddings": 1}


def layout_map(model, mesh, axis="model"):
    """Returns a layout for every weight of a model: split over one axis of the mesh, or whole on every device.

    A weight whose axis does not divide by the size of the mesh's stays whole, such as fewer heads of keys and values
    than devices. Each expert is split like any feed-forward network. The router and tables of positions are whole.

    Args:
        model: A built model.
        mesh: A `keras.distribution.DeviceMesh`.
        axis: Name of the axis of the mesh to split over.

    Returns:
        A `keras.distribution.LayoutMap`, one key for each weight: its path, whatever the model's name.

    Raises:
        ValueError: If the mesh has no such axis.
    """
    if axis not in mesh.axis_names:
        raise ValueError(f"`mesh` must have the axis {axis!r}. Received: axes {list(mesh.axis_names)}.")
    size = mesh.shape[list(mesh.axis_names).index(axis)]
    tables = [layer for layer in sublayers(model) if isinstance(layer, TokenEmbedding)]
    of_tokens = {id(weight): TOKEN_AXIS.get(weight.name) for layer in tables for weight in layer.weights}
    axes_of = {}
    for weight in model.weights:
        axes = [None] * len(weight.shape)
        split = next((i for end, i in SPLIT_AXIS.items() if f"/{weight.path}".endswith(f"/{end}")), None)
        split = of_tokens.get(id(weight), split)
        if split is not None and weight.shape[split] % size == 0:
            axes[split] = axis
        path = weight.path.removeprefix(f"{model.name}/")
        # Models of an ensemble may have one name, and so weights of one path.
        same = axes_of.setdefault(path, axes)
        axes_of[path] = axes if same == axes else [None] * len(axes)
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in axes_of.items():
        layouts[f"(.*/)?{re.escape(path)}"] = tuple(axes)
    return layouts
