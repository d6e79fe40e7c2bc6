"""The encoder layer and the stack of them."""

import inspect

import keras

from keras_transformer.checks import check_positive, check_share
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward, activation_of
from keras_transformer.layers.parts import check_replaced, clone, described, part
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.shapes import KeepsShape, packed, unpacked
from keras_transformer.masks import broadcastable, combine, implicit_mask

# What each template stands for, and the defaults of that.
REPLACED = {
    "attention": {"num_heads": None, "attention_dropout": 0.0},
    "feed_forward": {"d_ff": None, "activation": activation_of("relu"), "activation_dropout": 0.0},
    "residual": {"dropout": 0.1, "normalize_first": False, "layer_norm_epsilon": 1e-6},
}


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
        kernel_initializer: Initializer of every matrix, but of a template's: these have the template's own.
        attention: A template instead of what `num_heads` and `attention_dropout` describe, such as
            `MultiHeadAttention(8, 64, positions=RotaryPositions())`. What is made of one template shares its positions,
            and has no `seed`: with one seed all layers would drop the same weights. `keras.utils.set_random_seed`
            makes a training repeatable.
        feed_forward: A template instead of what `d_ff`, `activation` and `activation_dropout` describe, such as
            `GatedFeedForward(2048)` or `MixtureOfExperts(FeedForward(2048), 8)`. If its call has a `padding_mask`,
            it is told which tokens are real.
        residual: A template instead of what `dropout`, `normalize_first` and `layer_norm_epsilon` describe, such as
            `Residual(0.1, normalize_first=True, norm=RMSNormalization())`.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: bool `(batch, source_len)`, True where a token is real, or as `masks.padding_mask` gives it;
            Keras's implicit mask of `x` when None.
        attention_mask: bool `(batch, source_len)`, `(batch, source_len, source_len)` or of rank 4,
            True = may attend; applied beside `padding_mask`.
        training: Whether to drop out.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also the weights
        `(batch, num_heads, source_len, source_len)`.

    Raises:
        ValueError: If a size is not positive, a dropout not in [0, 1), a template of another kind or beside an argument
            that it stands for, or `num_heads` does not divide `d_model`.
    """

    def __init__(
        self,
        num_heads=None,
        d_ff=None,
        dropout=0.1,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        *,
        attention_dropout=0.0,
        activation_dropout=0.0,
        kernel_initializer="glorot_uniform",
        attention=None,
        feed_forward=None,
        residual=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if attention is None:
            check_positive(num_heads=num_heads)
        if feed_forward is None:
            check_positive(d_ff=d_ff)
        check_share(
            dropout=dropout, attention_dropout=attention_dropout, activation_dropout=activation_dropout
        )
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.activation = activation_of(activation)
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        templates = {
            "attention": part(attention, "attention", MultiHeadAttention),
            "feed_forward": part(feed_forward, "feed_forward", keras.layers.Layer),
            "residual": part(residual, "residual", Residual),
        }
        for name, plain in REPLACED.items():
            given = {argument: (getattr(self, argument), default) for argument, default in plain.items()}
            check_replaced(name, templates[name], **given)
        if templates["attention"] and templates["feed_forward"]:
            initializers = self.kernel_initializer, keras.initializers.get("glorot_uniform")
            given = {"kernel_initializer": tuple(map(described, initializers))}
            check_replaced("attention", templates["attention"], **given)
        self._described = {name: described(template) for name, template in templates.items()}
        # A function, in which Keras looks for no layers: a template is no part of this one.
        self._template = templates.get

    def build(self, x_shape):
        self.self_attention = self._own_attention(x_shape[-1])
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_residual = self._own_residual("self_attention_residual", x_shape)
        self.feed_forward = self._own_feed_forward()
        self.feed_forward.build(x_shape)
        self.counts_tokens = "padding_mask" in inspect.signature(self.feed_forward.call).parameters
        self.feed_forward_residual = self._own_residual("feed_forward_residual", x_shape)
        self.built = True

    def _own_attention(self, d_model):
        own = {"name": "self_attention", "dtype": self.dtype_policy}
        if template := self._template("attention"):
            return clone(template, **own, positions=template.positions, seed=None)
        if d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be divisible by `num_heads`. "
                f"Received: d_model={d_model}, num_heads={self.num_heads}."
            )
        return MultiHeadAttention(
            self.num_heads,
            d_model // self.num_heads,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer,
            **own,
        )

    def _own_feed_forward(self):
        own = {"name": "feed_forward", "dtype": self.dtype_policy}
        if template := self._template("feed_forward"):
            return clone(template, **own)
        return FeedForward(
            self.d_ff,
            self.activation,
            self.activation_dropout,
            kernel_initializer=self.kernel_initializer,
            **own,
        )

    def _own_residual(self, name, x_shape):
        own = {"name": name, "dtype": self.dtype_policy}
        if template := self._template("residual"):
            residual = clone(template, **own)
        else:
            residual = Residual(self.dropout, self.normalize_first, self.layer_norm_epsilon, **own)
        residual.build(x_shape)
        return residual

    def _feed_forward_block(self, x, padding_mask, training):
        h = self.feed_forward_residual.before(x)
        real = {"padding_mask": padding_mask} if self.counts_tokens else {}
        y = self.feed_forward(h, **real, training=training)
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
        x = self._feed_forward_block(x, padding_mask, training)
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
            **self._described,
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
            `kernel_initializer`, `attention`, `feed_forward`, `residual`), and Keras's own `name`, `dtype`,
            `trainable`.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: As in `EncoderLayer`.
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
        num_heads=None,
        d_ff=None,
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
        if attention := part(kwargs.get("attention")):
            # The stack's own: its layers share the positions, no other stack does.
            kwargs["attention"] = clone(attention)
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
        residual = self.layers[0].feed_forward_residual
        if residual.normalize_first:
            self.norm = clone(residual.norm, name="norm")
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

    @property
    def counts_tokens(self):
        """Whether a feed-forward network of the stack wants to know which tokens are real."""
        return any(layer.counts_tokens for layer in self.layers)

    def normalized(self, x):
        """The stack's output: `x`, after the last norm of a pre-norm stack."""
        return x if self.norm is None else self.norm(x)

    def get_config(self):
        of_layer = self.layers[0].get_config()
        own = super().get_config()
        return {**of_layer, **own, "num_layers": self.num_layers}
