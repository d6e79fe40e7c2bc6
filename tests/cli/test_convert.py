"""Conversion of Hugging Face folders to folders that are served, and back, from Python and on the command line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from contracts import randomized, refuses
from tiny_bert import ids_of, new_bert, write_bert

from keras_transformer.cli import main
from keras_transformer.cli.convert import convert, convert_back
from keras_transformer.decoding import Beam
from keras_transformer.huggingface import from_huggingface, to_huggingface
from keras_transformer.models import T5, ClassificationHead
from keras_transformer.serving import Classifier, Translator, load
from keras_transformer.text import WordPieceTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "huggingface"))
import families

TEXTS = ["one two three", "three, two", ""]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A Hugging Face folder of a BERT with two classes and a vocabulary of word pieces."""
    folder = tmp_path_factory.mktemp("bert") / "checkpoint"
    tokenizer = WordPieceTokenizer.train(["One two three, four five."] * 9, 60)
    head = ClassificationHead(2, labels=["sad", "glad"])
    model = new_bert(head, tokenizer.vocab_size, **ids_of(tokenizer))
    return write_bert(randomized(model), tokenizer, folder)


def test_a_checkpoint_is_converted_to_a_classifier_and_back(bert, tmp_path):
    servable = convert(bert, tmp_path / "served")
    assert type(servable) is Classifier
    found = load(tmp_path / "served").classify(TEXTS)
    assert found == servable.classify(TEXTS)
    assert {label for label, _ in found} <= {"sad", "glad"}
    convert_back(tmp_path / "served", tmp_path / "back")
    again, before = (from_huggingface(folder).get_weights() for folder in (tmp_path / "back", bert))
    for found, expected in zip(again, before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_the_command_line_converts_and_exports(bert, tmp_path, capsys):
    assert main(["convert", str(bert), str(tmp_path / "served")]) == 0
    out, err = capsys.readouterr()
    assert (out, "Classifier" in err) == (f"{tmp_path / 'served'}\n", True)
    assert main(["export", str(tmp_path / "served"), str(tmp_path / "model"), "--batch-sizes", "2"]) == 0
    described = json.loads((tmp_path / "model" / "1" / "assets.extra" / "export.json").read_text())
    assert set(described["signatures"]) == {"serving_default", "probabilities"}
    assert main(["export", str(tmp_path / "served"), str(tmp_path / "other"), "--beam-width", "2"]) == 2
    assert (
        "--beam-width is only for models that write text. Received: a Classifier." in capsys.readouterr().err
    )
    assert main(["convert", str(tmp_path / "served"), str(tmp_path / "back")]) == 0
    assert "Hugging Face checkpoint" in capsys.readouterr().err
    assert {"model.safetensors", "vocab.txt"} <= {path.name for path in (tmp_path / "back").iterdir()}
    assert main(["convert", "--no-tokenizers", str(tmp_path / "served"), str(tmp_path / "bare")]) == 0
    assert not (tmp_path / "bare" / "vocab.txt").exists()


@pytest.mark.slow
def test_a_t5_with_its_sentence_pieces_translates(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three four", "four three two one"] * 20),
        model_prefix=str(tmp_path / "spiece"), vocab_size=24, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = families.own_model({**families.T5, "vocab_size": 130})
    assert isinstance(model, T5)
    to_huggingface(model, tmp_path / "checkpoint")
    (tmp_path / "spiece.model").rename(tmp_path / "checkpoint" / "spiece.model")
    translator = convert(tmp_path / "checkpoint", tmp_path / "served")
    assert type(translator) is Translator
    translator = load(tmp_path / "served").changed(strategy=Beam(2), constraints=(), max_length=8)
    found = translator.translate(TEXTS)
    for text, translation in zip(TEXTS, found, strict=True):
        ids = translator.source_tokenizer.tokenize(text).numpy().tolist()
        if ids:
            written = model.generate([[*ids, model.eos_id]], Beam(2), 8, jit_compile=False)
            read = translator.target_tokenizer.detokenize(written.tokens[:, 0]).numpy()[0].decode()
            assert translation == read
    assert found[0] and found[1] and found[2] == ""


def test_an_image_classifier_needs_no_tokenizer(tmp_path):
    model = families.own_model(families.VIT)
    names = ["ant", "bee", "cat", "dog", "eel"]
    config = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    to_huggingface(model, tmp_path / "checkpoint", config=config)
    convert(tmp_path / "checkpoint", tmp_path / "served")
    assert load(tmp_path / "served").labels == names


def test_unusable_folder_is_refused_and_nothing_written(bert, tmp_path, capsys):
    refuses("`target` must not exist yet", convert, bert, tmp_path)
    (tmp_path / "empty").mkdir()
    refuses("must be a Hugging Face folder, with", convert, tmp_path / "empty", tmp_path / "new")
    assert main(["convert", "--source-language", "de", str(tmp_path / "empty"), str(tmp_path / "new")]) == 2
    assert "--source-language is for a Hugging Face folder" in capsys.readouterr().err
    assert main(["convert", "--no-tokenizers", str(bert), str(tmp_path / "new")]) == 2
    assert "--no-tokenizers is for a folder that becomes" in capsys.readouterr().err
    refuses("with none of them, and no config", convert_back, tmp_path / "empty", tmp_path / "new")
    refuses("nothing is downloaded", convert, "bert-base-uncased", tmp_path / "new")
    refuses("convert it first with `keras-transformer convert`", load, bert)
    to_huggingface(families.own_model(families.GPT2), tmp_path / "gpt2")
    refuses(r"without tokenizer\.json or vocab\.json", convert, tmp_path / "gpt2", tmp_path / "new")
    assert not (tmp_path / "new").exists()
