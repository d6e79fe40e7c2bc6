"""Scores of labels: precision, recall and F1 of each, of texts and of the entities among words."""

from typing import NamedTuple

import numpy as np

from keras_transformer.checks import check
from keras_transformer.entity_labels import BEGINS, ENDS, OUTSIDE, parts_of_label

HEADER = ("", "precision", "recall", "F1", "number")


class LabelScores(NamedTuple):
    """Scores of each label, and of all together.

    Attributes:
        labels: The labels, a list of str: classes, or the kinds of entities.
        precision: Share of the predictions of each label that are right, float `(labels,)`.
        recall: Share of each label that was found, float `(labels,)`.
        f1: Harmonic mean of both, float `(labels,)`.
        support: How often each label is right, int `(labels,)`.
        micro: Precision, recall and F1 over all labels together, three floats; of classes each is the accuracy.
        accuracy: Share of the texts or words whose label is right, a float.
        classes: The labels of texts or words, a list of str.
        confusion: How often each class (row) was predicted as each class (column), int `(classes, classes)`.
    """

    labels: list
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray
    micro: tuple
    accuracy: float
    classes: list
    confusion: np.ndarray

    @property
    def macro_f1(self):
        """The mean of the labels' F1, a float."""
        return float(np.mean(self.f1)) if self.labels else 0.0

    def lines(self):
        """Returns the scores as a table, a list of str."""
        rows = [HEADER]
        columns = zip(self.labels, self.precision, self.recall, self.f1, self.support, strict=True)
        rows += [(label, *(f"{share:.4f}" for share in shares), str(n)) for label, *shares, n in columns]
        rows.append(("all", *(f"{share:.4f}" for share in self.micro), str(int(self.support.sum()))))
        width = max(len(row[0]) for row in rows)
        table = [f"{row[0]:{width}}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows]
        return [*table, f"accuracy {self.accuracy:.4f}  macro F1 {self.macro_f1:.4f}"]


def label_scores(references, predictions):
    """Computes the scores of classes.

    Args:
        references: List of str, the right labels.
        predictions: List of str, the labels that a model gave.

    Returns:
        A `LabelScores`.

    Raises:
        ValueError: If the lists are empty, or differ in length.

    >>> scores = label_scores(["good", "good", "bad", "bad"], ["good", "bad", "bad", "bad"])
    >>> scores.labels, scores.f1.round(3).tolist(), scores.confusion.tolist()
    (['bad', 'good'], [0.8, 0.667], [[2, 0], [1, 1]])
    """
    classes, confusion = _confusion(references, predictions)
    counts = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    return _scores(classes, *counts, classes, confusion)


def entity_scores(references, predictions):
    """Computes the scores of entities: one is found if its label, its first and its last word are right.

    The numbers are those of seqeval (`classification_report`) and of the task of CoNLL-2003. Labels may begin with "B-"
    and "I-", with "E-" or "L-" for the last word of an entity, and with "S-" or "U-" for its only word. Labels without
    them are one entity where they follow one another. "O" is in no entity.

    Args:
        references: List of lists of str, the right labels of the words of each sentence.
        predictions: List of lists of str, the labels that a model gave.

    Returns:
        A `LabelScores`.

    Raises:
        ValueError: If the lists are empty, or differ in length.

    >>> scores = entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]])
    >>> scores.labels, scores.f1.tolist(), scores.micro
    (['LOC', 'PER'], [1.0, 0.0], (0.5, 0.5, 0.5))
    """
    lengths = [[len(labels) for labels in side] for side in (references, predictions)]
    rule = "`references` and `predictions` must have the same sentences."
    check(lengths[0] == lengths[1], rule, words=tuple(map(sum, lengths)))
    words = ([label for labels in side for label in labels] for side in (references, predictions))
    classes, confusion = _confusion(*words)
    right, given = (
        {(i, *entity) for i, labels in enumerate(side) for entity in _entities(labels)}
        for side in (references, predictions)
    )
    labels = sorted({kind for _, kind, _, _ in right | given})
    counts = (
        [sum(each[1] == label for each in side) for label in labels] for side in (right & given, given, right)
    )
    return _scores(labels, *(np.array(each, int) for each in counts), classes, confusion)


def _entities(labels):
    """Yields the kind, the first word and the word after the last one of each entity of a sentence."""
    kind, begin, before = None, 0, OUTSIDE
    for i, label in enumerate([*labels, OUTSIDE]):
        part, kind_here = parts_of_label(label)
        starts = part in BEGINS or before in ENDS or kind_here != kind
        if kind is not None and starts:
            yield kind, begin, i
        if starts:
            begin = i
        kind, before = kind_here, part


def _confusion(references, predictions):
    """Returns the labels of both lists, sorted, and how often each is predicted as each."""
    references, predictions = list(references), list(predictions)
    rule = "`references` and `predictions` must have as many labels, one at least."
    sizes = len(references), len(predictions)
    check(sizes[0] == sizes[1] > 0, rule, labels=sizes)
    classes = sorted({*references, *predictions})
    number = {label: i for i, label in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), int)
    np.add.at(confusion, tuple([number[label] for label in side] for side in (references, predictions)), 1)
    return classes, confusion


def _scores(labels, right, given, support, classes, confusion):
    precision, recall = _share(right, given), _share(right, support)
    sums = [_share(right.sum(), each.sum()) for each in (given, support)]
    micro = *(float(each) for each in sums), float(_share(2 * right.sum(), given.sum() + support.sum()))
    accuracy = float(np.trace(confusion) / confusion.sum())
    f1 = _share(2 * right, given + support)
    return LabelScores(labels, precision, recall, f1, support, micro, accuracy, classes, confusion)


def _share(part, whole):
    """Returns the share of a part, 0 of nothing."""
    return part / np.maximum(1, whole)
