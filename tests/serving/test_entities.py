"""Entities of taggers: tokens joined to words and words to entities, with their characters in the text."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_bert import bert

from keras_transformer.cli.answers import line_of, rows_of
from keras_transformer.models.heads import TaggingHead
from keras_transformer.serving import Tagger, load
from keras_transformer.serving.entities import AGGREGATIONS, entities_of
from keras_transformer.text import AddedToken, ByteTokenizer, WordPieceTokenizer

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
# The pieces "Z ##den ##ek No ##vak sings in Scha ##ff ##hausen near Basel and Ada" with numbers drawn once.
STARTS = [0, 1, 4, 7, 9, 13, 19, 22, 26, 28, 35, 40, 46, 50]
ENDS = [1, 4, 6, 9, 12, 18, 21, 26, 28, 34, 39, 45, 49, 53]
BEGINS = [True, False, False, True, False, True, True, True, False, False, True, True, True, True]
# fmt: off
LOGITS = [
    [0.0, 0.45, -0.45, -1.35, -0.75, -1.5], [0.15, 1.95, -0.75, -0.9, 0.75, 0.6],
    [0.15, -1.35, 0, 1.05, -1.95, -0.75], [-2.85, -1.95, -2.7, -0.3, -1.95, 0.45],
    [0.3, -0.3, -3.75, -0.75, 0.0, 0.15], [-2.25, -0.75, -1.5, -1.2, 1.65, -1.2],
    [0.0, 1.35, -0.9, -0.15, 0.15, 0.15], [-1.8, 0.15, 2.1, -2.25, 1.35, 0.15],
    [-0.9, 3.0, 1.2, -1.8, 0.15, 0.9], [-0.3, 1.05, -0.15, 1.05, 2.1, -1.05],
    [0.3, -0.75, 0.15, -1.8, -0.9, -0.3], [1.35, 1.65, -1.95, -1.2, 0.9, -3.0],
    [-0.75, -0.15, 1.95, 1.05, -0.45, -0.6], [-0.45, 2.25, -0.6, -0.45, 0.6, -0.15],
]
# The answers of `TokenClassificationPipeline.aggregate` of transformers 5.24.
EXPECTED = {
    "simple": [
        ("PER", 0.37694, 0, 1), ("PER", 0.54031, 1, 4), ("LOC", 0.48489, 4, 6), ("MISC", 0.57686, 7, 9),
        ("LOC", 0.78771, 13, 18), ("PER", 0.50761, 19, 26), ("PER", 0.72776, 26, 28), ("LOC", 0.51577, 28, 34),
        ("PER", 0.49993, 40, 49), ("PER", 0.67796, 50, 53),
    ],
    "first": [
        ("PER", 0.37694, 0, 6), ("MISC", 0.57686, 7, 12), ("LOC", 0.78771, 13, 18), ("PER", 0.50761, 19, 34),
        ("PER", 0.49993, 40, 49), ("PER", 0.67796, 50, 53),
    ],
    "average": [
        ("PER", 0.32041, 0, 6), ("MISC", 0.41077, 7, 12), ("LOC", 0.78771, 13, 18), ("PER", 0.45659, 19, 21),
        ("PER", 0.32924, 22, 34), ("PER", 0.49993, 40, 49), ("PER", 0.67796, 50, 53),
    ],
    "max": [
        ("PER", 0.54031, 0, 6), ("MISC", 0.57686, 7, 12), ("LOC", 0.78771, 13, 18), ("PER", 0.45659, 19, 21),
        ("PER", 0.72776, 22, 34), ("PER", 0.49993, 40, 49), ("PER", 0.67796, 50, 53),
    ],
}
# fmt: on
TEXTS = ["Ada ", "", "  Ada Novák", "서울 Ada!"]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_entities_are_those_of_transformers(aggregation):
    # The same tokens again as a second text: no entity spans two texts.
    rows, places = np.repeat([0, 1], len(STARTS)), (STARTS * 2, ENDS * 2, BEGINS * 2)
    probabilities = tf.nn.softmax(tf.constant(LOGITS * 2))
    columns = entities_of(probabilities, tf.constant(rows), *map(tf.constant, places), LABELS, aggregation)
    for row in (0, 1):
        found = [each[1:] for each in zip(*(each.numpy() for each in columns), strict=True) if each[0] == row]
        expected = EXPECTED[aggregation]
        assert [(label.decode(), start, end) for label, _, start, end in found] == [
            (label, start, end) for label, _, start, end in expected
        ]
        np.testing.assert_allclose([each[1] for each in found], [each[1] for each in expected], atol=1e-5)


def test_without_a_token_there_is_no_entity():
    none = tf.zeros([0], tf.int32)
    columns = entities_of(tf.zeros([0, 6]), none, none, none, tf.zeros([0], tf.bool), LABELS, "average")
    assert [each.shape[0] for each in columns] == [0] * 5


def test_entities_end_where_the_letters_of_bioes_say():
    labels = ["O", "B-A", "E-A", "S-A", "I-A", "T-shirt"]
    best = [1, 2, 4, 3, 3, 5, 0]
    places = np.arange(len(best), dtype="int32")
    columns = entities_of(
        tf.one_hot(best, len(labels)), tf.zeros_like(places),
        *map(tf.constant, (places, places + 1, places >= 0)), labels, "simple",
    )  # fmt: skip
    kinds, starts, ends = (columns[i].numpy().tolist() for i in (1, 3, 4))
    assert kinds == [b"A", b"A", b"A", b"A", b"T-shirt"]
    assert (starts, ends) == ([0, 2, 3, 4, 5], [2, 3, 4, 5, 6])


def tagger(aggregation="first", **arguments):
    """A tagger whose head always has the label "PER", of a character at a time."""
    tokenizer = WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ada", "nov", "##ak", "!"], **arguments
    )
    model = bert(TaggingHead(2, labels=["O", "B-PER"]))
    model.head.dense.bias.assign([-9.0, 9.0])
    return Tagger(model, tokenizer, 32, aggregation)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger")
    return tagger().export(folder, warmup=False)


def test_an_entity_has_its_characters(exported):
    own = tagger()
    with pytest.warns(UserWarning, match="the vocabulary cannot write"):
        entities = own.entities(TEXTS)
    # No row changes another.
    assert [own.entities([text])[0] for text in TEXTS[:3]] == entities[:3]
    for text, found in zip(TEXTS, entities, strict=True):
        assert [text[each.start : each.end] for each in found] == [each.word for each in found]
    assert [[each.word for each in found] for found in entities] == [
        ["Ada"],
        [],
        ["Ada", "Novák"],
        ["서울", "Ada", "!"],
    ]
    assert {each.label for found in entities for each in found} == {"PER"}
    served = tf.saved_model.load(str(exported)).signatures["entities"](text=tf.constant(TEXTS))
    served = {name: value.numpy() for name, value in served.items()}
    for row, found in zip(rows_of(served), entities, strict=True):
        assert [word.decode() for word in row["words"] if word] == [each.word for each in found]
        assert [int(end) for end in row["ends"] if end] == [each.end for each in found]
        assert line_of(row).count('"word"') == len(found)


def test_the_aggregation_is_part_of_a_folder(tmp_path):
    tagger("simple").save(tmp_path / "own")
    assert [each.word for each in load(tmp_path / "own").entities(["Novák"])[0]] == ["Nov", "ák"]
    assert [each.word for each in tagger().entities(["Novák"])[0]] == ["Novák"]
    with pytest.raises(ValueError, match=r"`aggregation` must be one of"):
        tagger("mean")


def test_a_tokenizer_that_hides_characters_gives_tokens_alone(tmp_path):
    changed = tagger(added_tokens=[AddedToken("[E1]", lstrip=True)])
    with pytest.raises(ValueError, match=r"tells where its pieces stand.*added_tokens"):
        changed.entities(["ada"])
    path = changed.export(tmp_path, warmup=False)
    assert "entities" not in tf.saved_model.load(str(path)).signatures


def test_bytes_of_one_character_are_one_word():
    model = bert(TaggingHead(2, labels=["O", "PER"]))
    model.head.dense.bias.assign([-9.0, 9.0])
    (found,) = Tagger(model, ByteTokenizer(), 32).entities(["é 서울"])
    assert [(each.word, each.start, each.end) for each in found] == [("é 서울", 0, 4)]
