"""The hook and the fused kernel of `keras.layers.MultiHeadAttention`."""

import keras

from keras_transformer.checks import check
from keras_transformer.execution import ops
from keras_transformer.layers.dot_product import distances_between, dot_product_attention
from keras_transformer.masks import as_attention_mask, combine, look_ahead_mask

# Exchanges the axes of heads and tokens, axes 1 and 2 of a tensor of rank 4.
SWAPPED = (0, 2, 1, 3)


class KerasAttention(keras.layers.MultiHeadAttention):
    """Keras's layer, whose hook `_compute_attention` computes as this library does."""

    def _build_keras_hook(self):
        """Makes the attributes that Keras's own `_compute_attention` reads, for heads `(batch, length, heads, dim)`.

        Returns:
            Whether a subclass overrides that hook; nothing is made if none does.
        """
        self.given_axes = self._attention_axes
        if type(self)._compute_attention is KerasAttention._compute_attention:
            return False
        # Rows of a higher rank are folded: the hook always sees one attended axis. Keras's lines read it.
        self._attention_axes = (1,)
        self._build_attention(4)
        self._inverse_sqrt_key_dim = self._key_dim**-0.5 if self.scale is None else self.scale
        return True

    def _masked_softmax(self, attention_scores, attention_mask=None):
        """Applies Keras's softmax to `(batch, num_heads, target_len, source_len)`; 0 where a query sees no key."""
        if attention_mask is None:
            return self._softmax(attention_scores)
        mask = as_attention_mask(attention_mask)
        return ops.zero_unless(mask, self._softmax(attention_scores, mask=mask))

    def _attend_in_keras_layout(
        self, query, key, value, mask, place, query_mask, return_attention_scores, training
    ):
        """Calls Keras's hook or its fused kernel, which take the heads as the third axis."""
        bias = self._bias_of(query, key)
        for name, received in (("positions", bias), ("soft_cap", self.soft_cap)):
            rule = f"`{name}` needs no `flash_attention` and no overridden `_compute_attention`. Override `attend`."
            check(received is None, rule, **{name: received})
        if self._sliding_window is not None:
            positions = [
                ops.arange(ops.shape(x)[2], dtype="int32") if given is None else given
                for x, given in ((query, place.positions), (key, place.key_positions))
            ]
            mask = combine(mask, ops.abs(distances_between(*positions)) < self._sliding_window)
        times = self.num_heads // self.num_key_value_heads
        key, value = (x if times == 1 else ops.repeat(x, times, axis=1) for x in (key, value))
        heads = [ops.transpose(x, SWAPPED) for x in (query, key, value)]
        if self._flash_attention:
            check(
                not return_attention_scores,
                "`return_attention_scores` needs `flash_attention=False`.",
                return_attention_scores=return_attention_scores,
            )
            context = ops.dot_product_attention(*heads, mask=mask, scale=self.scale, flash_attention=True)
            scores = None
        else:
            if mask is not None and mask.shape[1] == 1:
                # Keras's masks know no heads.
                mask = ops.squeeze(mask, 1)
            context, scores = self._compute_attention(*heads, mask, training, return_attention_scores)
        sees = None if query_mask is None else ops.expand_dims(query_mask, (1, 3))
        scores = None if scores is None else ops.zero_unless(sees, scores)
        return ops.zero_unless(sees, ops.transpose(context, SWAPPED)), scores

    def _compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        use_causal_mask=False,
    ):
        """Applies attention to projected queries, keys and values in Keras's layout; subclasses may override it.

        Args:
            query: `(batch, target_len, num_heads, key_dim)`.
            key: `(batch, source_len, num_heads, key_dim)`.
            value: `(batch, source_len, num_heads, value_dim)`.
            attention_mask: bool, broadcastable to `(batch, target_len, source_len)` or, where it differs between heads,
                to `(batch, num_heads, target_len, source_len)`; or None. All masks but that of the queries are in it.
            training: Whether to drop.
            return_attention_scores: Whether the scores are needed.
            use_causal_mask: Whether to hide the keys after the query.

        Returns:
            The context `(batch, target_len, num_heads, value_dim)` and the scores
            `(batch, num_heads, target_len, source_len)`, or None for these.
        """
        causal = look_ahead_mask(ops.shape(query)[1], ops.shape(key)[1]) if use_causal_mask else None
        context, scores = dot_product_attention(
            *(ops.transpose(x, SWAPPED) for x in (query, key, value)),
            combine(as_attention_mask(attention_mask), causal),
            dropout=self._dropout_layer if self.dropout and training else None,
            return_attention_scores=return_attention_scores,
            scale=self.scale,
        )
        return ops.transpose(context, SWAPPED), scores
