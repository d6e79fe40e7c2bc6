"""Losses that teach a model which texts have near vectors."""

import keras
from keras import ops

from keras_transformer.checks import check, check_positive, check_range
from keras_transformer.execution.ops import at_least_float32


class _OfGroups(keras.losses.Loss):
    """Base class of losses over groups of vectors, `(batch, parts, width)`."""

    # The smallest and the largest number of vectors in a group; None for any.
    parts = (2, None)

    def call(self, y_true, y_pred):
        y_pred = ops.convert_to_tensor(y_pred)
        least, most = self.parts
        fits = len(y_pred.shape) == 3 and least <= y_pred.shape[1] <= (most or y_pred.shape[1])
        number = f"{least} parts" if most == least else f"{least} parts or more"
        rule = (
            f"`y_pred` of {type(self).__name__} must be groups of vectors, (batch, parts, width) of {number}."
        )
        check(fits, rule, shape=tuple(y_pred.shape))
        return self.of_groups(y_true, ops.cast(y_pred, at_least_float32(y_pred.dtype)))

    def of_groups(self, y_true, vectors):
        """Returns the loss of each group, `(batch,)`."""
        raise NotImplementedError


@keras.saving.register_keras_serializable("keras_transformer")
class InBatchNegatives(_OfGroups):
    """Each first text must find its second text among the other texts of the batch.

    `-log(exp(scale * cos(a_i, b_i)) / sum_j(exp(scale * cos(a_i, b_j))))`, where the `b_j` are the second texts of all
    rows, and the further texts of all rows, which are hard negatives. Henderson et al., 2017, "Efficient Natural
    Language Response Suggestion for Smart Reply", section 4.4. Each text may be right for one row of a batch only.

    Args:
        scale: Factor of the cosines; the inverse of the temperature.
        symmetric: Whether the second texts must find the first ones too; the loss is then the mean of both.
        **kwargs: Keras's `name`, `reduction`, `dtype`.

    Call arguments:
        y_true: It is not read.
        y_pred: float `(batch, parts, width)`: the vectors of a text, of its match, and of hard negatives.

    Returns:
        A scalar, in nats.

    Raises:
        ValueError: If `scale` is not positive, or there are fewer than two parts.

    >>> same = np.eye(2)[:, None].repeat(2, axis=1)  # two pairs of equal texts, at right angles
    >>> round(float(InBatchNegatives(scale=1.0)(np.zeros(2), same)), 4)  # log(1 + exp(-1))
    0.3133
    """

    def __init__(self, scale=20.0, symmetric=False, name="in_batch_negatives", **kwargs):
        super().__init__(name=name, **kwargs)
        check_range(0, above=True, scale=scale)
        self.scale, self.symmetric = scale, symmetric

    def of_groups(self, y_true, vectors):
        cosines = self.scale * cosines_of_groups(vectors)
        losses = _of_diagonal(cosines)
        if self.symmetric:
            back = ops.transpose(cosines[:, : ops.shape(cosines)[0]])
            losses = (losses + _of_diagonal(back)) / 2.0
        return losses

    def get_config(self):
        return {**super().get_config(), "scale": self.scale, "symmetric": self.symmetric}


def cosines_of_groups(vectors):
    """Returns the cosines of each first vector and all other vectors: the second ones, then the third ones.

    Args:
        vectors: float `(batch, parts, width)`.

    Returns:
        `(batch, batch * (parts - 1))`; the match of a row has the number of the row.
    """
    vectors = ops.normalize(vectors, axis=-1)
    others = ops.reshape(ops.swapaxes(vectors[:, 1:], 0, 1), (-1, vectors.shape[-1]))
    return ops.matmul(vectors[:, 0], ops.transpose(others))


def _of_diagonal(logits):
    """Returns the cross-entropy of each row whose right column has the number of the row."""
    rows = ops.arange(ops.shape(logits)[0], dtype="int32")
    return keras.losses.sparse_categorical_crossentropy(rows, logits, from_logits=True)


@keras.saving.register_keras_serializable("keras_transformer")
class TripletLoss(_OfGroups):
    """A text must be nearer to its match than to a wrong text: `max(0, |a - b| - |a - c| + margin)`.

    Schroff et al., 2015, "FaceNet", section 3.1, with distances that are not squared (Reimers and Gurevych, 2019,
    "Sentence-BERT", section 3).

    Args:
        margin: By how much the wrong text must be farther.
        **kwargs: Keras's `name`, `reduction`, `dtype`.

    Call arguments:
        y_true: It is not read.
        y_pred: float `(batch, 3, width)`: the vectors of a text, of its match and of a wrong text.

    Returns:
        A scalar.

    Raises:
        ValueError: If `margin` is negative, or there are not three parts.

    >>> float(TripletLoss(margin=1.0)(np.zeros(1), np.array([[[0.0], [2.0], [2.5]]])))
    0.5
    """

    parts = (3, 3)

    def __init__(self, margin=5.0, name="triplet", **kwargs):
        super().__init__(name=name, **kwargs)
        check_range(0, margin=margin)
        self.margin = margin

    def of_groups(self, y_true, vectors):
        right, wrong = (_distance(vectors[:, 0], vectors[:, i]) for i in (1, 2))
        return ops.relu(right - wrong + self.margin)

    def get_config(self):
        return {**super().get_config(), "margin": self.margin}


def _distance(first, second):
    """Returns the distance of vectors, whose gradient is finite where they are equal."""
    square = ops.sum(ops.square(first - second), axis=-1)
    return ops.where(square > 0, ops.sqrt(ops.where(square > 0, square, 1.0)), 0.0)


@keras.saving.register_keras_serializable("keras_transformer")
class CosineLoss(_OfGroups):
    """The cosine of two texts must be their score: `(cos(a, b) - score) ** 2` (Reimers and Gurevych, 2019, section 3).

    Args:
        **kwargs: Keras's `name`, `reduction`, `dtype`.

    Call arguments:
        y_true: float `(batch,)`, the scores, from -1 to 1.
        y_pred: float `(batch, 2, width)`, the vectors of both texts.

    Returns:
        A scalar.

    Raises:
        ValueError: If there are not two parts.

    >>> float(CosineLoss()(np.array([0.5]), np.array([[[0.0, 1.0], [1.0, 0.0]]])))
    0.25
    """

    parts = (2, 2)

    def __init__(self, name="cosine", **kwargs):
        super().__init__(name=name, **kwargs)

    def of_groups(self, y_true, vectors):
        first, second = ops.unstack(ops.normalize(vectors, axis=-1), 2, axis=1)
        scores = ops.reshape(ops.cast(y_true, vectors.dtype), (-1,))
        return ops.square(ops.sum(first * second, axis=-1) - scores)


@keras.saving.register_keras_serializable("keras_transformer")
class Matryoshka(_OfGroups):
    """The first numbers of a vector must be a good vector too: the sum of a loss over several widths.

    Kusupati et al., 2022, "Matryoshka Representation Learning", section 3. An `Embedder(dimensions=)` then makes
    shorter vectors. sentence-transformers also gives each shorter vector the length 1, which changes a `TripletLoss`
    alone.

    Args:
        loss: An `InBatchNegatives`, a `TripletLoss` or a `CosineLoss`.
        dimensions: List of widths, int.
        weights: The weight of each width, a list; 1 each when None.
        **kwargs: Keras's `name`, `reduction`, `dtype`.

    Call arguments:
        y_true: As `loss` reads it.
        y_pred: float `(batch, parts, width)`.

    Returns:
        A scalar.

    Raises:
        ValueError: If `loss` is none of these losses, there are no widths, they are larger than the vectors, or not as
            many as `weights`.

    >>> vectors = np.array([[[3.0, 4.0, 0.0], [3.0, -4.0, 0.0]]])
    >>> float(Matryoshka(CosineLoss(), [1, 3])(np.array([1.0]), vectors)).__round__(4)  # 0 and (-7/25 - 1) ** 2
    1.6384
    """

    def __init__(self, loss, dimensions, weights=None, name="matryoshka", **kwargs):
        super().__init__(name=name, **kwargs)
        loss = keras.saving.deserialize_keras_object(loss) if isinstance(loss, dict) else loss
        rule = "`loss` must be an `InBatchNegatives`, a `TripletLoss` or a `CosineLoss`."
        check(isinstance(loss, _OfGroups) and not isinstance(loss, Matryoshka), rule, loss=loss)
        listed = isinstance(dimensions, (list, tuple)) and len(dimensions) > 0
        check(listed, "`dimensions` must be a list of widths.", dimensions=dimensions)
        for size in dimensions:
            check_positive(dimensions=size)
        fits = weights is None or len(weights) == len(dimensions)
        check(fits, "`weights` must have a number for each width.", weights=weights, dimensions=dimensions)
        self.loss, self.dimensions, self.weights = loss, list(dimensions), weights
        self.parts = loss.parts

    def of_groups(self, y_true, vectors):
        rule, width = "`dimensions` must be at most the width of the vectors.", vectors.shape[-1]
        check(max(self.dimensions) <= width, rule, dimensions=self.dimensions, width=width)
        weights = self.weights or [1.0] * len(self.dimensions)
        parts = zip(self.dimensions, weights, strict=True)
        return sum(weight * self.loss.of_groups(y_true, vectors[..., :size]) for size, weight in parts)

    def get_config(self):
        own = {"dimensions": self.dimensions, "weights": self.weights}
        return {**super().get_config(), "loss": keras.saving.serialize_keras_object(self.loss), **own}
