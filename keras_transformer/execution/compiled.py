"""Compiled functions of a model, and when they are forgotten."""

import functools
import operator
import threading

from keras_transformer.execution import native

# Number of compiled functions that a model keeps.
KEPT_FUNCTIONS = 32

compiles = native.compiles
compiled = native.compiled
optimized_quickly = native.optimized_quickly

# `unchanged(variables)` returns a function that says whether int8 variables have the values that they have now. A
# function that was traced before a change keeps packed copies of the old ones.
unchanged = native.unchanged


class CompiledFunctions:
    """Keeps compiled functions of a model as long as it has the variables that they were made with.

    `enable_lora`, `quantize` and new layers change the variables of a model. New values of int8 variables need new
    functions too. A change of another attribute is not seen: `compile` forgets all functions.
    """

    def __init__(self):
        self.variables, self.functions = [], {}
        self.unchanged = lambda: True
        self.lock = threading.Lock()

    def get(self, key, variables, make):
        """Returns the function of a key, and makes it if there is none for these variables."""
        with self.lock:
            same = len(variables) == len(self.variables) and all(map(operator.is_, variables, self.variables))
            if not (same and self.unchanged()):
                self.variables, self.functions = list(variables), {}
                self.unchanged = unchanged(variables)
            function = self.functions.pop(key, None) or make()
            if len(self.functions) == KEPT_FUNCTIONS:
                del self.functions[next(iter(self.functions))]  # the one that was not used for longest
            self.functions[key] = function
            return function

    def clear(self):
        """Forgets all functions."""
        self.functions = {}


class KeepsFunctions:
    """Mixin of a class whose objects keep compiled functions."""

    @functools.cached_property
    def _functions(self):
        return CompiledFunctions()
