"""Scores of labels and of entities, equal to those of seqeval."""

import numpy as np
import pytest
from contracts import refuses

from keras_transformer.training import entity_scores, label_scores

RIGHT = [
    ["B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"],
    ["I-PER", "O", "B-PER", "B-PER", "I-LOC", "O", "B-ORG"],
    ["O", "B-LOC", "I-LOC", "I-PER"],
]
GIVEN = [
    ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC"],
    ["I-PER", "I-PER", "O", "B-PER", "I-LOC", "O", "B-ORG"],
    ["O", "I-LOC", "I-LOC", "I-PER"],
]
# The answers of seqeval 1.2.2: precision, recall, F1, number.
SEQEVAL = {"LOC": (0.5, 2 / 3, 0.571429, 3), "ORG": (1, 1, 1, 1), "PER": (0.75, 0.6, 2 / 3, 5)}
MICRO, MACRO = (2 / 3, 2 / 3, 2 / 3), 0.746032


def test_entities_have_the_scores_of_seqeval():
    scores = entity_scores(RIGHT, GIVEN)
    assert scores.labels == [*SEQEVAL]
    columns = scores.precision, scores.recall, scores.f1, scores.support
    np.testing.assert_allclose(np.array(columns).T, [*SEQEVAL.values()], atol=1e-6)
    np.testing.assert_allclose(scores.micro, MICRO, atol=1e-6)
    assert scores.macro_f1 == pytest.approx(MACRO, abs=1e-6)
    assert scores.accuracy == pytest.approx(12 / 17)
    assert scores.confusion.sum() == 17 and scores.confusion.trace() == 12


@pytest.mark.parametrize(
    ("right", "given", "f1"),
    [
        # "E-" ends an entity, and "S-" is one.
        ("B-A I-A E-A S-A S-A", "B-A I-A I-A S-A S-A", 1),
        ("B-A E-A I-A", "B-A I-A I-A", 0),
        # Labels without letters are entities, too, and letters without labels.
        ("PER PER O LOC", "PER PER O O", 2 / 3),
        ("B I O B", "B I B B", 4 / 5),
        # An entity may begin with "I-".
        ("O I-A I-A I-B", "O B-A I-A B-B", 1),
        ("O O", "O O", 0),
        # "L-" and "U-" are other names of "E-" and "S-". Other letters are a part of the label.
        ("B-A L-A I-A U-A", "B-A E-A I-A S-A", 1),
        ("T-shirt O X-1", "A-shirt O Y-1", 0),
    ],
)
def test_entities_end_as_in_seqeval(right, given, f1):
    assert entity_scores([right.split()], [given.split()]).micro[2] == pytest.approx(f1)


def test_entities_are_those_of_seqeval_for_any_labels():
    seqeval = pytest.importorskip("seqeval.metrics")
    numbers = np.random.default_rng(0)
    for kinds in (
        ["O", "B-A", "I-A", "B-B", "I-B"],
        ["O", "B-A", "I-A", "E-A", "S-A", "I-B"],
        ["O", "B", "I"],
    ):
        sides = [[[*numbers.choice(kinds, n)] for n in range(1, 40)] for _ in range(2)]
        assert entity_scores(*sides).micro[2] == pytest.approx(seqeval.f1_score(*sides))


def test_classes_are_counted():
    scores = label_scores(["a", "a", "b", "c"], ["a", "b", "b", "b"])
    assert scores.classes == ["a", "b", "c"]
    assert scores.confusion.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    np.testing.assert_allclose(scores.f1, [2 / 3, 1 / 2, 0])
    assert scores.micro == (0.5, 0.5, 0.5) and scores.accuracy == 0.5
    assert scores.lines()[1].split() == ["a", "1.0000", "0.5000", "0.6667", "2"]


def test_other_numbers_of_labels_are_refused():
    refuses(r"as many labels, one at least.*\(0, 0\)", label_scores, [], [])
    refuses(r"as many labels.*\(2, 1\)", label_scores, ["a", "b"], ["a"])
    refuses(r"same sentences.*\(3, 3\)", entity_scores, [["O"], ["O", "O"]], [["O", "O"], ["O"]])


def test_a_plain_label_with_a_dash_keeps_its_first_letter():
    assert entity_scores([["T-shirt", "O", "X-1"]], [["O", "O", "O"]]).labels == ["T-shirt", "X-1"]
