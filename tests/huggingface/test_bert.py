"""BERT: tensors of published checkpoints, labels, and tokenizers."""

import json
import shutil

import keras
import numpy as np
import pytest
from families import CONFIGS, assert_same_weights, change_config, change_tensors, inputs_of, own_model

from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.models import ClassificationHead, MaskedLanguageHead, Pooler, SpanHead, TaggingHead

ONE_LAYER = {"num_hidden_layers": 1}


def made(case, **changes):
    """Makes the model of a configuration with one layer."""
    return FAMILIES["bert"].make_model({**CONFIGS[case], **ONE_LAYER, **changes})


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A masked language model, and a folder that it was written to."""
    config = {**CONFIGS["bert-masked"], **ONE_LAYER}
    model, folder = own_model(config), tmp_path_factory.mktemp("masked") / "new"
    to_huggingface(model, folder)
    return model, folder


@pytest.fixture
def folder(masked, tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(masked[1], tmp_path / "new")


def test_other_tensors_of_published_checkpoints_are_passed_over(masked, folder):
    """Old names of the norms, a pooler and a head for the next sentence beside that of the masks, counted positions."""

    def old(tensors):
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): a
            for name, a in tensors.items()
        }
        assert any(name.endswith("gamma") for name in tensors)
        more = {
            "bert.pooler.dense.weight": np.ones((15, 15), "float32"),
            "bert.pooler.dense.bias": np.ones(15, "float32"),
            "cls.seq_relationship.weight": np.ones((2, 15), "float32"),
            "cls.seq_relationship.bias": np.ones(2, "float32"),
            "bert.embeddings.position_ids": np.arange(13)[None],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        }
        return {**tensors, **more}

    change_tensors(folder, old)
    assert_same_weights(from_huggingface(folder), masked[0])


def test_a_bare_model_reads_names_with_and_without_its_own(tmp_path):
    model = made("bert-model")
    to_huggingface(model, tmp_path / "new")
    change_tensors(tmp_path / "new", lambda t: {name.removeprefix("bert."): a for name, a in t.items()})
    assert_same_weights(from_huggingface(tmp_path / "new"), model)
    change_config(tmp_path / "new", architectures=None)
    assert_same_weights(from_huggingface(tmp_path / "new"), model)


@pytest.mark.parametrize(
    "head",
    [TaggingHead(3), SpanHead(), MaskedLanguageHead(layer_norm_epsilon=1e-12)],
    ids=["tags", "spans", "masked"],
)
def test_a_head_that_reads_no_pooler_is_written(head, tmp_path):
    """Keras would warn of a pooler without gradients in each `fit`."""
    model = made("bert-model").with_head(head)
    assert model.pooler is None
    to_huggingface(model, tmp_path / "new")
    assert_same_weights(from_huggingface(tmp_path / "new"), model)


@pytest.mark.slow
def test_an_imported_checkpoint_gets_another_head(folder):
    pretrained = from_huggingface(folder, cls_id=7, sep_id=8)
    model = pretrained.with_head(ClassificationHead(3), Pooler())
    ids = inputs_of(model)[0]["token_ids"]
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m.encode(ids)) for m in (model, pretrained)))
    assert model(ids).shape == (4, 3)
    assert (model.cls_id, model.sep_id) == (7, 8)


@pytest.mark.slow
def test_number_and_names_of_labels_are_read():
    assert made("bert-classes", num_labels=4).head.num_classes == 4
    assert made("bert-classes").head.num_classes == 2
    assert made("bert-number").head.labels is None
    assert made("bert-tags").head.labels == ["sad", "glad", "neither"]


@pytest.mark.parametrize(("problem", "count"), [("regression", 1), ("single_label_classification", 2)])
def test_problem_types_with_one_answer_are_read(problem, count):
    assert made("bert-classes", problem_type=problem, num_labels=count).head.num_classes == count


def test_labels_may_have_one_name():
    names = {"0": "crane", "1": "heron", "2": "crane"}
    config = FAMILIES["bert"].make_config(made("bert-classes", id2label=names))
    assert config["id2label"] == names
    assert config["label2id"] == {"crane": 2, "heron": 1}


# Tokenizers.

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "é", "e", ",", "The"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole["model"].update(type="BPE"), "type='BPE'"),
        (lambda whole: whole["model"].update(unk_token="<unk>"), "unk_token='<unk>'"),
        (lambda whole: whole["model"]["vocab"].update(dog=99), "ids from 0 on"),
        (lambda whole: whole["model"].update(vocab=None), "ids from 0 on"),
        (lambda whole: whole.update(normalizer=None), "type='none'"),
        (lambda whole: whole.update(pre_tokenizer={"type": "Whitespace"}), "type='Whitespace'"),
        (lambda whole: whole["added_tokens"].append({"id": 13, "content": "<x>"}), r"a gap.*ids=\[13\]"),
        (lambda whole: whole["added_tokens"].append({"id": 5, "content": "<x>"}), "id of its piece.*'<x>'"),
    ],
)
def test_other_tokenizer_json_is_refused(folder, change, message):
    transformers = pytest.importorskip("transformers")
    transformers.BertTokenizer(vocab={p: i for i, p in enumerate(PIECES)}).save_pretrained(folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    change(whole)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=message):
        tokenizers_from_huggingface(folder)
