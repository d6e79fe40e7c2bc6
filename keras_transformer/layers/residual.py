"""Norm, dropout and skip connection around a sublayer: their only home."""

import keras

from keras_transformer.checks import check_share
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.norm import LayerNormalization
from keras_transformer.layers.parts import check_replaced, clone, described


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(keras.layers.Layer):
    """Joins a sublayer's output to its input.

    Post-norm: `norm(x + dropout(sublayer(x)))` ("Attention Is All You Need", section 3.1). Pre-norm:
    `x + dropout(sublayer(norm(x)))` (Xiong et al., 2020, "On Layer Normalization in the Transformer
    Architecture"). Around any sublayer:

        y = sublayer(residual.before(x))
        x = residual(x, y)

    Args:
        dropout: Share of the sublayer's output that is dropped in training.
        normalize_first: True for pre-norm.
        layer_norm_epsilon: Added to the variance.
        norm: A template of the norm, such as `RMSNormalization()`; None for `LayerNormalization`, the only one that
            `layer_norm_epsilon` is for.

    Call arguments:
        x: The sublayer's input, `(batch, length, d_model)`.
        y: Its output, of the same shape.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `dropout` is not in [0, 1), or `norm` not a layer, or beside an epsilon of its own.
    """

    def __init__(self, dropout=0.1, normalize_first=False, layer_norm_epsilon=1e-6, *, norm=None, **kwargs):
        super().__init__(**kwargs)
        check_share(dropout=dropout)
        check_replaced("norm", norm, layer_norm_epsilon=(layer_norm_epsilon, 1e-6))
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.supports_masking = True
        self.own_norm = norm is not None
        template = norm if self.own_norm else LayerNormalization(epsilon=layer_norm_epsilon)
        self.norm = clone(template, dtype=self.dtype_policy, name="norm")
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, x_shape, y_shape=None):
        if not self.norm.built:  # `before` may have been first
            self.norm.build(x_shape)
        self.built = True

    def before(self, x):
        """What the sublayer is to be called with."""
        return self.norm(x) if self.normalize_first else x

    def call(self, x, y, training=None):
        total = x + self.drop(y, training=training)
        return total if self.normalize_first else self.norm(total)

    def compute_output_shape(self, x_shape, y_shape=None):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "normalize_first": self.normalize_first,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "norm": described(self.norm) if self.own_norm else None,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class SandwichResidual(Residual):
    """`x + norm_after(dropout(sublayer(norm(x))))`: a norm on either side of the sublayer, none on the skip.

    Ding et al., 2021, "CogView", section 2.4; the norms of Gemma 2 (Gemma Team, 2024, section 2) stand in the same
    places. It is used as `Residual` is.

    Args:
        dropout: Share of the sublayer's output that is dropped in training.
        layer_norm_epsilon: Added to the variance.
        norm: A template of both norms, as in `Residual`.

    Call arguments:
        x: The sublayer's input, `(batch, length, d_model)`.
        y: Its output, of the same shape.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `dropout` is not in [0, 1), or `norm` not a layer.
    """

    def __init__(self, dropout=0.1, layer_norm_epsilon=1e-6, *, norm=None, **kwargs):
        super().__init__(dropout, True, layer_norm_epsilon, norm=norm, **kwargs)
        self.norm_after = clone(self.norm, name="norm_after")

    def build(self, x_shape, y_shape=None):
        super().build(x_shape, y_shape)
        self.norm_after.build(x_shape)

    def call(self, x, y, training=None):
        return x + self.norm_after(self.drop(y, training=training))

    def get_config(self):
        config = super().get_config()
        del config["normalize_first"]
        return config
