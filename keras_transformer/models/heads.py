"""Heads: layers that read the states of an encoder.

A model calls each as `head(states, pooled, training=training)`: with the states of all positions, `(batch, length,
d_model)`, and with the pooler's vector of the whole text, `(batch, d_model)`, or None.
"""

import keras
from keras import ops

from keras_transformer.backend import at_least_float32
from keras_transformer.checks import check_labels, check_positive, check_share
from keras_transformer.layers import Dropout, LayerNormalization
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.sublayers import Configured

INITIALIZER = {"class_name": "TruncatedNormal", "config": {"stddev": 0.02}}  # BERT's


class Head(Configured, keras.layers.Layer):
    """Base class of all heads.

    Attributes:
        scores_ids: Whether the model multiplies the head's output with the token embedding, to score every id.
    """

    scores_ids = False

    def build(self, states_shape, pooled_shape=None):
        """Creates the weights; `states_shape` is `(batch, length, d_model)`."""

    def _add_dense(self, name, features, d_model, activation=None):
        """Makes and builds a dense layer over vectors of `d_model`."""
        dense = keras.layers.Dense(
            features,
            activation,
            kernel_initializer=keras.initializers.get(INITIALIZER),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, d_model))
        return dense


@keras.saving.register_keras_serializable("keras_transformer")
class Pooler(Head):
    """`tanh(W h + b)` of the first position's state, the vector of a text (Devlin et al., 2019, "BERT", section 3).

    Pass it to a model as its `pooler`; as its `head` the vectors are the model's output.

    Args:
        activation: Name or function of the activation: "tanh" as in BERT, "gelu" in ELECTRA, "relu" in DistilBERT.
        dropout: Share of the first position's state dropped in training.

    Call arguments:
        states: `(batch, length, d_model)`; the first position, `[CLS]`, is read.
        pooled: Not read.
        training: Whether to drop.

    Returns:
        `(batch, d_model)`.

    Raises:
        ValueError: If `dropout` is not in [0, 1).

    >>> Pooler()(np.ones((2, 3, 4))).shape
    TensorShape([2, 4])
    """

    def __init__(self, activation="tanh", dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        check_share(dropout=dropout)
        self.activation = get_activation(activation)
        self.dropout = dropout
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, states_shape, pooled_shape=None):
        self.dense = self._add_dense("dense", states_shape[-1], states_shape[-1], self.activation)

    def call(self, states, pooled=None, training=None):
        return self.dense(self.drop(states[:, 0], training=training))


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedLanguageHead(Head):
    """`norm(activation(W h + b))` at each position, which the model multiplies with the token embedding.

    Devlin et al., 2019, "BERT", section 3.1, task 1; the layer before the scores is that of the published code.

    Args:
        activation: Name or function of the activation: one of Keras's, or "gelu_tanh".
        layer_norm_epsilon: Number added to the variance.
        width: Width of the token embedding; `d_model` when None. ELECTRA's generators have a smaller one.

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

    def __init__(self, activation="gelu", layer_norm_epsilon=1e-12, width=None, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, states_shape, pooled_shape=None):
        width = self.width or states_shape[-1]
        self.dense = self._add_dense("dense", width, states_shape[-1])
        self.norm = LayerNormalization(epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name="norm")
        self.norm.build((*states_shape[:-1], width))

    def call(self, states, pooled=None, training=None):
        return self.norm(self.activation(self.dense(states)))


class _Scores(Head):
    """Base class of the heads that score classes: dropout, then a linear layer."""

    def __init__(self, num_classes, dropout=0.1, labels=None, **kwargs):
        super().__init__(**kwargs)
        check_positive(num_classes=num_classes)
        check_share(dropout=dropout)
        labels = None if labels is None else list(labels)
        if labels is not None:
            check_labels(num_classes, labels=labels)
        self.num_classes = num_classes
        self.dropout = dropout
        self.labels = labels
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, states_shape, pooled_shape=None):
        self.dense = self._add_dense("dense", self.num_classes, states_shape[-1])

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

    derived = ("num_classes", "labels")

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

    derived = ("num_classes", "labels")

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(2, dropout, **kwargs)
