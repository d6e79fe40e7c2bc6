"""The decoder layer (an encoder layer's parts, plus cross-attention) and the stack of them."""

import keras
from keras import ops

from keras_transformer.layers.cache import KVCache, check_no_index, empty_cache
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.parts import clone
from keras_transformer.layers.positions import positions_of
from keras_transformer.layers.shapes import packed, unpacked
from keras_transformer.masks import broadcastable, combine, implicit_mask, look_ahead_mask


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(EncoderLayer):
    """Causal self-attention, attention to a memory if there is one, a feed-forward network, each in a residual
    connection.

    "Attention Is All You Need", section 3.1. The same call serves training (`cache=None`), the prefill of
    a prompt and a single step: the queries stand at `index` and after, and see what `cache` holds before.

    Args: as `EncoderLayer`.

    Call arguments:
        x: `(batch, target_len, d_model)`.
        memory: The encoder's output `(batch, source_len, features)`, or what `project_memory` made of it. None for a
            model without an encoder: a layer first called so has no attention to a memory.
        padding_mask: bool `(batch, target_len)`, with a cache `(batch, length of the cache)`, True where a
            token is real; without a cache, Keras's implicit mask of `x` when None.
        memory_padding_mask: bool `(batch, source_len)`; Keras's implicit mask of `memory` when None. A projected
            memory has none: give it here.
        attention_mask: bool, broadcastable to `(batch, 1, target_len, length)`, applied to self-attention beside
            the causal mask and `padding_mask`.
        training: Whether to drop out.
        return_attention_scores: Whether to return the weights of both attentions too.
        cache: `KVCache` of the positions before `index`, or None.
        index: Slot of the first query, an int or an int scalar tensor; with a cache only.
        positions: int `(target_len,)` or `(batch, target_len)`, where the queries stand, where that is not their slot.
        key_positions: int `(length,)` or `(batch, length)`, where the keys stand, where that is not their slot.
        token_mask: bool `(batch, target_len)`, True where a token is real, for a feed-forward network that asks for it;
            it hides nothing. `padding_mask` when None.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` the weights of self-attention and of
        cross-attention after it, a pair of `(batch, num_heads, target_len, length)`; with `cache` the new
        cache last.

    Raises:
        ValueError: As `EncoderLayer`, or if `index` is given without a cache.
    """

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)
        self.cross_attention = None
        if memory_shape is not None:
            self.cross_attention = clone(
                self.self_attention, name="cross_attention", positions=None, sliding_window=None
            )
            self.cross_attention.build(x_shape, memory_shape)
            self.cross_attention_residual = self._own_residual("cross_attention_residual", x_shape)

    def project_memory(self, memory):
        """Keys and values of the memory, computed once per source; its implicit mask is not in them."""
        return self.cross_attention.project_memory(memory)

    def empty_cache(self, batch_size, length):
        """A cache for `length` target positions."""
        attention = self.self_attention
        return empty_cache(
            batch_size,
            attention.num_key_value_heads,
            length,
            attention.key_dim,
            attention.value_dim,
            self.compute_dtype,
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
        index=0,
        *,
        attention_mask=None,
        positions=None,
        key_positions=None,
        token_mask=None,
    ):
        if (memory is None) != (self.cross_attention is None):
            raise ValueError(
                "`memory` must be given in every call or in none: the first call decides whether there is attention to "
                f"it. Received: {'none' if memory is None else 'a memory'}."
            )
        options = {"training": training, "return_attention_scores": return_attention_scores}
        h = self.self_attention_residual.before(x)
        if cache is None:
            check_no_index(index)
            if padding_mask is None:
                padding_mask = implicit_mask(x)
        elif positions is None:
            positions = positions_of(x, index)
        attended = self.self_attention.project_memory(h, positions=positions)
        if cache is not None:
            attended = cache = cache.write(attended, index)
        elif key_positions is None:
            key_positions = positions
        causal = look_ahead_mask(ops.shape(x)[1], attended.length, index)
        y, self_scores = self.self_attention.attend(
            self.self_attention.project_query(h, positions),
            attended,
            combine(broadcastable(attention_mask), broadcastable(padding_mask), causal),
            positions=positions,
            key_positions=key_positions,
            **options,
        )
        x = self.self_attention_residual(x, y, training=training)

        cross_scores = None
        if memory is not None:
            if not isinstance(memory, KVCache):
                if memory_padding_mask is None:
                    memory_padding_mask = implicit_mask(memory)
                memory = self.project_memory(memory)
            h = self.cross_attention_residual.before(x)
            y, cross_scores = self.cross_attention.attend(
                self.cross_attention.project_query(h), memory, broadcastable(memory_padding_mask), **options
            )
            x = self.cross_attention_residual(x, y, training=training)

        if token_mask is None and cache is None:
            token_mask = padding_mask
        x = self._feed_forward_block(x, token_mask, training)
        scores = (self_scores, cross_scores) if return_attention_scores else None
        return packed(x, scores=scores, cache=cache)


@keras.saving.register_keras_serializable("keras_transformer")
class Decoder(Encoder):
    """A stack of decoder layers ("Attention Is All You Need", section 3.1).

    Args: as `Encoder`.

    Call arguments: as `DecoderLayer`, where `cache` and a projected `memory` are tuples, one `KVCache` a layer.

    Returns:
        `(batch, target_len, d_model)`; with `return_attention_scores` also a list with the pair of each layer; with
        `cache` the new cache last.
    """

    layer_class = DecoderLayer

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape, memory_shape=memory_shape)

    def project_memory(self, memory):
        """What each layer's cross-attention needs of the memory, computed once per source."""
        return tuple(layer.project_memory(memory) for layer in self.layers)

    def empty_cache(self, batch_size, length):
        """A cache for `length` target positions: one `KVCache` a layer."""
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
        index=0,
        *,
        attention_mask=None,
        positions=None,
        key_positions=None,
        token_mask=None,
    ):
        if padding_mask is None and cache is None:
            padding_mask = implicit_mask(x)
        if memory is not None and not isinstance(memory, tuple):
            if memory_padding_mask is None:
                memory_padding_mask = implicit_mask(memory)
            memory = self.project_memory(memory)
        all_scores, new_cache = [], []
        for i, layer in enumerate(self.layers):
            results = layer(
                x,
                memory=None if memory is None else memory[i],
                padding_mask=padding_mask,
                memory_padding_mask=memory_padding_mask,
                attention_mask=attention_mask,
                training=training,
                return_attention_scores=return_attention_scores,
                cache=None if cache is None else cache[i],
                index=index,
                positions=positions,
                key_positions=key_positions,
                token_mask=token_mask,
            )
            x, scores, written = unpacked(results, return_attention_scores, cache is not None)
            all_scores.append(scores)
            new_cache.append(written)
        return packed(
            self.normalized(x),
            scores=all_scores if return_attention_scores else None,
            cache=None if cache is None else tuple(new_cache),
        )
