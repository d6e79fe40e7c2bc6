"""The public names of the library, from its modules."""

import importlib
import types

import keras_transformer

# The command line has a page of its own.
WITHOUT_REFERENCE = {"cli"}


def public_names():
    """Lists the public names of each public module.

    Returns:
        A dict from a module's name, such as "keras_transformer.layers", to a sorted list of str: its `__all__`, or in
        a module of one file what that file defines.
    """
    names = {}
    for name in keras_transformer.__all__:
        module = getattr(keras_transformer, name)
        if isinstance(module, types.ModuleType) and name not in WITHOUT_REFERENCE:
            names[module.__name__] = sorted(getattr(module, "__all__", None) or _defined_in(module))
    return names


def reference_context():
    """Returns what the templates of the reference need.

    Returns:
        A dict: `objects`, the classes and functions of each module; `constants`, its other names; `elsewhere`, the full
        names of objects that another module's pages describe already.
    """
    objects, constants, elsewhere, seen = {}, {}, set(), set()
    for module, names in public_names().items():
        items = {name: getattr(importlib.import_module(module), name) for name in names}
        objects[module] = [name for name in names if callable(items[name])]
        constants[module] = [name for name in names if not callable(items[name])]
        for name in objects[module]:
            if id(items[name]) in seen:
                elsewhere.add(f"{module}.{name}")
            seen.add(id(items[name]))
    return {"objects": objects, "constants": constants, "elsewhere": elsewhere}


def _defined_in(module):
    return [
        name
        for name, item in vars(module).items()
        if not name.startswith("_") and callable(item) and item.__module__ == module.__name__
    ]
