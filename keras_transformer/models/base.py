"""What all models of the library share."""

import contextlib

import keras
from keras import ops

from keras_transformer.backend import constant_weights, forward_only, runs_forward_only, unchanged
from keras_transformer.keras_internals import is_foreign, sublayers, take_own_policies
from keras_transformer.layers import Decoder, Encoder
from keras_transformer.layers.positions import AttentionPositions
from keras_transformer.layers.projection import has_int8_weights, held_operands
from keras_transformer.layers.sublayers import Configured, ensure_built, from_config_or_layer
from keras_transformer.models.layouts import layout_map
from keras_transformer.models.parallel import in_parts

# Largest number of tokens in a part of a batch of an int8 encoder, unless the part is one row. A batch of fewer than
# half as many tokens stays whole. docs/decisions.md has the measurement.
PART = 512


class BaseModel(Configured, keras.Model):
    """A `keras.Model` whose weights exist as soon as it is made, and whose configuration holds all that saving needs.

    The configuration is the constructor's arguments, and beside them the sublayers that are frozen or quantized. A
    subclass may add layers before or after `super().__init__()`.
    """

    # Says whether the int8 weights are those that the function of `predict` was made for; None before the first.
    _unchanged = None

    def built_part(self, value, name, shape, kind=keras.layers.Layer):
        """Returns a layer that the constructor was given, built; or deserialises its configuration and builds it.

        Args:
            value: A layer, its configuration, or None.
            name: Name of the argument.
            shape: Shape of the layer's input.
            kind: The class that the layer must have.

        Raises:
            ValueError: If it is not of class `kind`.
        """
        layer = from_config_or_layer(value, self, name, kind)
        if layer is not None:
            ensure_built(layer, shape)
        return layer

    def built_encoder(self, value, shape, kind=Encoder):
        """Returns an encoder, which is no `Decoder` and not None, as `built_part` returns any layer."""
        encoder = self.built_part(value, "encoder", shape, kind)
        if encoder is None or isinstance(encoder, Decoder):
            raise ValueError(
                f"`encoder` must be of class `{kind.__name__}`, in which each position sees all others. "
                f"Received: encoder={value!r:.200}."
            )
        return encoder

    def built_positions(self, value, name, shape):
        """Returns a layer that adds positions to embeddings, as `built_part` returns any layer.

        Raises:
            ValueError: If the positions act inside attention.
        """
        positions = from_config_or_layer(value, self, name)
        if isinstance(positions, AttentionPositions):
            kind = type(positions).__name__
            raise ValueError(
                "`positions` of a model must be a layer that adds positions to embeddings, such as `LearnedPositions`. "
                f"Received: {kind}, which acts inside attention: pass it as "
                f"`attention=MultiHeadAttention(..., positions={kind}(...))` to the layers of the encoder or decoder."
            )
        return self.built_part(positions, name, shape)

    def encoded(self, x, padding_mask=None, training=None, return_attention_scores=False):
        """Runs `self.encoder`. An int8 model computes parts of a large batch in `predict` and servables.

        Args:
            x: `(batch, length, d_model)`.
            padding_mask: bool `(batch, length)`, True where a token is real; all are when None.
            training: Whether to drop.
            return_attention_scores: Whether to return each layer's attention scores too.

        Returns:
            `(batch, length, d_model)`; then the scores, where asked for.
        """
        masks = {} if padding_mask is None else {"padding_mask": padding_mask}
        options = {"training": training, "return_attention_scores": return_attention_scores}
        batch, length = ops.shape(x)[:2]
        one_row = isinstance(batch, int) and batch < 2
        if one_row or not self._encodes_parts() or any(options.values()):
            return self.encoder(x, **masks, **options)

        def encode(rows):
            x, masks = rows
            return (self.encoder(x, **masks, **options),)

        half, tokens = -(-batch // 2), batch * length
        if isinstance(tokens, int):
            size = batch if 2 * tokens < PART else max(1, min(PART // length, half))
        else:
            size = ops.maximum(1, ops.minimum(PART // ops.maximum(length, 1), half))
            size = ops.where(2 * tokens < PART, batch, size)
        with held_operands(self.encoder, together=False):
            results = [(x.shape[1:], self.encoder.compute_dtype)]
            return in_parts(encode, (x, masks), results, size)[0]

    def _encodes_parts(self):
        """Returns whether parts of a batch are computed side by side: in int8, by layers that see no other row."""
        if not (runs_forward_only() and has_int8_weights(self.encoder)):
            return False
        # A user's layer may look at the whole batch, and layers of another precision return another dtype.
        layers = self.encoder, *sublayers(self.encoder)
        return len({layer.compute_dtype for layer in layers}) == 1 and not any(map(is_foreign, layers))

    def build(self, input_shape=None):
        """Does nothing but what Keras adds: the constructor built the layers."""

    def build_added_layers(self):
        """Builds the layers that a subclass added, by a symbolic call; `generate` and loading need their weights."""
        keras.Operation.compute_output_spec(self, self.input_signature()[0])

    def input_signature(self):
        """Returns the symbolic inputs of a call: a list of one nest of `keras.KerasTensor`."""
        raise NotImplementedError

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Exports the bare model as Keras does, with the model's own inputs unless you name others.

        Args:
            filepath: Folder or file to write.
            format: One of Keras's formats.
            verbose: Whether to print what was exported.
            input_signature: List of one nest of `keras.InputSpec`; the inputs of a call when None.
            **kwargs: The other arguments of `keras.Model.export`.
        """
        if input_signature is None:
            spec = lambda x: keras.layers.InputSpec(dtype=x.dtype, shape=x.shape)  # noqa: E731
            input_signature = keras.tree.map_structure(spec, self.input_signature())
        super().export(filepath, format, verbose, input_signature=input_signature, **kwargs)

    def make_train_function(self, force=False):
        """Makes Keras's training function, after the optimizer's variables: else the step would be traced twice."""
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def make_predict_function(self, force=False):
        """Makes Keras's function of `predict`, anew where int8 weights have new values: it packs them once."""
        force = force or (self._unchanged is not None and not self._unchanged())
        if force or self.predict_function is None:
            self._unchanged = unchanged(self.variables)
        return super().make_predict_function(force)

    def predict_step(self, *args):
        # A layer of a user's class may take a gradient.
        plain = not any(map(is_foreign, (self, *sublayers(self))))
        with constant_weights(), forward_only() if plain else contextlib.nullcontext():
            return super().predict_step(*args)

    def load_weights(self, *args, **kwargs):
        """Loads weights as Keras does, and makes `fit`, `evaluate` and `predict` trace anew: a function that was traced
        keeps the product that suited the int8 weights of its time."""
        super().load_weights(*args, **kwargs)
        self.train_function = self.test_function = self.predict_function = None

    def layout_map(self, mesh, axis="model"):
        """Returns where each weight lives under `keras.distribution.ModelParallel` (JAX): docs/scaling.md.

        Heads, `d_ff` and vocabularies are split over one axis of the mesh, where they divide by its size. All other
        weights are whole on every device.

        Args:
            mesh: A `keras.distribution.DeviceMesh`.
            axis: Name of the axis of the mesh to split over.

        Returns:
            A `keras.distribution.LayoutMap` with a layout for every weight.

        Raises:
            ValueError: If the mesh has no such axis.
        """
        return layout_map(self, mesh, axis)

    @classmethod
    def _of_config(cls, config):
        model = cls(**config)
        if not all(layer.built for layer in model.layers):
            model.build_added_layers()
        take_own_policies(model)
        return model
