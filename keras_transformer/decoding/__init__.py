"""Decoding: strategies over one loop, which knows a step function and no model."""

from keras_transformer.decoding.loop import Hypotheses, decode
from keras_transformer.decoding.strategies import Greedy

STRATEGIES = {cls.__name__: cls for cls in (Greedy,)}

__all__ = ["STRATEGIES", "Greedy", "Hypotheses", "decode"]
