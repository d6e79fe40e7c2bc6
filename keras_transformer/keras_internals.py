"""The private names of Keras that the library uses, each with the reason. Keras is pinned below 3.16 for them."""

from keras.src.backend import get_keras_mask


def implicit_mask(x):
    """Returns the mask that Keras keeps on a tensor, or None.

    Keras has no public name for it. JAX's tracers keep theirs in a table, so `x._keras_mask` is not enough.
    """
    return get_keras_mask(x)


def sublayers(layer):
    """Returns all layers inside a layer, at any depth, in the order of their creation.

    Keras has no public walk over the sublayers of a layer; `Model.layers` ends at the first level.
    """
    return list(layer._flatten_layers(include_self=False))
