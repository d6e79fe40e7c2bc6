"""Heads that label tokens, or give a text several labels: served, and equal to the pipelines of transformers."""

import json
import warnings

import numpy as np
import pytest
import tensorflow as tf
from families import BERT, CONFIGS, own_model

from keras_transformer.cli.answers import line_of, rows_of
from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import FAMILIES, from_huggingface, to_huggingface
from keras_transformer.huggingface.reading import with_labels
from keras_transformer.models import ClassificationHead, TaggingHead
from keras_transformer.serving import Classifier, Tagger, load
from keras_transformer.serving.entities import AGGREGATIONS

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "anna", "##s", "lives", "in", "par", "##is", ".", "a"]
TEXTS = ["Anna lives in Paris.", "", "a zebra lives", "Annas " * 20]
WORDS = ["  Ánnas\tAnna. Lives in PARIS", "annas in parisis, a anna", "A anna parisss lives in ."]
TAGS = {"id2label": {"0": "O", "1": "PER", "2": "LOC"}}
TOPICS = {"id2label": {"0": "news", "1": "sports", "2": "art"}, "problem_type": "multi_label_classification"}


def folder_of(path, name, changes):
    """Writes a BERT of the class `name` with a WordPiece tokenizer."""
    config = {**BERT, "num_hidden_layers": 1, "vocab_size": len(PIECES), "architectures": [name], **changes}
    to_huggingface(own_model(config), path)
    (path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return path


def test_a_tagger_labels_the_tokens_of_a_text(tmp_path):
    tagger = convert(folder_of(tmp_path / "model", "BertForTokenClassification", TAGS), tmp_path / "own")
    assert isinstance(tagger, Tagger)
    tagger = load(tmp_path / "own")
    with pytest.warns(UserWarning, match="longer than"):
        found = tagger.tag(TEXTS)
    assert [token for token, _, _ in found[0]] == ["anna", "lives", "in", "par", "##is", "."]
    assert found[1] == []
    assert [token for token, _, _ in found[2]] == ["a", "[UNK]", "lives"]
    assert len(found[3]) == tagger.max_source_length - 2
    ids = np.array([[2, *map(PIECES.index, ["anna", "lives", "in", "par", "##is", "."]), 3]])
    logits = np.asarray(tagger.model(ids))[0, 1:-1]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert [label for _, label, _ in found[0]] == [TAGS["id2label"][str(i)] for i in shares.argmax(-1)]
    np.testing.assert_allclose([share for _, _, share in found[0]], shares.max(-1), atol=1e-5)
    row = next(rows_of(tagger.answer([b"Anna lives"])))
    expected = [list(tag[:2]) for tag in tagger.tag(["Anna lives"])[0]]
    assert [tag[:2] for tag in json.loads(line_of(row))] == expected


def test_each_of_several_labels_has_its_own_probability(tmp_path):
    folder = folder_of(tmp_path / "model", "BertForSequenceClassification", TOPICS)
    classifier = convert(folder, tmp_path / "own")
    assert isinstance(classifier, Classifier)
    logits = np.asarray(classifier.model(np.array([[2, 12, 3]])))[0]
    found = classifier.answer([b"a"], signature="probabilities")["probabilities"][0]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), atol=1e-6)
    assert abs(found.sum() - 1) > 1e-3
    assert FAMILIES["bert"].make_config(classifier.model)["problem_type"] == TOPICS["problem_type"]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [ClassificationHead, TaggingHead])
@pytest.mark.parametrize("case", [case for case in CONFIGS if case.endswith("-Model")] + ["bert-model"])
def test_a_new_head_is_that_of_the_family(case, kind, tmp_path):
    """A pooler with BERT's activation could not be written for DistilBERT, ELECTRA and ModernBERT."""
    to_huggingface(own_model(CONFIGS[case]), tmp_path / "base", family=CONFIGS[case]["model_type"])
    model, family = from_huggingface(tmp_path / "base"), FAMILIES[CONFIGS[case]["model_type"]]
    if kind is TaggingHead and family.model_type == "modernbert":
        with pytest.raises(ValueError, match="TaggingHead must hold a model whose family has one"):
            with_labels(model, tmp_path / "base", kind, ["a", "b"])
        return
    new = with_labels(model, tmp_path / "base", kind, ["a", "LABEL_1"])
    assert new.head.labels == ["a", "LABEL_1"]
    to_huggingface(new, tmp_path / "new", family=family.model_type)
    again = from_huggingface(tmp_path / "new")
    for one, other in zip(new.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (new.pooler is None) is (kind is TaggingHead)
    # BERT's class with this head has the pooler of the file, and keeps its weights.
    if new.pooler is not None and model.pooler is not None:
        kernels = new.pooler.dense.kernel, model.pooler.dense.kernel
        assert np.array_equal(*kernels) is (family.model_type in ("bert", "ernie"))


def test_a_new_head_has_the_pooler_that_a_model_for_masked_words_leaves_unread(tmp_path):
    to_huggingface(own_model(CONFIGS["bert-model"]), tmp_path / "base", family="bert")
    masked = own_model(CONFIGS["bert-masked"])
    assert masked.pooler is None
    new = with_labels(masked, tmp_path / "base", ClassificationHead, ["a", "b"])
    expected = from_huggingface(tmp_path / "base").pooler.dense
    np.testing.assert_array_equal(new.pooler.dense.kernel, expected.kernel)
    np.testing.assert_array_equal(new.pooler.dense.bias, expected.bias)


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_tags_and_labels_are_those_of_transformers(xla, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    folder = folder_of(tmp_path / "tags", "BertForTokenClassification", TAGS)
    tagger = convert(folder, tmp_path / "tagger")
    path = tagger.export(tmp_path / "export", xla=xla, check=False, warmup=False)
    served = tf.saved_model.load(str(path)).signatures["serving_default"](tf.constant(TEXTS[:3]))
    pipeline = transformers.pipeline(
        "token-classification", model=str(folder), aggregation_strategy="none", ignore_labels=[]
    )
    for row, text in enumerate(TEXTS[:3]):
        expected = pipeline(text) if text else []
        labels = [label.decode() for label in served["labels"][row].numpy() if label]
        assert labels == [each["entity"] for each in expected]
        # The pipeline has the word of the text for an unknown piece.
        pieces = pipeline.tokenizer.tokenize(text)
        assert [token.decode() for token in served["tokens"][row].numpy() if token] == pieces
        shares = served["probabilities"][row].numpy()[: len(labels)]
        np.testing.assert_allclose(shares, [each["score"] for each in expected], atol=1e-5)
    for aggregation in AGGREGATIONS:
        pipeline = transformers.pipeline(
            "token-classification", model=str(folder), aggregation_strategy=aggregation
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = tagger.changed(aggregation=aggregation).entities([*TEXTS[:3], *WORDS])
        for text, entities in zip([*TEXTS[:3], *WORDS], found, strict=True):
            expected = pipeline(text) if text else []
            names = [(each["entity_group"], each["start"], each["end"]) for each in expected]
            assert [(each.label, each.start, each.end) for each in entities] == names
            shares = [each.probability for each in entities]
            np.testing.assert_allclose(shares, [each["score"] for each in expected], atol=1e-5)
    folder = folder_of(tmp_path / "topics", "BertForSequenceClassification", TOPICS)
    classifier = convert(folder, tmp_path / "classifier")
    path = classifier.export(tmp_path / "topics_export", xla=xla, check=False, warmup=False)
    served = tf.saved_model.load(str(path)).signatures["probabilities"](tf.constant(TEXTS[:3]))
    pipeline = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    for row, text in enumerate(TEXTS[:3]):
        (scores,) = pipeline([text])
        expected = {each["label"]: each["score"] for each in scores}
        found = served["probabilities"][row].numpy()
        np.testing.assert_allclose(found, [expected[name] for name in TOPICS["id2label"].values()], atol=1e-5)
