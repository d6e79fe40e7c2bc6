"""A mixture of feed-forward networks: each token uses a few of them."""

import keras

from keras_transformer.checks import check, check_count
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.layers.base import KeepsShape, check_part, ensure_built
from keras_transformer.layers.projection import Projection
from keras_transformer.masks import own_or_implicit_mask


class _Router(Projection):
    """Scores the experts. It stays in floats when a model is quantized: its product is small, and decides much."""

    def quantize(self, *args, **kwargs):
        pass


@keras.saving.register_keras_serializable("keras_transformer")
class MixtureOfExperts(KeepsShape, keras.layers.Layer):
    """`sum_i share_i(x) expert_i(x)` over the `top_k` experts with the highest scores of the router.

    Shazeer et al., 2017, "Outrageously Large Neural Networks", section 2.1, without its noise. The shares are the
    softmax over the `top_k` highest of `x router`, in float32 (Jiang et al., 2024, "Mixtral of Experts", section 2.1).
    With `top_k=1` that would always be 1, and the router would learn nothing of the task: the share is then the softmax
    over all experts (Fedus et al., 2022, "Switch Transformers", section 2.1). No token is dropped, however many choose
    one expert.

    In training it adds `balance * num_experts * sum_i f_i P_i` to the loss (Fedus et al., section 2.2, equation 4):
    `f_i` is the part of all choices that falls on expert i, `P_i` the mean of its softmax over all experts, both over
    the real tokens of the batch. The sum times `num_experts` is 1 where all experts have the same.

    Args:
        experts: List of layers such as `FeedForward(512)`, which are used as they are. Each computes every position on
            its own and keeps the shape of its input.
        top_k: Number of experts of a token.
        balance: Weight of the balance loss.
        kernel_initializer: Initializer of the router.

    Call arguments:
        x: `(batch, length, d_model)`; `d_model` is read from it.
        padding_mask: bool `(batch, length)`, True where a token is real, or `(batch, 1, 1, length)`; Keras's implicit
            mask of `x` when None. Only the balance loss uses it.
        training: Whether to drop, and to add the balance loss.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `experts` are not layers or change the shape of their input, `top_k` is not in [1, num_experts],
            or `balance` is negative.

    >>> experts = [keras.layers.Dense(4) for _ in range(3)]
    >>> MixtureOfExperts(experts)(np.ones((1, 2, 4))).shape
    TensorShape([1, 2, 4])
    """

    def __init__(self, experts, top_k=2, balance=0.01, *, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        is_list = isinstance(experts, (list, tuple)) and len(experts) > 0
        check(is_list, "`experts` must be a list of layers.", experts=experts)
        check_count(1, len(experts), top_k=top_k)
        self.experts = [check_part(expert, f"experts[{i}]") for i, expert in enumerate(experts)]
        self.num_experts = len(experts)
        self.top_k = top_k
        self.balance = balance
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, x_shape):
        self.router = _Router(
            "...x,xe->...e",
            self.num_experts,
            kernel_initializer=self.kernel_initializer,
            dtype=at_least_float32(self.compute_dtype),
            name="router",
        )
        self.router.build(x_shape)
        for i, expert in enumerate(self.experts):
            ensure_built(expert, x_shape)
            y_shape = expert.compute_output_shape(x_shape)
            rule = f"`experts[{i}]` must keep the shape of its input."
            check(tuple(y_shape) == tuple(x_shape), rule, shape=tuple(x_shape), output_shape=tuple(y_shape))

    def call(self, x, padding_mask=None, training=None):
        logits = self.router(x)
        _, indices = ops.top_k(logits, self.top_k)
        chosen = ops.sum(ops.one_hot(indices, self.num_experts, dtype=logits.dtype), axis=-2)
        # The shape is (batch, length, num_experts), like that of `chosen` and `shares`.
        probabilities = ops.softmax(logits)
        shares = probabilities * chosen
        if self.top_k > 1:
            shares = shares / ops.sum(shares, axis=-1, keepdims=True)
        if training and self.balance:
            padding_mask = own_or_implicit_mask(padding_mask, x)
            self.add_loss(self.balance * self._imbalance(probabilities, chosen, padding_mask))
        # All experts compute all tokens: how many tokens choose an expert is known late, and XLA needs sizes early
        # (on `ops.nonzero` TensorFlow's aborts). That is num_experts / top_k times the products that count.
        shares = ops.cast(shares, self.compute_dtype)
        outputs = (ops.cast(expert(x), self.compute_dtype) for expert in self.experts)
        return sum(output * shares[..., i : i + 1] for i, output in enumerate(outputs))

    def _imbalance(self, probabilities, chosen, real):
        """Computes the balance loss before its weight: float32 scalar, 1 where all experts have the same."""
        if real is None:
            real = ops.ones_like(probabilities[..., 0], dtype="bool")
        real = ops.expand_dims(ops.cast(real, probabilities.dtype), -1)
        count = ops.maximum(ops.sum(real), 1.0)
        axes = tuple(range(len(chosen.shape) - 1))
        choices = ops.sum(chosen * real, axis=axes) / (count * self.top_k)
        mean = ops.sum(probabilities * real, axis=axes) / count
        return self.num_experts * ops.sum(choices * mean)
