"""Metrics over real tokens."""

import keras
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.embedding_losses import cosines_of_groups
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.keras_internals import warn_of_probabilities
from keras_transformer.losses import (
    in_vocabulary,
    nan_unless,
    targets_and_weights,
    token_cross_entropy,
    weighted,
)


class _TokenMean(keras.metrics.Metric):
    """Base class of means over the real tokens of all batches since the last reset.

    A token counts as in `MaskedCrossentropy`: where the target is not `pad_id`, and Keras's implicit mask of the logits
    is not False. The sums are float32, or float64 with `dtype="float64"`. The values of a batch are float64 for float64
    logits.
    """

    def __init__(self, pad_id=0, name=None, **kwargs):
        super().__init__(name=name, **kwargs)
        self.pad_id = pad_id
        dtype = at_least_float32(self.dtype)
        self.total = self.add_variable((), "zeros", name="total", dtype=dtype)
        self.count = self.add_variable((), "zeros", name="count", dtype=dtype)

    def token_values(self, targets, logits):
        """Returns the value of each token, `(batch, target_len)`."""
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: int `(batch, target_len)` or `(batch, target_len, 1)`.
            y_pred: float `(batch, target_len, vocab_size)`, logits.
            sample_weight: None, or weights `(batch,)`, `(batch, 1)`, `(batch, target_len)` or `(batch, target_len, 1)`.

        Raises:
            ValueError: If a shape is another one, or a tensor is ragged; or, outside of a graph, if a target that
                counts is not in the vocabulary.
        """
        targets, weights = targets_and_weights(y_true, y_pred, sample_weight, self.pad_id)
        values = ops.cast(self.token_values(targets, y_pred), weights.dtype)
        self.total.assign_add(ops.cast(ops.sum(weighted(values, weights)), self.total.dtype))
        self.count.assign_add(ops.cast(ops.sum(weights), self.count.dtype))

    def result(self):
        """Returns the mean so far, a scalar; 0 before the first real token."""
        return ops.divide_no_nan(self.total, self.count)

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedAccuracy(_TokenMean):
    """The share of real tokens whose likeliest id is the target.

    `sum(weight * (argmax(logits) == target)) / sum(weight)` over all batches since the last reset. A token counts as in
    `MaskedCrossentropy`: the weight is 0 where the target is `pad_id`, and where Keras's implicit mask of the logits is
    False; else it is 1, or the sample weight. In a graph, a target that counts and is not in the vocabulary gives NaN.

    Args:
        pad_id: int, the target id that does not count; it need not be an id of the vocabulary.
        name: Name of the metric.
        **kwargs: Arguments of `keras.metrics.Metric`.

    Call arguments:
        y_true: int `(batch, target_len)` or `(batch, target_len, 1)`.
        y_pred: float `(batch, target_len, vocab_size)`, logits.
        sample_weight: None, or weights `(batch,)`, `(batch, 1)`, `(batch, target_len)` or `(batch, target_len, 1)`.

    Raises:
        ValueError: If a call argument has another shape or is ragged; or, outside of a graph, if a target that counts
            is not in the vocabulary.

    >>> float(MaskedAccuracy()([[1, 2, 0]], np.eye(4, dtype="float32")[None, [1, 3, 0]]))
    0.5
    """

    def __init__(self, pad_id=0, name="accuracy", **kwargs):
        super().__init__(pad_id=pad_id, name=name, **kwargs)

    def token_values(self, targets, logits):
        logits = ops.convert_to_tensor(logits)
        # `ops.argmax` first rewrites all logits to tell -0 from 0: it takes 143 ms where `ops.top_k` takes 52.
        likeliest = ops.top_k(logits, 1)[1][..., 0]
        right = ops.cast(ops.equal(ops.cast(likeliest, "int32"), targets), at_least_float32(logits.dtype))
        return nan_unless(in_vocabulary(targets, ops.shape(logits)[-1]), right)


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean cross-entropy in nats for each real token, without label smoothing.

    `exp(sum(weight * cross_entropy) / sum(weight))` over all batches since the last reset. A token counts as in
    `MaskedCrossentropy`: the weight is 0 where the target is `pad_id`, and where Keras's implicit mask of the logits is
    False; else it is 1, or the sample weight. In a graph, a target that counts and is not in the vocabulary gives NaN.

    Args:
        pad_id: int, the target id that does not count; it need not be an id of the vocabulary.
        name: Name of the metric.
        **kwargs: Arguments of `keras.metrics.Metric`.

    Call arguments:
        y_true: int `(batch, target_len)` or `(batch, target_len, 1)`.
        y_pred: float `(batch, target_len, vocab_size)`, logits.
        sample_weight: None, or weights `(batch,)`, `(batch, 1)`, `(batch, target_len)` or `(batch, target_len, 1)`.

    Raises:
        ValueError: If a call argument has another shape or is ragged; or, outside of a graph, if a target that counts
            is not in the vocabulary.

    >>> round(float(Perplexity()([[1, 2, 0]], np.zeros((1, 3, 8), "float32"))), 3)
    8.0
    """

    def __init__(self, pad_id=0, name="perplexity", **kwargs):
        super().__init__(pad_id=pad_id, name=name, **kwargs)

    def token_values(self, targets, logits):
        warn_of_probabilities(logits)
        return token_cross_entropy(targets, logits)

    def result(self):
        """Returns the perplexity so far, a scalar; 1 before the first real token."""
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("keras_transformer")
class MatchAccuracy(keras.metrics.Mean):
    """Share of the first texts that find their second text among the nearest `k` texts of their batch (recall at `k`).

    It depends on the size of the batch: a larger one has more texts to choose from. A text that is as near as the match
    counts as nearer.

    Args:
        k: Number of texts.
        **kwargs: Keras's `name`, `dtype`.

    >>> metric = MatchAccuracy()
    >>> metric.update_state(np.zeros(2), np.eye(2)[:, None].repeat(2, axis=1))
    >>> float(metric.result())
    1.0
    """

    def __init__(self, k=1, name="match_accuracy", **kwargs):
        super().__init__(name=name, **kwargs)
        check_positive(k=k)
        self.k = k

    def update_state(self, y_true, y_pred, sample_weight=None):
        cosines = cosines_of_groups(ops.cast(y_pred, "float32"))
        right = ops.diagonal(cosines)[:, None]
        # The match itself is as near as itself.
        nearer = ops.sum(ops.cast(cosines >= right, "int32"), axis=1) - 1
        super().update_state(ops.cast(nearer < self.k, "float32"), sample_weight)

    def get_config(self):
        return {**super().get_config(), "k": self.k}
