"""SentencePiece models that transformers 5 wrote as tokenizer.json: the ids of transformers, and what is refused."""

import json

import pytest
from pieces import BYTES, GEMMA, T5_IDS, train_pieces

from keras_transformer.huggingface import FAMILIES
from keras_transformer.text import SentencePieceTokenizer

transformers = pytest.importorskip("transformers")
TEXTS = [
    "A man runs in the park.", "두 마리 개가  공원에서 달린다!", " Zwei Hunde: 1,234 mal - (schön)",
    "é \t naïve ﬁ 한국 日本 🙂", "", "  two  blanks", "the<s> not </s> marks <mask>",
]  # fmt: skip
CASES = {
    # model_type: transformers' class, the file of SentencePiece, the options of its training
    "xlm-roberta": ("XLMRobertaTokenizer", "sentencepiece.bpe.model", {"model_type": "unigram"}),
    "mbart": ("MBart50Tokenizer", "sentencepiece.bpe.model", {"model_type": "unigram"}),
    "m2m_100": ("NllbTokenizer", "sentencepiece.bpe.model", {"model_type": "bpe"}),
    "t5": ("T5Tokenizer", "spiece.model", T5_IDS),
    "pegasus": ("PegasusTokenizer", "spiece.model", T5_IDS),
    "llama": ("LlamaTokenizer", "tokenizer.model", BYTES),
    "gemma2": ("GemmaTokenizer", "tokenizer.model", GEMMA),
}


def saved(family, folder):
    """Trains a SentencePiece model, lets transformers write it, and returns transformers' tokenizer."""
    kind, name, options = CASES[family]
    (folder / "trained").mkdir()
    size = 400 if options.get("byte_fallback") else 90
    train_pieces(folder / "trained" / name, vocab_size=size, **options)
    (folder / "trained" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    there = getattr(transformers, kind).from_pretrained(folder / "trained")
    there.save_pretrained(folder / "saved")
    assert not list((folder / "saved").glob("*.model"))
    return there


@pytest.mark.parametrize("family", CASES)
def test_ids_are_those_of_transformers_and_of_the_file_of_sentencepiece(family, tmp_path):
    there = saved(family, tmp_path)
    (tokenizer,) = FAMILIES[family].tokenizer.read(tmp_path / "saved")
    assert type(tokenizer) is SentencePieceTokenizer
    texts = TEXTS[:-1]  # a special token in a text is plain text here
    assert tokenizer.tokenize(texts).to_list() == there(texts, add_special_tokens=False)["input_ids"]
    assert not {*there.all_special_ids} & {*tokenizer.tokenize(TEXTS[-1:]).to_list()[0]} - {tokenizer.unk_id}
    assert tokenizer.vocab_size == len(there)
    assert (tokenizer.eos_id, tokenizer.unk_id) == (there.eos_token_id, there.unk_token_id)
    if family not in ("mbart", "m2m_100", "pegasus"):
        assert tokenizer.pieces(range(len(there))) == there.convert_ids_to_tokens(range(len(there)))
    if family in ("mbart", "m2m_100"):  # without the names of the languages that file is refused
        languages = {"additional_special_tokens": ["de_DE"]}
        (tmp_path / "trained" / "special_tokens_map.json").write_text(json.dumps(languages))
    (old,) = FAMILIES[family].tokenizer.read(tmp_path / "trained")
    rows = [*TEXTS, "x " * 9]
    ids = tokenizer.tokenize(rows)
    assert ids.to_list() == old.tokenize(rows).to_list()
    assert tokenizer.detokenize(ids).numpy().tolist() == old.detokenize(ids).numpy().tolist()


def without_a_merge(parts):
    del parts["model"]["merges"][3]


def with_merges_out_of_order(parts):
    merges = parts["model"]["merges"]
    pieces = ["".join(merge) for merge in merges]
    (first, *_) = [i for i in range(len(pieces) - 1) if pieces[i] == pieces[i + 1]]
    merges.append(merges.pop(first))


def with_blanks_split_alone(parts):
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    parts.update(normalizer=None, pre_tokenizer=split)


def with_a_piece_over_a_blank(parts):
    parts["model"]["vocab"]["b\u2581"] = len(parts["model"]["vocab"])
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    parts["pre_tokenizer"] = metaspace


def with_a_first_blank_after_splitting(parts):
    parts["pre_tokenizer"]["pretokenizers"][1]["prepend_scheme"] = "first"


def with_a_damaged_map(parts):
    parts["normalizer"].update(precompiled_charsmap="AAA")


@pytest.mark.parametrize(("family", "change", "message"), [
    ("llama", lambda parts: parts["model"].update(byte_fallback=False), "byte_fallback=False"),
    ("xlm-roberta", with_a_first_blank_after_splitting, "`prepend_scheme` must be"),
    ("llama", without_a_merge, "merges must be those"),
    ("llama", with_merges_out_of_order, "merges must be those"),
    ("llama", lambda parts: parts["model"].update(ignore_merges=True), "ignore_merges=True"),
    ("llama", lambda parts: parts["model"].update(type="WordLevel"), "WordLevel"),
    ("llama", lambda parts: parts["model"]["vocab"].update(new=10**12), "ids of its 401 pieces"),
    ("llama", lambda parts: parts.pop("model"), "KeyError"),
    ("llama", lambda parts: parts.update(normalizer={"type": "Lowercase"}), "no such part.*Lowercase"),
    ("llama", lambda parts: parts.update(pre_tokenizer=None), "no part of this file does"),
    ("llama", with_blanks_split_alone, "no part of this file does"),
    ("llama", with_a_piece_over_a_blank, "so no piece has one inside. Received: 'b\u2581'"),
    ("llama", lambda parts: parts["model"].update(byte_fallback=False, fuse_unk=False), "fuse_unk=False"),
    ("xlm-roberta", lambda parts: parts.update(normalizer=None), "only where `precompiled_charsmap`"),
    ("xlm-roberta", lambda parts: parts["model"].update(unk_id=10**6), "IndexError"),
    ("xlm-roberta", with_a_damaged_map, "compiled|padd"),
    ("xlm-roberta", lambda parts: parts.update(pre_tokenizer={"type": "Punctuation"}), "no part of this"),
    ("xlm-roberta", lambda parts: parts["model"].update(vocab=[["a", "b"]]), "must hold a tokenizer"),
], ids=range(18))  # fmt: skip
def test_other_files_are_refused(family, change, message, tmp_path):
    saved(family, tmp_path)
    path = tmp_path / "saved" / "tokenizer.json"
    parts = json.loads(path.read_text())
    change(parts)
    path.write_text(json.dumps(parts))
    with pytest.raises(ValueError, match=message):
        FAMILIES[family].tokenizer.read(tmp_path / "saved")
