"""A mixture of feed-forward networks, of which each token has a few."""

import keras
from keras import ops

from keras_transformer.checks import check_count, check_positive, check_range
from keras_transformer.layers.parts import clone, described
from keras_transformer.layers.product import product
from keras_transformer.layers.shapes import KeepsShape
from keras_transformer.masks import implicit_mask


@keras.saving.register_keras_serializable("keras_transformer")
class MixtureOfExperts(KeepsShape, keras.layers.Layer):
    """`sum_i share_i(x) expert_i(x)` over the `top_k` experts that the router gives most.

    Shazeer et al., 2017, "Outrageously Large Neural Networks", section 2.1, without its noise; the shares are the
    softmax over the `top_k` highest of `x router`, in float32 (Jiang et al., 2024, "Mixtral of Experts", section 2.1).
    With `top_k=1` that would always be 1, and the router learn nothing of the task: the share is then the softmax over
    all experts (Fedus et al., 2022, "Switch Transformers", section 2.1). No token is dropped, however many choose one
    expert.

    In training it adds `balance * num_experts * sum_i f_i P_i` to the loss (Fedus et al., section 2.2, equation 4):
    `f_i` is the part of all choices that falls on expert i, `P_i` the mean of its softmax over all experts, both over
    the real tokens of the batch. The sum times `num_experts` is 1 where all experts have the same.

    Args:
        expert: A template of the experts: a layer such as `FeedForward(512)` or `GatedFeedForward(512)`, which
            computes each position on its own and keeps the shape of its input.
        num_experts: Number of experts.
        top_k: Number of experts of a token.
        balance: Weight of the balance loss.
        kernel_initializer: Initializer of the router; the experts' own are in their template.

    Call arguments:
        x: `(batch, length, d_model)`; `d_model` is read from it.
        padding_mask: bool `(batch, length)`, True where a token is real, or as `masks.padding_mask` gives it; Keras's
            implicit mask of `x` when None. It is for the balance loss alone.
        training: Whether to drop out and to add the balance loss.

    Returns:
        `(batch, length, d_model)`.

    Raises:
        ValueError: If `expert` is not a layer or changes the shape of its input, `num_experts` is not positive,
            `top_k` is not in [1, num_experts], or `balance` is negative.
    """

    def __init__(
        self, expert, num_experts, top_k=2, balance=0.01, *, kernel_initializer="glorot_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        check_positive(num_experts=num_experts)
        check_count(1, num_experts, top_k=top_k)
        check_range(0, balance=balance)
        self.num_experts = num_experts
        self.top_k = top_k
        self.balance = balance
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.experts = [
            clone(expert, dtype=self.dtype_policy, name=f"expert_{i}") for i in range(num_experts)
        ]

    def build(self, x_shape):
        self.router = self.add_weight(
            name="router",
            shape=(x_shape[-1], self.num_experts),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        for expert in self.experts:
            expert.build(x_shape)
        y_shape = self.experts[0].compute_output_shape(x_shape)
        if tuple(y_shape) != tuple(x_shape):
            raise ValueError(
                "`expert` must keep the shape of its input. "
                f"Received: shape={tuple(x_shape)}, which becomes {tuple(y_shape)}."
            )
        self.built = True

    def call(self, x, padding_mask=None, training=None):
        logits = product(x, self.router, "float32")
        _, indices = ops.top_k(logits, self.top_k)
        chosen = ops.sum(ops.one_hot(indices, self.num_experts, dtype="float32"), axis=-2)
        likely = ops.softmax(logits)  # (batch, length, num_experts), as is all the rest
        shares = likely * chosen
        if self.top_k > 1:
            shares = shares / ops.sum(shares, axis=-1, keepdims=True)
        if training and self.balance:
            real = implicit_mask(x) if padding_mask is None else padding_mask
            self.add_loss(self.balance * self._imbalance(likely, chosen, real))
        # All experts compute all tokens: how many an expert is given is known late, and XLA wants sizes known early
        # (on `ops.nonzero` TensorFlow's aborts). That is num_experts / top_k times the products that count.
        shares = ops.cast(shares, self.compute_dtype)
        return sum(expert(x) * shares[..., i : i + 1] for i, expert in enumerate(self.experts))

    def _imbalance(self, likely, chosen, real):
        """float32 scalar, 1 where all experts have the same."""
        shape = (*ops.shape(likely)[:2], 1)
        real = ops.ones(shape, "float32") if real is None else ops.reshape(ops.cast(real, "float32"), shape)
        count = ops.maximum(ops.sum(real), 1.0)
        choices = ops.sum(chosen * real, axis=(0, 1)) / (count * self.top_k)
        mean = ops.sum(likely * real, axis=(0, 1)) / count
        return self.num_experts * ops.sum(choices * mean)

    def get_config(self):
        return {
            **super().get_config(),
            "expert": described(self.experts[0]),
            "num_experts": self.num_experts,
            "top_k": self.top_k,
            "balance": self.balance,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
