"""What is known about the computation at hand while it is traced."""

import contextlib
import contextvars
from types import MappingProxyType
from typing import NamedTuple


class Mode(NamedTuple):
    """Facts about the graph that is being made.

    xla: Whether `compiled` traces it for XLA.
    without_gradient: Whether nobody takes a gradient of it.
    constant_weights: Whether int8 weights keep their values as long as it exists.
    """

    xla: bool = False
    without_gradient: bool = False
    constant_weights: bool = False


_MODE = contextvars.ContextVar("mode", default=Mode())  # noqa: B039 (a tuple)

current = _MODE.get

# `held()` gives what `inference` computed of the weights: a mapping from a layer to the `Operands` of its product.
_HELD = contextvars.ContextVar("held", default=MappingProxyType({}))
held = _HELD.get


@contextlib.contextmanager
def holding(operands):
    """Lets `held()` give these operands to the code inside."""
    token = _HELD.set(operands)
    try:
        yield
    finally:
        _HELD.reset(token)


@contextlib.contextmanager
def mode(**changes):
    """Changes some facts for the code inside."""
    token = _MODE.set(_MODE.get()._replace(**changes))
    try:
        yield
    finally:
        _MODE.reset(token)


def inference_graph(differentiable=False):
    """Lets graphs that are made inside treat int8 weights as constants, and leave out gradients.

    Such a graph has faster operations without a gradient, and no gradients that are written out: TensorFlow keeps each
    of these until the process ends, and with it the graph that it belongs to. TensorFlow raises where a gradient is
    taken all the same.

    Args:
        differentiable: Whether somebody may take a gradient of them.
    """
    return mode(constant_weights=True, without_gradient=not differentiable)
