"""Layers that can return more than one tensor: what they return, and its symbolic shape."""

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


def packed(output, scores=None, cache=None):
    """What a layer returns: its output, then the attention scores and the cache where there are any."""
    results = [output] + [extra for extra in (scores, cache) if extra is not None]
    return results[0] if len(results) == 1 else tuple(results)


def unpacked(results, scores, cache):
    """The output, attention scores and cache of what `packed` gave; None for what was not asked for."""
    output, *extras = results if scores or cache else (results,)
    return output, extras.pop(0) if scores else None, extras.pop(0) if cache else None
