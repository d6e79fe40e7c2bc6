"""The layers of an encoder and of a decoder, and the stacks of them."""

import keras

from keras_transformer.checks import check
from keras_transformer.execution import ops
from keras_transformer.execution.repeated import caller_of
from keras_transformer.keras_internals import implicit_mask
from keras_transformer.layers.attention import MultiHeadAttention, pack, unpack
from keras_transformer.layers.base import (
    KeepsShape,
    arguments_of_layers,
    check_either,
    check_part,
    ensure_built,
    given_layers,
    pop_keras_arguments,
    takes_argument,
)
from keras_transformer.layers.cache import KVCache, Place, cache_for, of_each_layer
from keras_transformer.layers.dot_product import joint_batch_size
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.rules import RULES, check_layers
from keras_transformer.masks import as_token_mask, own_or_implicit_mask

SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(KeepsShape, keras.layers.Layer):
    """Self-attention, then a feed-forward network, each in a residual connection.

    "Attention Is All You Need", section 3.1. `attention` and `feed_forward` are used as they are, not copied.
    Override `make_residual` for a residual connection of your own.

    Args:
        num_heads: Number of attention heads; must divide `d_model`, which is read from the input, unless there is a
            `key_dim`. Must be None when `attention` is given.
        d_ff: Width of the feed-forward network's inner layer. Must be None when `feed_forward` is given.
        dropout: Share of each sublayer's output dropped in training.
        activation: Activation of the feed-forward network that `d_ff` describes: a name or a function.
        normalize_first: True for pre-norm, False for the paper's post-norm.
        layer_norm_epsilon: Number added to the variance in the norms.
        key_dim: Size of a head's queries, keys and values, as in `keras.layers.MultiHeadAttention`; `d_model` divided
            by `num_heads` when None. Must be None when `attention` is given.
        norm: "layer" for layer normalisation, "layer_without_bias" for the same with a scale alone, "rms" for
            root-mean-square normalisation.
        sandwich_norm: Whether each sublayer's output is normalised too; needs `normalize_first=True`.
        input_norm: Whether each sublayer's input is normalised with pre-norm. False leaves the norm of the output alone
            (OLMo 2); it needs `sandwich_norm=True`.
        attention_dropout: Share of the attention scores dropped in training; 0 when None. Must be
            None when `attention` is given.
        activation_dropout: Share of the feed-forward network's inner activations dropped in training; 0 when None. Must
            be None when `feed_forward` is given.
        kernel_initializer: Initializer of the matrices that the layer creates itself.
        attention_norm: Whether self-attention has a norm. False for the first layer of a stack whose input is
            normalised already (ModernBERT); needs `normalize_first=True`.
        use_causal_mask: Whether a position sees none after it, as in an embedder that was made of a language model.
            `attention` is then called with `use_causal_mask=True` too.
        stochastic_depth: Share of the rows whose sublayers are dropped whole in training, each sublayer for itself
            (Huang et al., 2016). In a stack it is the last layer's, and rises linearly from layer to layer.
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
            `(batch, num_heads, source_len, source_len)`, True = may attend; applied in addition to
            `padding_mask`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also the scores
        `(batch, num_heads, source_len, source_len)`.

    Raises:
        ValueError: If a number is out of range, both or neither of `num_heads` and `attention` (or of `d_ff` and
            `feed_forward`) are given, `num_heads` does not divide `d_model` without a `key_dim`, or `x` or a mask has
            another shape.

    >>> EncoderLayer(num_heads=2, d_ff=8)(np.ones((1, 3, 4))).shape
    TensorShape([1, 3, 4])
    >>> EncoderLayer(num_heads=3, d_ff=8, key_dim=5)(np.ones((1, 3, 4))).shape  # 3 does not divide 4
    TensorShape([1, 3, 4])
    """

    decided_by = ("use_causal_mask", *SUBLAYERS, *(f"{name}_residual" for name in SUBLAYERS))

    def __init__(
        self,
        num_heads=None,
        d_ff=None,
        dropout=0.1,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        *,
        key_dim=None,
        norm="layer",
        sandwich_norm=False,
        input_norm=True,
        attention_dropout=None,
        activation_dropout=None,
        kernel_initializer="glorot_uniform",
        attention_norm=True,
        use_causal_mask=False,
        stochastic_depth=0.0,
        attention=None,
        feed_forward=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        sizes = {"num_heads": num_heads, "key_dim": key_dim, "attention_dropout": attention_dropout}
        check_either("attention", attention, **sizes)
        check_either("feed_forward", feed_forward, d_ff=d_ff, activation_dropout=activation_dropout)
        rule = "`attention_norm=False` needs `normalize_first=True`."
        check(attention_norm or normalize_first, rule, normalize_first=normalize_first)
        self.num_heads, self.key_dim = num_heads, key_dim
        self.attention_norm = attention_norm
        self.use_causal_mask = use_causal_mask
        self.attention_dropout = attention_dropout or 0.0
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.dropout, self.stochastic_depth = dropout, stochastic_depth
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm = norm
        self.sandwich_norm, self.input_norm = sandwich_norm, input_norm
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(min_ndim=3)
        self.self_attention = check_part(attention, "attention") or self._attention("self_attention")
        self.feed_forward = check_part(feed_forward, "feed_forward") or FeedForward(
            d_ff,
            activation,
            activation_dropout or 0.0,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def _attention(self, name):
        """Makes the attention that `num_heads` describes."""
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_residual(self, name):
        """Makes the residual connection of one sublayer."""
        has_norm = self.attention_norm or name != "self_attention_residual"
        return Residual(
            self.dropout,
            self.normalize_first,
            self.layer_norm_epsilon,
            norm=self.norm if has_norm else None,
            sandwich_norm=self.sandwich_norm,
            input_norm=self.input_norm,
            stochastic_depth=self.stochastic_depth,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_last_norm(self):
        """Makes the norm after the last layer of a stack; None where that layer ends with its own norm."""
        return self.feed_forward_residual.make_norm("norm") if self.normalize_first else None

    def build(self, x_shape):
        check(x_shape[-1] is not None, "`d_model`, the last axis of `x`, must be known.", shape=x_shape)
        self.input_spec = keras.layers.InputSpec(min_ndim=3, axes={-1: x_shape[-1]})
        # The constructor of a subclass, whose attributes `make_residual` may read, has ended.
        self.self_attention_residual = self.make_residual("self_attention_residual")
        self.feed_forward_residual = self.make_residual("feed_forward_residual")
        ensure_built(self.self_attention, x_shape, x_shape)
        self.self_attention_residual.build(x_shape)
        ensure_built(self.feed_forward, x_shape)
        self.feed_forward_residual.build(x_shape)
        self.feed_forward_takes_mask = takes_argument(self.feed_forward, "padding_mask")

    def call(self, x, padding_mask=None, attention_mask=None, training=None, return_attention_scores=False):
        padding_mask = own_or_implicit_mask(padding_mask, x)
        h = self.self_attention_residual.before(x)
        masks = {"query_mask": padding_mask, "value_mask": padding_mask, "attention_mask": attention_mask}
        masks |= {"use_causal_mask": True} if self.use_causal_mask else {}
        options = {"return_attention_scores": return_attention_scores, "training": training}
        y, scores, _ = unpack(self.self_attention(h, h, **masks, **options), return_attention_scores)
        x = self.self_attention_residual(x, y, training=training)
        return pack(self._feed_forward_block(x, padding_mask, training), scores)

    def _feed_forward_block(self, x, padding_mask, training):
        """Calls the feed-forward network in its residual connection."""
        h = self.feed_forward_residual.before(x)
        masks = {"padding_mask": padding_mask} if self.feed_forward_takes_mask else {}
        y = self.feed_forward(h, training=training, **masks)
        return self.feed_forward_residual(x, y, training=training)


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(EncoderLayer):
    """Causal self-attention, attention to a memory if there is one, and a feed-forward network.

    "Attention Is All You Need", section 3.1; each sublayer is in a residual connection. The same call serves training
    (`cache=None`), the prefill of a prompt and a single step: the queries stand at `index` and after, and see what
    `cache` holds before. `layers/cache.py` says what a slot and a position are.

    With `use_causal_mask=False` the queries see one another, as the object queries of DETR do (Carion et al., 2020,
    section 3.2) and the latents of Perceiver (Jaegle et al., 2021). One row of queries serves all memories.

    Args:
        num_heads: Number of attention heads; must divide `d_model`, which is read from the input, unless there is a
            `key_dim`. Must be None when `attention` is given.
        d_ff: Width of the feed-forward network's inner layer. Must be None when `feed_forward` is given.
        cross_attention: A layer for the attention to the memory. None for one that `num_heads` describes; it is made
            when the layer is built with a memory.
        **kwargs: The other arguments of `EncoderLayer`. Its `use_causal_mask` is True here unless it is given: False
            lets all positions see one another, and then there is no decoding with a `cache`.

    Call arguments:
        x: `(batch, target_len, d_model)`; one row, such as learned queries, is repeated for all rows of `memory`.
        memory: The encoder's output `(batch, source_len, features)`, or the result of `project_memory`. None for a
            model without an encoder: a layer first called so has no attention to a memory.
        padding_mask: bool `(batch, target_len)`, with a cache `(batch, length of the cache)`, True where a
            token is real; without a cache, Keras's implicit mask of `x` when None.
        memory_padding_mask: bool `(batch, source_len)`, or `(batch, 1, 1, source_len)`; Keras's implicit mask of
            `memory` when None. A projected memory has none: give it here.
        training: Whether to drop.
        return_attention_scores: Whether to return the scores of both attentions too.
        cache: `KVCache` of the tokens before `index`, or None.
        index: With a cache the slot of the first query, an int or an int scalar tensor; 0 when None. Or a `Place`,
            which says with or without a cache where the tokens stand, and which keys they may see.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` then a pair, the scores of self-attention and of
        cross-attention, `(batch, num_heads, target_len, source_len)` each, or without a memory the first alone; with
        `cache` then the new cache.

    Raises:
        ValueError: If a number is out of range, both or neither of `num_heads` and `attention` (or of `d_ff` and
            `feed_forward`) are given, `num_heads` does not divide `d_model` without a `key_dim`, `x` or a mask has
            another shape, `index` is given without a cache, a cache to a layer that is not causal, a memory to a layer
            that was built without one, or `memory_padding_mask` without a memory.

    >>> DecoderLayer(num_heads=2, d_ff=8)(np.ones((1, 3, 4)), np.ones((1, 5, 4))).shape
    TensorShape([1, 3, 4])
    >>> queries, images = np.ones((1, 3, 4)), np.ones((2, 5, 4))
    >>> DecoderLayer(num_heads=2, d_ff=8, use_causal_mask=False)(queries, images).shape
    TensorShape([2, 3, 4])
    """

    def __init__(self, num_heads=None, d_ff=None, *args, cross_attention=None, **kwargs):
        super().__init__(num_heads, d_ff, *args, **{"use_causal_mask": True, **kwargs})
        self.cross_attention = check_part(cross_attention, "cross_attention")
        self.cross_attention_residual = None

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)
        if memory_shape is None:
            return
        if self.cross_attention is None:
            rule = "A layer with `attention` needs `cross_attention` too, as it is called with a memory."
            check(self.num_heads is not None, rule, cross_attention=None)
            self.keep_made(cross_attention=self._attention("cross_attention"))
        self.cross_attention_residual = self.make_residual("cross_attention_residual")
        ensure_built(self.cross_attention, x_shape, memory_shape)
        self.cross_attention_residual.build(x_shape)

    def project_memory(self, memory):
        """Projects a memory to keys and values, once for each source; its implicit mask is not in them."""
        rule = "The layer was built without a memory, so there is nothing to project one with."
        check(self.cross_attention is not None, rule, cross_attention=None)
        return self.cross_attention.project_memory(memory)

    def empty_cache(self, batch_size, length):
        """Returns a cache for `length` target positions."""
        rule = "Decoding needs this library's `MultiHeadAttention`, which has a cache."
        check(isinstance(self.self_attention, MultiHeadAttention), rule, attention=self.self_attention)
        return cache_for(self.self_attention, batch_size, length)

    def call(
        self,
        x,
        memory=None,
        padding_mask=None,
        memory_padding_mask=None,
        training=None,
        return_attention_scores=False,
        cache=None,
        index=None,
    ):
        self._check_memory(memory, memory_padding_mask)
        options = {"return_attention_scores": return_attention_scores, "training": training}
        place = Place.of(index)
        # Keras's own attention has no cache: it serves where none is needed.
        cached = {} if cache is None and place.is_start else {"cache": cache, "index": index}
        real = place.real
        if cache is None:
            padding_mask = own_or_implicit_mask(padding_mask, x)
            real = padding_mask if real is None else real
            masks = {"query_mask": padding_mask, "value_mask": padding_mask}
        else:
            keys = None if padding_mask is None else ops.expand_dims(as_token_mask(padding_mask), (1, 2))
            masks = {"attention_mask": keys}
        h = self.self_attention_residual.before(x)
        results = self.self_attention(
            h, h, use_causal_mask=self.use_causal_mask, **masks, **cached, **options
        )
        y, scores, cache = unpack(results, return_attention_scores, cache is not None)
        x = self.self_attention_residual(x, y, training=training)

        if memory is not None:
            if isinstance(memory, KVCache):
                memory_mask = as_token_mask(memory_padding_mask, "memory_padding_mask")
            else:
                memory_mask = own_or_implicit_mask(memory_padding_mask, memory, "memory_padding_mask")
            h = self.cross_attention_residual.before(x)
            results = self.cross_attention(
                h, memory, query_mask=masks.get("query_mask"), value_mask=memory_mask, **options
            )
            y, cross_scores, _ = unpack(results, return_attention_scores)
            x = self.cross_attention_residual(x, y, training=training)

        x = self._feed_forward_block(x, real, training)
        all_scores = scores if memory is None else (scores, cross_scores)
        return pack(x, all_scores if return_attention_scores else None, cache)

    def compute_output_shape(self, x_shape, memory_shape=None, **more_shapes):
        return (joint_batch_size(x_shape, memory_shape or x_shape), *x_shape[1:])

    def _check_memory(self, memory, memory_padding_mask):
        """Raises `ValueError` for a memory that the layer was not built for, or for a mask without a memory."""
        given, expected = memory is not None, self.cross_attention_residual is not None
        rule = "`memory` must be given in every call or in none: the first call decides whether it is attended to."
        check(given == expected, rule, memory="a memory" if given else None)
        rule = "`memory_padding_mask` needs a `memory`."
        check(given or memory_padding_mask is None, rule, memory=None)


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(KeepsShape, keras.layers.Layer):
    """A stack of encoder layers ("Attention Is All You Need", section 3.1).

    A stack whose last layer is pre-norm ends with one more norm, since that layer leaves its sum unnormalised.

    Args:
        num_layers: Number of layers, or a list of layers of yours, which are used as they are. Each is called as
            `layer(x, padding_mask=, attention_mask=, return_attention_scores=, training=)`.
        num_heads: Number of attention heads of each layer; None when a list is given.
        d_ff: Width of the feed-forward networks' inner layers; None when a list is given.
        **kwargs: The other arguments of `EncoderLayer`, such as `key_dim`, the same for each layer (not with a list);
            and Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        x: `(batch, source_len, d_model)`.
        padding_mask: bool `(batch, source_len)`, True where a token is real, or `(batch, 1, 1, source_len)`; Keras's
            implicit mask of `x` when None.
        attention_mask: bool `(source_len, source_len)`, `(batch, source_len, source_len)` or
            `(batch, num_heads, source_len, source_len)`, True = may attend; applied in addition to
            `padding_mask`.
        training: Whether to drop.
        return_attention_scores: Whether to return the attention scores too.

    Returns:
        `(batch, source_len, d_model)`; with `return_attention_scores` also a list with the scores of each layer,
        `(batch, num_heads, source_len, source_len)`.

    Raises:
        ValueError: If `num_layers` is neither positive nor a list of layers, sizes come with a list, or the `call` of
            a layer lacks an argument.

    >>> Encoder(2, num_heads=2, d_ff=8)(np.ones((1, 3, 4))).shape
    TensorShape([1, 3, 4])
    """

    decided_by = ("layers", "norm")
    layer_class = EncoderLayer
    rules = RULES | {"num_layers": check_layers}
    # Arguments that every layer of the stack is called with, in addition to `training`, which Keras takes care of.
    call_arguments = ("padding_mask", "attention_mask", "return_attention_scores")

    def __init__(self, num_layers, num_heads=None, d_ff=None, **kwargs):
        super().__init__(**pop_keras_arguments(kwargs))
        if isinstance(num_layers, (list, tuple)):
            sizes = {"num_heads": num_heads, "d_ff": d_ff, **kwargs}
            self.layers = given_layers(num_layers, self.call_arguments, sizes)
        else:
            each = arguments_of_layers(self, self.layer_class, num_layers, kwargs)
            self.layers = [
                self.layer_class(num_heads, d_ff, dtype=self.dtype_policy, name=f"layer_{i}", **own)
                for i, own in enumerate(each)
            ]
        self.num_layers = len(self.layers)
        self.norm = None
        self.supports_masking = True

    def build(self, x_shape, *more_shapes):
        for layer in self.layers:
            ensure_built(layer, x_shape, *more_shapes)
        self.norm = getattr(self.layers[-1], "make_last_norm", lambda: None)()
        if self.norm is not None:
            ensure_built(self.norm, x_shape)

    def call(self, x, padding_mask=None, attention_mask=None, training=None, return_attention_scores=False):
        arguments = {
            "padding_mask": own_or_implicit_mask(padding_mask, x),
            "attention_mask": attention_mask,
            "training": training,
        }
        x, scores, _ = self._call_layers(x, [arguments] * self.num_layers, return_attention_scores)
        return pack(x, scores)

    def _call_layers(self, x, arguments, return_attention_scores, cached=False):
        """Calls the layers one after another, then the norm.

        Args:
            x: `(batch, length, d_model)`.
            arguments: The call arguments of each layer, a list of dicts.
            return_attention_scores: Whether to return the scores.
            cached: Whether the layers get a cache.

        Returns:
            `(batch, length, d_model)`; the list of the layers' scores, or None; the tuple of their caches, or None.
        """
        # Keras refuses a False beside tensors in the **kwargs of a layer's `call`.
        options = {"return_attention_scores": True} if return_attention_scores else {}
        results, call = [], caller_of(self.layers, x)
        for layer, inputs in zip(self.layers, arguments, strict=True):
            x, *extras = unpack(call(layer, x, **inputs, **options), return_attention_scores, cached)
            results.append(extras)
        scores, caches = zip(*results, strict=True)
        x = x if self.norm is None else self.norm(x)
        return x, list(scores) if return_attention_scores else None, caches if cached else None


@keras.saving.register_keras_serializable("keras_transformer")
class Decoder(Encoder):
    """A stack of decoder layers ("Attention Is All You Need", section 3.1).

    A stack whose last layer is pre-norm ends with one more norm, since that layer leaves its sum unnormalised.

    Args:
        num_layers: Number of layers, or a list of layers of yours, which are used as they are. Each is called as
            `layer(x, memory=, padding_mask=, memory_padding_mask=, return_attention_scores=, cache=, index=,
            training=)`.
        num_heads: Number of attention heads of each layer; None when a list is given.
        d_ff: Width of the feed-forward networks' inner layers; None when a list is given.
        **kwargs: The other arguments of `DecoderLayer`, such as `key_dim`, the same for each layer (not with a list);
            and Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        x: `(batch, target_len, d_model)`; one row, such as learned queries, is repeated for all rows of `memory`.
        memory: The encoder's output `(batch, source_len, features)`, or the result of `project_memory`. None for a
            model without an encoder.
        padding_mask: bool `(batch, target_len)`, with a cache `(batch, length of the cache)`, True where a
            token is real; without a cache, Keras's implicit mask of `x` when None.
        memory_padding_mask: bool `(batch, source_len)`, or `(batch, 1, 1, source_len)`; Keras's implicit mask of
            `memory` when None. A projected memory has none: give it here.
        training: Whether to drop.
        return_attention_scores: Whether to return the scores of both attentions too.
        cache: Tuple with the `KVCache` of each layer, of the tokens before `index`; or None.
        index: With a cache the slot of the first query, an int or an int scalar tensor; 0 when None. Or a `Place`,
            which says with or without a cache where the tokens stand, and which keys they may see.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` then a list with the pair of scores of each
        layer, or without a memory the scores of its self-attention; with `cache` then the new cache.

    Raises:
        ValueError: If `num_layers` is neither positive nor a list of layers, sizes come with a list, or the `call` of
            a layer lacks an argument.

    >>> Decoder(2, num_heads=2, d_ff=8)(np.ones((1, 3, 4)), np.ones((1, 5, 4))).shape
    TensorShape([1, 3, 4])
    """

    layer_class = DecoderLayer
    call_arguments = (
        "memory", "padding_mask", "memory_padding_mask", "return_attention_scores", "cache", "index"
    )  # fmt: skip

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape, *([] if memory_shape is None else [memory_shape]))

    def project_memory(self, memory):
        """Projects a memory for each layer's cross-attention, once for each source: a tuple of `KVCache`."""
        return tuple(layer.project_memory(memory) for layer in self.layers)

    def empty_cache(self, batch_size, length):
        """Returns a cache for `length` target positions: a tuple with a `KVCache` for each layer."""
        return tuple(layer.empty_cache(batch_size, length) for layer in self.layers)

    compute_output_shape = DecoderLayer.compute_output_shape

    def call(
        self,
        x,
        memory=None,
        padding_mask=None,
        memory_padding_mask=None,
        training=None,
        return_attention_scores=False,
        cache=None,
        index=None,
    ):
        if padding_mask is None and cache is None:
            padding_mask = implicit_mask(x)
        is_projected = isinstance(memory, tuple)
        if memory_padding_mask is None and memory is not None and not is_projected:
            memory_padding_mask = implicit_mask(memory)
        same_for_all = {
            "padding_mask": padding_mask,
            "memory_padding_mask": memory_padding_mask,
            "training": training,
            "index": index,
        }
        count = self.num_layers
        caches = [None] * count if cache is None else of_each_layer(cache, count, "cache")
        memories = of_each_layer(memory, count, "memory") if is_projected else [memory] * count
        arguments = [{**same_for_all, "memory": m, "cache": c} for m, c in zip(memories, caches, strict=True)]
        return pack(*self._call_layers(x, arguments, return_attention_scores, cache is not None))
