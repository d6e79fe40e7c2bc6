"""Layers that are handed in: as they are, as templates, as a configuration describes them."""

import keras


def part(given, name=None, kind=None):
    """What a constructor was handed, where it may be as `described` gave it: None, an object or its description.

    Args:
        given: What was handed in.
        name: Name of the argument, where its class is to be checked.
        kind: The class that it must be of.

    Raises:
        ValueError: If it is neither None nor of that class.
    """
    given = keras.saving.deserialize_keras_object(given) if isinstance(given, dict) else given
    if given is not None and kind is not None and not isinstance(given, kind):
        raise ValueError(f"`{name}` must be a `{kind.__name__}`. Received: {name}={given!r}.")
    return given


def check_replaced(name, template, **plain):
    """Raises `ValueError` for an argument that a template stands for, where it is not at its default.

    Args:
        name: Name of the template's argument.
        template: What was given for it, or None.
        **plain: For each argument what was given, and its default.
    """
    for argument, (value, default) in plain.items():
        if template is not None and value != default:
            raise ValueError(
                f"`{argument}` has no effect beside `{name}`, which stands for it: leave it at its default. "
                f"Received: {argument}={value!r}."
            )


def described(layer):
    """What `part` makes the layer of again, unbuilt, or another object; None stays None."""
    return None if layer is None else _lasting(keras.saving.serialize_keras_object(layer))


def described_shared(layer):
    """As `described`, for a layer that others may hold too: loaded from one file, they hold one again."""
    if layer is None:
        return None
    keras.saving.serialize_keras_object(layer)
    # While it saves a model, Keras numbers what it meets again. By then it has copied the first description: so each is
    # a second one.
    description = keras.saving.serialize_keras_object(layer)
    number = {name: description[name] for name in ("shared_object_id",) if name in description}
    return {**_lasting(description), **number}


def _lasting(description):
    """A copy without what Keras writes into a description while it saves or loads, true of that very object alone."""
    if isinstance(description, dict):
        passing = ("build_config", "shared_object_id")
        return {name: _lasting(value) for name, value in description.items() if name not in passing}
    return description


def clone(template, **changes):
    """A layer like a template, with weights of its own.

    Args:
        template: A layer, built or not, or its description; it stays as it is.
        **changes: Arguments of its constructor that shall differ: `name`, `dtype`.

    Returns:
        An unbuilt layer of the template's class.

    Raises:
        ValueError: If `template` is not a layer.
    """
    template = part(template)
    if not isinstance(template, keras.layers.Layer):
        raise ValueError(f"`template` must be a Keras layer. Received: template={template!r}.")
    return type(template).from_config({**_lasting(template.get_config()), **changes})
