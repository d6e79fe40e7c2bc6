"""One vector for each row: poolings that leave padding out, and a class token."""

import math

import keras

from keras_transformer.checks import check, check_choice, check_dense
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32, masked_softmax
from keras_transformer.layers.base import Configured
from keras_transformer.masks import own_or_implicit_mask

# Poolings without weights.
POOLINGS = ("mean", "max", "first", "last")
ATTENTION = "attention"


def pooled_states(states, pooling, padding_mask=None):
    """Makes one vector of the states of each row.

    Args:
        states: `(batch, length, d_model)`.
        pooling: One of `POOLINGS`.
        padding_mask: bool `(batch, length)`, True where a token is real; all are when None. "first" does not read it.

    Returns:
        `(batch, d_model)`, of the dtype of `states`; for a row of padding alone 0, or the first state with "first" and
        "last".
    """
    if pooling == "first" or (pooling == "last" and padding_mask is None):
        return states[:, 0 if pooling == "first" else -1]
    if pooling == "last":
        places = ops.arange(ops.shape(padding_mask)[1], dtype="int32") * ops.cast(padding_mask, "int32")
        return ops.take_by_row(states, ops.max(places, axis=1, keepdims=True))[:, 0]
    wide = ops.cast(states, at_least_float32(states.dtype))
    if padding_mask is None:
        pooled = ops.mean(wide, axis=1) if pooling == "mean" else ops.max(wide, axis=1)
        return ops.cast(pooled, states.dtype)
    real = padding_mask[..., None]
    if pooling == "max":
        pooled = ops.max(ops.where(real, wide, -math.inf), axis=1)
        return ops.cast(ops.where(ops.any(real, axis=1), pooled, 0.0), states.dtype)
    count = ops.sum(ops.cast(real, wide.dtype), axis=1)
    return ops.cast(ops.divide_no_nan(ops.sum(ops.where(real, wide, 0.0), axis=1), count), states.dtype)


def _in_a_row(x, axes):
    """Makes the axes between the batch and the last `axes` of a tensor one, the length; None stays None."""
    if x is None or len(x.shape) == 2 + axes:
        return x
    batch, *sizes = ops.shape(x)
    lengths, rest = sizes[: len(sizes) - axes], sizes[len(sizes) - axes :]
    return ops.reshape(x, (batch, math.prod(lengths), *rest))


def _check_tokens(shape):
    check(
        len(shape) > 2, "`x` must have shape `(batch, length, features)`, or more axes.", shape=tuple(shape)
    )


@keras.saving.register_keras_serializable("keras_transformer")
class Pooling(Configured, keras.layers.Layer):
    """Makes one vector of all tokens of a row, and leaves padding out.

    "attention" is the sequence pooling of Hassani et al., 2021, "Escaping the Big Data Paradigm with Compact
    Transformers", section 3.2: `softmax(x w + b)ᵀ x`, with a softmax over the tokens.

    Args:
        pooling: "mean", "max", "attention", "first" for the first token, such as that of `ClassToken`, or "last" for
            the last token that is not padding.

    Call arguments:
        x: `(batch, length, features)`. With more axes, such as the rows and columns of a picture, all axes between the
            first and the last are pooled.
        padding_mask: bool `(batch, length)`, or the shape of `x` without its features, True where a token is real;
            Keras's implicit mask of `x` when None. "first" does not read it.

    Returns:
        `(batch, features)` in the compute dtype. For a row of padding alone 0; the first token with "first" and "last".

    Raises:
        ValueError: If there is no such pooling, or `x` has less than three axes.

    >>> Pooling("max")(np.array([[[1.0], [3.0], [5.0]]]), padding_mask=np.array([[True, True, False]])).numpy().tolist()
    [[3.0]]
    """

    def __init__(self, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        check_choice((*POOLINGS, ATTENTION), pooling=pooling)
        self.pooling = pooling
        self.scores = None
        self.supports_masking = True

    def build(self, x_shape):
        _check_tokens(x_shape)
        if self.pooling == ATTENTION:
            self.scores = keras.layers.Dense(1, dtype=self.dtype_policy, name="scores")
            self.scores.build((None, x_shape[-1]))

    def call(self, x, padding_mask=None):
        check_dense(x=x)
        mask = own_or_implicit_mask(padding_mask, x)
        mask = None if mask is None else ops.logical_and(mask, ops.ones_like(x[..., 0], dtype="bool"))
        mask = _in_a_row(mask, 0)
        x = _in_a_row(x, 1)
        if self.scores is None:
            return pooled_states(x, self.pooling, mask)
        if mask is not None:
            # 0 times NaN is NaN.
            x = ops.where(mask[..., None], x, ops.zeros((), x.dtype))
        scores = ops.transpose(self.scores(x), (0, 2, 1))
        scores = ops.cast(scores, at_least_float32(scores.dtype))
        shares = masked_softmax(scores, None if mask is None else mask[:, None])
        return ops.matmul(ops.cast(shares, x.dtype), x)[:, 0]

    def compute_mask(self, x, mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])


@keras.saving.register_keras_serializable("keras_transformer")
class ClassToken(Configured, keras.layers.Layer):
    """Puts a learned vector before the tokens of each row. Its last state is a vector of the row.

    Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words", section 3.1. `Pooling("first")` reads it after the stack.

    Args:
        initializer: Initializer of the vector; normal with deviation 0.02 when None.

    Call arguments:
        x: `(batch, length, features)`; of more axes, such as the rows and columns of a picture, one is made.

    Returns:
        `(batch, 1 + length, features)` in the compute dtype. Keras's implicit mask of `x` is passed on, with True for
        the class token.

    Raises:
        ValueError: If `x` has less than three axes.

    >>> ClassToken("ones")(np.zeros((1, 2, 3)))[0, :, 0].numpy().tolist()
    [1.0, 0.0, 0.0]
    """

    def __init__(self, initializer=None, **kwargs):
        super().__init__(**kwargs)
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = keras.initializers.get(initializer)
        self.supports_masking = True

    def build(self, x_shape):
        _check_tokens(x_shape)
        self.vector = self.add_weight(name="vector", shape=x_shape[-1:], initializer=self.initializer)

    def call(self, x):
        check_dense(x=x)
        x = _in_a_row(x, 1)
        tokens = ops.broadcast_to(ops.cast(self.vector, x.dtype), (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([tokens, x], axis=1)

    def compute_mask(self, x, mask=None):
        if mask is None:
            return None
        mask = _in_a_row(mask, 0)
        return ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1)

    def compute_output_shape(self, x_shape):
        batch, *axes, features = x_shape
        return (batch, None if None in axes else 1 + math.prod(axes), features)
