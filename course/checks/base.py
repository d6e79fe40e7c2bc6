"""What every check uses: the list of tasks, and a comparison of arrays."""

import numpy as np

import keras_transformer as kt

TASKS = {}


def task(chapter):
    """Registers a check for a chapter. Its name is the name of the function that the student writes."""

    def register(check):
        TASKS[chapter] = check
        return check

    return register


def close(a, b, tolerance=1e-5):
    """Returns whether two arrays have one shape and nearly the same numbers."""
    return np.shape(a) == np.shape(b) and np.allclose(a, b, atol=tolerance, rtol=tolerance)


def attention(query, key, value, mask=None):
    """Scaled dot-product attention of one head, by the library: matrices in, the output and the weights out."""
    arrays = (np.asarray(array, "float32")[None, None] for array in (query, key, value))
    mask = None if mask is None else np.asarray(mask)[None, None]
    return (np.array(array)[0, 0] for array in kt.layers.dot_product_attention(*arrays, mask))
