"""What all layers with sublayers share: their configuration and their sublayers."""

import collections
import functools
import inspect
import re
import threading

import keras

from keras_transformer.checks import check, check_positive, check_share
from keras_transformer.execution.int8 import set_quantization_config
from keras_transformer.keras_internals import (
    DirectSublayers,
    is_sharing,
    sharing,
    sublayers,
    take_own_policies,
)
from keras_transformer.layers.rules import RULES, keeping_rules

KERAS_ARGUMENTS = ("name", "dtype", "trainable")
SHARED_ID = "shared_object_id"  # Keras's name
# Its `is_part` says whether the configuration at hand is a part of another one.
_DESCRIBED = threading.local()
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Configured:
    """Base of layers and models whose configuration is the arguments of their constructor, recorded when it is called.

    So a subclass with further arguments needs no `get_config`. What an attribute with the name of an argument is set to
    later takes the place of the argument. A configuration also remembers which sublayers are quantized, and how, and
    which are frozen. A layer that is frozen before it is built, as a layer from a file is, freezes the sublayers that
    it makes. Keras freezes only those that exist.
    """

    # The rules of the arguments of this class's own constructor. A class may have others.
    rules = RULES
    layers = DirectSublayers()
    # Indices of the frozen and quantized sublayers in a loaded configuration.
    saved_frozen = ()
    saved_quantization_configs = ()
    # Names of the attributes that decide what the layer computes; None for the arguments of its constructor.
    decided_by = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            # In a subclass of yours a name may have another meaning.
            is_own = cls.__module__.startswith(f"{__package__.partition('.')[0]}.")
            cls.__init__ = _noting(keeping_rules(cls.__init__, cls.rules) if is_own else cls.__init__)

    def __new__(cls, *args, **kwargs):
        layer = super().__new__(cls, *args, **kwargs)
        # As an attribute that is set, Keras would track the layers among them.
        vars(layer)["_arguments"] = arguments_by_name(cls, args, kwargs)
        return layer

    def numbers(self):
        """Returns the values that decide what the layer computes, by name; see `layers.numbers`.

        They are attributes. Those of the constructor's arguments hold the value that a default of None stands for.
        """
        if self.decided_by is not None:
            return {name: getattr(self, name, None) for name in self.decided_by}
        filled = {name: getattr(self, name, None) for name in self._arguments}
        return {
            name: value if filled[name] is None else filled[name] for name, value in self._arguments.items()
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        frozen, quantized = (config.pop(name, ()) for name in ("frozen", "quantization_configs"))
        with sharing():
            layer = cls.of_arguments(**{name: _from_config(value) for name, value in config.items()})
        layer.saved_frozen, layer.saved_quantization_configs = frozen, quantized
        if layer.built:
            layer.restore_sublayers()
        return layer

    @classmethod
    def of_arguments(cls, **arguments):
        """Makes a layer of the arguments that a configuration holds."""
        positional, parameters = [], list(inspect.signature(cls.__init__).parameters.values())[1:]
        kinds = [parameter.kind for parameter in parameters]
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            *before, unnamed = parameters[: kinds.index(inspect.Parameter.VAR_POSITIONAL) + 1]
            if unnamed.name in arguments:
                positional = [arguments.pop(each.name) for each in before] + arguments.pop(unnamed.name)
        return cls(*positional, **arguments)

    def build_from_config(self, config):
        super().build_from_config(config)
        if not all(each.built for each in sublayers(self)):  # a subclass added them
            first = next(iter(inspect.signature(self.call).parameters))
            shapes = config.get("shapes_dict") or {first: config["input_shape"]}
            inputs = {
                name.removesuffix("_shape"): keras.KerasTensor(shape, dtype=self.compute_dtype)
                for name, shape in shapes.items()
                if shape is not None
            }
            # A call would be a node of a functional model.
            keras.Operation.compute_output_spec(self, **inputs)

    def _post_build(self):
        super()._post_build()
        self.restore_sublayers()

    def restore_sublayers(self):
        """Freezes and configures the sublayers as the configuration of this layer said."""
        layers = sublayers(self)
        for i in self.saved_frozen if self.trainable else range(len(layers)):
            layers[i].trainable = False
        for i, config in self.saved_quantization_configs:
            set_quantization_config(layers[i], keras.saving.deserialize_keras_object(config))
        take_own_policies((self, *layers))

    def get_config(self):
        # Keras's own classes would read attributes.
        config = keras.layers.Layer.get_config(self)
        is_part = getattr(_DESCRIBED, "is_part", False)
        _DESCRIBED.is_part = True
        try:
            config |= {name: to_config(self._now(name, value)) for name, value in self._arguments.items()}
        finally:
            _DESCRIBED.is_part = is_part
        config = config if is_part or is_sharing() else _with_small_ids(config)
        policy_map = keras.dtype_policies.DTypePolicyMap
        policy, outside = self.dtype_policy, len((self.path or "").rpartition("/")[0])
        quantized, frozen, configs = {}, [], []
        for i, layer in enumerate(sublayers(self)):
            if self.trainable and not layer.trainable:
                frozen.append(i)
            if getattr(layer, "quantization_config", None) is not None:
                configs.append([i, keras.saving.serialize_keras_object(layer.quantization_config)])
            if layer.quantization_mode:
                # The same layer has another path while it is loaded than inside its model.
                path = "(.*/)?" + re.escape(layer.path[outside:].removeprefix("/"))
                own = layer.dtype_policy
                quantized[path] = own[layer.path] if isinstance(own, policy_map) else own
        if quantized:
            policy = policy.default_policy if isinstance(policy, policy_map) else policy
            config["dtype"] = keras.dtype_policies.serialize(policy_map(policy, quantized))
        noted = {"frozen": frozen, "quantization_configs": configs}
        return {**config, **{name: value for name, value in noted.items() if value}}

    def keep_made(self, **layers):
        """Sets attributes to layers that this layer made after its constructor, and that it makes again from a file."""
        for name, layer in layers.items():
            setattr(self, name, layer)
            vars(self)["_made"][name] = layer

    def _now(self, name, value):
        """Returns what to record for an argument of the constructor: its value, or what its attribute was set to."""
        made, now = (each.get(name) for each in (vars(self).get("_made", {}), vars(self)))
        are_layers = [isinstance(each, keras.layers.Layer) for each in (made, now)]
        if now is made or (any(are_layers) and made is not value and not all(are_layers)):
            return value
        rule = f"The `{name}` of a layer that made its own cannot be set: hand one to the constructor."
        check(made is value or not all(are_layers), rule, **{name: now})
        return now


def _noting(init):
    """Returns a constructor after which a layer knows its attributes with the names of the arguments."""

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if type(self).__init__ is __init__:
            vars(self)["_made"] = {name: vars(self).get(name) for name in self._arguments}

    # Keras does not follow `functools.wraps`.
    __init__.__signature__ = inspect.signature(init)
    return __init__


class KeepsShape(Configured):
    """Base of layers with sublayers whose output has the shape of their first input, whatever else they return.

    Wrappers such as `keras.layers.TimeDistributed` call `compute_output_shape`. Keras would also use it for symbolic
    outputs, and miss the attention scores and the cache. So those come from tracing `call`.
    """

    def compute_output_shape(self, x_shape, *other_shapes, **more_shapes):
        return tuple(x_shape)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def arguments_by_name(cls, args, kwargs):
    """Names the arguments of a constructor call, and adds the defaults of the class.

    Arguments without names, such as those of `*args`, are one list under the name `args`.

    Returns:
        A dict.
    """
    arguments, values = {}, list(args)
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments[name], values = values, []
        elif name not in kwargs and parameter.kind in _NAMED:
            if values and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                arguments[name] = values.pop(0)
            elif parameter.default is not parameter.empty:
                arguments[name] = parameter.default
    arguments = {
        name: value for name, value in {**arguments, **kwargs}.items() if name not in KERAS_ARGUMENTS
    }
    return {name: [*value] if isinstance(value, list) else value for name, value in arguments.items()}


def to_config(value):
    """Serialises an argument of a constructor: a layer, another object of Keras, a function, a list or a dict of them.

    A layer with weights has an id, by which a layer that stands in several places is made once.
    """
    if isinstance(value, (list, tuple)):
        return [to_config(each) for each in value]
    if isinstance(value, dict):
        return {name: to_config(each) for name, each in value.items()}
    if not hasattr(value, "get_config"):
        return keras.activations.serialize(value) if callable(value) else value
    config = keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer) and value.weights:
        # Keras would note it from the second description on.
        config[SHARED_ID] = id(value)
    return config


def _with_small_ids(config):
    """Returns a configuration whose layers in several places are numbered from 1 on; no other layer has an id.

    So one layer has the same configuration in every process.
    """
    shared = [each for each in _dicts(config) if SHARED_ID in each]
    places, numbers = collections.Counter(each[SHARED_ID] for each in shared), {}
    for each in shared:
        given = each.pop(SHARED_ID)
        if places[given] > 1:
            each[SHARED_ID] = numbers.setdefault(given, len(numbers) + 1)
    return config


def _dicts(value):
    """Yields each dict of a nest of dicts and lists, outer ones first."""
    if isinstance(value, dict):
        yield value
        value = [*value.values()]
    for each in value if isinstance(value, list) else ():
        yield from _dicts(each)


def _from_config(value):
    """Makes what `to_config` serialised."""
    if isinstance(value, list):
        return [_from_config(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return {name: _from_config(each) for name, each in value.items()}


def check_part(value, name, kind=keras.layers.Layer):
    """Returns a layer or an object that a constructor was given, or None.

    Raises:
        ValueError: If it is neither None nor of class `kind`.
    """
    check(value is None or isinstance(value, kind), f"`{name}` must be a `{kind.__name__}`.", **{name: value})
    return value


def check_either(name, layer, **sizes):
    """Raises `ValueError` unless either a layer is given, or the first of the arguments that describe one."""
    if layer is None:
        check_positive(**dict([next(iter(sizes.items()))]))
    for size, value in sizes.items():
        both = layer is not None and value is not None
        check(not both, f"Pass either `{size}` or `{name}`, not both.", **{size: value, name: layer})


def check_arguments(maker, kind, arguments):
    """Raises `ValueError` for arguments that no constructor takes, in the name of the class that the user called.

    Args:
        maker: A layer or a model that makes layers with the arguments.
        kind: The class of these layers.
        arguments: A dict from names to values.
    """
    known = {name for cls in kind.__mro__ for name in inspect.signature(cls.__init__).parameters}
    unknown = {name: value for name, value in arguments.items() if name not in known}
    # Keras's words, which it says in the name of `kind`.
    check(not unknown, f"Unrecognized keyword arguments passed to {type(maker).__name__}.", **unknown)


def ensure_built(layer, *shapes):
    """Builds a sublayer, unless it is built, with the layers that a subclass added to it.

    A layer that no `build` builds creates its weights when it is first called: the sublayer is called symbolically.
    """
    if layer.built:
        return
    if type(layer).build is not keras.layers.Layer.build:
        layer.build(*shapes)
    if not layer.built or not all(each.built for each in sublayers(layer)):
        layer(*(keras.KerasTensor(shape, dtype=layer.compute_dtype) for shape in shapes))


def takes_argument(layer, name):
    """Returns whether the `call` of a layer has an argument of this name."""
    return name in inspect.signature(layer.call).parameters


def check_call_arguments(layer, names, name):
    """Raises `ValueError` if the `call` of a layer lacks an argument.

    Args:
        layer: A layer that a constructor was given.
        names: Names of the arguments that it will be called with.
        name: Name of the constructor's argument.
    """
    signature = inspect.signature(layer.call)
    any_name = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    missing = [each for each in names if each not in signature.parameters]
    if missing and not any_name:
        raise ValueError(
            f"The `call` of `{name}` must have the arguments {names}; **kwargs takes those that it does not need. "
            f"Received: {type(layer).__name__}.call{signature}, without {missing}."
        )


def arguments_of_layers(stack, kind, num_layers, arguments):
    """Returns the arguments of each of the equal layers that a stack makes, a list of dicts.

    They are those of the stack, but for `stochastic_depth`, which rises to its value in the last layer.

    Args:
        stack: The stack.
        kind: The class of its layers.
        num_layers: Number of layers.
        arguments: The arguments that the stack hands on, a dict.

    Raises:
        ValueError: If one is a layer, unknown or out of range.
    """
    check_arguments(stack, kind, arguments)
    for name in ("attention", "cross_attention", "feed_forward"):
        rule = f"All layers would share one `{name}`. Pass a list of layers, each with its own."
        check(arguments.get(name) is None, rule, **{name: arguments.get(name)})
    if "stochastic_depth" not in arguments:
        return [arguments] * num_layers
    rate = arguments["stochastic_depth"]
    check_share(stochastic_depth=rate)
    return [arguments | {"stochastic_depth": rate * i / num_layers} for i in range(1, num_layers + 1)]


def given_layers(layers, names, sizes):
    """Returns the layers that the constructor of a stack was given.

    Args:
        layers: A list of layers, in place of `num_layers`.
        names: Names of the arguments that each layer will be called with.
        sizes: The other arguments of the constructor, by name.

    Raises:
        ValueError: If there is no layer, one is not a layer or its `call` lacks an argument, or there are sizes.
    """
    given = [name for name, value in sizes.items() if value is not None]
    rule = "A list of layers must not be empty and describes them wholly."
    check(layers and not given, rule, num_layers=layers, arguments=given)
    for i, layer in enumerate(layers):
        check_call_arguments(check_part(layer, f"num_layers[{i}]"), names, f"num_layers[{i}]")
    return list(layers)


def pop_keras_arguments(kwargs):
    """Removes Keras's own arguments of a layer from `kwargs`, and returns them as a dict."""
    return {name: kwargs.pop(name) for name in KERAS_ARGUMENTS if name in kwargs}
