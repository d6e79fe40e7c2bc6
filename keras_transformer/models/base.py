"""What all models of this library share, whatever they are made of."""

import keras

from keras_transformer.layers import Decoder, Encoder
from keras_transformer.layers.parts import clone, part
from keras_transformer.models.layouts import layout_map


def own_encoder(template, dtype):
    """A model's own `Encoder` like a template.

    Raises:
        ValueError: If the template is none, or a `Decoder`: a token would not see those after it.
    """
    template = part(template)
    if not isinstance(template, Encoder) or isinstance(template, Decoder):
        raise ValueError(
            f"`encoder` must be an `Encoder`, and no `Decoder`, which is causal. Received: encoder={template!r}."
        )
    return clone(template, name="encoder", dtype=dtype)


class BaseModel(keras.Model):
    """A `keras.Model` whose configuration is its constructor's arguments, and whose weights have layouts."""

    def make_train_function(self, force=False):
        """As Keras's, with the optimizer's variables made before the step is traced: else it would be traced twice."""
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def layout_map(self, mesh, axis="model"):
        """Where each weight lives under `keras.distribution.ModelParallel` (JAX): docs/scaling.md.

        Heads, `d_ff` and vocabularies are split over one axis of the mesh, where they divide by its size; all else is
        whole on every device.

        Args:
            mesh: A `keras.distribution.DeviceMesh`.
            axis: Name of the axis of the mesh to split over.

        Returns:
            A `keras.distribution.LayoutMap` with a layout for every weight.

        Raises:
            ValueError: If the mesh has no such axis.
        """
        return layout_map(self, mesh, axis)

    def get_config(self):
        return super(keras.Model, self).get_config()  # the layer's: name, dtype, trainable

    @classmethod
    def from_config(cls, config):
        return cls(**config)
