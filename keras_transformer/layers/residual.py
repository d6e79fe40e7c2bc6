"""What surrounds every sublayer: its norm, its dropout and its skip connection."""

import functools
import math

import keras

from keras_transformer.checks import check, check_choice, check_dense, check_range
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.layers.base import Configured, ensure_built

BYTES_PER_WORD = 4
LEVELS = 256


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(Configured, keras.layers.Layer):
    """Joins a sublayer's output to its input.

    Post-norm, `norm(x + dropout(sublayer(x)))`: "Attention Is All You Need", section 3.1.
    Pre-norm, `x + dropout(sublayer(norm(x)))`: Xiong et al., 2020, "On Layer Normalization in the Transformer
    Architecture". Sandwich norms, `x + norm_after(dropout(sublayer(norm(x))))`: Ding et al., 2021, "CogView", section
    2.4. Without the first of the two, `x + norm_after(dropout(sublayer(x)))`: Liu et al., 2022, "Swin Transformer V2",
    section 3.2. You call it before and after the sublayer:

        y = sublayer(residual.before(x))
        x = residual(x, y)

    Override `make_norm` for a norm of your own.

    Args:
        dropout: Share of the sublayer's output that is dropped in training.
        normalize_first: True for pre-norm, False for post-norm.
        layer_norm_epsilon: Number added to the variance.
        norm: "layer" for `LayerNormalization`, "layer_without_bias" for the same with a scale alone, "rms" for
            `RMSNormalization`, "zero_centered_rms" for `ZeroCenteredRMSNormalization`. None for no norm, with
            `normalize_first=True` alone.
        sandwich_norm: Whether the sublayer's output is normalised too; needs `normalize_first=True`.
        input_norm: Whether the sublayer's input is normalised with pre-norm. False leaves the norm of the output alone;
            it needs `sandwich_norm=True`.
        stochastic_depth: Share of the rows whose sublayer is dropped whole in training, by `StochasticDepth`.

    Call arguments:
        x: Input of the sublayer, `(batch, length, d_model)`.
        y: Output of the sublayer, `(batch, length, d_model)`; `x` may have one row for all of its rows.
        training: Whether to drop.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `dropout` or `stochastic_depth` is not in [0, 1), `layer_norm_epsilon` is negative, `norm` is
            unknown, or `sandwich_norm=True` or `norm=None` comes without `normalize_first=True`, or both come together;
            or if `input_norm=False` comes without `sandwich_norm=True`.

    >>> residual, x = Residual(normalize_first=True), np.ones((2, 3, 4))
    >>> residual(x, 0.5 * residual.before(x)).shape
    TensorShape([2, 3, 4])
    """

    def __init__(
        self,
        dropout=0.1,
        normalize_first=False,
        layer_norm_epsilon=1e-6,
        *,
        norm="layer",
        sandwich_norm=False,
        input_norm=True,
        stochastic_depth=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice([None, *NORMS], norm=norm)
        for name, asked in (("sandwich_norm=True", sandwich_norm), ("norm=None", norm is None)):
            check(
                normalize_first or not asked, f"`{name}` needs `normalize_first=True`.", normalize_first=False
            )
        check(norm is not None or not sandwich_norm, "`sandwich_norm=True` needs a norm.", norm=norm)
        check(
            input_norm or sandwich_norm, "`input_norm=False` needs `sandwich_norm=True`.", sandwich_norm=False
        )
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm_kind = norm
        self.sandwich_norm = sandwich_norm
        self.input_norm = input_norm
        self.supports_masking = True
        self.norm = self.norm_after = None
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")
        self.stochastic_depth, self.drop_rows = stochastic_depth, None
        if stochastic_depth:
            self.drop_rows = StochasticDepth(stochastic_depth, dtype=self.dtype_policy, name="drop_rows")

    def make_norm(self, name):
        """Makes a norm: a layer that keeps the shape of its input; or None where there is no norm."""
        if self.norm_kind is None:
            return None
        return NORMS[self.norm_kind](epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)

    def build(self, x_shape, y_shape=None):
        self._make_norms()
        for norm in filter(None, (self.norm, self.norm_after)):
            # `before` may have built the first.
            ensure_built(norm, x_shape)

    def _make_norms(self):
        """Makes the norms, unless they are there. A subclass may have set what its `make_norm` reads by now."""
        if self.input_norm and self.norm is None:
            self.norm = self.make_norm("norm")
        if self.sandwich_norm and self.norm_after is None:
            self.norm_after = self.make_norm("norm_after")

    def before(self, x):
        """Returns the input of the sublayer: `norm(x)` with pre-norm, else `x`."""
        if not self.built:
            self._make_norms()
        return self.norm(x) if self.normalize_first and self.norm is not None else x

    def call(self, x, y, training=None):
        # A row of queries may have been repeated for all memories.
        expected = (*y.shape[:1], *x.shape[1:]) if x.shape[0] == 1 else x.shape
        known = [sizes for sizes in zip(expected, y.shape, strict=False) if None not in sizes]
        if len(x.shape) != len(y.shape) or any(before != after for before, after in known):
            raise ValueError(
                "The output of a sublayer must have the shape of its input: there is a residual connection around it. "
                f"Received: input of shape={tuple(x.shape)}, output of shape={tuple(y.shape)}."
            )
        y = self.drop(y, training=training)
        if self.sandwich_norm:
            y = self.norm_after(y)
        if self.drop_rows is not None:
            y = self.drop_rows(y, training=training)
        # x may hold ints, which TensorFlow's own `+` does not add to floats.
        y = ops.add(x, y)
        return y if self.normalize_first else self.norm(y)

    def compute_output_shape(self, x_shape, y_shape=None):
        return (y_shape[0], *x_shape[1:]) if y_shape is not None and x_shape[0] == 1 else x_shape


@keras.saving.register_keras_serializable("keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, at two thirds of its training time where it normalises the last axis.

    Ba, Kiros and Hinton, 2016, "Layer Normalization", section 3. It computes in float32, or in float64 under a float64
    policy; on JAX in float32 for other axes than the last, and without a scale, as Keras's layer does. The gradient's
    sums over rows and columns are products with a vector, which take one pass each.

    Args:
        axis: Axis or axes to normalise.
        epsilon: Number added to the variance, at least 0.
        **kwargs: The other arguments of `keras.layers.LayerNormalization`.

    Call arguments:
        inputs: Tensor of any shape from rank 2 on.

    Returns:
        Tensor of the shape of `inputs`, in the compute dtype.

    Raises:
        ValueError: If `epsilon` is negative.

    >>> LayerNormalization()(np.array([[1.0, 3.0]])).numpy().round(2).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, axis=-1, epsilon=1e-6, **kwargs):
        check_range(0, epsilon=epsilon)
        super().__init__(axis=axis, epsilon=epsilon, **kwargs)

    def build(self, input_shape):
        last = self.axis in (-1, [-1])
        super().build(input_shape)
        if last:
            # Keras 3.16 counts it from the front, which is wrong for inputs of another rank.
            self.axis = [-1]

    def call(self, inputs):
        check_dense(inputs=inputs)
        features = inputs.shape[-1]
        plain = self.gamma is not None and not getattr(self, "rms_scaling", False)  # deprecated in Keras
        if not plain or list(self.axis) not in ([-1], [len(inputs.shape) - 1]):
            return super().call(inputs)

        @ops.custom_gradient
        def normalized(x, gamma, beta):
            centred = x - ops.mean(x, axis=-1, keepdims=True)
            scale = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + self.epsilon)
            standard = centred * scale

            def gradient(upstream):
                upstream, rows = (ops.reshape(each, (-1, features)) for each in (upstream, standard))
                to_gamma = upstream * rows
                ones, share = ops.ones((1, ops.shape(rows)[0]), x.dtype), gamma[:, None] / features
                mean, slope = ops.matmul(upstream, share), ops.matmul(to_gamma, share)
                to_x = (upstream * gamma - mean - rows * slope) * ops.reshape(scale, (-1, 1))
                return (
                    ops.reshape(to_x, ops.shape(x)),
                    ops.matmul(ones, to_gamma)[0],
                    ops.matmul(ones, upstream)[0],
                )

            return standard * gamma + beta, gradient

        dtype = at_least_float32(inputs.dtype)
        gamma = ops.cast(self.gamma, dtype)
        beta = ops.zeros_like(gamma) if self.beta is None else ops.cast(self.beta, dtype)
        return ops.cast(normalized(ops.cast(inputs, dtype), gamma, beta), self.compute_dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class RMSNormalization(keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization`, which passes Keras's implicit mask on: `x / sqrt(mean(x²) + epsilon) * scale`.

    Zhang and Sennrich, 2019, "Root Mean Square Layer Normalization", section 3, equation 4. It corrects two faults of
    Keras's layer: it computes in float64 under a float64 policy on JAX too, and `scale` multiplies the axis that is
    normalised, where Keras multiplies the last one.

    Args:
        axis: Axis or axes to normalise.
        epsilon: Number added to the mean of the squares, at least 0.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        x: Tensor of any shape from rank 2 on.

    Returns:
        Tensor of the shape of `x`, in the compute dtype.

    Raises:
        ValueError: If `epsilon` is negative.

    >>> RMSNormalization()(np.array([[3.0, 4.0]])).shape
    TensorShape([1, 2])
    """

    def __init__(self, axis=-1, epsilon=1e-6, **kwargs):
        check_range(0, epsilon=epsilon)
        super().__init__(axis=axis, epsilon=epsilon, **kwargs)
        self.supports_masking = True

    def call(self, x):
        wide, factors = ops.cast(x, at_least_float32(x.dtype)), self.factors(at_least_float32(x.dtype))
        axes = [axis % len(x.shape) for axis in self.axis]
        if axes != [len(x.shape) - 1]:
            shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
            # Keras sorts (1, -1) as numbers.
            order = sorted(range(len(axes)), key=lambda i: axes[i])
            factors = ops.reshape(ops.transpose(factors, order), shape)
        scale = ops.rsqrt(ops.mean(ops.square(wide), axis=self.axis, keepdims=True) + self.epsilon)
        return ops.cast(wide * scale * factors, self.compute_dtype)

    def factors(self, dtype):
        """Returns what the normalised values are multiplied by, `(features,)`."""
        return ops.cast(self.scale, dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class ZeroCenteredRMSNormalization(RMSNormalization):
    """`RMSNormalization` whose weights are 0 where it changes nothing: `x / sqrt(mean(x²) + epsilon) * (1 + scale)`.

    Weight decay then pulls towards that. It is Gemma's norm (Gemma Team, 2024, published code).

    Args:
        axis: Axis or axes to normalise.
        epsilon: Number added to the mean of the squares, at least 0.
        **kwargs: Keras's `name`, `dtype`, `trainable`.

    Call arguments:
        x: Tensor of any shape from rank 2 on.

    Returns:
        Tensor of the shape of `x`, in the compute dtype.

    Raises:
        ValueError: If `epsilon` is negative.

    >>> ZeroCenteredRMSNormalization()(np.array([[3.0, 4.0]])).shape
    TensorShape([1, 2])
    """

    def build(self, x_shape):
        super().build(x_shape)
        self.scale.assign(ops.zeros(self.scale.shape, self.scale.dtype))

    def factors(self, dtype):
        return 1 + super().factors(dtype)


NORMS = {
    "layer": LayerNormalization,
    "layer_without_bias": functools.partial(LayerNormalization, center=False),
    "rms": RMSNormalization,
    "zero_centered_rms": ZeroCenteredRMSNormalization,
}


@keras.saving.register_keras_serializable("keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, at a fraction of its time: it draws one random byte for each element, not one float.

    So the share that is dropped is rounded to a multiple of 1/256, from 1/256 to 255/256 unless `rate` is 0 or 1. What
    is kept is scaled by that rounded share, so the expected value is the input. Saving keeps the random state, which
    Keras's layer does not save: a resumed training draws the numbers that come next.

    Args:
        rate: Share of the elements to drop, in [0, 1].
        noise_shape: Shape of the random mask, broadcast to the input; None for the input's shape.
        seed: Seed of the random numbers, an int or None.
        **kwargs: Keras's `name`, `dtype`.

    Call arguments:
        inputs: Tensor of any shape and a floating dtype.
        training: Whether to drop.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: If `rate` is outside [0, 1].

    >>> Dropout(0.5)(np.ones((2, 3)), training=False).numpy().sum().item()
    6.0
    """

    # Whether a file has the random state, which only a training goes on with.
    saves_random_state = True

    @property
    def dropped_levels(self):
        """How many of the 256 values of a byte drop their element."""
        if self.rate in (0, 1):
            return self.rate * LEVELS
        return min(max(1, round(self.rate * LEVELS)), LEVELS - 1)

    def call(self, inputs, training=False):
        check_dense(inputs=inputs)
        if not training or not self.rate:
            return inputs
        if self.dropped_levels == LEVELS:
            return ops.zeros_like(inputs)
        shape = ops.shape(inputs)
        if self.noise_shape is not None:
            shape = [n if m is None else m for n, m in zip(shape, self.noise_shape, strict=True)]
        kept = self._random_bytes(shape) >= self.dropped_levels - LEVELS // 2
        scale = LEVELS / (LEVELS - self.dropped_levels)
        return inputs * (ops.cast(kept, inputs.dtype) * ops.cast(scale, inputs.dtype))

    def save_own_variables(self, store):
        if self.rate and self.saves_random_state:
            store["random_state"] = self.seed_generator.state

    def load_own_variables(self, store):
        if self.rate and "random_state" in store:
            self.seed_generator.state.assign(store["random_state"])

    def _random_bytes(self, shape):
        """Draws int8 numbers of a shape; in a graph its sizes may be tensors."""
        count = math.prod(shape)
        words = (count + BYTES_PER_WORD - 1) // BYTES_PER_WORD
        drawn = keras.random.randint((words, 1), -(2**31), 2**31 - 1, dtype="int32", seed=self.seed_generator)
        return ops.reshape(ops.reshape(ops.view(drawn, "int8"), (-1,))[:count], shape)


@keras.saving.register_keras_serializable("keras_transformer")
class StochasticDepth(Dropout):
    """Drops whole rows of a batch in training: of a residual connection only the skip is left for them.

    Huang et al., 2016, "Deep Networks with Stochastic Depth", section 3. The rows that are kept are scaled in training
    so that the expected value is the input; the paper scales at test time. The share that is dropped is rounded to a
    multiple of 1/256, as in `Dropout`. The dropped rows are computed too, so a step takes as long.

    `Residual`, the layers and the stacks take `stochastic_depth=`. In a stack the rate rises linearly: layer `l` of `n`
    has `l / n` of it, as in equation 4 of the paper.

    Args:
        rate: Share of the rows to drop, in [0, 1].
        seed: Seed of the random numbers, an int or None.
        **kwargs: Keras's `name`, `dtype`.

    Call arguments:
        inputs: Tensor `(batch, ...)` of a floating dtype.
        training: Whether to drop.

    Returns:
        Tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: If `rate` is outside [0, 1].

    >>> rows = StochasticDepth(0.5, seed=1)(np.ones((9, 2, 3)), training=True).numpy()
    >>> sorted({row.item() for row in rows.mean(axis=(1, 2))})
    [0.0, 2.0]
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(rate, noise_shape=None, seed=seed, **kwargs)

    def call(self, inputs, training=False):
        check_dense(inputs=inputs)
        if not training or not self.rate:
            return inputs
        wide = at_least_float32(inputs.dtype)
        rows = ops.ones((ops.shape(inputs)[0], *[1] * (len(inputs.shape) - 1)), wide)
        # A factor that a half precision rounds would change the expected value.
        factors = super().call(rows, training=training)
        return ops.cast(ops.cast(inputs, wide) * factors, inputs.dtype)

    def get_config(self):
        return {name: value for name, value in super().get_config().items() if name != "noise_shape"}
