"""Symbolic shapes of layers that can return more than one tensor."""

import keras


class KeepsShape:
    """A layer whose output has the shape of its first input, whatever else it returns.

    `compute_output_shape` serves wrappers such as `keras.layers.TimeDistributed`. Keras would then take it
    for all that the layer returns, so the symbolic outputs still come from tracing `call`.
    """

    def compute_output_shape(self, x_shape, *other_shapes, **more_shapes):
        return tuple(x_shape)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
