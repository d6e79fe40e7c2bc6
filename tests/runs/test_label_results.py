"""What a tuning and an evaluation of labels refuse."""

import numpy as np
import pytest
from commands import assert_refused
from tiny_bert import bert

from keras_transformer.models.heads import ClassificationHead, TaggingHead
from keras_transformer.runs import evaluate_labels, tuning_rows
from keras_transformer.runs.label_results import labels_of_words
from keras_transformer.runs.tuning_rows import weights_of_classes
from keras_transformer.serving import Classifier, Tagger
from keras_transformer.text import ByteTokenizer


def test_weights_of_no_labels_are_refused():
    with pytest.raises(ValueError, match="The rows must have one label at least"):
        weights_of_classes(np.full((2, 3), -100))


def test_a_classifier_of_several_labels_is_not_evaluated():
    classifier = Classifier(bert(ClassificationHead(2, multi_label=True)), ByteTokenizer())
    with pytest.raises(ValueError, match="A classifier with `multi_label` cannot be evaluated"):
        evaluate_labels(classifier, [("a text", "0")])


def test_the_words_of_a_large_file_are_labelled_in_parts(monkeypatch, capsys):
    tagger = Tagger(bert(TaggingHead(3)), ByteTokenizer())
    sentences = [["ab"] * (1 + i % 3) for i in range(11)]
    whole = labels_of_words(tagger, sentences, batch_size=2)
    monkeypatch.setattr(tuning_rows, "BATCHES_AT_ONCE", 2)
    predict, sizes = tagger.model.predict, []
    tagger.model.predict = lambda x, **options: sizes.append(len(x["token_ids"])) or predict(x, **options)
    assert labels_of_words(tagger, sentences, batch_size=2, verbose=True) == whole
    # The scores have standard output for themselves.
    assert sizes == [4, 4, 3] and capsys.readouterr().out == ""


def test_a_tokenizer_of_bleu_is_refused_for_labels(tmp_path):
    (tmp_path / "data.tsv").write_text("text\tlabel\na\tgood\n")
    data = "evaluate", tmp_path, "--data", tmp_path / "data.tsv"
    assert_refused(*data, "--tokenize", "none", named="--tokenize is for translations")
