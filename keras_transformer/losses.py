"""Losses: the label-smoothed, masked cross-entropy, and those of embedders."""

import keras

from keras_transformer.checks import check, check_dense, check_share, known_values
from keras_transformer.embedding_losses import CosineLoss, InBatchNegatives, Matryoshka, TripletLoss
from keras_transformer.execution import native, ops
from keras_transformer.execution.ops import at_least_float32, written_gradient
from keras_transformer.keras_internals import implicit_mask, warn_of_probabilities

__all__ = [
    "CosineLoss",
    "InBatchNegatives",
    "MaskedCrossentropy",
    "Matryoshka",
    "TripletLoss",
    "in_vocabulary",
    "mean_of_tokens",
    "nan_unless",
    "targets_and_weights",
    "token_cross_entropy",
    "token_divergence",
    "weighted",
]


def token_cross_entropy(targets, logits, label_smoothing=0.0):
    """Returns the cross-entropy of each token against `(1 - e) * one_hot(target) + e / vocab_size`.

    This is the label smoothing of "Attention Is All You Need", section 5.4 (Szegedy et al., 2015, section 7). It is
    computed as `log(sum(exp(logits))) - (1 - e) * logits[target] - e * mean(logits)`, without a one-hot tensor.
    The gradient is explicit too: `softmax - e / vocab_size`, minus `1 - e` at the target. The automatic gradient of
    the gather would cost up to a fifth of a training step (benchmarks/tried.md).

    Args:
        targets: int `(batch, target_len)`; an id outside the vocabulary gives NaN.
        logits: float `(batch, target_len, vocab_size)`.
        label_smoothing: The share `e` of probability that is spread over the vocabulary.

    Returns:
        float32 `(batch, target_len)`, in nats; float64 for float64 logits.

    >>> token_cross_entropy(np.array([[0]]), np.log([[[0.5, 0.25, 0.25]]])).numpy().round(4).tolist()
    [[0.6931]]
    """
    logits = ops.convert_to_tensor(logits)
    vocab_size = logits.shape[-1]
    shape = ops.shape(targets)
    ids = ops.reshape(ops.cast(targets, "int32"), (-1, 1))
    inside = in_vocabulary(ids, vocab_size)
    ids = ops.where(inside, ids, 0)
    rows = ops.expand_dims(ops.arange(ops.shape(ids)[0], dtype="int32"), 1)
    at_target = ops.concatenate([rows, ids], axis=1)

    @written_gradient
    def cross_entropy(flat):
        # The loss and its gradient share the softmax, which is TensorFlow's fastest pass over a vocabulary.
        p = ops.softmax(flat, axis=-1)
        log_total = ops.max(flat, axis=-1) - ops.log(ops.max(p, axis=-1))
        losses = log_total - (1.0 - label_smoothing) * ops.take_along_axis(flat, ids, axis=1)[:, 0]
        if label_smoothing:
            losses = losses - label_smoothing * ops.mean(flat, axis=-1)

        def gradient(upstream):
            spread = p - label_smoothing / vocab_size if label_smoothing else p
            spread = spread * ops.expand_dims(upstream, 1)
            hit = (1.0 - label_smoothing) * upstream
            return ops.scatter_update(spread, at_target, ops.take_along_axis(spread, ids, axis=1)[:, 0] - hit)

        return losses, gradient

    flat = ops.reshape(ops.cast(logits, at_least_float32(logits.dtype)), (-1, vocab_size))
    return ops.reshape(nan_unless(inside[:, 0], cross_entropy(flat)), shape)


def nan_unless(condition, values):
    """Replaces values by NaN where a condition is False; their gradient stays.

    NaN is computed: a constant one would alarm `tf.debugging.enable_check_numerics` in every model.

    >>> nan_unless(np.array([True, False]), np.array([2.0, 3.0])).numpy().tolist()
    [2.0, nan]
    """
    holds = ops.cast(condition, values.dtype)
    return values + ops.stop_gradient(holds / holds - 1)


def in_vocabulary(ids, vocab_size):
    """Returns which ids are in the vocabulary, bool of the shape of `ids`.

    >>> in_vocabulary(np.array([-100, 0, 7, 8]), 8).tolist()
    [False, True, True, False]
    """
    return (ids >= 0) & (ids < vocab_size)


def targets_and_weights(y_true, y_pred, sample_weight=None, pad_id=0):
    """Checks the arguments of a loss or a metric, and returns the targets and the weight of each token in a mean.

    The weight is 0 where the target is `pad_id`, and where Keras's implicit mask of `y_pred` is False. An implicit mask
    of another shape than `(batch, target_len)` is not read. For other tokens the weight is 1, or the sample weight.

    Args:
        y_true: int `(batch, target_len)` or `(batch, target_len, 1)`.
        y_pred: float `(batch, target_len, vocab_size)`.
        sample_weight: None, or weights `(batch,)`, `(batch, 1)`, `(batch, target_len)` or `(batch, target_len, 1)`.
        pad_id: int, the target id that does not count; it need not be an id of the vocabulary.

    Returns:
        targets: int32 `(batch, target_len)`, 0 where the weight is 0.
        weights: `(batch, target_len)`, float64 for float64 logits, else float32.

    Raises:
        ValueError: If a shape is another one, or a tensor is ragged; or, outside of a graph, if a target that counts is
            not in the vocabulary.
    """
    check_dense(y_true=y_true, y_pred=y_pred, sample_weight=sample_weight)
    mask = implicit_mask(y_pred)
    logits, targets = ops.convert_to_tensor(y_pred), ops.convert_to_tensor(y_true)
    rule = "`y_pred` must have shape `(batch, target_len, vocab_size)`."
    check(len(logits.shape) == 3, rule, **{"y_pred.shape": tuple(logits.shape)})
    tokens = tuple(logits.shape[:2])
    targets = ops.cast(_per_token(targets, "y_true", tokens, [tokens, (*tokens, 1)]), "int32")
    counts = ops.not_equal(targets, pad_id)
    if mask is not None and _fits(mask, tokens):
        counts = ops.logical_and(counts, mask)
    weights = ops.cast(counts, at_least_float32(logits.dtype))
    if sample_weight is not None:
        shapes = [tokens[:1], (tokens[0], 1), tokens, (*tokens, 1)]
        sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), weights.dtype)
        weights = weights * _per_token(sample_weight, "sample_weight", tokens, shapes)
    _check_targets(targets, weights, logits.shape[-1], pad_id)
    # Padding need not be an id of the vocabulary.
    return ops.where(weights == 0, 0, targets), weights


def weighted(values, weights):
    """Returns `values * weights`, and 0 where the weight is 0, even if the value is NaN or infinite.

    >>> weighted(np.array([2.0, np.nan]), np.array([3.0, 0.0])).numpy().tolist()
    [6.0, 0.0]
    """
    return ops.where(weights == 0, 0.0, values) * weights


def mean_of_tokens(values, weights):
    """Returns the weighted mean over the tokens of a batch, or of all replicas' batches under `tf.distribute`.

    Args:
        values: float `(batch, target_len)`.
        weights: float `(batch, target_len)`.

    Returns:
        A scalar; 0 where all weights are 0.

    >>> float(mean_of_tokens(np.array([[2.0, 4.0, 9.0]]), np.array([[1.0, 1.0, 0.0]])))
    3.0
    """
    total, count = ops.sum(weighted(values, weights)), ops.sum(weights)
    sums, replicas = native.summed_over_replicas(ops.stop_gradient(ops.stack([total, count])))
    if replicas == 1:
        return ops.divide_no_nan(total, count)
    # Keras adds up the gradients of the replicas. It reports `replicas` times their values, averaged over rows. So
    # the gradient must be this replica's share of the joint mean, and the value an equal part of it.
    share, mean = ops.divide_no_nan(total, sums[1]), ops.divide_no_nan(sums[0], sums[1])
    return share + ops.stop_gradient(mean / replicas - share)


def token_divergence(logits, others):
    """Returns how far two distributions of each token are apart: `(KL(p || q) + KL(q || p)) / 2`.

    Liang et al., 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2.1, equation 2.

    Args:
        logits: float `(batch, target_len, vocab_size)`.
        others: float `(batch, target_len, vocab_size)`.

    Returns:
        float32 `(batch, target_len)`, in nats; float64 for float64 logits.

    >>> token_divergence(np.log([[[0.5, 0.5]]]), np.log([[[0.25, 0.75]]])).numpy().round(4).tolist()
    [[0.1373]]
    """
    logits, others = (ops.cast(x, at_least_float32(logits.dtype)) for x in (logits, others))
    # log(p / q) is the difference of the logits plus a number that is the same for all ids. As `p - q` sums to 0, that
    # number does not count.
    return 0.5 * ops.sum((ops.softmax(logits) - ops.softmax(others)) * (logits - others), axis=-1)


def _check_targets(targets, weights, vocab_size, pad_id):
    """Raises `ValueError` for a target that counts and is not in the vocabulary, where the values are known."""
    ids = known_values(targets)
    if ids is None or vocab_size is None or in_vocabulary(ids, vocab_size).all():
        return
    weights = known_values(weights)
    if weights is not None:
        unknown = ids[(weights != 0) & ~in_vocabulary(ids, vocab_size)]
        rule = (
            f"Each id in `y_true` must be from 0 to {vocab_size - 1}, or be `pad_id`, which does not count."
        )
        check(unknown.size == 0, rule, y_true=sorted({int(i) for i in unknown}), pad_id=pad_id)


def _per_token(x, name, tokens, shapes):
    """Gives `x`, which must have one of the shapes, the shape `(batch, target_len)` or `(batch, 1)`."""
    axes = {1: "`(batch,)`", 2: "`(batch, target_len)`", 3: "`(batch, target_len, 1)`"}
    allowed = [axes[rank] for rank in sorted({len(shape) for shape in shapes})]
    check(
        any(_fits(x, shape) for shape in shapes),
        f"`{name}` must have shape {', '.join(allowed[:-1])} or {allowed[-1]}, where `(batch, target_len)` is "
        f"{tokens} from `y_pred`.",
        **{f"{name}.shape": tuple(x.shape)},
    )
    if len(x.shape) == 1:
        return ops.expand_dims(x, 1)
    return ops.squeeze(x, -1) if len(x.shape) == 3 else x


def _fits(x, shape):
    """Returns whether a tensor has a shape. A size that is not known yet fits."""
    return len(x.shape) == len(shape) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(x.shape, shape, strict=True)
    )


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Mean label-smoothed cross-entropy over the real tokens of a batch.

    `sum(weight * cross_entropy) / sum(weight)` over the tokens, with the smoothing of "Attention Is All You Need",
    section 5.4. The weight is 0 for padding and 1, or the sample weight, for other tokens. So a token counts the same
    in a full row and in a padded one. A batch that is all padding gives 0. Under `tf.distribute` the tokens of all
    replicas count: the gradients are those of the joint batch.

    Padding is where the target is `pad_id`, and where Keras's implicit mask of the logits is False: `Embedding` and
    `TokenEmbedding` make that mask, and layers pass it on. An implicit mask of another shape is not read. Where the
    padding of the targets is also a class, as in many tagging data sets, pass `pad_id=-1`: then the mask alone decides.
    For labels of Hugging Face and PyTorch, which mark what does not count with -100, pass `pad_id=-100`.

    The loss is float32, or float64 for float64 logits, whatever the dtype policy. A target that counts and is not in
    the vocabulary raises a `ValueError`. In a graph, such as that of `fit`, the values are not known early: there the
    loss is NaN.

    For weights of classes, pass `sample_weight=np.take(class_weights, y_true, mode="clip")` to `fit`, or let the data
    set give it as its third item. Do not pass `class_weight`: Keras reads labels `(batch, target_len)` as one-hot
    vectors, and so gives each row one weight, that of the position of its largest id.

    Args:
        label_smoothing: Share of probability that is spread over the vocabulary, in `[0, 1)`; the paper uses 0.1.
        pad_id: int, the target id that does not count; it need not be an id of the vocabulary.
        name: Name of the loss.
        **kwargs: Arguments of `keras.losses.Loss`. With `reduction="sum"` the loss is the weighted sum, with "none"
            the weighted cross-entropy of each token, `(batch, target_len)`.

    Call arguments:
        y_true: int `(batch, target_len)` or `(batch, target_len, 1)`.
        y_pred: float `(batch, target_len, vocab_size)`, logits.
        sample_weight: None, or weights `(batch,)`, `(batch, 1)`, `(batch, target_len)` or `(batch, target_len, 1)`.

    Returns:
        A scalar in nats.

    Raises:
        ValueError: If `label_smoothing` is outside `[0, 1)`, or a call argument has another shape or is ragged; or,
            outside of a graph, if a target that counts is not in the vocabulary.

    >>> loss = MaskedCrossentropy()
    >>> round(float(loss([[1, 2, 0]], np.zeros((1, 3, 8), "float32"))), 4)  # log(8) for each real token
    2.0794
    """

    def __init__(self, label_smoothing=0.0, pad_id=0, name="masked_crossentropy", **kwargs):
        check_share(label_smoothing=label_smoothing)
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Keras would divide by the number of positions, with padding.
        warn_of_probabilities(y_pred)
        targets, weights = targets_and_weights(y_true, y_pred, sample_weight, self.pad_id)
        losses = self.call(targets, y_pred)
        if self.reduction == "sum":
            return ops.sum(weighted(losses, weights))
        if self.reduction in ("none", None):
            return weighted(losses, weights)
        return mean_of_tokens(losses, weights)

    def call(self, y_true, y_pred):
        """Returns the cross-entropy of each token, `(batch, target_len)`; the arguments are those of the loss."""
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing, "pad_id": self.pad_id}
