"""`with inference(model):` reads the weights of a model once for all calls inside."""

import contextlib

import keras

from keras_transformer.execution import ops
from keras_transformer.execution.int8 import OneProduct
from keras_transformer.execution.modes import holding, inference_graph
from keras_transformer.keras_internals import sublayers


@contextlib.contextmanager
def inference(model, join=True):
    """Reads the weights of a model once, for the calls inside, and computes the operands of all its products.

    A loop inside then reads no weight. TensorFlow would keep the order of these reads, and so run two loops one after
    the other. Weights of user-defined layers are read at each use, because the layer may change them.

    Args:
        model: A built layer or model.
        join: Whether to compute products that share an input as one: their layer lists them in `joint_products`. It
            copies their kernels, which a loop of many steps outweighs.
    """
    layers = sublayers(model)
    weights = [(weight, ops.cast(weight, weight.dtype)) for weight in _constant_weights(model)]
    # An int8 product asks for its variable.
    with _HeldWeights([(weight, value) for weight, value in weights if "int" not in weight.dtype]):
        plan = {layer: layer.operands() for layer in layers if isinstance(layer, OneProduct)}
    for layer in layers if join else ():
        first, *others = [plan.get(part) for part in getattr(layer, "joint_products", ())] or [None]
        if first is not None and None not in others:
            plan[layer] = first.joined(others)
    plan = {layer: operands.without_gradient() for layer, operands in plan.items() if operands is not None}
    with holding(plan), _HeldWeights(weights):
        yield


def predict_graph(model):
    """Lets the graph of `predict` treat int8 weights as constants, and leave out gradients that nobody may take."""
    # A layer of a user's class may take a gradient.
    return inference_graph(differentiable=any(map(is_user_defined, [model, *sublayers(model)])))


def is_user_defined(layer):
    """Returns whether the class of a layer is a user's: neither this library's nor Keras's."""
    return type(layer).__module__.split(".")[0] not in ("keras", "keras_transformer")


def _constant_weights(model):
    """Returns the weights of a model that no call without training changes, as far as this library can know.

    A layer of a user's class, and a recurrent layer of Keras, may change the weights of its own.
    """
    changing = set()
    for layer in [model, *sublayers(model)]:
        if is_user_defined(layer) or isinstance(layer, keras.layers.RNN):
            inner = {id(weight) for part in sublayers(layer) for weight in part.weights}
            changing |= {id(weight) for weight in layer.weights} - inner
    return [weight for weight in model.weights if id(weight) not in changing]


class _HeldWeights(keras.StatelessScope):
    """A context in which some weights keep their values; all other variables are read and assigned as outside.

    Keras's scope drops what is assigned inside, such as the next seed of a dropout.

    Args:
        state_mapping: A list of pairs: a `keras.Variable`, and the tensor with its value.
    """

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        outer = self.original_scope
        return outer.get_current_value(variable) if value is None and outer is not None else value

    def add_update(self, update):
        variable, value = update
        if id(variable) in self.state_mapping:
            raise ValueError(f"A search must not change a weight of its model. Received: {variable.path}.")
        if self.original_scope is not None:
            self.original_scope.add_update(update)
        else:
            variable._direct_assign(value)
