"""The moving average of a model's weights that its optimizer keeps, with `use_ema=True`."""

import contextlib

from keras_transformer.training.optimizers import unwrapped


def keeps_average(model):
    """Whether a model is compiled with an optimizer that keeps one."""
    return model.compiled and unwrapped(model.optimizer).use_ema


def assign_average(model, optimizer):
    """Gives a model the average that an optimizer keeps; the model may be another of the same architecture."""
    averages = unwrapped(optimizer)._model_variables_moving_average
    for weight, mean in zip(model.trainable_variables, averages, strict=True):
        weight.assign(mean)


@contextlib.contextmanager
def average_in_place(model):
    """The context in which a model has its average, if it keeps one; its own weights come back bit for bit."""
    if not keeps_average(model):
        yield
        return
    weights = model.get_weights()
    assign_average(model, model.optimizer)
    try:
        yield
    finally:
        model.set_weights(weights)
