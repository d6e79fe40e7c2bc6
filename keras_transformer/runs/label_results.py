"""How right a classifier or a tagger is on rows with known labels."""

import numpy as np

from keras_transformer.checks import check
from keras_transformer.data import read_conll, read_table
from keras_transformer.entity_labels import OUTSIDE
from keras_transformer.runs.tuning_rows import likeliest, packed_words
from keras_transformer.serving import Classifier, Tagger
from keras_transformer.training.label_scores import entity_scores, label_scores


def evaluate_labels(servable, rows, batch_size=32, verbose=False):
    """Compares the answers of a classifier or a tagger with labels that are right.

    Args:
        servable: A `Classifier` or a `Tagger`.
        rows: For a classifier tuples of a text, or of two texts, and the label. For a tagger pairs of the words of a
            sentence and their labels: the first piece of a word has its label, and a word that is cut off has "O".
        batch_size: Number of rows at once.
        verbose: Whether to show a progress bar on stderr.

    Returns:
        The `LabelScores`, of classes or of entities.

    Raises:
        ValueError: If there are no rows, or `servable` is another one, or gives a text several labels.
    """
    rule = "`servable` must be a `Classifier` or a `Tagger`."
    check(isinstance(servable, (Classifier, Tagger)), rule, servable=type(servable).__name__)
    several = isinstance(servable, Classifier) and servable.model.head.multi_label
    rule = "A classifier with `multi_label` cannot be evaluated: a row has one label."
    check(not several, rule, multi_label=True)
    check(len(rows) > 0, "`rows` must have one row at least.", rows=0)
    *texts, right = (list(each) for each in zip(*rows, strict=True))
    if isinstance(servable, Tagger):
        return entity_scores(right, labels_of_words(servable, texts[0], batch_size, verbose))
    answers = servable.classify(*texts, batch_size=batch_size, verbose=verbose)
    return label_scores(right, [label for label, _ in answers])


def labels_of_words(tagger, sentences, batch_size=32, verbose=False):
    """Returns the label of each word of sentences, lists of str."""
    model = tagger.model
    x, words = packed_words(model, tagger.tokenizer, tagger.max_source_length, sentences)
    best = likeliest(model, x, batch_size, verbose)
    found = [[OUTSIDE] * len(sentence) for sentence in sentences]
    for row, place in zip(*np.nonzero(words >= 0), strict=True):
        found[row][words[row, place]] = tagger.labels[best[row, place]]
    return found


def mean_f1(model, batches):
    """Returns the mean F1 of the classes of rows, a float.

    Args:
        model: An `EncoderModel` whose head has labels.
        batches: The `Rows`; a negative target is no label.
    """
    return label_scores(*_labels(model, batches)).macro_f1


def entity_f1(model, batches):
    """Returns the F1 of entities, a float, of what `mean_f1` takes. Words that are cut do not count."""
    ends = np.cumsum(np.sum(batches.y >= 0, axis=1))[:-1]
    sides = ([side.tolist() for side in np.split(each, ends)] for each in _labels(model, batches))
    return entity_scores(*sides).micro[2]


def _labels(model, batches):
    """Returns the right labels and those that a model gives, two str arrays `(labels,)` in the order of the rows."""
    labels, real = np.array(model.head.labels), batches.y >= 0
    return labels[batches.y[real]], labels[likeliest(model, batches.x, batches.batch_size)[real]]


def read_labels(servable, path, columns=None):
    """Reads the rows of `evaluate_labels` from a table for a classifier, from a file of CoNLL's form for a tagger.

    Args:
        servable: A `Classifier` or a `Tagger`.
        path: Path of the file.
        columns: Names of the columns of a table, the label's last; "text" and "label" when None.
    """
    if isinstance(servable, Tagger):
        check(columns is None, "`columns` is for a classifier's table.", columns=columns)
        return read_conll(path)
    return read_table(path, *(columns or ("text", "label")))
