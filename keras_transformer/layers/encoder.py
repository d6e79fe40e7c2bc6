"""The encoder layer and the stack of them."""

import keras

from keras_transformer.checks import check_positive, check_share
from keras_transformer.layers.attention import MultiHeadAttention, packed, unpacked
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.norm import LayerNormalization
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.shapes import KeepsShape
from keras_transformer.masks import broadcastable, combine, implicit_mask


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(KeepsShape, keras.layers.Layer):
    """Self-attention, then a feed-forward network, each in a residual connection.

    "Attention Is All You Need", section 3.1.

    Args:
        num_heads: Number of attention heads; must divide `d_model`, which is read from the input.
        d_ff: Width of the feed-forward network's inner layer.
        dropout: Share of each sublayer's output dropped in training.
        activation: Activation of the feed-forward network.
        normalize_first: True for pre-norm, False for the paper's post-norm.
        layer_norm_epsilon: Added to the variance in the norms.
        attention_dropout: Share of the attention weights dropped in training.
        activation_dropout: Share of the feed-forward network's inner activations dropped in training.
        kernel_initializer: Initializer of every matrix.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: bool `(batch, source_len)`, True where a token is real; Keras's implicit mask of `x`
            when None.
        attention_mask: bool `(batch, source_len)`, `(batch, source_len, source_len)` or of rank 4,
            True = may attend; applied beside `padding_mask`.
        training: Whether to drop out.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also the weights
        `(batch, num_heads, source_len, source_len)`.

    Raises:
        ValueError: If a size is not positive, a dropout not in [0, 1), or `num_heads` does not divide `d_model`.
    """

    def __init__(
        self,
        num_heads,
        d_ff,
        dropout=0.1,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        *,
        attention_dropout=0.0,
        activation_dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(num_heads=num_heads, d_ff=d_ff)
        check_share(
            dropout=dropout, attention_dropout=attention_dropout, activation_dropout=activation_dropout
        )
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        d_model = x_shape[-1]
        if d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be divisible by `num_heads`. "
                f"Received: d_model={d_model}, num_heads={self.num_heads}."
            )
        self.self_attention, self.self_attention_residual = self._add_attention(
            "self_attention", x_shape, x_shape
        )
        self.feed_forward = FeedForward(
            self.d_ff,
            self.activation,
            self.activation_dropout,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward.build(x_shape)
        self.feed_forward_residual = self._add_residual("feed_forward_residual", x_shape)
        self.built = True

    def _add_attention(self, name, x_shape, memory_shape):
        """An attention sublayer, from `x` to a memory, and the residual connection around it."""
        attention = MultiHeadAttention(
            self.num_heads,
            x_shape[-1] // self.num_heads,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        attention.build(x_shape, memory_shape)
        return attention, self._add_residual(f"{name}_residual", x_shape)

    def _add_residual(self, name, x_shape):
        residual = Residual(
            self.dropout,
            self.normalize_first,
            self.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=name,
        )
        residual.build(x_shape)
        return residual

    def _feed_forward_block(self, x, training):
        y = self.feed_forward(self.feed_forward_residual.before(x), training=training)
        return self.feed_forward_residual(x, y, training=training)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        if padding_mask is None:
            padding_mask = implicit_mask(x)
        h = self.self_attention_residual.before(x)
        y, scores = self.self_attention.attend(
            self.self_attention.project_query(h),
            self.self_attention.project_memory(h),
            combine(broadcastable(attention_mask), broadcastable(padding_mask)),
            training=training,
            return_attention_scores=return_attention_scores,
        )
        x = self.self_attention_residual(x, y, training=training)
        x = self._feed_forward_block(x, training)
        return packed(x, scores=scores)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "normalize_first": self.normalize_first,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(KeepsShape, keras.layers.Layer):
    """A stack of encoder layers ("Attention Is All You Need", section 3.1).

    Pre-norm stacks end with one more norm, since their last layer leaves its sum unnormalised.

    Args:
        num_layers: Number of layers.
        num_heads: As in `EncoderLayer`, like all that follow.
        d_ff: Width of the feed-forward networks' inner layers.
        dropout: Share of each sublayer's output dropped in training.
        activation: Activation of the feed-forward networks.
        normalize_first: True for pre-norm.
        layer_norm_epsilon: Added to the variance in the norms.
        **kwargs: What else `EncoderLayer` takes (`attention_dropout`, `activation_dropout`,
            `kernel_initializer`), and Keras's own `name`, `dtype`, `trainable`.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: bool `(batch, source_len)`; Keras's implicit mask of `x` when None.
        attention_mask: As in `EncoderLayer`.
        training: Whether to drop out.
        return_attention_scores: Whether to return each layer's attention weights too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also a list with the scores of each layer.

    Raises:
        ValueError: If `num_layers` is not positive.
    """

    layer_class = EncoderLayer

    def __init__(
        self,
        num_layers,
        num_heads,
        d_ff,
        dropout=0.1,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        **kwargs,
    ):
        keras_arguments = {k: kwargs.pop(k) for k in ("name", "dtype", "trainable") if k in kwargs}
        super().__init__(**keras_arguments)
        check_positive(num_layers=num_layers)
        self.num_layers = num_layers
        self.layers = [
            self.layer_class(
                num_heads,
                d_ff,
                dropout,
                activation,
                normalize_first,
                layer_norm_epsilon,
                dtype=self.dtype_policy,
                name=f"layer_{i}",
                **kwargs,
            )
            for i in range(num_layers)
        ]
        self.supports_masking = True

    def build(self, x_shape, **more_shapes):
        for layer in self.layers:
            layer.build(x_shape, **more_shapes)
        self.norm = None
        if self.layers[0].normalize_first:
            self.norm = LayerNormalization(
                epsilon=self.layers[0].layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
            )
            self.norm.build(x_shape)
        self.built = True

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        if padding_mask is None:
            padding_mask = implicit_mask(x)
        all_scores = []
        for layer in self.layers:
            results = layer(
                x,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                training=training,
                return_attention_scores=return_attention_scores,
            )
            x, scores, _ = unpacked(results, return_attention_scores, cache=False)
            all_scores.append(scores)
        return packed(self.normalized(x), scores=all_scores if return_attention_scores else None)

    def normalized(self, x):
        """The stack's output: `x`, after the last norm of a pre-norm stack."""
        return x if self.norm is None else self.norm(x)

    def get_config(self):
        of_layer = self.layers[0].get_config()
        own = super().get_config()
        return {**of_layer, **own, "num_layers": self.num_layers}
