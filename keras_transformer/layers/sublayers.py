"""What layers with sublayers share: sublayers that are handed in, and results of one or more tensors."""

import re
import weakref

import keras

from keras_transformer.keras_internals import sublayers


class Composite:
    """Base of layers with sublayers.

    The configuration remembers by path which sublayers are quantized. A layer that is frozen before it is built, as one
    from a file is, freezes the sublayers that it makes. Keras freezes only those that exist.
    """

    def _post_build(self):
        super()._post_build()
        if not self.trainable:
            for layer in sublayers(self):
                layer.trainable = False

    def get_config(self):
        config = super().get_config()
        policy_map = keras.dtype_policies.DTypePolicyMap
        policy, outside = self.dtype_policy, len((self.path or "").rpartition("/")[0])
        quantized = {}
        for layer in sublayers(self):
            if layer.quantization_mode:
                # The same layer has another path while it is loaded than inside its model.
                path = "(.*/)?" + re.escape(layer.path[outside:].removeprefix("/"))
                own = layer.dtype_policy
                quantized[path] = own[layer.path] if isinstance(own, policy_map) else own
        if quantized:
            policy = policy.default_policy if isinstance(policy, policy_map) else policy
            config["dtype"] = keras.dtype_policies.serialize(policy_map(policy, quantized))
        return config


class KeepsShape(Composite):
    """Base of composite layers whose output has the shape of their first input, whatever else they return.

    Wrappers such as `keras.layers.TimeDistributed` call `compute_output_shape`. Keras would also use it for symbolic
    outputs, and miss the attention scores and the cache. So those come from tracing `call`.
    """

    def compute_output_shape(self, x_shape, *other_shapes, **more_shapes):
        return tuple(x_shape)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def pack(output, scores=None, cache=None):
    """Returns the output alone, or a tuple of it and whatever of the scores and the cache is not None."""
    extras = tuple(extra for extra in (scores, cache) if extra is not None)
    return (output, *extras) if extras else output


def unpack(results, scores, cache):
    """Returns the output, the attention scores and the cache of what a layer returned; None for what it did not.

    Args:
        results: What `pack` gave.
        scores: Whether attention scores are among them.
        cache: Whether a cache is among them.
    """
    output, *extras = results if scores or cache else (results,)
    return output, extras.pop(0) if scores else None, extras.pop(0) if cache else None


def ensure_built(layer, *shapes):
    """Builds a sublayer, unless it is built.

    A layer without a `build` of its own creates its weights when it is first called: it is called symbolically.
    """
    if layer.built:
        return
    if type(layer).build is keras.layers.Layer.build:
        layer(*(keras.KerasTensor(shape, dtype=layer.compute_dtype) for shape in shapes))
    else:
        layer.build(*shapes)


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
        _HOLDERS.setdefault(value, weakref.WeakSet()).add(holder)
    return value


def to_config(layer):
    """Serialises a layer or another object, or returns None.

    Raises:
        ValueError: If several layers hold this layer and it has weights, outside of saving. Keras keeps such sharing in
            a file. `clone_model` and a lone `get_config` cannot: each copy would have weights of its own.
    """
    if layer is None:
        return None
    config = keras.saving.serialize_keras_object(layer)
    if len(_HOLDERS.get(layer, ())) > 1 and layer.weights:
        # Only while Keras saves a model does the second description of one layer carry an id.
        config = keras.saving.serialize_keras_object(layer)
        if "shared_object_id" not in config:
            raise ValueError(
                f"The layer {layer.name!r} is shared by {len(_HOLDERS[layer])} layers. A configuration alone cannot "
                "express that, and a clone would have more weights. Save the model and load it instead of cloning it."
            )
    return config


# Which layers hold a layer that was handed in.
_HOLDERS = weakref.WeakKeyDictionary()
