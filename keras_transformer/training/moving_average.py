"""The moving average of a model's weights that a Keras optimizer keeps with `use_ema=True`."""

import contextlib

from keras import ops

from keras_transformer.optimizers import unwrapped


def keeps_average(model):
    """Returns whether a model is compiled with an optimizer that keeps a moving average of the weights."""
    return model.compiled and unwrapped(model.optimizer).use_ema


def assign_average(model, optimizer):
    """Sets a model's trainable weights to the moving average that an optimizer keeps.

    Args:
        model: The model that was trained, or another one of the same architecture.
        optimizer: A built optimizer with `use_ema=True`, or a `LossScaleOptimizer` around one.

    Raises:
        ValueError: If the number of averages differs from the number of trainable weights.
    """
    # Keras names these variables so, in the order of the weights. Its own `finalize_variable_values` checks no
    # numbers on TensorFlow.
    averages = [v for v in unwrapped(optimizer).variables if v.name.endswith("_average")]
    for weight, average in zip(model.trainable_variables, averages, strict=True):
        # On JAX they would share one array, which a step frees.
        weight.assign(ops.copy(average))


@contextlib.contextmanager
def average_in_place(model):
    """A context in which a model has its moving average as weights, if its optimizer keeps one.

    At the end the model has its own weights again, bit for bit.

    Args:
        model: The model that is trained.
    """
    if not keeps_average(model):
        yield
        return
    weights = model.get_weights()
    assign_average(model, model.optimizer)
    try:
        yield
    finally:
        model.set_weights(weights)
