"""What layers with sublayers share: sublayers that are handed in, and their configuration."""

import gc
import inspect
import re
import weakref

import keras

from keras_transformer.keras_internals import sublayers


class Configured:
    """Base of layers and models whose configuration is the arguments of their constructors.

    Every argument that is kept under its own name is in it, serialised. So a subclass that keeps its further arguments
    needs no `get_config`. It also remembers which sublayers are quantized, and how, and which are frozen. A layer that
    is frozen before it is built, as a layer from a file is, freezes the sublayers that it makes. Keras freezes only
    those that exist.

    Attributes:
        derived: Names of arguments of base classes that the class computes from its own arguments.
    """

    derived = ()

    # What a configuration says of sublayers that the constructor or `build` makes, by their numbers.
    saved_frozen = ()
    saved_quantization_configs = ()

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        frozen, quantized = (config.pop(name, ()) for name in ("frozen", "quantization_configs"))
        layer = cls._of_config(config)
        layer.saved_frozen, layer.saved_quantization_configs = frozen, quantized
        if layer.built:
            layer.restore_sublayers()
        return layer

    @classmethod
    def _of_config(cls, config):
        return super().from_config(config)

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
            layer = layers[i]
            layer.quantization_config = keras.saving.deserialize_keras_object(config)
            layer.inputs_quantizer = layer.quantization_config.activation_quantizer

    def get_config(self):
        config = super().get_config()
        for cls in type(self).__mro__:
            if "__init__" in vars(cls) and not cls.__module__.startswith("keras.src"):
                for name, parameter in inspect.signature(cls.__init__).parameters.items():
                    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
                    if named and name in vars(self) and name not in (*config, *self.derived):
                        config[name] = to_config(getattr(self, name))
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


class KeepsShape(Configured):
    """Base of layers with sublayers whose output has the shape of their first input, whatever else they return.

    Wrappers such as `keras.layers.TimeDistributed` call `compute_output_shape`. Keras would also use it for symbolic
    outputs, and miss the attention scores and the cache. So those come from tracing `call`.
    """

    def compute_output_shape(self, x_shape, *other_shapes, **more_shapes):
        return tuple(x_shape)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


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


def from_config_or_layer(value, holder, name, kind=keras.layers.Layer):
    """Returns a layer that a constructor was given, as a layer or as the configuration that `to_config` made.

    Args:
        value: A layer, its configuration, or None.
        holder: The layer whose constructor it is.
        name: Name of the argument.
        kind: The class that the layer must have.

    Returns:
        The layer itself, not a copy; or None.

    Raises:
        ValueError: If `value` is neither None nor of that class.
    """
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if value is None:
        return None
    if not isinstance(value, kind):
        raise ValueError(f"`{name}` must be a `{kind.__name__}`. Received: {name}={value!r:.200}.")
    if isinstance(value, keras.layers.Layer):
        _HOLDERS.setdefault(value, set()).add((weakref.ref(holder), name))
    return value


def takes_padding_mask(layer):
    """Whether the `call` of a layer has an argument `padding_mask`."""
    return "padding_mask" in inspect.signature(layer.call).parameters


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


def pop_keras_arguments(kwargs):
    """Removes Keras's own arguments of a layer from `kwargs`, and returns them as a dict."""
    return {name: kwargs.pop(name) for name in ("name", "dtype", "trainable") if name in kwargs}


def to_config(value):
    """Serialises an argument of a constructor: a layer, another object of Keras, a function, or a list of them.

    Raises:
        ValueError: If several arguments hold this layer and it has weights, outside of saving. Keras keeps such sharing
            in a file. `clone_model` and a lone `get_config` cannot: each copy would have weights of its own.
    """
    if isinstance(value, (list, tuple)):
        return [to_config(each) for each in value]
    if not hasattr(value, "get_config"):
        return keras.activations.serialize(value) if callable(value) else value
    config = keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer) and value.weights and _number_of_uses(value) > 1:
        # Only while Keras saves a model does the second description of one layer carry an id.
        config = keras.saving.serialize_keras_object(value)
        if "shared_object_id" not in config:
            raise ValueError(
                f"The layer {value.name!r} is used in {_number_of_uses(value)} places. A configuration alone cannot "
                "express that, and a clone would have more weights. Save the model and load it instead of cloning it."
            )
    return config


def _number_of_uses(layer):
    """Returns how many arguments of living layers hold a layer."""

    def count():
        return sum(holder() is not None for holder, _ in _HOLDERS.get(layer, ()))

    if count() > 1:
        gc.collect()  # a model that was replaced by another lives on until then
    return count()


# The layers, and the names of their arguments, that hold a layer that was handed in.
_HOLDERS = weakref.WeakKeyDictionary()
