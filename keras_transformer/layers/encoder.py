"""The encoder layer and the stack of them."""

import keras

from keras_transformer.checks import check_positive, check_range, check_share
from keras_transformer.layers.attention import MultiHeadAttention, pack, unpack
from keras_transformer.layers.feed_forward import FeedForward, get_activation
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.sublayers import (
    KeepsShape,
    check_call_arguments,
    ensure_built,
    from_config_or_layer,
    pop_keras_arguments,
    takes_padding_mask,
    to_config,
)
from keras_transformer.masks import own_or_implicit_mask


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(KeepsShape, keras.layers.Layer):
    """Self-attention, then a feed-forward network, each in a residual connection.

    "Attention Is All You Need", section 3.1. `attention` and `feed_forward` are used as they are, not copied.
    Override `make_residual` for a residual connection of your own.

    Args:
        num_heads: Number of attention heads; must divide `d_model`, which is read from the input. Must be None when
            `attention` is given.
        d_ff: Width of the feed-forward network's inner layer. Must be None when `feed_forward` is given.
        dropout: Share of each sublayer's output dropped in training.
        activation: Activation of the feed-forward network that `d_ff` describes: a name or a function.
        normalize_first: True for pre-norm, False for the paper's post-norm.
        layer_norm_epsilon: Number added to the variance in the norms.
        norm: "layer" for layer normalisation, "layer_without_bias" for the same with a scale alone, "rms" for
            root-mean-square normalisation.
        sandwich_norm: Whether each sublayer's output is normalised too; needs `normalize_first=True`.
        attention_dropout: Share of the attention scores dropped in training; 0 when None. Must be
            None when `attention` is given.
        activation_dropout: Share of the feed-forward network's inner activations dropped in training; 0 when None. Must
            be None when `feed_forward` is given.
        kernel_initializer: Initializer of the matrices that the layer creates itself.
        attention_norm: Whether self-attention has a norm. False for the first layer of a stack whose input is
            normalised already (ModernBERT); needs `normalize_first=True`.
        attention: A layer for the self-attention, such as `MultiHeadAttention(8, 64, positions=RotaryPositions())`. It
            is called as `attention(x, x, query_mask=, value_mask=, attention_mask=, return_attention_scores=,
            training=)`.
        feed_forward: A layer for the feed-forward network, such as `GatedFeedForward(2048)`. If its `call` has an
            argument `padding_mask`, it gets the mask of real tokens, bool `(batch, source_len)`.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: bool `(batch, source_len)`, True where a token is real, or `(batch, 1, 1, source_len)` as
            `masks.padding_mask` gives it; Keras's implicit mask of `x` when None.
        attention_mask: bool `(source_len, source_len)`, `(batch, source_len, source_len)` or
            `(batch, num_heads, source_len, source_len)`, True = may attend; applied beside `padding_mask`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also the scores
        `(batch, num_heads, source_len, source_len)`.

    Raises:
        ValueError: If a number is out of range, both or neither of `num_heads` and `attention` (or of `d_ff` and
            `feed_forward`) are given, `num_heads` does not divide `d_model`, or `x` or a mask has another shape.

    >>> EncoderLayer(num_heads=2, d_ff=8)(np.ones((1, 3, 4))).shape
    TensorShape([1, 3, 4])
    """

    # The attributes of these names hold the layers in use, also those that this layer made itself.
    derived = ("feed_forward", "cross_attention")

    def __init__(
        self,
        num_heads=None,
        d_ff=None,
        dropout=0.1,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        *,
        norm="layer",
        sandwich_norm=False,
        attention_dropout=None,
        activation_dropout=None,
        kernel_initializer="glorot_uniform",
        attention_norm=True,
        attention=None,
        feed_forward=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_share(
            dropout=dropout,
            attention_dropout=attention_dropout or 0.0,
            activation_dropout=activation_dropout or 0.0,
        )
        check_range(0, layer_norm_epsilon=layer_norm_epsilon)
        if not (attention_norm or normalize_first):
            raise ValueError(
                "`attention_norm=False` needs `normalize_first=True`. Received: normalize_first=False."
            )
        _check_either("attention", attention, num_heads=num_heads, attention_dropout=attention_dropout)
        _check_either("feed_forward", feed_forward, d_ff=d_ff, activation_dropout=activation_dropout)
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.activation = get_activation(activation)
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm = norm
        self.sandwich_norm = sandwich_norm
        self.attention_norm = attention_norm
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(min_ndim=3)
        self.self_attention = from_config_or_layer(attention, self, "attention")
        self.feed_forward = from_config_or_layer(feed_forward, self, "feed_forward")
        self.has_attention = attention is not None
        self.has_feed_forward = feed_forward is not None
        self.self_attention_residual = self.make_residual("self_attention_residual")
        self.feed_forward_residual = self.make_residual("feed_forward_residual")

    def make_residual(self, name):
        """Makes the residual connection of one sublayer."""
        without = name == "self_attention_residual" and not self.attention_norm
        return Residual(
            self.dropout,
            self.normalize_first,
            self.layer_norm_epsilon,
            norm=None if without else self.norm,
            sandwich_norm=self.sandwich_norm,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape):
        if x_shape[-1] is None:
            raise ValueError(f"`d_model`, the last axis of `x`, must be known. Received: shape={x_shape}.")
        self.input_spec = keras.layers.InputSpec(min_ndim=3, axes={-1: x_shape[-1]})
        if self.self_attention is None:
            self.self_attention = self._attention("self_attention", x_shape[-1])
        if self.feed_forward is None:
            self.feed_forward = FeedForward(
                self.d_ff,
                self.activation,
                self.activation_dropout or 0.0,
                kernel_initializer=self.kernel_initializer,
                dtype=self.dtype_policy,
                name="feed_forward",
            )
        ensure_built(self.self_attention, x_shape, x_shape)
        self.self_attention_residual.build(x_shape)
        ensure_built(self.feed_forward, x_shape)
        self.feed_forward_residual.build(x_shape)
        self.masks_feed_forward = takes_padding_mask(self.feed_forward)

    def _attention(self, name, d_model):
        """Makes the attention that `num_heads` describes."""
        if d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be divisible by `num_heads`. "
                f"Received: d_model={d_model}, num_heads={self.num_heads}."
            )
        return MultiHeadAttention(
            self.num_heads,
            d_model // self.num_heads,
            dropout=self.attention_dropout or 0.0,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        padding_mask = own_or_implicit_mask(padding_mask, x)
        h = self.self_attention_residual.before(x)
        results = self.self_attention(
            h,
            h,
            query_mask=padding_mask,
            value_mask=padding_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        y, scores, _ = unpack(results, return_attention_scores, cache=False)
        x = self.self_attention_residual(x, y, training=training)
        return pack(self._feed_forward_block(x, padding_mask, training), scores)

    def _feed_forward_block(self, x, padding_mask, training):
        """Calls the feed-forward network in its residual connection."""
        h = self.feed_forward_residual.before(x)
        masks = {"padding_mask": padding_mask} if self.masks_feed_forward else {}
        y = self.feed_forward(h, training=training, **masks)
        return self.feed_forward_residual(x, y, training=training)

    def get_config(self):
        config = super().get_config()
        config["attention"] = to_config(self.self_attention) if self.has_attention else None
        config["feed_forward"] = to_config(self.feed_forward) if self.has_feed_forward else None
        return config


def _check_either(name, layer, **sizes):
    """Raises `ValueError` unless either a layer is given, or the first of the arguments that describe one."""
    first = next(iter(sizes))
    for size, value in sizes.items():
        if layer is not None and value is not None:
            raise ValueError(f"`{size}` must be None beside `{name}`. Received: {size}={value!r}.")
    if layer is None:
        check_positive(**{first: sizes[first]})


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(KeepsShape, keras.layers.Layer):
    """A stack of encoder layers ("Attention Is All You Need", section 3.1).

    A stack whose last layer is pre-norm ends with one more norm, since that layer leaves its sum unnormalised.

    Args:
        num_layers: Number of layers, or a list of layers of yours, which are used as they are. Each is called as
            `layer(x, padding_mask=, attention_mask=, return_attention_scores=, training=)`.
        num_heads: Number of attention heads of each layer; None when a list is given.
        d_ff: Width of the feed-forward networks' inner layers; None when a list is given.
        **kwargs: The other arguments of `EncoderLayer`, the same for each layer (not beside a list); and Keras's
            `name`, `dtype`, `trainable`.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: bool `(batch, source_len)`, True where a token is real, or `(batch, 1, 1, source_len)`; Keras's
            implicit mask of `x` when None.
        attention_mask: bool `(source_len, source_len)`, `(batch, source_len, source_len)` or
            `(batch, num_heads, source_len, source_len)`, True = may attend; applied beside `padding_mask`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also a list with the scores of each layer,
        `(batch, num_heads, source_len, source_len)`.

    Raises:
        ValueError: If `num_layers` is neither positive nor a list of layers, sizes come beside a list, or the `call` of
            a layer lacks an argument.

    >>> Encoder(2, num_heads=2, d_ff=8)(np.ones((1, 3, 4))).shape
    TensorShape([1, 3, 4])
    """

    layer_class = EncoderLayer
    # Arguments that every layer of the stack is called with, beside `training`, which Keras takes care of.
    call_arguments = ("padding_mask", "attention_mask", "return_attention_scores")

    def __init__(self, num_layers, num_heads=None, d_ff=None, *args, **kwargs):
        super().__init__(**pop_keras_arguments(kwargs))
        self.has_layers = isinstance(num_layers, (list, tuple))
        if self.has_layers:
            given = [name for name, value in (("num_heads", num_heads), ("d_ff", d_ff)) if value is not None]
            given += [*map(repr, args), *kwargs]
            if given or not num_layers:
                raise ValueError(
                    "A list of layers must not be empty and describes them wholly. "
                    f"Received: {len(num_layers)} layers, and {given}."
                )
            self.layers = [
                from_config_or_layer(layer, self, f"num_layers[{i}]") for i, layer in enumerate(num_layers)
            ]
            for i, layer in enumerate(self.layers):
                check_call_arguments(layer, self.call_arguments, f"num_layers[{i}]")
        else:
            check_positive(num_layers=num_layers)
            for name in ("attention", "cross_attention", "feed_forward"):
                if kwargs.get(name) is not None:
                    raise ValueError(
                        f"All layers would share one `{name}`. Pass a list of layers instead, each with its own. "
                        f"Received: {name}={kwargs[name]!r:.200}."
                    )
            self.layers = [
                self.layer_class(num_heads, d_ff, *args, dtype=self.dtype_policy, name=f"layer_{i}", **kwargs)
                for i in range(num_layers)
            ]
        self.num_layers = len(self.layers)
        self.norm = None
        if getattr(self.layers[-1], "normalize_first", False):
            self.norm = self.layers[-1].feed_forward_residual.make_norm("norm")
        self.supports_masking = True

    def build(self, x_shape, *more_shapes):
        for layer in self.layers:
            ensure_built(layer, x_shape, *more_shapes)
        if self.norm is not None:
            ensure_built(self.norm, x_shape)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        padding_mask = own_or_implicit_mask(padding_mask, x)
        all_scores = []
        for layer in self.layers:
            results = layer(
                x,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                training=training,
                return_attention_scores=return_attention_scores,
            )
            x, scores, _ = unpack(results, return_attention_scores, cache=False)
            all_scores.append(scores)
        x = x if self.norm is None else self.norm(x)
        return pack(x, all_scores if return_attention_scores else None)

    def get_config(self):
        config = super().get_config()
        if self.has_layers:
            return {**config, "num_layers": to_config(self.layers)}
        return {**self.layers[0].get_config(), **config}  # the layers are alike
