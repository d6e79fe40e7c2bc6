"""Multi-head attention."""

import dataclasses

import keras

from keras_transformer.checks import check, check_choice
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.keras_internals import implicit_mask
from keras_transformer.layers.axes import FoldedAxes, attended_axes, check_lengths
from keras_transformer.layers.base import KeepsShape, check_part, ensure_built
from keras_transformer.layers.cache import START, KVCache, Place, known_int
from keras_transformer.layers.dot_product import (
    dot_product_attention,
    joint_batch_size,
    without_masked_tokens,
)
from keras_transformer.layers.embedding import positions_from
from keras_transformer.layers.keras_attention import SWAPPED, KerasAttention
from keras_transformer.layers.positions import AttentionPositions
from keras_transformer.layers.projection import Projection, joint_product
from keras_transformer.layers.residual import NORMS, Dropout
from keras_transformer.masks import as_attention_mask, as_token_mask, combine, look_ahead_mask


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(KeepsShape, KerasAttention):
    """Attention in several subspaces at once ("Attention Is All You Need", section 3.2.2).

    It is a `keras.layers.MultiHeadAttention`, with its calls, sublayers, weights and results. It corrects five faults
    of Keras's layer: the masks of its inputs stay untouched; a query that may attend to nothing gives zeros on every
    path (then the output bias); a masked token may be NaN; symbolic outputs have their real shapes; and token masks,
    causality and windows hold on inputs of higher rank. It adds a cache for decoding, grouped queries, and position
    schemes.

    Override `attend` for an attention of your own. It works with every mask, position scheme and cache. A subclass may
    also override Keras's `_compute_attention`, which has Keras's layout.

    Args:
        num_heads: Number of heads.
        key_dim: Size of a head's queries and keys; the features of the query divided by `num_heads` when None.
        value_dim: Size of a head's values; `key_dim` when None.
        dropout: Share of the attention scores dropped in training.
        use_bias: Whether the projections have biases.
        output_shape: Features of the output, an int or a tuple; the query's own when None.
        attention_axes: Axes to attend over; all but the first and the last when None.
        num_key_value_heads: Number of heads of keys and values, each for as many heads of queries (Ainslie et al.,
            2023, "GQA"; one head: Shazeer, 2019); `num_heads` when None.
        positions: `RotaryPositions`, `ALiBi`, `RelativePositionBias` or `RelativeGridBias`; None where the inputs hold
            their positions.
        query_key_norm: Norm of each head's queries and keys, one of `NORMS`: "layer", "rms" or "zero_centered_rms"
            (Dehghani et al., 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2); None for none.
        scale: Factor of the products of queries and keys; `1 / sqrt(key_dim)` when None.
        soft_cap: Bound of the products of queries and keys: `soft_cap * tanh(product / soft_cap)` takes their place
            (Gemma Team, 2024, "Gemma 2", section 2). None for no bound.
        output_bias: Whether the output projection has a bias; `use_bias` when None.
        norm_epsilon: Number added in `query_key_norm`.
        norm_over_heads: Whether `query_key_norm` goes over all heads of a token together, with a scale for each of
            their features (Team OLMo, 2024, "2 OLMo 2 Furious"). False: over each head alone, with one scale for all.
        **kwargs: The other arguments of `keras.layers.MultiHeadAttention`: `sliding_window` (a query sees the keys
            less than so many positions before and after it), `use_gate`, `flash_attention`, the initializers,
            regularizers and constraints, `seed`; and Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        query: `(batch, target_len, features)`; a batch of 1, such as learned queries, is repeated for all memories, and
            one memory for all queries. Of higher rank: attention goes over `attention_axes`, and the other axes
            are further rows of the batch.
        value: `(batch, source_len, features)`, or of the rank of `query`; or the `KVCache` that `project_memory` made.
        key: `(batch, source_len, features)`; `value` when None.
        query_mask: bool `(batch, target_len)`; a masked query gives zeros. Keras's implicit mask of `query` when None.
            On a higher rank a token mask has all axes of its input but the features.
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
        index: An int or an int scalar tensor needs a cache: it is the slot of the first query; 0 when None. A `Place`
            needs none: it says where queries and keys stand, and which keys the queries may see.

    Returns:
        The output `(batch, target_len, *output_shape)`; with `return_attention_scores` then the scores
        `(batch, num_heads, target_len, source_len)`; with `cache` then the new cache.

    Raises:
        ValueError: If an argument is out of range or does not fit `positions`; if a cache is given without
            `use_causal_mask`; or if there are several attended axes, or inputs of a higher rank, and an argument that
            has no meaning there: `cache`, `index`, causality, a window or positions.

    >>> attention = MultiHeadAttention(num_heads=2, key_dim=3)
    >>> attention(np.ones((1, 5, 6)), np.ones((1, 4, 6))).shape
    TensorShape([1, 5, 6])
    """

    def __init__(
        self,
        num_heads,
        key_dim=None,
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
        norm_over_heads=False,
        **kwargs,
    ):
        # Keras wants one; `build` finds it.
        size = 1 if key_dim is None else key_dim
        super().__init__(
            num_heads, size, value_dim, dropout, use_bias, output_shape, attention_axes, **kwargs
        )
        self._key_dim, self._value_dim = key_dim, value_dim or key_dim
        key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        rule = "`num_heads` must be divisible by `num_key_value_heads`."
        heads = {"num_heads": num_heads, "num_key_value_heads": num_key_value_heads}
        check(num_heads % key_value_heads == 0, rule, **heads)
        check_choice([None, *NORMS], query_key_norm=query_key_norm)
        self.num_key_value_heads = key_value_heads
        self.positions = check_part(positions, "positions", AttentionPositions)
        if self.positions is not None and key_dim is not None:
            self.positions.check_heads(num_heads, key_dim)
        self.query_key_norm = query_key_norm
        self.scale, self.soft_cap, self.output_bias = scale, soft_cap, output_bias
        self.norm_epsilon, self.norm_over_heads = norm_epsilon, norm_over_heads

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        check_lengths(value_shape, key_shape)
        if self._key_dim is None:
            fits = query_shape[-1] is not None and query_shape[-1] % self.num_heads == 0
            rule = "`d_model`, the features of the query, must be divisible by `num_heads`."
            check(fits, rule, d_model=query_shape[-1], num_heads=self.num_heads)
            self._key_dim = query_shape[-1] // self.num_heads
            self._value_dim = self._value_dim or self._key_dim
        if self.positions is not None:
            self.positions.check_heads(self.num_heads, self.key_dim)
            ensure_built(self.positions)
        attended_axes(self._attention_axes, len(query_shape))
        queries = (self.num_heads, self.key_dim)
        keys = (self.num_key_value_heads, self.key_dim)
        values = (self.num_key_value_heads, self.value_dim)
        self._query_dense = self._projection("query", "...x,xhd->...hd", query_shape, queries)
        self._key_dense = self._projection("key", "...x,xhd->...hd", key_shape, keys)
        if self._use_gate:
            gate = (self.num_heads, self.value_dim)
            self._gate_dense = self._projection("gate", "...x,xhd->...hd", query_shape, gate, "sigmoid")
        self._value_dense = self._projection("value", "...x,xhd->...hd", value_shape, values)
        features = tuple(self._output_shape or query_shape[-1:])
        # Letters without d, h and x, which are taken.
        labels = "abcefgijk"[: len(features)]
        self._output_dense = self._projection(
            "attention_output",
            f"...hd,hd{labels}->...{labels}",
            (*query_shape[:-1], self.num_heads, self.value_dim),
            features,
            use_bias=self.use_bias if self.output_bias is None else self.output_bias,
        )
        self._uses_keras_layout = self._build_keras_hook() or self._flash_attention
        self.query_norm = self._norm("query_norm", self.num_heads)
        self.key_norm = self._norm("key_norm", self.num_key_value_heads)
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

    def _norm(self, name, heads):
        if self.query_key_norm is None:
            return None
        axis = [-2, -1] if self.norm_over_heads else -1
        norm = NORMS[self.query_key_norm](axis, self.norm_epsilon, dtype=self.dtype_policy, name=name)
        norm.build((None, None, heads, self.key_dim))
        return norm

    def numbers(self):
        """Returns the arguments that decide the outputs, by name, with their defaults filled in."""
        scale = self.scale if self.scale is not None or self.key_dim is None else self.key_dim**-0.5
        bias = self.use_bias if self.output_bias is None else self.output_bias
        sizes = {"num_heads": self.num_heads, "key_dim": self.key_dim}
        filled = {"scale": scale and round(scale, 9), "output_bias": bias}
        filled |= {} if self.query_key_norm else {"norm_epsilon": None, "norm_over_heads": None}
        filled |= {"sliding_window": self._sliding_window, "use_gate": self._use_gate}
        shape = tuple(self.output_dense.kernel.shape[2:]) if self.built else self._output_shape
        return {**sizes, **super().numbers(), **filled, "output_shape": shape}

    def project_memory(self, value, key=None, positions=None):
        """Projects a memory to keys and values, computed once and attended to many times.

        Args:
            value: `(batch, source_len, features)`.
            key: `(batch, source_len, features)`; `value` when None.
            positions: int `(source_len,)` or `(batch, source_len)`, positions of the keys; counted from 0 when None.

        Returns:
            `KVCache` of `(batch, num_key_value_heads, source_len, dim)`.
        """
        key = value if key is None else key
        return self._memory(self._key_dense(key), self._value_dense(value), positions)

    def _memory(self, keys, values, positions):
        """Makes a `KVCache` of projected keys and values `(batch, source_len, num_key_value_heads, dim)`."""
        return KVCache(self._heads_first(keys, self.key_norm, positions), ops.transpose(values, SWAPPED))

    @property
    def joint_products(self):
        """The query, key and value projections, which share an input in self-attention; none where a subclass computes
        the keys and values itself."""
        parts = (self._query_dense, self._key_dense, self._value_dense)
        inherited = type(self).project_memory is MultiHeadAttention.project_memory
        return parts if inherited and all(type(part) is Projection for part in parts) else ()

    def _heads_first(self, x, norm, positions):
        """Normalises and rotates heads, `(batch, length, heads, dim)` to `(batch, heads, length, dim)`."""
        x = ops.transpose(x if norm is None else norm(x), SWAPPED)
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
    ):
        masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
        options = {"training": training, "use_causal_mask": use_causal_mask}
        if len(query.shape) != 3:
            for name, received in (("cache", cache), ("index", index)):
                rule = f"`{name}` needs inputs `(batch, length, features)`."
                check(received is None, rule, **{name: received}, query_shape=tuple(query.shape))
            return self._call_over_axes(
                query, value, key, masks, attention_mask, return_attention_scores, **options
            )
        place = self._place(query, cache, index, use_causal_mask)
        masks = self._token_masks(query, value, cache, masks)
        query, value, key = without_masked_tokens(query, value, key, **masks)
        queries, memory = self._project(query, value, key, place, cache is not None)
        if cache is not None:
            memory = cache = cache.write(memory, place.slot)
        query_mask = masks.pop("query_mask")
        mask = self._mask(query, memory, attention_mask, place, use_causal_mask, **masks)
        context, scores = self.attend(
            queries,
            *memory,
            mask,
            query_mask=query_mask,
            place=place,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        context = ops.transpose(context, SWAPPED)
        if self._use_gate:
            context = context * self._gate_dense(query)
        return pack(self._output_dense(context), scores if return_attention_scores else None, cache)

    def _call_over_axes(
        self, query, value, key, masks, attention_mask, return_attention_scores, training, use_causal_mask
    ):
        """Computes the layer on inputs of a higher rank, as on inputs of rank 3."""
        attended = attended_axes(self.given_axes, len(query.shape))
        has_order = self.positions is None or self.positions.over_grid
        need_an_order = {
            "use_causal_mask": use_causal_mask or None,
            "sliding_window": self._sliding_window,
            "positions": None if has_order else self.positions,
        }
        for name, received in need_an_order.items():
            rule = f"`{name}` needs one attended axis: several, {attended}, have no common order."
            check(len(attended) == 1 or received is None, rule, **{name: received})
        if key is not None:
            check_lengths(value.shape, key.shape)
        folded = FoldedAxes(query, value, attended)
        rows = folded.fold(query)
        results = MultiHeadAttention.call(
            self,
            rows,
            rows if value is query else folded.fold(value),
            folded.fold(key),
            folded.fold_token_mask(masks["query_mask"], "query_mask", query),
            folded.fold_token_mask(masks["value_mask"], "value_mask", value),
            folded.fold_token_mask(masks["key_mask"], "key_mask", value if key is None else key),
            folded.fold_attention_mask(attention_mask),
            return_attention_scores,
            training,
            use_causal_mask,
        )
        output, scores = results if return_attention_scores else (results, None)
        return pack(folded.unfold(output), folded.unfold_scores(scores))

    def _place(self, query, cache, index, use_causal_mask):
        """Returns the `Place` of the queries, with all positions that are not counted from 0."""
        place = Place.of(index)
        if cache is None:
            check(known_int(place.slot) == 0, "`index` needs a `cache`.", index=index, cache=None)
            keys = place.positions if place.key_positions is None else place.key_positions
            return place if keys is place.key_positions else dataclasses.replace(place, key_positions=keys)
        rule = "`cache` needs `use_causal_mask=True`: its later slots are empty."
        check(use_causal_mask, rule, use_causal_mask=use_causal_mask)
        if place.positions is not None:
            return place
        return dataclasses.replace(place, positions=positions_from(place.slot, query))

    def _token_masks(self, query, value, cache, masks):
        """Returns the masks of the tokens, bool `(batch, length)` or None each."""
        if cache is not None:
            for name, x in (("query_mask", query), ("value_mask", value)):
                check(
                    masks[name] is None or masks[name] is implicit_mask(x),
                    f"`{name}` cannot be given with a `cache`, which holds more tokens. Use `attention_mask`, whose "
                    "`source_len` is the length of the cache.",
                    **{name: masks[name]},
                )
            return dict.fromkeys(masks)
        projected = isinstance(value, KVCache)
        # For a projected memory Keras passes the masks of its two tensors as another `KVCache`. That is not a mask.
        if isinstance(masks["value_mask"], KVCache):
            masks = {**masks, "value_mask": None}
        source = (value.key.shape[0], value.key.shape[2]) if projected else value.shape[:2]
        shapes = {"query_mask": query.shape[:2], "value_mask": source, "key_mask": source}
        return {name: as_token_mask(mask, name, shapes[name]) for name, mask in masks.items()}

    def _project(self, query, value, key, place, cached):
        """Returns the queries `(batch, num_heads, target_len, key_dim)`, and the keys and values as a `KVCache`."""
        positions = place.positions if cached else place.key_positions
        is_self_attention = query is value and (key is None or key is query)
        projected = joint_product(self, query) if is_self_attention else None
        if projected is not None:
            queries, memory = projected[0], self._memory(*projected[1:], positions)
        else:
            queries = self._query_dense(query)
            is_memory = isinstance(value, KVCache)
            memory = value if is_memory else self.project_memory(value, key, positions)
        return self._heads_first(queries, self.query_norm, place.positions), memory

    def _mask(self, query, memory, attention_mask, place, use_causal_mask, value_mask, key_mask):
        """Combines all masks but that of the queries: bool, broadcastable to the attention scores; or None."""
        lengths = query.shape[1], memory.key.shape[2]
        shape = (joint_batch_size(query.shape, memory.key.shape), self.num_heads, *lengths)
        tokens = [mask if mask is None else ops.expand_dims(mask, (1, 2)) for mask in (value_mask, key_mask)]
        causal = None
        if use_causal_mask:
            causal = look_ahead_mask(ops.shape(query)[1], ops.shape(memory.key)[2], place.slot)
        given = (as_attention_mask(mask, shape) for mask in (attention_mask, place.mask))
        return combine(*given, *tokens, causal)

    def attend(
        self,
        query,
        key,
        value,
        mask=None,
        *,
        query_mask=None,
        place=START,
        return_attention_scores=False,
        training=None,
    ):
        """Attends with projected heads. Override it for an attention of your own.

        Args:
            query: `(batch, num_heads, target_len, key_dim)`.
            key: `(batch, num_key_value_heads, source_len, key_dim)`.
            value: `(batch, num_key_value_heads, source_len, value_dim)`.
            mask: bool, True = may attend, broadcastable to `(batch, num_heads, target_len, source_len)`; None for all.
                Padding, causality and `attention_mask` are in it, the window is not.
            query_mask: bool `(batch, target_len)`; a masked query gives zeros.
            place: The `Place` of the queries; its positions are for biases and windows.
            return_attention_scores: Whether the scores are needed.
            training: Whether to drop.

        Returns:
            The context `(batch, num_heads, target_len, value_dim)`, and the attention scores
            `(batch, num_heads, target_len, source_len)` or None.
        """
        options = {"query_mask": query_mask, "return_attention_scores": return_attention_scores}
        if self._uses_keras_layout:
            return self._attend_in_keras_layout(query, key, value, mask, place, training=training, **options)
        return dot_product_attention(
            query,
            key,
            value,
            mask,
            dropout=self._dropout_layer if self.dropout and training else None,
            bias=self._bias_of(query, key),
            scale=self.scale,
            soft_cap=self.soft_cap,
            window=self._sliding_window,
            positions=place.positions,
            key_positions=place.key_positions,
            **options,
        )

    def _bias_of(self, query, key):
        """Returns what the positions add to the scores, a tensor or a function of distances; None for nothing."""
        if self.positions is None:
            return None
        self.positions.check_lengths(query.shape[2], key.shape[2])
        return self.positions.bias_function(self.num_heads)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        if key_shape is not None:
            check_lengths(value_shape, key_shape)
        batch_size = joint_batch_size(query_shape, value_shape or query_shape)
        return (batch_size, *query_shape[1:-1], *(self._output_shape or query_shape[-1:]))


def pack(output, scores=None, cache=None):
    """Returns the output alone, or a tuple: the output, then the scores and the cache unless they are None."""
    if scores is None and cache is None:
        return output
    if cache is None:
        return output, scores
    return (output, cache) if scores is None else (output, scores, cache)


def unpack(results, scores, cache=False):
    """Splits what `pack` returned into output, scores and cache; None for scores or a cache that are not in it.

    Args:
        results: The results of a layer.
        scores: Whether attention scores are among them.
        cache: Whether a cache is among them.
    """
    output, *extras = results if scores or cache else (results,)
    return output, extras.pop(0) if scores else None, extras.pop(0) if cache else None
