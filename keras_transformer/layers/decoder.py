"""The decoder layer, which adds causality and attention to a memory to the encoder layer; and the stack of them."""

import keras

from keras_transformer.keras_internals import implicit_mask
from keras_transformer.layers.attention import MultiHeadAttention, pack, unpack
from keras_transformer.layers.cache import KVCache, empty_cache
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.sublayers import ensure_built, from_config_or_layer, to_config
from keras_transformer.masks import as_attention_mask, as_token_mask, combine, own_or_implicit_mask


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(EncoderLayer):
    """Causal self-attention, attention to a memory if there is one, and a feed-forward network.

    "Attention Is All You Need", section 3.1; each sublayer is in a residual connection. The same call serves training
    (`cache=None`), the prefill of a prompt and a single step: the queries stand at `index` and after, and see what
    `cache` holds before. `layers/cache.py` says what a slot and a position are.

    Args:
        num_heads: Number of attention heads; must divide `d_model`, which is read from the input. Must be None when
            `attention` is given.
        d_ff: Width of the feed-forward network's inner layer. Must be None when `feed_forward` is given.
        cross_attention: A layer for the attention to the memory. None for one that `num_heads` describes; it is made
            when the layer is built with a memory.
        **kwargs: The other arguments of `EncoderLayer`.

    Call arguments:
        x: `(batch, target_len, d_model)`.
        memory: The encoder's output `(batch, source_len, features)`, or the result of `project_memory`. None for a
            model without an encoder: a layer first called so has no attention to a memory.
        padding_mask: bool `(batch, target_len)`, with a cache `(batch, length of the cache)`, True where a
            token is real; without a cache, Keras's implicit mask of `x` when None.
        memory_padding_mask: bool `(batch, source_len)`, or `(batch, 1, 1, source_len)`; Keras's implicit mask of
            `memory` when None. A projected memory has none: give it here.
        training: Whether to drop.
        return_attention_scores: Whether to return the scores of both attentions too.
        cache: `KVCache` of the tokens before `index`, or None.
        index: Slot of the first query, an int or an int scalar tensor; with a cache only.
        attention_mask: bool, of rank 2 to 4 and broadcastable to `(batch, num_heads, target_len, source_len)`: applied
            to self-attention beside the causal mask and `padding_mask`. With a cache `source_len` is its length.
        positions: int `(target_len,)` or `(batch, target_len)`, positions of the queries, where they are not their
            slots.
        key_positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys, where they are not their
            slots.
        token_mask: bool `(batch, target_len)`, True where a token is real, for a feed-forward network that asks for it;
            it hides nothing. Without a cache `padding_mask` when None.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` then a pair, the scores of self-attention and of
        cross-attention (or None), `(batch, num_heads, target_len, source_len)` each; with `cache` then the new cache.

    Raises:
        ValueError: If a number is out of range, both or neither of `num_heads` and `attention` (or of `d_ff` and
            `feed_forward`) are given, `num_heads` does not divide `d_model`, `x` or a mask has another shape, `index`
            is given without a cache, a memory is given to a layer that was built without one, or
            `memory_padding_mask` without a memory.

    >>> DecoderLayer(num_heads=2, d_ff=8)(np.ones((1, 3, 4)), np.ones((1, 5, 4))).shape
    TensorShape([1, 3, 4])
    """

    def __init__(self, num_heads=None, d_ff=None, *args, cross_attention=None, **kwargs):
        super().__init__(num_heads, d_ff, *args, **kwargs)
        self.cross_attention = from_config_or_layer(cross_attention, self, "cross_attention")
        self.has_cross_attention = cross_attention is not None
        self.cross_attention_residual = None

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)
        if memory_shape is None:
            return
        if self.cross_attention is None:
            if self.num_heads is None:
                raise ValueError(
                    "A layer with `attention` needs `cross_attention` too, as it is called with a memory. "
                    "Received: cross_attention=None."
                )
            self.cross_attention = self._attention("cross_attention", x_shape[-1])
        self.cross_attention_residual = self.make_residual("cross_attention_residual")
        ensure_built(self.cross_attention, x_shape, memory_shape)
        self.cross_attention_residual.build(x_shape)

    def project_memory(self, memory):
        """Projects a memory to keys and values, once for each source; its implicit mask is not in them."""
        if self.cross_attention is None:
            raise ValueError("The layer was built without a memory, so there is nothing to project one with.")
        return self.cross_attention.project_memory(memory)

    def empty_cache(self, batch_size, length):
        """Returns a cache for `length` target positions."""
        attention = self.self_attention
        if not isinstance(attention, MultiHeadAttention):
            raise ValueError(
                "Decoding needs this library's `MultiHeadAttention`, which has a cache. "
                f"Received: attention={attention!r:.200}."
            )
        return empty_cache(
            batch_size,
            attention.num_key_value_heads,
            length,
            attention.key_dim,
            attention.value_dim,
            attention.compute_dtype,
        )

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
        *,
        attention_mask=None,
        positions=None,
        key_positions=None,
        token_mask=None,
    ):
        if (memory is None) != (self.cross_attention_residual is None):
            raise ValueError(
                "`memory` must be given in every call or in none: the first call decides whether there is attention to "
                f"it. Received: {'none' if memory is None else 'a memory'}."
            )
        if memory is None and memory_padding_mask is not None:
            raise ValueError("`memory_padding_mask` needs a `memory`. Received: memory=None.")
        # Only what is given goes on to `self_attention`, so that Keras's own attention serves where none of it is.
        place = {"cache": cache, "index": index, "positions": positions, "key_positions": key_positions}
        place = {name: value for name, value in place.items() if value is not None}
        masks = {}
        if cache is None:
            padding_mask = own_or_implicit_mask(padding_mask, x)
            token_mask = padding_mask if token_mask is None else token_mask
            masks = {"query_mask": padding_mask, "value_mask": padding_mask}
        elif padding_mask is not None:
            keys = as_token_mask(padding_mask)[:, None, None, :]
            attention_mask = combine(as_attention_mask(attention_mask), keys)
        options = {"return_attention_scores": return_attention_scores, "training": training}
        h = self.self_attention_residual.before(x)
        results = self.self_attention(
            h, h, attention_mask=attention_mask, use_causal_mask=True, **masks, **place, **options
        )
        y, self_scores, cache = unpack(results, return_attention_scores, cache is not None)
        x = self.self_attention_residual(x, y, training=training)

        cross_scores = None
        if memory is not None:
            if isinstance(memory, KVCache):
                memory_mask = as_token_mask(memory_padding_mask, "memory_padding_mask")
            else:
                memory_mask = own_or_implicit_mask(memory_padding_mask, memory, "memory_padding_mask")
            h = self.cross_attention_residual.before(x)
            results = self.cross_attention(
                h, memory, query_mask=masks.get("query_mask"), value_mask=memory_mask, **options
            )
            y, cross_scores, _ = unpack(results, return_attention_scores, cache=False)
            x = self.cross_attention_residual(x, y, training=training)

        x = self._feed_forward_block(x, token_mask, training)
        return pack(x, (self_scores, cross_scores) if return_attention_scores else None, cache)

    def get_config(self):
        cross_attention = to_config(self.cross_attention) if self.has_cross_attention else None
        return {**super().get_config(), "cross_attention": cross_attention}


@keras.saving.register_keras_serializable("keras_transformer")
class Decoder(Encoder):
    """A stack of decoder layers ("Attention Is All You Need", section 3.1).

    A stack whose last layer is pre-norm ends with one more norm, since that layer leaves its sum unnormalised.

    Args:
        num_layers: Number of layers, or a list of layers of yours, which are used as they are. Each is called as
            `layer(x, memory=, padding_mask=, memory_padding_mask=, return_attention_scores=, cache=, index=,
            training=)`, and with the other call arguments of the stack that are given.
        num_heads: Number of attention heads of each layer; None when a list is given.
        d_ff: Width of the feed-forward networks' inner layers; None when a list is given.
        **kwargs: The other arguments of `DecoderLayer`, the same for each layer (not beside a list); and Keras's
            `name`, `dtype`, `trainable`.

    Call arguments:
        x: `(batch, target_len, d_model)`.
        memory: The encoder's output `(batch, source_len, features)`, or the result of `project_memory`. None for a
            model without an encoder.
        padding_mask: bool `(batch, target_len)`, with a cache `(batch, length of the cache)`, True where a
            token is real; without a cache, Keras's implicit mask of `x` when None.
        memory_padding_mask: bool `(batch, source_len)`, or `(batch, 1, 1, source_len)`; Keras's implicit mask of
            `memory` when None. A projected memory has none: give it here.
        training: Whether to drop.
        return_attention_scores: Whether to return the scores of both attentions too.
        cache: Tuple with the `KVCache` of each layer, of the tokens before `index`; or None.
        index: Slot of the first query, an int or an int scalar tensor; with a cache only.
        attention_mask: bool, of rank 2 to 4 and broadcastable to `(batch, num_heads, target_len, source_len)`: applied
            to self-attention beside the causal mask and `padding_mask`. With a cache `source_len` is its length.
        positions: int `(target_len,)` or `(batch, target_len)`, positions of the queries, where they are not their
            slots.
        key_positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys, where they are not their
            slots.
        token_mask: bool `(batch, target_len)`, True where a token is real, for feed-forward networks that ask for it;
            it hides nothing. Without a cache `padding_mask` when None.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` then a list with the pair of scores of each
        layer; with `cache` then the new cache.

    Raises:
        ValueError: If `num_layers` is neither positive nor a list of layers, sizes come beside a list, or the `call` of
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
        **options,
    ):
        if padding_mask is None and cache is None:
            padding_mask = implicit_mask(x)
        projected = isinstance(memory, tuple)
        if memory_padding_mask is None and memory is not None and not projected:
            memory_padding_mask = implicit_mask(memory)
        all_scores, new_cache = [], []
        for i, layer in enumerate(self.layers):
            results = layer(
                x,
                memory=memory[i] if projected else memory,
                padding_mask=padding_mask,
                memory_padding_mask=memory_padding_mask,
                training=training,
                return_attention_scores=return_attention_scores,
                cache=None if cache is None else cache[i],
                index=index,
                **options,
            )
            x, scores, written = unpack(results, return_attention_scores, cache is not None)
            all_scores.append(scores)
            new_cache.append(written)
        x = x if self.norm is None else self.norm(x)
        scores = all_scores if return_attention_scores else None
        return pack(x, scores, None if cache is None else tuple(new_cache))
