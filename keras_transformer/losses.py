"""Label-smoothed, masked cross-entropy."""

import keras
from keras import ops

from keras_transformer.backend import custom_gradient, summed_over_replicas
from keras_transformer.checks import check_share


def token_cross_entropy(targets, logits, label_smoothing=0.0):
    """Cross-entropy of each token against `(1 - e) * one_hot(target) + e / vocab_size`, in float32.

    Label smoothing as in "Attention Is All You Need", section 5.4 (Szegedy et al., 2015, section 7), written
    as `log(sum(exp(logits))) - (1 - e) * logits[target] - e * mean(logits)`, so that no one-hot tensor is built.
    The gradient is written out too: `softmax - e / vocab_size`, less `1 - e` at the target; derived from the
    gather it would cost as much as a fifth of a training step (docs/decisions.md).

    Args:
        targets: int `(batch, target_len)`; one outside the vocabulary counts as id 0.
        logits: `(batch, target_len, vocab_size)`.
        label_smoothing: The share `e` of probability spread over the vocabulary.

    Returns:
        float32 `(batch, target_len)`, in nats.
    """
    vocab_size = logits.shape[-1]
    shape = ops.shape(targets)
    ids = ops.reshape(ops.cast(targets, "int32"), (-1, 1))
    # A `pad_id` such as -1 is no id of the vocabulary.
    ids = ops.where((ids >= 0) & (ids < vocab_size), ids, 0)
    at_target = ops.concatenate([ops.arange(ops.shape(ids)[0], dtype="int32")[:, None], ids], axis=1)

    @custom_gradient
    def cross_entropy(flat):
        # The softmax serves the loss and its gradient, and is TensorFlow's fastest pass over a vocabulary.
        p = ops.softmax(flat, axis=-1)
        log_total = ops.max(flat, axis=-1) - ops.log(ops.max(p, axis=-1))
        losses = log_total - (1.0 - label_smoothing) * ops.take_along_axis(flat, ids, axis=1)[:, 0]
        if label_smoothing:
            losses = losses - label_smoothing * ops.mean(flat, axis=-1)

        def gradient(upstream):
            spread = (p - label_smoothing / vocab_size if label_smoothing else p) * upstream[:, None]
            hit = (1.0 - label_smoothing) * upstream
            return ops.scatter_update(spread, at_target, ops.take_along_axis(spread, ids, axis=1)[:, 0] - hit)

        return losses, gradient

    flat = ops.reshape(ops.cast(logits, "float32"), (-1, vocab_size))
    return ops.reshape(cross_entropy(flat), shape)


def token_weights(targets, pad_id, sample_weight=None):
    """The weight of each token in a mean: 0 for padding, else 1 or its sample weight.

    Args:
        targets: int `(batch, target_len)`.
        pad_id: The id of padding.
        sample_weight: None, or weights of shape `(batch,)` or `(batch, target_len)`.

    Returns:
        float32 `(batch, target_len)`.
    """
    weights = ops.cast(ops.not_equal(targets, pad_id), "float32")
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, "float32")
        if len(sample_weight.shape) == 1:
            sample_weight = sample_weight[:, None]
        weights = weights * sample_weight
    return weights


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Mean label-smoothed cross-entropy over the real tokens of a batch.

    The denominator is the number of real tokens (the sum of their weights, with `sample_weight`), so a token
    weighs the same in a full row and in a padded one. A batch of padding alone gives 0. Under `tf.distribute` the
    tokens of all replicas count, however they are spread: the gradients are those of the joint batch.

    Args:
        label_smoothing: Share of probability spread over the vocabulary, in `[0, 1)`; the paper's is 0.1.
        pad_id: The target id that is not scored.
        name: Name of the loss.

    Call arguments:
        y_true: int `(batch, target_len)`.
        y_pred: logits `(batch, target_len, vocab_size)`.
        sample_weight: None, `(batch,)` or `(batch, target_len)`.

    Raises:
        ValueError: If `label_smoothing` is outside `[0, 1)`.
    """

    def __init__(self, label_smoothing=0.0, pad_id=0, name="masked_crossentropy", **kwargs):
        check_share(label_smoothing=label_smoothing)
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Keras would divide by the number of positions, padding included.
        targets = ops.cast(y_true, "int32")
        weights = token_weights(targets, self.pad_id, sample_weight)
        losses = self.call(targets, y_pred)
        if self.reduction == "sum":
            return ops.sum(losses * weights)
        if self.reduction in ("none", None):
            return losses * weights
        total, count = ops.sum(losses * weights), ops.sum(weights)
        sums, replicas = summed_over_replicas(ops.stop_gradient(ops.stack([total, count])))
        if replicas == 1:
            return ops.divide_no_nan(total, count)
        # Keras adds up the replicas' gradients, and reports the mean of `replicas` times their values, weighted by
        # rows. So the gradient is this replica's share, and the value an equal part of the joint mean.
        share, mean = ops.divide_no_nan(total, sums[1]), ops.divide_no_nan(sums[0], sums[1])
        return share + ops.stop_gradient(mean / replicas - share)

    def call(self, y_true, y_pred):
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
        }
