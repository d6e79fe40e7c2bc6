"""Heads: layers that read the states of an encoder.

A model calls each as `head(states, pooled, training=training)`: with the states of all positions, `(batch, length,
d_model)`, and with the pooler's vector of the whole text, `(batch, d_model)`, or None. A pooler whose `call` has an
argument `padding_mask` gets the mask of real tokens, bool `(batch, length)`.
"""

import keras

from keras_transformer.checks import check, check_choice, check_labels, check_positive
from keras_transformer.execution import ops
from keras_transformer.execution.ops import at_least_float32
from keras_transformer.layers import Dropout, Pooling
from keras_transformer.layers.base import Configured, ensure_built
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.residual import NORMS
from keras_transformer.layers.rules import RULES

# The pooling of a model whose pooler is a `ProjectedPooler`.
PROJECTED = "projected"
INITIALIZER = {"class_name": "TruncatedNormal", "config": {"stddev": 0.02}}  # BERT's


class Head(Configured, keras.layers.Layer):
    """Base class of all heads.

    Attributes:
        scores_ids: Whether the model multiplies the head's output with the token embedding, to score every id.
        reads_pooled: Whether it reads the pooler's vector. `with_head` leaves a pooler out that no head reads.
    """

    scores_ids = False
    reads_pooled = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, states, mask=None):
        return None

    def build(self, states_shape, pooled_shape=None):
        """Creates the weights; `states_shape` is `(batch, length, d_model)`."""

    def _add_dense(self, name, features, d_model, activation=None, use_bias=True):
        """Makes and builds a dense layer over vectors of `d_model`."""
        dense = keras.layers.Dense(
            features,
            activation,
            use_bias,
            kernel_initializer=keras.initializers.get(INITIALIZER),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, d_model))
        return dense

    def _add_norm(self, kind, epsilon, width):
        """Makes and builds a norm over vectors; None for none."""
        if kind is None:
            return None
        norm = NORMS[kind](epsilon=epsilon, dtype=self.dtype_policy, name="norm")
        norm.build((None, width))
        return norm


@keras.saving.register_keras_serializable("keras_transformer")
class Pooler(Head):
    """`tanh(W h + b)` of the first position's state, the vector of a text (Devlin et al., 2019, "BERT", section 3).

    Pass it to a model as its `pooler`; as its `head` the vectors are the model's output.

    Args:
        activation: Name or function of the activation: "tanh" as in BERT, "gelu" in ELECTRA, "relu" in DistilBERT.
        dropout: Share of the pooled state dropped in training.
        use_bias: Whether there is `b`.
        norm: Norm of the result, one of `layers.residual.NORMS`, such as "layer_without_bias" in ModernBERT; None for
            none.
        layer_norm_epsilon: Number added in the norm.
        pooling: A pooling of `layers.Pooling`: "first" for the state of the first position, "last" for that of the last
            real token, "mean", "max" or "attention" over the states of the real tokens.

    Call arguments:
        states: `(batch, length, d_model)`.
        pooled: Not read.
        training: Whether to drop.
        padding_mask: bool `(batch, length)`, True where a token is real; all are when None. "first" does not read it.

    Returns:
        `(batch, d_model)`.

    Raises:
        ValueError: If `dropout` is not in [0, 1), or `norm` or `pooling` is unknown.

    >>> Pooler()(np.ones((2, 3, 4))).shape
    TensorShape([2, 4])
    """

    def __init__(
        self,
        activation="tanh",
        dropout=0.0,
        *,
        use_bias=True,
        norm=None,
        layer_norm_epsilon=1e-6,
        pooling="first",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice([None, *NORMS], norm=norm)
        self.activation = get_activation(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.norm_kind = norm
        self.layer_norm_epsilon = layer_norm_epsilon
        self.pooling = pooling
        self.pool = Pooling(pooling, dtype=self.dtype_policy, name="pool")
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, states_shape, pooled_shape=None):
        ensure_built(self.pool, states_shape)
        width = states_shape[-1]
        self.dense = self._add_dense("dense", width, width, self.activation, self.use_bias)
        self.norm = self._add_norm(self.norm_kind, self.layer_norm_epsilon, width)

    def call(self, states, pooled=None, training=None, padding_mask=None):
        pooled = self.pool(states, padding_mask=padding_mask)
        y = self.dense(self.drop(pooled, training=training))
        return y if self.norm is None else self.norm(y)


def _check_widths(units):
    """Raises `ValueError` for a width that is not a positive integer."""
    for width in units:
        check_positive(units=width)


@keras.saving.register_keras_serializable("keras_transformer")
class ProjectedPooler(Head):
    """Dense layers, one after another, over the mean of the tokens' states or over the first one.

    The vector of a text in a model of sentence-transformers that ends with Dense modules (LaBSE, EmbeddingGemma).

    Args:
        units: Widths of the dense layers, a list of int.
        activations: Name or function of the activation of each layer, a list; "linear" for none.
        use_bias: Whether each layer has a bias, a list of bool.
        pooling: A pooling of `layers.Pooling`: "mean", "max" or "attention" over the states of the real tokens, "first"
            for the state of the first position, "last" for that of the last real token.

    Call arguments:
        states: `(batch, length, d_model)`.
        pooled: Not read.
        training: Not read.
        padding_mask: bool `(batch, length)`, True where a token is real; all are when None. "first" does not read it.

    Returns:
        `(batch, units[-1])`.

    Raises:
        ValueError: If a width is not positive, the lists differ in length or are empty, or `pooling` is unknown.

    >>> ProjectedPooler([5, 7], ["tanh", "linear"], [True, False])(np.ones((2, 3, 4))).shape
    TensorShape([2, 7])
    """

    rules = RULES | {"units": _check_widths}

    def __init__(self, units, activations, use_bias, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        rule = "`activations` and `use_bias` must have a value for each of `units`, of which there is one at least."
        lengths = {"units": units, "activations": activations, "use_bias": use_bias}
        check(units and len(units) == len(activations) == len(use_bias), rule, **lengths)
        self.units = list(units)
        self.activations = [get_activation(activation) for activation in activations]
        self.use_bias = list(use_bias)
        self.pooling = pooling
        self.pool = Pooling(pooling, dtype=self.dtype_policy, name="pool")

    def build(self, states_shape, pooled_shape=None):
        ensure_built(self.pool, states_shape)
        widths = [states_shape[-1], *self.units]
        self.layers = [
            self._add_dense(f"projection_{i}", units, width, activation, use_bias)
            for i, (width, units, activation, use_bias) in enumerate(
                zip(widths, self.units, self.activations, self.use_bias, strict=False)
            )
        ]

    def call(self, states, pooled=None, training=None, padding_mask=None):
        x = self.pool(states, padding_mask=padding_mask)
        for layer in self.layers:
            x = layer(x)
        return x


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedLanguageHead(Head):
    """`norm(activation(W h + b))` at each position, which the model multiplies with the token embedding.

    Devlin et al., 2019, "BERT", section 3.1, task 1; the layer before the scores is that of the published code.

    Args:
        activation: Name or function of the activation: one of Keras's, or "gelu_tanh".
        layer_norm_epsilon: Number added to the variance.
        width: Width of the token embedding; `d_model` when None. ELECTRA's generators have a smaller one.
        use_bias: Whether there is `b`.
        norm: One of `layers.residual.NORMS`: "layer", or "layer_without_bias" as in ModernBERT.

    Call arguments:
        states: `(batch, length, d_model)`; every position is read.
        pooled: Not read.
        training: Not read.

    Returns:
        `(batch, length, width)`; the model's output is then float32 `(batch, length, vocab_size)`, with a bias for
        each id.

    >>> MaskedLanguageHead()(np.ones((2, 3, 4))).shape
    TensorShape([2, 3, 4])
    """

    scores_ids = True
    reads_pooled = False

    def __init__(
        self,
        activation="gelu",
        layer_norm_epsilon=1e-12,
        width=None,
        *,
        use_bias=True,
        norm="layer",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice([*NORMS], norm=norm)
        self.width = width
        self.use_bias = use_bias
        self.norm_kind = norm
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, states_shape, pooled_shape=None):
        width = self.width or states_shape[-1]
        self.dense = self._add_dense("dense", width, states_shape[-1], use_bias=self.use_bias)
        self.norm = self._add_norm(self.norm_kind, self.layer_norm_epsilon, width)

    def call(self, states, pooled=None, training=None):
        return self.norm(self.activation(self.dense(states)))


class _Scores(Head):
    """Base class of the heads that score classes: dropout, then a linear layer."""

    def __init__(self, num_classes, dropout=0.1, labels=None, **kwargs):
        super().__init__(**kwargs)
        labels = None if labels is None else list(labels)
        if labels is not None:
            check_labels(num_classes, labels=labels)
        self.num_classes = num_classes
        self.dropout = dropout
        self.labels = labels
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, states_shape, pooled_shape=None):
        read = pooled_shape if self.reads_pooled and pooled_shape else states_shape
        self.dense = self._add_dense("dense", self.num_classes, read[-1])

    def _scores(self, vectors, training):
        scores = self.dense(self.drop(vectors, training=training))
        return ops.cast(scores, at_least_float32(scores.dtype))


@keras.saving.register_keras_serializable("keras_transformer")
class ClassificationHead(_Scores):
    """A score for each class of a text or a pair of texts (Devlin et al., 2019, "BERT", section 4.1).

    Sentiment, entailment of the second text by the first; with one class a number, such as how similar they are.

    Args:
        num_classes: Number of classes.
        dropout: Share of the linear layer's input dropped in training.
        labels: Names of the classes, a list of str, two of which may be the same; or None.
        multi_label: Whether a text may have several of the classes at once. The probability of each is then the sigmoid
            of its logit, not a softmax over all; train with `BinaryCrossentropy(from_logits=True)`.

    Call arguments:
        states: `(batch, length, d_model)`; the first position, `[CLS]`, is read where there is no pooler.
        pooled: `(batch, d_model)`, the pooler's vector of the text, or None.
        training: Whether to drop.

    Returns:
        Logits, float32 `(batch, num_classes)`.

    Raises:
        ValueError: If an argument is out of range, or `labels` are not `num_classes` str.

    >>> ClassificationHead(5)(np.ones((2, 3, 4))).shape
    TensorShape([2, 5])
    """

    def __init__(self, num_classes, dropout=0.1, labels=None, multi_label=False, **kwargs):
        super().__init__(num_classes, dropout, labels, **kwargs)
        self.multi_label = bool(multi_label)

    def call(self, states, pooled=None, training=None):
        return self._scores(states[:, 0] if pooled is None else pooled, training)


@keras.saving.register_keras_serializable("keras_transformer")
class MultipleChoiceHead(_Scores):
    """One score for each text. Of several texts, each a question with one of its answers, the highest is the choice.

    Devlin et al., 2019, "BERT", section 4.4.

    Args:
        dropout: Share of the linear layer's input dropped in training.

    Call arguments:
        states: `(batch, length, d_model)`; the first position, `[CLS]`, is read where there is no pooler.
        pooled: `(batch, d_model)`, the pooler's vector of the text, or None.
        training: Whether to drop.

    Returns:
        float32 `(batch,)`; for texts `(batch, choices, length)` the model gives logits `(batch, choices)`.

    Raises:
        ValueError: If `dropout` is not in [0, 1).

    >>> MultipleChoiceHead()(np.ones((2, 3, 4))).shape
    TensorShape([2])
    """

    def __init__(self, dropout=0.1, **kwargs):
        super().__init__(1, dropout, **kwargs)

    def call(self, states, pooled=None, training=None):
        return self._scores(states[:, 0] if pooled is None else pooled, training)[:, 0]


@keras.saving.register_keras_serializable("keras_transformer")
class TaggingHead(_Scores):
    """A score for each class of each token, such as names of people and places.

    Devlin et al., 2019, "BERT", section 5.3.

    Args:
        num_classes: Number of classes.
        dropout: Share of the linear layer's input dropped in training.
        labels: Names of the classes, a list of str, two of which may be the same; or None.

    Call arguments:
        states: `(batch, length, d_model)`; every position is read.
        pooled: Not read.
        training: Whether to drop.

    Returns:
        Logits, float32 `(batch, length, num_classes)`.

    Raises:
        ValueError: If an argument is out of range, or `labels` are not `num_classes` str.

    >>> TaggingHead(5)(np.ones((2, 3, 4))).shape
    TensorShape([2, 3, 5])
    """

    reads_pooled = False

    def call(self, states, pooled=None, training=None):
        return self._scores(states, training)


@keras.saving.register_keras_serializable("keras_transformer")
class SpanHead(TaggingHead):
    """Two scores for each token: that the answer to a question starts there, and that it ends there.

    Devlin et al., 2019, "BERT", section 4.2.

    Args:
        dropout: Share of the linear layer's input dropped in training; 0 in BERT.

    Call arguments:
        states: `(batch, length, d_model)`; every position is read.
        pooled: Not read.
        training: Whether to drop.

    Returns:
        Logits, float32 `(batch, length, 2)`: of the start, then of the end.

    Raises:
        ValueError: If `dropout` is not in [0, 1).

    >>> SpanHead()(np.ones((2, 3, 4))).shape
    TensorShape([2, 3, 2])
    """

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(2, dropout, **kwargs)
