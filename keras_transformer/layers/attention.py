"""Multi-head attention."""

import math

import keras
from keras import ops

from keras_transformer.checks import check_positive, check_share
from keras_transformer.layers.cache import KVCache, check_no_index
from keras_transformer.layers.dot_product import dot_product_attention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.parts import clone, described, described_shared, part
from keras_transformer.layers.positions import AttentionPositions, positions_of
from keras_transformer.layers.product import product
from keras_transformer.layers.shapes import KeepsShape, packed
from keras_transformer.masks import broadcastable, combine, look_ahead_mask

# What Keras's layer takes besides, and its configurations name; only without effect.
KERAS_ONLY = ("attention_axes", "flash_attention", "use_gate", "activity_regularizer")


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(KeepsShape, keras.layers.Layer):
    """Attention in several subspaces at once ("Attention Is All You Need", section 3.2.2).

    Stands in for `keras.layers.MultiHeadAttention` on `(batch, length, features)`: the same calls, the same
    weights in the same order (`set_weights(keras_layer.get_weights())`), the same results, but for what Keras
    gets wrong: the masks of its inputs stay untouched, a query that may attend to nothing gives zeros on
    every path (then the output bias), and symbolic shapes are the real ones.

    Args:
        num_heads: Number of heads.
        key_dim: Size of a head's queries and keys.
        value_dim: Size of a head's values; `key_dim` when None.
        dropout: Share of the attention weights dropped in training.
        use_bias: Whether the four projections have a bias.
        output_shape: Features of the output, an int or a tuple; the query's own when None.
        kernel_initializer: Initializer of the projections, applied to the flat `(features, heads * dim)` matrix.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the projections.
        bias_regularizer: Regularizer of the biases.
        kernel_constraint: Constraint on the projections.
        bias_constraint: Constraint on the biases.
        seed: Seed of the dropout.
        num_key_value_heads: Number of heads of keys and values, each for as many heads of queries (Ainslie et al.,
            2023, "GQA"; one: Shazeer, 2019); `num_heads` when None.
        positions: `RotaryPositions`, `ALiBi` or `RelativePositionBias`; None where the inputs tell their positions.
        sliding_window: A query sees the keys less than so many positions before and after it; all when None.
        query_key_norm: A template of a norm, such as `RMSNormalization()`, for each head's queries and keys (Dehghani
            et al., 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2), or None.
        scale: What the scores are multiplied by; `1 / sqrt(key_dim)` when None.

    Call arguments:
        query: `(batch, target_len, features)`.
        value: `(batch, source_len, features)`.
        key: `(batch, source_len, features)`; `value` when None.
        query_mask: bool `(batch, target_len)`; a masked query gives zeros.
        value_mask: bool `(batch, source_len)`; no query attends to a masked value.
        key_mask: bool `(batch, source_len)`; likewise. All three come from Keras's implicit masks when None.
        attention_mask: bool `(batch, source_len)`, `(batch, target_len, source_len)` or
            `(batch, num_heads, target_len, source_len)`, True = may attend.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop out.
        use_causal_mask: Whether to hide the keys that come after the query.
        cache: `KVCache` of the positions before `index`, which the keys and values of this call are written into. Needs
            `use_causal_mask=True`; instead of the implicit masks give `attention_mask`, `(batch, length of the cache)`.
        index: Position of the first query; with a cache only.

    Returns:
        The output `(batch, target_len, *output_shape)`; with `return_attention_scores` the weights
        `(batch, num_heads, target_len, source_len)` after it; with `cache` the new cache last.

    Raises:
        ValueError: If an argument is out of range or does not fit `positions`, an input is not of rank 3, or a cache is
            given without `use_causal_mask`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        *,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        seed=None,
        num_key_value_heads=None,
        positions=None,
        sliding_window=None,
        query_key_norm=None,
        scale=None,
        **kwargs,
    ):
        for name in KERAS_ONLY:
            if kwargs.pop(name, None) not in (None, False, (1,), [1]):
                raise ValueError(f"`{name}` is not supported: leave it at Keras's default.")
        super().__init__(**kwargs)
        value_dim = key_dim if value_dim is None else value_dim
        shared = num_heads if num_key_value_heads is None else num_key_value_heads
        check_positive(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, num_key_value_heads=shared)
        if num_heads % shared:
            raise ValueError(
                "`num_heads` must be divisible by `num_key_value_heads`. "
                f"Received: num_heads={num_heads}, num_key_value_heads={num_key_value_heads}."
            )
        if sliding_window is not None:
            check_positive(sliding_window=sliding_window)
        check_share(dropout=dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.features = (output_shape,) if isinstance(output_shape, int) else output_shape
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed
        self.num_key_value_heads = shared
        self.positions = part(positions, "positions", AttentionPositions)
        if self.positions is not None:
            self.positions.check_heads(num_heads, key_dim)
        self.sliding_window = sliding_window
        self.query_norm = self.key_norm = None
        if query_key_norm is not None:
            self.query_norm = clone(query_key_norm, name="query_norm", dtype=self.dtype_policy)
            self.key_norm = clone(query_key_norm, name="key_norm", dtype=self.dtype_policy)
        self.scale = scale
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            if len(shape) != 3:
                raise ValueError(
                    f"`{name}` must have shape `(batch, length, features)`. Received: shape={tuple(shape)}."
                )
        heads, shared = self.num_heads, self.num_key_value_heads
        features = tuple(self.features or (query_shape[-1],))
        self.query_weights = self._add_projection("query", query_shape[-1:], (heads, self.key_dim))
        self.key_weights = self._add_projection("key", key_shape[-1:], (shared, self.key_dim))
        self.value_weights = self._add_projection("value", value_shape[-1:], (shared, self.value_dim))
        self.output_weights = self._add_projection("attention_output", (heads, self.value_dim), features)
        for norm in filter(None, (self.query_norm, self.key_norm)):
            norm.build((None, None, None, self.key_dim))
        if self.positions is not None and not self.positions.built:  # layers may share them
            self.positions.build()
        if self.dropout:
            self.drop = Dropout(self.dropout, seed=self.seed, dtype="float32")
        self.built = True

    def _add_projection(self, name, input_shape, output_shape):
        """The kernel `(*input_shape, *output_shape)` and the bias of one projection."""
        initializer = self.kernel_initializer.clone()  # a draw of its own, unless the user seeded it
        matrix = (math.prod(input_shape), math.prod(output_shape))
        kernel = self.add_weight(
            name=f"{name}_kernel",
            shape=(*input_shape, *output_shape),
            # Keras would take an axis of (features, heads, dim) for a convolution's and shrink the variance.
            initializer=lambda shape, dtype=None: ops.reshape(initializer(matrix, dtype), shape),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if not self.use_bias:
            return kernel, None
        bias = self.add_weight(
            name=f"{name}_bias",
            shape=output_shape,
            initializer=self.bias_initializer.clone(),
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )
        return kernel, bias

    def project_query(self, query, positions=None):
        """Queries of all heads, `(batch, num_heads, target_len, key_dim)`.

        Args:
            query: `(batch, target_len, features)`.
            positions: int `(target_len,)` or `(batch, target_len)`, where they stand; from 0 on when None.
        """
        query = _swap_length_and_heads(self._project(query, self.query_weights))
        return self._placed(query, self.query_norm, positions)

    def project_memory(self, value, key=None, positions=None):
        """Keys and values of all heads, a `KVCache`: computed once for a memory, attended to many times.

        Args:
            value: `(batch, source_len, features)`.
            key: Likewise; `value` when None.
            positions: int `(source_len,)` or `(batch, source_len)`, where they stand; from 0 on when None.
        """
        key = _swap_length_and_heads(self._project(value if key is None else key, self.key_weights))
        value = _swap_length_and_heads(self._project(value, self.value_weights))
        return KVCache(self._placed(key, self.key_norm, positions), value)

    def _placed(self, x, norm, positions):
        """Heads, normalised, and turned to where they stand."""
        x = x if norm is None else norm(x)
        return x if self.positions is None else self.positions.rotated(x, positions)

    def attend(
        self,
        query,
        memory,
        mask=None,
        query_mask=None,
        training=None,
        return_attention_scores=True,
        *,
        positions=None,
        key_positions=None,
    ):
        """Attends with projected queries to projected keys and values, and projects the result.

        Args:
            query: What `project_query` gave.
            memory: What `project_memory` gave, or a cache of it.
            mask: bool, broadcastable to `(batch, num_heads, target_len, source_len)`, or None.
            query_mask: bool `(batch, target_len)`, or None.
            training: Whether to drop out.
            return_attention_scores: Whether the attention weights are needed.
            positions: As in `project_query`.
            key_positions: int `(source_len,)` or `(batch, source_len)`, where the keys stand; from 0 on when None.

        Returns:
            The output `(batch, target_len, *output_shape)` and the attention weights, or None for these.
        """
        drop = bias = None
        if self.dropout and training:
            drop = lambda weights: self.drop(weights, training=training)  # noqa: E731
        if self.positions is not None:
            bias = self.positions.bias_of(self.num_heads)
        context, weights = dot_product_attention(
            query,
            memory.key,
            memory.value,
            mask,
            drop,
            weights=return_attention_scores,
            bias=bias,
            scale=self.scale,
            window=self.sliding_window,
            positions=positions,
            key_positions=key_positions,
        )
        if query_mask is not None:
            real = query_mask[:, None, :, None]
            context = ops.where(real, context, ops.zeros_like(context))
            weights = None if weights is None else ops.where(real, weights, 0.0)
        return self._project(_swap_length_and_heads(context), self.output_weights), weights

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
        index=0,
    ):
        positions = None if cache is None else positions_of(query, index)
        memory = self.project_memory(value, key, positions)
        if cache is None:
            check_no_index(index)
            masks = [broadcastable(value_mask), broadcastable(key_mask)]
        else:
            if not use_causal_mask:
                raise ValueError(
                    "`cache` needs `use_causal_mask=True`: its later slots are empty. Received: use_causal_mask=False."
                )
            memory = cache = cache.write(memory, index)
            masks, query_mask = [], None
        if use_causal_mask:
            masks.append(look_ahead_mask(ops.shape(query)[1], memory.length, index))
        mask = combine(broadcastable(attention_mask), *masks)
        output, weights = self.attend(
            self.project_query(query, positions),
            memory,
            mask,
            query_mask,
            training,
            return_attention_scores,
            positions=positions,
        )
        return packed(output, scores=weights, cache=cache)

    def compute_output_shape(self, query_shape, *other_shapes, **more_shapes):
        return (*query_shape[:-1], *(self.features or query_shape[-1:]))

    def _project(self, x, weights):
        """`x` times a kernel over all its axes but the first two, plus the bias, in the compute dtype."""
        kernel, bias = weights
        x = product(x, kernel, self.compute_dtype)
        return x if bias is None else x + ops.cast(bias, self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self.features,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
            "seed": self.seed,
            "num_key_value_heads": self.num_key_value_heads,
            "positions": described_shared(self.positions),
            "sliding_window": self.sliding_window,
            "query_key_norm": described(self.query_norm),
            "scale": self.scale,
        }


def _swap_length_and_heads(x):
    return ops.transpose(x, (0, 2, 1, 3))
