"""Tokenizers of the newer families: the ids of transformers, from the files that checkpoints have."""

import json

import numpy as np
import pytest
from families import CONFIGS
from pieces import GEMMA, TEXTS, assert_same_ids, byte_pieces, train_pieces, written

from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import from_huggingface, to_huggingface, tokenizers_from_huggingface
from keras_transformer.serving import Classifier
from keras_transformer.text import WordPieceTokenizer

transformers = pytest.importorskip("transformers")
MARKED = [*TEXTS, "<s> not </s> marks"]  # transformers reads special tokens in texts


@pytest.mark.parametrize("form", ["whole", "old"])
def test_byte_pairs_of_roberta_and_bart(form, tmp_path):
    vocabulary, merges = byte_pieces()
    there = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)
    folder = written(tmp_path / "model", {**CONFIGS["roberta-Model"], "vocab_size": len(vocabulary)}, {})
    if form == "whole":
        there.save_pretrained(folder)
    else:
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)))
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (1, 0, 2)
    assert_same_ids(tokenizer, there, TEXTS)
    model = from_huggingface(folder)
    to_huggingface(model, tmp_path / "new", tokenizers=(tokenizer,), family="roberta")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    for text in TEXTS:
        assert again.encode(text, text) == there.encode(text, text)


def test_a_roberta_with_the_tokenizer_of_bert(tmp_path):
    """As in KLUE: other ids than BERT's, one separator between the texts of a pair."""
    marks = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    pieces = [*marks, "두", "개", "##가", "달", "##린다", "!", "A", "man"]
    ids = {"vocab_size": len(pieces), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = {**CONFIGS["roberta-ForSequenceClassification"], **ids}
    options = json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False})
    files = {"vocab.txt": "\n".join(pieces) + "\n", "tokenizer_config.json": options}
    folder = written(tmp_path / "model", config, files)
    there = transformers.BertTokenizer.from_pretrained(folder)
    classifier = convert(folder, tmp_path / "own", pairs=True)
    assert isinstance(classifier, Classifier)
    tokenizer, model = classifier.tokenizer, classifier.model
    assert type(tokenizer) is WordPieceTokenizer
    assert_same_ids(tokenizer, there, MARKED)
    assert (model.pad_id, model.cls_id, model.sep_id, model.num_separators) == (1, 0, 2, 1)
    ids = np.array([there.encode("두 개가", "달린다!")])
    logits = np.asarray(model(ids))[0]
    ((label, probability),) = classifier.classify(["두 개가"], ["달린다!"])
    expected = np.exp(logits - logits.max())
    assert label == model.head.labels[int(logits.argmax())]
    assert probability == pytest.approx((expected / expected.sum()).max(), abs=1e-5)
    to_huggingface(model, tmp_path / "new", tokenizers=(tokenizer,))
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert again(MARKED)["input_ids"] == there(MARKED)["input_ids"]


def test_sentence_pieces_with_the_ids_of_fairseq(tmp_path):
    config = {**CONFIGS["xlm-roberta-Model"], "vocab_size": 120, "pad_token_id": 1}
    config |= {"bos_token_id": 0, "eos_token_id": 2}
    files = {"tokenizer_config.json": '{"tokenizer_class": "XLMRobertaTokenizer"}'}
    folder = written(tmp_path / "model", config, files)
    train_pieces(folder / "sentencepiece.bpe.model", model_type="unigram")
    there = transformers.XLMRobertaTokenizer.from_pretrained(folder)
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.vocab_size == len(there)
    assert_same_ids(tokenizer, there, TEXTS)
    to_huggingface(from_huggingface(folder), tmp_path / "new", tokenizers=(tokenizer,))
    assert json.loads((tmp_path / "new" / "config.json").read_text())["model_type"] == "xlm-roberta"
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert again(TEXTS)["input_ids"] == there(TEXTS)["input_ids"]
    shifted = type(tokenizer)(tokenizer.model, [*tokenizer.pieces(range(tokenizer.vocab_size)), "more"])
    given = {"tokenizers": (shifted,), "family": "xlm-roberta"}
    with pytest.raises(ValueError, match="fairseq_ids"):
        to_huggingface(from_huggingface(folder), tmp_path / "other", **given)
    assert not (tmp_path / "other").exists()


def test_a_tokenizer_that_no_kind_reads_names_each_reason(tmp_path):
    files = {"tokenizer.json": '{"model": {"type": "Unigram"}}'}
    folder = written(tmp_path / "model", CONFIGS["roberta-Model"], files)
    with pytest.raises(ValueError, match=r"none.* Or: .*Unigram"):
        tokenizers_from_huggingface(folder)


@pytest.mark.parametrize(("said", "expected"), [({}, False), ({"add_bos_token": True}, True)])
def test_prompts_of_qwen_begin_as_tokenizer_config_says(said, expected, tmp_path):
    vocabulary, merges = byte_pieces()
    config = {**CONFIGS["qwen2"], "vocab_size": len(vocabulary), "bos_token_id": 0, "eos_token_id": 2}
    folder = written(tmp_path / "model", config, {"vocab.json": json.dumps(vocabulary)})
    (folder / "merges.txt").write_text("\n".join(map(" ".join, merges)))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **said}))
    assert convert(folder, tmp_path / "own").starts_with_bos is expected


def test_byte_pairs_of_whisper(tmp_path):
    """Times are tokens in a text too. Languages and tasks are for prompts: in a text they are plain text."""
    pieces, merges = byte_pieces()
    pieces = [*(piece for piece in pieces if "<" not in piece or len(piece) == 1), "", "<|endoftext|>"]
    there = transformers.WhisperTokenizer({piece: i for i, piece in enumerate(pieces)}, merges)
    there.add_special_tokens(
        {"additional_special_tokens": ["<|startoftranscript|>", "<|ko|>", "<|transcribe|>"]}
    )
    there.add_tokens([transformers.AddedToken(f"<|{time}|>") for time in ("0.00", "0.02")])
    ids = {"vocab_size": len(there), "eos_token_id": there.eos_token_id, "pad_token_id": there.eos_token_id}
    folder = written(
        tmp_path / "model", {**CONFIGS["whisper"], **ids, "decoder_start_token_id": len(pieces)}, {}
    )
    there.save_pretrained(folder)
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (
        len(there),
        *[there.eos_token_id] * 2,
    )
    texts = [*TEXTS, "<|0.00|> the dog<|0.02|>"]
    assert_same_ids(tokenizer, there, texts)
    prompt = there("the dog")["input_ids"]
    assert tokenizer.detokenize([prompt]).numpy()[0].decode() == "the dog"
    assert tokenizer.tokenize("<|ko|>").numpy().size > 1
    to_huggingface(from_huggingface(folder), tmp_path / "new", tokenizers=(tokenizer,))
    again = transformers.WhisperTokenizer.from_pretrained(tmp_path / "new")
    assert again(texts, add_special_tokens=False) == there(texts, add_special_tokens=False)


def test_sentence_pieces_of_gemma(tmp_path):
    ids = {"vocab_size": 420, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
    config = {**CONFIGS["gemma2"], **ids}
    options = json.dumps({"tokenizer_class": "GemmaTokenizer", "add_bos_token": True})
    folder = written(tmp_path / "model", config, {"tokenizer_config.json": options})
    train_pieces(folder / "tokenizer.model", vocab_size=400, **GEMMA)
    there = transformers.AutoTokenizer.from_pretrained(folder)
    (tokenizer,) = tokenizers_from_huggingface(folder)
    texts = [*TEXTS, "  two  blanks ", "<start_of_turn>user\nthe dog<end_of_turn>\n", "한국 日本 🙂"]
    expected = there(texts, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(texts).to_list() == expected
    back = [text.decode() for text in tokenizer.detokenize(expected).numpy()]
    assert back == texts
    to_huggingface(from_huggingface(folder), tmp_path / "new", tokenizers=(tokenizer,))
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert again(texts)["input_ids"] == there(texts)["input_ids"]
    assert again("the")["input_ids"][0] == tokenizer.bos_id
    assert convert(folder, tmp_path / "own").starts_with_bos
