"""What goes into the first layer: embeddings of tokens, positions and segments."""

import math

import keras

from keras_transformer.checks import check, check_dense, check_positive, check_sequence
from keras_transformer.execution import ops
from keras_transformer.execution.inference import Operands, held
from keras_transformer.execution.int8 import OneProduct, column_sums, narrow_weights, parts_of
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.keras_internals import LOGITS_HAVE_LORA, set_implicit_mask
from keras_transformer.layers.base import (
    Configured,
    check_arguments,
    check_part,
    ensure_built,
    pop_keras_arguments,
)
from keras_transformer.layers.cache import Place
from keras_transformer.layers.positions import check_added
from keras_transformer.layers.projection import product_of
from keras_transformer.layers.residual import Dropout


@keras.saving.register_keras_serializable("keras_transformer")
class TokenEmbedding(OneProduct, Configured, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding`, scaled by `sqrt(d_model)`; with `reverse=True` the output projection.

    One matrix serves both ends ("Attention Is All You Need", section 3.4; Press and Wolf, 2017).

    Args:
        vocab_size: Number of ids.
        d_model: Width of an embedding.
        pad_id: The id that Keras's implicit mask marks as padding; None for no mask.
        scale: Factor of the embeddings; `sqrt(d_model)` when None.
        output_scale: Factor of the states before the output projection.
        output_bias: Whether each id has a bias in the output projection.
        tie_weights: Whether the output projection is the embedding's matrix; else it has a matrix of its own.
        embeddings_initializer: Initializer of the matrices; normal with deviation `1 / sqrt(d_model)` when None.
        logit_soft_cap: Bound of the logits, by `logit_soft_cap * tanh(logits / logit_soft_cap)`; None for none.
        **kwargs: The other arguments of `keras.layers.ReversibleEmbedding`.

    Call arguments:
        inputs: int `(batch, ...)`, ids; with `reverse` states `(batch, ..., d_model)`.
        reverse: Whether to score every id for each state instead of looking ids up.

    Returns:
        `(batch, ..., d_model)` in the compute dtype; with `reverse` logits `(batch, ..., vocab_size)` in float32, or in
        float64 under a float64 policy.

    Raises:
        ValueError: If `vocab_size` or `d_model` is not positive.

    >>> embedding = TokenEmbedding(11, 4)
    >>> embedding(embedding(np.array([[5, 7, 0]])), reverse=True).shape
    TensorShape([1, 3, 11])
    """

    def __init__(
        self,
        vocab_size,
        d_model,
        pad_id=None,
        *,
        scale=None,
        output_scale=1.0,
        output_bias=False,
        tie_weights=True,
        embeddings_initializer=None,
        logit_soft_cap=None,
        **kwargs,
    ):
        check(
            not (kwargs.get("mask_zero") or kwargs.get("reverse_dtype")),
            "`pad_id=0` takes the place of `mask_zero`, and logits are float32 or wider without `reverse_dtype`.",
            **kwargs,
        )
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=d_model**-0.5)
        super().__init__(vocab_size, d_model, tie_weights, embeddings_initializer, **kwargs)
        # Keras would cap before the bias.
        self.soft_cap = logit_soft_cap
        # Keras 3.16 asks for the dtype of quantized logits.
        self.reverse_dtype = at_least_float32(self.compute_dtype)
        self.pad_id = pad_id
        self.scale = math.sqrt(d_model) if scale is None else scale
        self.output_scale = output_scale
        self.output_bias = output_bias
        self.supports_masking = True

    def build(self, input_shape=None):
        super().build(input_shape)
        self.bias = None
        if self.output_bias:
            self.bias = self.add_weight(name="bias", shape=(self.input_dim,), initializer="zeros")

    def call(self, inputs, reverse=False):
        if reverse:
            return self._logits(inputs, held().get(self) or self.operands())
        vectors = ops.take(self.embeddings, ops.cast(inputs, "int32"), axis=0)
        return self._scaled_and_marked(vectors, inputs)

    def quantized_call(self, inputs, reverse=False):
        if not reverse:
            return self._scaled_and_marked(super().quantized_call(inputs), inputs)
        operands = held().get(self) or self.operands()
        if operands is not None:
            return self._logits(inputs, operands)
        states = ops.cast(inputs, at_least_float32(self.compute_dtype)) * self.output_scale
        logits = super().quantized_call(states, reverse=True)
        return self._finished(logits if LOGITS_HAVE_LORA else self._with_lora(logits, states))

    def _logits(self, states, operands):
        """Scores every id for each state `(..., d_model)`."""
        states = ops.cast(states, self.compute_dtype)
        states = states if self.output_scale == 1.0 else states * self.output_scale
        rows = ops.reshape(states, (-1, self.output_dim))
        logits = product_of(rows, operands)
        logits = self._finished(logits if operands.scale is None else self._with_lora(logits, rows))
        return ops.reshape(logits, (*ops.shape(states)[:-1], self.input_dim))

    def _with_lora(self, logits, states):
        """Adds LoRA to logits of a quantized matrix."""
        if not (self.lora_enabled and self.tie_weights):
            return logits
        states = ops.cast(states, at_least_float32(self.compute_dtype)) * (self.lora_alpha / self.lora_rank)
        low, high = (ops.cast(x, states.dtype) for x in (self.lora_embeddings_b, self.lora_embeddings_a))
        lora = ops.matmul(ops.matmul(states, low, transpose_y=True), high, transpose_y=True)
        return ops.cast(logits, lora.dtype) + lora

    def _finished(self, logits):
        """Adds the bias, then caps the logits."""
        logits = ops.cast(logits, at_least_float32(self.compute_dtype))
        logits = logits if self.bias is None else logits + ops.cast(self.bias, logits.dtype)
        return logits if self.soft_cap is None else self.soft_cap * ops.tanh(logits / self.soft_cap)

    def _scaled_and_marked(self, vectors, ids):
        """Scales embeddings, and marks padding. A `Sequential` model without an `Input` casts its ids to float."""
        vectors = ops.cast(vectors, self.compute_dtype) * self.scale
        if self.pad_id is not None:
            set_implicit_mask(vectors, ops.not_equal(ids, self.pad_id))
        return vectors

    def operands(self):
        """Returns the `Operands` of the output projection; None where this class does not compute it."""
        if self.quantization_mode is None:
            kernel = self.embeddings if self.tie_weights else self.reverse_embeddings
            return Operands(ops.cast(kernel, self.compute_dtype), transposed=self.tie_weights)
        parts = self.int8_parts
        if parts is None:
            return None
        if self.tie_weights:
            kernel, scale = self.int8_kernel, self.embeddings_scale
        else:
            kernel, scale = self.reverse_embeddings, self.reverse_embeddings_scale
        # Keras's own int8 logits have no gradient that trains: it is that of the scale of the states alone.
        return Operands(
            ops.convert_to_tensor(kernel),
            ops.convert_to_tensor(scale),
            transposed=self.tie_weights,
            sums=column_sums(kernel, -1 if self.tie_weights else 0, parts),
            parts=parts,
        )

    @property
    def summed_axes(self):
        """The axis of both matrices that the product sums over; None if they differ."""
        return -1 if self.tie_weights else None

    def quantize(self, mode=None, type_check=True, config=None):
        untied = None if self.tie_weights else ops.convert_to_tensor(self.reverse_embeddings)
        super().quantize(mode, type_check, config)
        parts = parts_of(config) if mode == "int8" else None
        if untied is not None and parts is not None:
            values, scale = narrow_weights(config, 0).weight_quantizer(untied, to_numpy=True)
            self.reverse_embeddings.assign(values)
            self.reverse_embeddings_scale.assign(ops.squeeze(scale, axis=0))
            # A layer from a file has the same.
            self.quantization_config = config if parts > 1 else None

    @property
    def variable_serialization_spec(self):
        spec = super().variable_serialization_spec
        return {mode: [*names, "bias"] for mode, names in spec.items()} if self.output_bias else spec

    def compute_mask(self, inputs, mask=None):
        is_ids = "int" in keras.backend.standardize_dtype(inputs.dtype)
        return ops.not_equal(inputs, self.pad_id) if is_ids and self.pad_id is not None else mask

    def compute_output_spec(self, inputs, reverse=False):
        dtype = at_least_float32(self.compute_dtype) if reverse else self.compute_dtype
        return keras.KerasTensor(self.compute_output_shape(inputs.shape, reverse), dtype=dtype)


def positions_from(index, x):
    """Returns the positions of the tokens of `x`, `(batch, length, ...)`: int32 `(length,)`, from `index` or 0 on."""
    check_dense(x=x)
    return ops.arange(ops.shape(x)[1], dtype="int32") + (0 if index is None else ops.cast(index, "int32"))


def sinusoidal_positions(
    positions, d_model, max_wavelength=10000.0, interleaved=True, dtype="float32", endpoint=False
):
    """`sin(p / w**(2i/d))` on channel `2i`, `cos(p / w**(2i/d))` on channel `2i + 1`.

    "Attention Is All You Need", section 3.5.

    Args:
        positions: int, of any shape.
        d_model: Number of channels; an odd number has one sine more than cosines.
        max_wavelength: `w`; wavelengths run from 2π to 2π times it.
        interleaved: False for the same channels in another order: all sines, then all cosines.
        dtype: "float32" or "float64".
        endpoint: Whether the longest wavelength is reached on the last channel: `sin(p / w**(2i/(d - 2)))`.

    Returns:
        `(*positions.shape, d_model)`, of `dtype`.

    >>> sinusoidal_positions(np.array([0]), 4).numpy().tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    check(not endpoint or d_model > 2, "`endpoint=True` needs more than 2 channels.", d_model=d_model)
    channels = range(d_model) if interleaved else [*range(0, d_model, 2), *range(1, d_model, 2)]
    channels = ops.convert_to_tensor(channels, "int32")
    even = ops.cast(channels - channels % 2, dtype)
    rates = ops.exp(even * (-math.log(max_wavelength) / (d_model - 2 if endpoint else d_model)))
    angles = ops.expand_dims(ops.cast(positions, dtype), -1) * rates
    return ops.where(channels % 2 == 0, ops.sin(angles), ops.cos(angles))


class Added(Configured, keras.layers.Layer):
    """Base of layers that add vectors to `x`: the sum is computed in float32 or wider, and rounded once."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False
        self.supports_masking = True

    def check_input(self, x):
        """Raises `ValueError` for an `x` whose axes do not fit."""
        check_sequence(x=x)

    def _sum(self, x, vectors):
        """Adds vectors to `x` in a wide dtype."""
        self.check_input(x)
        dtype = at_least_float32(self.compute_dtype)
        return ops.cast(ops.cast(x, dtype) + ops.cast(vectors, dtype), self.compute_dtype)

    def compute_output_shape(self, x_shape, *other_shapes):
        return x_shape

    def compute_output_spec(self, x, *args, **kwargs):
        self.check_input(x)
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEncoding(Added):
    """Adds sinusoidal positions to `x` ("Attention Is All You Need", section 3.5).

    They are computed for the positions at hand: there is no table and no longest length. The dtype is float32 under
    any policy, or float64 under a float64 policy.

    Args:
        max_wavelength: The longest wavelength divided by 2π.
        interleaved: Whether sines and cosines alternate, as in the paper; False for all sines, then all cosines, as
            in tensor2tensor and Marian. Weights that were learned with one order do not work with the other.
        offset: Number that is added to each position, as in fairseq, where texts begin at 2.
        endpoint: Whether the longest wavelength is reached on the last channel, as in tensor2tensor and fairseq.

    Call arguments:
        x: `(batch, length, d_model)`.
        start_index: Position of the first element, an int or an int scalar tensor; 0 when None.
        positions: int `(length,)` or `(batch, length)`, the position of each element; counted from `start_index`
            when None.

    Returns:
        `(batch, length, d_model)`, `x` plus its positions, in the compute dtype.

    Raises:
        ValueError: If `max_wavelength` is not positive, or `offset` is negative.

    >>> PositionalEncoding()(np.zeros((1, 2, 4))).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, max_wavelength=10000.0, interleaved=True, offset=0, endpoint=False, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.offset = offset
        self.endpoint = endpoint

    def call(self, x, start_index=None, positions=None):
        positions = positions_from(start_index, x) if positions is None else positions
        dtype = at_least_float32(self.compute_dtype)
        positions = positions if self.offset == 0 else ops.add(positions, self.offset)
        vectors = sinusoidal_positions(
            positions, x.shape[-1], self.max_wavelength, self.interleaved, dtype, self.endpoint
        )
        return self._sum(x, vectors)


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositions(Added):
    """Adds a learned vector for each position to `x` (Gehring et al., 2017, section 3.1; Devlin et al., 2019).

    Args:
        max_length: Number of positions.
        offset: Number of rows that the table has before the first position's, as RoBERTa's and BART's tables have.

    Call arguments:
        x: `(batch, length, d_model)`.
        start_index: Position of the first element, an int or an int scalar tensor; 0 when None.
        positions: int `(length,)` or `(batch, length)`, the position of each element; counted from `start_index`
            when None.

    Returns:
        `(batch, length, d_model)`, `x` plus its positions, in the compute dtype. A position after the last takes the
        last one's vector, because a graph cannot refuse it. `generate` and `score` refuse to go so far.

    Raises:
        ValueError: If `max_length` is not positive, `offset` is negative, or `x` is known to be longer.

    >>> LearnedPositions(5)(np.zeros((1, 2, 4))).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, max_length, offset=0, **kwargs):
        super().__init__(**kwargs)
        self.max_length = max_length
        self.offset = offset

    def build(self, x_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.offset + self.max_length, x_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
        )

    def call(self, x, start_index=None, positions=None):
        if positions is None:
            length = x.shape[1]
            fits = not isinstance(length, int) or length <= self.max_length
            check(fits, f"`x` must be at most max_length={self.max_length} long.", shape=tuple(x.shape))
            positions = positions_from(start_index, x)
        rows = ops.clip(positions, 0, self.max_length - 1) + self.offset
        return self._sum(x, ops.take(self.embeddings, rows, axis=0))


@keras.saving.register_keras_serializable("keras_transformer")
class SegmentEmbedding(Added):
    """Adds a learned vector for each segment to `x` (Devlin et al., 2019, "BERT", section 3).

    Args:
        num_segments: Number of segments; a pair of texts has two.

    Call arguments:
        x: `(batch, length, d_model)`.
        segment_ids: int `(batch, length)`, the segment of each token; all 0 when None.

    Returns:
        `(batch, length, d_model)`, `x` plus its segments, in the compute dtype. A segment after the last takes the last
        one's vector.

    Raises:
        ValueError: If `num_segments` is not positive.

    >>> SegmentEmbedding()(np.zeros((1, 2, 4)), np.array([[0, 1]])).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, num_segments=2, **kwargs):
        super().__init__(**kwargs)
        self.num_segments = num_segments

    def build(self, x_shape, segment_ids_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_segments, x_shape[-1]),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            autocast=False,
        )

    def call(self, x, segment_ids=None):
        if segment_ids is None:
            return self._sum(x, self.embeddings[0])
        segment_ids = ops.clip(ops.cast(segment_ids, "int32"), 0, self.num_segments - 1)
        return self._sum(x, ops.take(self.embeddings, segment_ids, axis=0))


@keras.saving.register_keras_serializable("keras_transformer")
class Embeddings(Configured, keras.layers.Layer):
    """What goes into a stack that reads ids: vectors of the tokens, and of their segments and positions.

    The sum is normalised, then dropped ("Attention Is All You Need", section 5.4; Devlin et al., 2019, "BERT", section
    3). A model takes such a layer as its `source`, `target` or `embeddings`.

    Args:
        input_dim: Number of ids.
        output_dim: Width of the output, the model's `d_model`.
        positions: A layer that adds positions, such as `PositionalEncoding()` or `LearnedPositions(512)`; None where
            the attention knows them.
        tokens: A `TokenEmbedding` in place of `input_dim` and `output_dim`. Two `Embeddings` may be given one.
        segments: A layer that adds segments, such as `SegmentEmbedding(2)`; None for none.
        norm: Norm of the sum, such as `LayerNormalization(epsilon=1e-12)`; None for none.
        dropout: Share of the normalised sum dropped in training.
        embedding_dim: Width of the sum; a dense layer makes vectors of `output_dim` of it (Clark et al., 2020,
            "ELECTRA", section 3.1). None for `output_dim`, without that layer.
        **kwargs: The other arguments of `TokenEmbedding`, such as `pad_id`; `scale` is 1 unless it is given. With
            `PositionalEncoding` the paper has `scale=d_model**0.5`. And Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int `(batch, length)`, ids.
        index: Position of the first token, an int or an int scalar tensor; or a `Place`; 0 when None.
        segment_ids: int `(batch, length)`, the segment of each token; all 0 when None.
        vectors: `(batch, length, embedding_dim or output_dim)`, to take the place of the tokens' vectors; None for
            these.
        training: Whether to drop.

    Returns:
        `(batch, length, output_dim)`.

    Raises:
        ValueError: If an argument is out of range, both `tokens` and its arguments are given, or `positions` act inside
            attention.

    >>> Embeddings(11, 4, PositionalEncoding())(np.array([[5, 7, 0]])).shape
    TensorShape([1, 3, 4])
    """

    decided_by = ("tokens", "segments", "positions", "norm", "widen")

    def __init__(
        self,
        input_dim=None,
        output_dim=None,
        positions=None,
        *,
        tokens=None,
        segments=None,
        norm=None,
        dropout=0.1,
        embedding_dim=None,
        **kwargs,
    ):
        super().__init__(**pop_keras_arguments(kwargs))
        policy, width = self.dtype_policy, output_dim if embedding_dim is None else embedding_dim
        if tokens is None:
            check_positive(input_dim=input_dim, output_dim=output_dim)
            check_arguments(self, TokenEmbedding, kwargs)
            tokens = TokenEmbedding(input_dim, width, **{"scale": 1.0, **kwargs}, dtype=policy, name="tokens")
        else:
            sizes = {"input_dim": input_dim, "output_dim": output_dim, "embedding_dim": embedding_dim}
            given = kwargs | {name: size for name, size in sizes.items() if size is not None}
            check(not given, f"Pass either `tokens` or {[*given]}, not both.", tokens=tokens)
            rule = "`tokens` must not be made by other `Embeddings`, whose file makes them again: hand one to both."
            check(not getattr(tokens, "is_made", False), rule, tokens=tokens)
        self.tokens = check_part(tokens, "tokens", TokenEmbedding)
        self.tokens.is_made = input_dim is not None
        self.segments = check_part(segments, "segments")
        self.positions = check_added(positions, type(self).__name__)
        self.norm = check_part(norm, "norm")
        self.drop = Dropout(dropout, dtype=policy, name="drop")
        self.widen = None
        if embedding_dim is not None:
            self.widen = keras.layers.Dense(output_dim, dtype=policy, name="widen")
        self.dropout = dropout
        self.embedding_dim = embedding_dim
        self.input_dim = self.tokens.input_dim
        self.output_dim = self.tokens.output_dim if self.widen is None else output_dim

    @property
    def max_length(self):
        """Number of positions, an int; None for any number."""
        return getattr(self.positions, "max_length", None)

    def build(self, inputs_shape=None):
        ensure_built(self.tokens, (None, None))
        for layer in filter(None, (self.segments, self.positions, self.norm, self.widen)):
            ensure_built(layer, (None, None, self.tokens.output_dim))

    def call(self, inputs, index=None, segment_ids=None, vectors=None, training=None):
        x = self.tokens(inputs) if vectors is None else vectors
        x = x if self.segments is None else self.segments(x, segment_ids)
        if self.positions is not None:
            options = {}
            if index is not None:
                place = Place.of(index)
                options = {"start_index": place.slot, "positions": place.positions}
            x = self.positions(x, **options)
        x = x if self.norm is None else self.norm(x)
        x = self.drop(x, training=training)
        return x if self.widen is None else self.widen(x)

    def compute_mask(self, inputs, mask=None):
        return self.tokens.compute_mask(inputs, mask)

    def compute_output_shape(self, inputs_shape, **more_shapes):
        return (*inputs_shape, self.output_dim)

    def compute_output_spec(self, inputs, *args, **kwargs):
        return keras.KerasTensor((*inputs.shape, self.output_dim), dtype=self.compute_dtype)
