"""Multi-head attention."""

import string

import keras
from keras import ops

from keras_transformer.backend import at_least_float32, transposed
from keras_transformer.checks import check_choice, check_positive, check_range, check_share
from keras_transformer.keras_internals import implicit_mask
from keras_transformer.layers.cache import KVCache, known_int
from keras_transformer.layers.dot_product import dot_product_attention, masked_softmax, zero_unless
from keras_transformer.layers.embedding import positions_from
from keras_transformer.layers.positions import AttentionPositions
from keras_transformer.layers.projection import Projection, project_together
from keras_transformer.layers.residual import NORMS, Dropout
from keras_transformer.layers.sublayers import KeepsShape, ensure_built, from_config_or_layer
from keras_transformer.masks import as_attention_mask, as_token_mask, combine, look_ahead_mask
from keras_transformer.shapes import reshaped


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(KeepsShape, keras.layers.MultiHeadAttention):
    """Attention in several subspaces at once ("Attention Is All You Need", section 3.2.2).

    It is a `keras.layers.MultiHeadAttention`, with its calls, sublayers, weights and results, but for what Keras's
    layer gets wrong: the masks of its inputs stay untouched, a query that may attend to nothing gives zeros on every
    path (then the output bias), and symbolic shapes are the real ones. It adds a cache for decoding, grouped queries,
    and position schemes.

    Args:
        num_heads: Number of heads.
        key_dim: Size of a head's queries and keys.
        value_dim: Size of a head's values; `key_dim` when None.
        dropout: Share of the attention scores dropped in training.
        use_bias: Whether the projections have biases.
        output_shape: Features of the output, an int or a tuple; the query's own when None.
        attention_axes: Axes to attend over; all but the first and the last when None.
        num_key_value_heads: Number of heads of keys and values, each for as many heads of queries (Ainslie et al.,
            2023, "GQA"; one head: Shazeer, 2019); `num_heads` when None.
        positions: `RotaryPositions`, `ALiBi` or `RelativePositionBias`; None where the inputs hold their positions.
        query_key_norm: Norm of each head's queries and keys, one of `NORMS`: "layer", "rms" or "zero_centered_rms"
            (Dehghani et al., 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2); None for none.
        scale: Factor of the products of queries and keys; `1 / sqrt(key_dim)` when None.
        soft_cap: Bound of the products of queries and keys: `soft_cap * tanh(product / soft_cap)` takes their place
            (Gemma Team, 2024, "Gemma 2", section 2). None for no bound.
        output_bias: Whether the output projection has a bias; `use_bias` when None.
        norm_epsilon: Number added in `query_key_norm`.
        **kwargs: The other arguments of `keras.layers.MultiHeadAttention`: `sliding_window` (a query sees the keys
            less than so many positions before and after it), `use_gate`, `flash_attention`, the initializers,
            regularizers and constraints, `seed`; and Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        query: `(batch, target_len, features)`, or of higher rank.
        value: `(batch, source_len, features)`, or of higher rank; or the `KVCache` that `project_memory` made.
        key: `(batch, source_len, features)`; `value` when None.
        query_mask: bool `(batch, target_len)`; a masked query gives zeros. Keras's implicit mask of `query` when None.
        value_mask: bool `(batch, source_len)`; no query attends to a masked value. Keras's implicit mask when None.
        key_mask: bool `(batch, source_len)`; no query attends to a masked key. Keras's implicit mask when None.
        attention_mask: `(target_len, source_len)`, `(batch, target_len, source_len)` or
            `(batch, num_heads, target_len, source_len)`, boolean or 0 and 1, True = may attend.
        return_attention_scores: Whether to return the attention scores too.
        training: Whether to drop.
        use_causal_mask: Whether to hide the keys that come after the query.
        cache: `KVCache` of the tokens before `index`. The keys and values of this call are written into a copy of it,
            and the queries attend to that. It needs `use_causal_mask=True`. The implicit masks are not read then; use
            `attention_mask`, whose `source_len` is the length of the cache.
        index: Slot of the first query, an int or an int scalar tensor; 0 when None. With a cache only.
        positions: int `(target_len,)` or `(batch, target_len)`, positions of the queries, where they are not their
            slots.
        key_positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys. When None: with a cache the
            slots, else `positions`, as in self-attention.

    Returns:
        The output `(batch, target_len, *output_shape)`; with `return_attention_scores` then the scores
        `(batch, num_heads, target_len, source_len)`; with `cache` then the new cache.

    Raises:
        ValueError: If an argument is out of range or does not fit `positions`; if inputs of rank 4 or more meet an
            argument that Keras's layer does not have; or if a cache is given without `use_causal_mask`.

    >>> attention = MultiHeadAttention(num_heads=2, key_dim=3)
    >>> attention(np.ones((1, 5, 6)), np.ones((1, 4, 6))).shape
    TensorShape([1, 5, 6])
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        *,
        num_key_value_heads=None,
        positions=None,
        query_key_norm=None,
        scale=None,
        soft_cap=None,
        output_bias=None,
        norm_epsilon=1e-6,
        **kwargs,
    ):
        super().__init__(
            num_heads, key_dim, value_dim, dropout, use_bias, output_shape, attention_axes, **kwargs
        )
        check_share(dropout=dropout)
        shared = num_heads if num_key_value_heads is None else num_key_value_heads
        check_positive(num_key_value_heads=shared)
        if num_heads % shared:
            raise ValueError(
                "`num_heads` must be divisible by `num_key_value_heads`. "
                f"Received: num_heads={num_heads}, num_key_value_heads={num_key_value_heads}."
            )
        check_range(0, scale=0.0 if scale is None else scale, norm_epsilon=norm_epsilon)
        check_range(0, above=True, soft_cap=1.0 if soft_cap is None else soft_cap)
        self.num_key_value_heads = shared
        self.positions = from_config_or_layer(positions, self, "positions", AttentionPositions)
        if self.positions is not None:
            self.positions.check_heads(num_heads, key_dim)
        check_choice([None, *NORMS], query_key_norm=query_key_norm)
        self.query_key_norm = query_key_norm
        # A subclass may compute the attention itself, at the place that Keras names for it.
        self._computes_itself = type(self)._compute_attention is not MultiHeadAttention._compute_attention
        self.scale = scale
        self.soft_cap = soft_cap
        self.output_bias = output_bias
        self.norm_epsilon = norm_epsilon

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        _check_lengths(value_shape, key_shape)
        rank = len(query_shape)
        self._attention_axes = tuple(
            axis % rank for axis in self._attention_axes or range(1, len(value_shape) - 1)
        )
        if rank != 3 or self._flash_attention or self._computes_itself:
            grouped = self.num_key_value_heads if self.num_key_value_heads != self.num_heads else None
            names = ("positions", "query_key_norm", "scale", "soft_cap")
            self._check_absent(num_key_value_heads=grouped, **{name: getattr(self, name) for name in names})
        heads = (self.num_heads, self.key_dim)
        shared = (self.num_key_value_heads, self.key_dim)
        values = (self.num_key_value_heads, self.value_dim)
        self._query_dense = self._projection("query", "...x,xhd->...hd", query_shape, heads)
        self._key_dense = self._projection("key", "...x,xhd->...hd", key_shape, shared)
        if self._use_gate:
            gate = (self.num_heads, self.value_dim)
            self._gate_dense = self._projection(
                "gate", "...x,xhd->...hd", query_shape, gate, activation="sigmoid"
            )
        self._value_dense = self._projection("value", "...x,xhd->...hd", value_shape, values)
        features = tuple(self._output_shape or query_shape[-1:])
        labels = "abcefgijk"[: len(features)]
        context_shape = (*query_shape[:-1], self.num_heads, self.value_dim)
        equation, bias = f"...hd,hd{labels}->...{labels}", self.output_bias
        self._output_dense = self._projection(
            "attention_output", equation, context_shape, features, use_bias=bias
        )
        self.query_norm = self._norm("query_norm")
        self.key_norm = self._norm("key_norm")
        if self.positions is not None:
            ensure_built(self.positions)
        scores_dtype = at_least_float32(self.compute_dtype)
        self._dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=scores_dtype, name="drop")

    def _projection(self, name, equation, input_shape, output_shape, activation=None, use_bias=None):
        use_bias = self.use_bias if use_bias is None else use_bias
        projection = Projection(
            equation,
            output_shape,
            activation=activation,
            bias_axes=equation.split("->...")[1] if use_bias else None,
            name=name,
            **self._get_common_kwargs_for_sublayer(),
        )
        projection.build(input_shape)
        return projection

    def _norm(self, name):
        if self.query_key_norm is None:
            return None
        norm = NORMS[self.query_key_norm](epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name)
        norm.build((None, None, None, self.key_dim))
        return norm

    def project_memory(self, value, key=None, positions=None):
        """Projects a memory to keys and values, computed once and attended to many times.

        Args:
            value: `(batch, source_len, features)`.
            key: `(batch, source_len, features)`; `value` when None.
            positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys; counted from 0 when None.

        Returns:
            `KVCache` of `(batch, num_key_value_heads, source_len, dim)`.
        """
        return self._memory(
            self._key_dense(value if key is None else key), self._value_dense(value), positions
        )

    def _memory(self, keys, values, positions):
        """Makes a `KVCache` of projected keys and values `(batch, source_len, num_key_value_heads, dim)`."""
        return KVCache(self._heads_first(keys, self.key_norm, positions), _swapped(values))

    @property
    def products_together(self):
        """The projections that share an input in self-attention, none where a subclass computes them itself."""
        parts = (self._query_dense, self._key_dense, self._value_dense)
        own = type(self).project_memory is MultiHeadAttention.project_memory
        return parts if own and all(type(part) is Projection for part in parts) else ()

    def _heads_first(self, x, norm, positions):
        """Normalises and rotates heads, `(batch, length, heads, dim)` to `(batch, heads, length, dim)`."""
        x = _swapped(x if norm is None else norm(x))
        return x if self.positions is None else self.positions.rotate(x, positions)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        cache=None,
        index=None,
        positions=None,
        key_positions=None,
    ):
        if len(query.shape) != 3 or self._flash_attention or self._computes_itself:
            self._check_absent(cache=cache, positions=positions, key_positions=key_positions)
            return self._call_as_keras(
                query, value, key, query_mask, value_mask, key_mask, attention_mask,
                return_attention_scores, training, use_causal_mask,
            )  # fmt: skip
        if cache is None and index is not None and known_int(index) != 0:
            raise ValueError(f"`index` needs a `cache`. Received: index={index}, cache=None.")
        index = 0 if index is None else index
        if cache is None:
            key_positions = positions if key_positions is None else key_positions
            new_positions = key_positions
        elif use_causal_mask:
            positions = new_positions = positions_from(index, query) if positions is None else positions
        else:
            raise ValueError(
                "`cache` needs `use_causal_mask=True`: its later slots are empty. Received: use_causal_mask=False."
            )
        self_attention = query is value and (key is None or key is query)
        projected = project_together(self, query) if self_attention else None
        if isinstance(value, KVCache):
            memory = value
            if isinstance(value_mask, KVCache):
                value_mask = None  # it holds the implicit masks that Keras read from the parts of the cache
        elif projected is None:
            memory = self.project_memory(value, key, new_positions)
        else:
            memory = self._memory(*projected[1:], new_positions)
        queries = self._query_dense(query) if projected is None else projected[0]
        if cache is not None:
            self._check_implicit(query_mask=(query, query_mask), value_mask=(value, value_mask))
            memory = cache = cache.write(memory, index)
            query_mask = value_mask = key_mask = None
        batch, source_len = memory.key.shape[0], memory.key.shape[2]
        mask = as_attention_mask(attention_mask, (batch, self.num_heads, query.shape[1], source_len))
        for name, token_mask in (("value_mask", value_mask), ("key_mask", key_mask)):
            if token_mask is not None:
                mask = combine(mask, as_token_mask(token_mask, name, (batch, source_len))[:, None, None, :])
        if use_causal_mask:
            mask = combine(mask, look_ahead_mask(ops.shape(query)[1], ops.shape(memory.key)[2], index))
        context, scores = dot_product_attention(
            self._heads_first(queries, self.query_norm, positions),
            memory.key,
            memory.value,
            mask,
            query_mask=as_token_mask(query_mask, "query_mask", query.shape[:2]),
            dropout=self._dropout_layer if self.dropout and training else None,
            return_attention_scores=return_attention_scores,
            bias=None if self.positions is None else self.positions.bias_function(self.num_heads),
            scale=self.scale,
            soft_cap=self.soft_cap,
            window=self._sliding_window,
            positions=positions,
            key_positions=key_positions,
        )
        context = _swapped(context)
        if self._use_gate:
            context = context * self._gate_dense(query)
        return pack(self._output_dense(context), scores if return_attention_scores else None, cache)

    def _check_implicit(self, **masks):
        """Raises `ValueError` for a token mask beside a cache that is not Keras's own of the tensor."""
        for name, (x, mask) in masks.items():
            if mask is not None and mask is not implicit_mask(x):
                raise ValueError(
                    f"`{name}` cannot be given with a `cache`, which holds more tokens. Use `attention_mask`, whose "
                    f"`source_len` is the length of the cache. Received: {name}={mask!r:.200}."
                )

    def _check_absent(self, **arguments):
        """Raises `ValueError` for an argument of this class's own, where Keras's way computes the attention."""
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(
                    f"`{name}` needs inputs `(batch, length, features)`, no `flash_attention` and no overridden "
                    f"`_compute_attention`. Received: {name}={value!r:.200}."
                )

    def _call_as_keras(
        self, query, value, key, query_mask, value_mask, key_mask, attention_mask,
        return_attention_scores, training, use_causal_mask,
    ):  # fmt: skip
        """Computes the attention as Keras's layer does, for inputs of any rank."""
        key = value if key is None else key
        by_head = attention_mask is not None and len(attention_mask.shape) == 4 and len(query.shape) == 3
        mask = self._compute_attention_mask(
            query,
            value,
            query_mask,
            value_mask,
            key_mask,
            None if by_head else attention_mask,
            use_causal_mask,
        )
        if by_head:  # Keras would read the batch of its own masks as heads
            mask = combine(as_attention_mask(mask), as_attention_mask(attention_mask))
        context, scores = self._compute_attention(
            self._query_dense(query),
            self._key_dense(key),
            self._value_dense(value),
            mask,
            training,
            return_attention_scores,
        )
        if self._use_gate:
            context = context * self._gate_dense(query)
        return pack(self._output_dense(context), scores if return_attention_scores else None)

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
        """Applies attention to projected queries, keys and values; subclasses may override it, as in Keras.

        Args:
            query: `(batch, *target axes, num_heads, key_dim)`.
            key: `(batch, *source axes, num_heads, key_dim)`.
            value: `(batch, *source axes, num_heads, value_dim)`.
            attention_mask: bool `(batch, *target axes, *source axes)`, or None.
            training: Whether to drop.
            return_attention_scores: Whether the scores are needed.
            use_causal_mask: Whether to hide the keys after the query, on the first axis.

        Returns:
            The context `(batch, *target axes, num_heads, value_dim)` and the scores
            `(batch, num_heads, *target axes, *source axes)`, or None for these.
        """
        if self._flash_attention:
            return super()._compute_attention(
                query, key, value, attention_mask, training, return_attention_scores
            )
        if use_causal_mask:
            attention_mask = combine(attention_mask, self._compute_causal_mask(query, value))
        to_scores, to_context = _equations(len(query.shape), self._attention_axes)
        scores = ops.einsum(to_scores, query * self.key_dim**-0.5, key)
        rank, count = len(scores.shape), len(self._attention_axes)
        source_axes = tuple(range(rank - count, rank))
        if attention_mask is not None:
            attention_mask = ops.cast(attention_mask, "bool")
            while len(attention_mask.shape) < rank:
                attention_mask = ops.expand_dims(attention_mask, -2 * count - 1)
        scores = masked_softmax(scores, attention_mask, axis=source_axes)
        if attention_mask is not None:
            scores = zero_unless(ops.any(attention_mask, axis=source_axes, keepdims=True), scores)
        kept = self._dropout_layer(scores, training=training)
        return ops.einsum(to_context, ops.cast(kept, value.dtype), value), scores

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        if key_shape is not None:
            _check_lengths(value_shape, key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))


def _swapped(x):
    """Exchanges axes 1 and 2 of a tensor of rank 4."""
    if 1 in x.shape[1:3]:  # a decoding step: nothing moves, and a transposition would take time
        shape = ops.shape(x)
        return reshaped(x, (shape[0], shape[2], shape[1], shape[3]))
    return transposed(x, (0, 2, 1, 3))


def _equations(rank, axes):
    """Returns the einsum equations of the scores and of the context.

    Args:
        rank: Rank of the projected queries, keys and values.
        axes: Axes to attend over.
    """
    target = string.ascii_lowercase[:rank]
    source = "".join(label.upper() if axis in axes else label for axis, label in enumerate(target))
    free = "".join(label for axis, label in enumerate(target[:-2]) if axis not in axes)
    scores = free + target[-2] + "".join(x[axis] for x in (target, source) for axis in axes)
    return f"{target},{source}->{scores}", f"{scores},{source[:-1]}z->{target[:-1]}z"


def pack(output, scores=None, cache=None):
    """Returns the output alone, or a tuple: the output, then the scores and the cache unless they are None."""
    if scores is None and cache is None:
        return output
    if cache is None:
        return output, scores
    return (output, cache) if scores is None else (output, scores, cache)


def unpack(results, scores, cache):
    """Splits what `pack` returned into output, scores and cache; None for scores or a cache that are not in it.

    Args:
        results: The results of a layer.
        scores: Whether attention scores are among them.
        cache: Whether a cache is among them.
    """
    output, *extras = results if scores or cache else (results,)
    return output, extras.pop(0) if scores else None, extras.pop(0) if cache else None


def _check_lengths(value_shape, key_shape):
    """Raises `ValueError` unless values and keys agree on each axis between the first and the last."""
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "All dimensions of `value` and `key`, except the last one, must be equal. "
            f"Received: value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}."
        )
