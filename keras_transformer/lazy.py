"""Imports that wait: names of a package until their first use, and what another package needs until it is there."""

import importlib
import importlib.abc
import sys


def lazy_names(package, homes):
    """Makes the functions `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: Name of the package, its `__package__`.
        homes: A dict from a public name to the module that has it, relative to the package: `"layers"` is inside it,
            `".training"` beside it. A name that is its own home is a module.

    Returns:
        The two functions.
    """

    def import_name(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(f".{homes[name]}", package)
        return home if homes[name] == name else getattr(home, name)

    return import_name, lambda: sorted(homes)


def after_import(name, function):
    """Calls a function once, as soon as the program has imported a package: now, if it is imported already.

    Args:
        name: Name of the package, such as `"keras"`.
        function: A function without arguments.
    """
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _AfterImport(name, function))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the finders after it find a package, and adds a call to its import."""

    def __init__(self, name, function):
        self.name = name
        self.function = function

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                sys.meta_path.remove(self)
                self.function()

            spec.loader.exec_module = exec_module
        return spec
