"""SentencePiece models whose ids a family moves: BERT with XLM-RoBERTa's tokenizer, CamemBERT, mBART, PEGASUS."""

import json

import numpy as np
import pytest
from contracts import refuses
from families import BERT, CONFIGS, LABELS, own_model
from pieces import T5_IDS, TEXTS, assert_same_ids, described, train_pieces

from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import to_huggingface, tokenizers_from_huggingface
from keras_transformer.huggingface.languages import translator_options
from keras_transformer.serving import Classifier, Embedder
from keras_transformer.text import SentencePieceTokenizer

MODEL = "sentencepiece.bpe.model"
KINDS = {"bert": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}
STARTS = {
    "bert": ["<s>", "<pad>", "</s>", "<unk>"],
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
}


def pieces_of(path):
    """The pieces of a SentencePiece model."""
    own = SentencePieceTokenizer(path)
    return own.pieces(range(own.vocab_size))


@pytest.mark.parametrize("family", KINDS)
def test_the_ids_of_a_sentencepiece_model(family, tmp_path):
    described(tmp_path, family, tokenizer_class=KINDS[family])
    train_pieces(tmp_path / MODEL, model_type="unigram")
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    expected = [*STARTS[family], *pieces_of(tmp_path / MODEL)[3:], "<mask>"]
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == expected
    special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    assert special == ((1, 3, 0, 2) if family == "bert" else (1, 3, 5, 6))


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("family", KINDS)
def test_the_ids_are_those_of_transformers(family, saved, tmp_path):
    transformers = pytest.importorskip("transformers")
    described(tmp_path, family, tokenizer_class=KINDS[family])
    train_pieces(tmp_path / MODEL, model_type="unigram")
    there = getattr(transformers, KINDS[family]).from_pretrained(tmp_path)
    folder = tmp_path
    if saved:  # tokenizer.json alone
        there.save_pretrained(tmp_path / "saved")
        folder = tmp_path / "saved"
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert_same_ids(tokenizer, there, TEXTS)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (there.cls_token_id, there.sep_token_id)
    assert tokenizer.vocab_size == len(there)


def test_a_bert_that_names_no_class_is_refused(tmp_path):
    """transformers would take BertTokenizer, which splits texts in another way."""
    described(tmp_path, "bert")
    train_pieces(tmp_path / MODEL, model_type="unigram")
    with pytest.raises(ValueError, match=r"`tokenizer_class` must be named .*model_type='bert'"):
        tokenizers_from_huggingface(tmp_path)


@pytest.mark.slow
def test_pairs_of_a_bert_have_two_separators_and_one_segment(tmp_path):
    config = {**BERT, "architectures": ["BertForSequenceClassification"], **LABELS, "vocab_size": 120}
    config["num_hidden_layers"] = 1
    folder = tmp_path / "model"
    to_huggingface(own_model(config), folder, family="bert")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    train_pieces(folder / MODEL, model_type="unigram")
    classifier = convert(folder, tmp_path / "own", pairs=True)
    assert type(classifier) is Classifier and classifier.model.num_separators == 2
    first, second = (classifier.tokenizer.tokenize(text).numpy().tolist() for text in ("the", "dog"))
    ids = np.array([[0, *first, 2, 2, *second, 2]])
    scores = np.exp(np.array(classifier.model(ids))[0])
    ((label, probability),) = classifier.classify(["the"], ["dog"])
    assert label == classifier.model.head.labels[int(scores.argmax())]
    assert probability == pytest.approx(scores.max() / scores.sum(), abs=1e-5)
    segments = np.arange(ids.shape[1])[None] > len(first) + 1
    with_segments = {"token_ids": ids, "segment_ids": segments.astype("int32")}
    assert np.abs(np.array(classifier.model(with_segments))[0] - np.log(scores)).max() > 1e-3


def test_a_folder_becomes_an_embedder_and_is_written_again(tmp_path):
    for name, case, family in (("a", "bert-model", "bert"), ("b", "camembert-Model", "camembert")):
        sizes = {"num_hidden_layers": 1, "vocab_size": 120, "max_position_embeddings": 40}
        config = {**CONFIGS[case], **sizes, "pad_token_id": 1}
        folder = tmp_path / name
        to_huggingface(own_model(config), folder, family=family)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": KINDS[family]}))
        train_pieces(folder / MODEL, model_type="unigram")
        embedder = convert(folder, tmp_path / f"own-{name}")
        assert type(embedder) is Embedder
        new = tmp_path / f"new-{name}"
        to_huggingface(embedder.model, new, tokenizers=embedder.tokenizers, family=family)
        (again,) = tokenizers_from_huggingface(new)
        assert again.tokenize(TEXTS).to_list() == embedder.tokenizer.tokenize(TEXTS).to_list()
        config = json.loads((new / "tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == KINDS[family]


def test_the_language_of_the_sources_is_given_or_that_of_the_folder(tmp_path):
    described(tmp_path, "mbart", tokenizer_class="MBartTokenizer", src_lang="de_DE")
    (tmp_path / "special_tokens_map.json").write_text('{"additional_special_tokens": ["de_DE", "ko_KR"]}')
    train_pieces(tmp_path / MODEL, model_type="unigram")
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    for given, source in ((None, "de_DE"), ("ko_KR", "ko_KR")):
        ids, options = translator_options(tmp_path, tokenizer, given, "ko_KR")
        assert options["source_end"] == (tokenizer.eos_id, pieces.index(source))
        assert ids == {"bos_id": pieces.index("ko_KR")}
    described(tmp_path, "mbart", tokenizer_class="MBartTokenizer")
    refuses("`source_language` must be a language", translator_options, tmp_path, tokenizer, None, "ko_KR")


def test_the_ids_of_pegasus(tmp_path):
    described(tmp_path, "pegasus")
    train_pieces(tmp_path / "spiece.model", model_type="unigram", **T5_IDS)
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    first = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, 103))]
    expected = [*first, *pieces_of(tmp_path / "spiece.model")[2:]]
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == expected
