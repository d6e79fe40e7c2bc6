"""tokenizer_config.json and tokenizer.json that differ, and the ids that `post_processor` puts around texts."""

import json
import logging

import pytest
from contracts import refuses
from pieces import BYTES, assert_same_ids, byte_pieces, described, train_pieces

from keras_transformer.huggingface import FAMILIES, tokenizers_from_huggingface
from keras_transformer.huggingface.tokenizers.byte_pair import PRE_TOKENIZERS
from keras_transformer.huggingface.tokenizers.kinds import starts_with_bos

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "e", "é", "É", "漢", "漢字", "b", "##b", "##e", "##é",
]  # fmt: skip
TEXTS = ["A é É", "Ab Éb", "漢字 a", "a漢字b", "AB ébe"]
WORD_PIECE = [
    # options of tokenizer_config.json; those of `BertNormalizer` in tokenizer.json
    ({}, {"lowercase": False}),
    ({"do_lower_case": False}, {}),
    ({"do_lower_case": True, "strip_accents": False}, {"strip_accents": True}),
    ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, {"lowercase": False}),
    ({}, {"handle_chinese_chars": False}),
]


def transformers():
    """Returns the library, or skips a test where it is not installed."""
    return pytest.importorskip("transformers")


def word_piece(folder, config, normalizer, **changes):
    """A folder of BERT, with a tokenizer.json as transformers writes it."""
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    parts = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": PIECES[i], "special": True, **flags} for i in range(5)],
        "normalizer": {"type": "BertNormalizer", **usual, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template("[CLS]", "$", "[SEP]"),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", **model, "vocab": vocabulary},
    }
    (folder / "tokenizer.json").write_text(json.dumps({**parts, **changes}))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return described(folder, "bert", **names, **config)


@pytest.mark.parametrize(("config", "normalizer"), WORD_PIECE)
def test_the_options_of_word_pieces_count_as_in_transformers(config, normalizer, tmp_path, caplog):
    word_piece(tmp_path, config, normalizer)
    with caplog.at_level(logging.WARNING):
        (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    assert_same_ids(tokenizer, transformers().AutoTokenizer.from_pretrained(tmp_path), TEXTS)
    assert ("in place of" in caplog.text) is ("tokenizer_class" not in config)


@pytest.mark.parametrize(
    ("config", "normalizer"),
    [
        ({"tokenize_chinese_chars": False}, {}),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {"handle_chinese_chars": False}),
    ],
)
def test_word_pieces_over_several_ideographs_are_refused(config, normalizer, tmp_path):
    with pytest.raises(ValueError, match="tokenize_chinese_chars=False"):
        tokenizers_from_huggingface(word_piece(tmp_path, config, normalizer))


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("files", ["json", "old"])
def test_the_first_blank_of_byte_pairs_is_that_of_transformers(files, name, tmp_path):
    vocabulary, merges = byte_pieces()
    if files == "json":
        there = transformers().GPT2Tokenizer(vocab=vocabulary, merges=merges, unk_token="</s>")
        there.save_pretrained(tmp_path)
    elif name == "PreTrainedTokenizerFast":
        pytest.skip("it reads tokenizer.json alone")
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("\n".join(map(" ".join, merges)))
    ends = {f"{role}_token": "</s>" for role in ("bos", "eos", "unk")}
    described(tmp_path, "gpt2", tokenizer_class=name, add_prefix_space=True, **ends)
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    there = getattr(transformers(), name).from_pretrained(tmp_path)
    assert_same_ids(tokenizer, there, ["the dog", " the dog", "", "\tthe", "개가"])
    assert tokenizer.get_config()["prefix_space"] is (name == "GPT2Tokenizer")


@pytest.mark.parametrize("options", [{}, {"add_prefix_space": False}, {"legacy": True}])
def test_the_first_blank_of_llama_is_that_of_transformers(options, tmp_path):
    train_pieces(tmp_path / "tokenizer.model", vocab_size=400, **BYTES)
    described(tmp_path, "llama", tokenizer_class="LlamaTokenizer", **options)
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    there = transformers().LlamaTokenizer.from_pretrained(tmp_path)
    assert_same_ids(tokenizer, there, ["the dog", " the dog", "  the", "", "dog\n the"])


def template(*items):
    """A `TemplateProcessing` of `[CLS]`, `[SEP]` and the text."""

    def listed(items):
        texts = iter("AB")
        parts = [("Sequence", next(texts)) if item == "$" else ("SpecialToken", item) for item in items]
        return [{kind: {"id": each, "type_id": 0}} for kind, each in parts]

    tokens = {
        each: {"id": each, "ids": [PIECES.index(each)], "tokens": [each]} for each in ("[CLS]", "[SEP]")
    }
    sides = {"single": listed(items), "pair": listed([*items, *items[1:]])}
    return {"type": "TemplateProcessing", **sides, "special_tokens": tokens}


BERT = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}


USUAL = [BERT, template("[CLS]", "$", "[SEP]"), {"type": "Sequence", "processors": [BERT]}]
OTHERS = [
    *(None, 3, {"type": "Invented"}, {"type": "TemplateProcessing"}, {**BERT, "type": "RobertaProcessing"}),
    *(template("$", "[SEP]"), template("[CLS]", "[CLS]", "$", "[SEP]")),
]


@pytest.mark.parametrize(("processor", "usual"), [*((x, True) for x in USUAL), *((x, False) for x in OTHERS)])
def test_other_ids_around_a_text_than_the_usual_ones_are_refused(processor, usual, tmp_path):
    folder = word_piece(tmp_path, GENERIC, {}, post_processor=processor)
    if usual:
        assert tokenizers_from_huggingface(folder)
        return
    refuses(r"`post_processor` of .*tokenizer\.json", tokenizers_from_huggingface, folder)


def test_a_class_with_its_own_ids_does_not_read_the_file(tmp_path):
    assert tokenizers_from_huggingface(word_piece(tmp_path, {}, {}, post_processor=None))


def test_prompts_begin_as_the_post_processor_says(tmp_path):
    kind = FAMILIES["llama"].tokenizer
    for processor, expected in ((template("[CLS]", "$"), True), (template("$"), False), (None, True)):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
        assert starts_with_bos(tmp_path, kind, 2) is expected
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert not starts_with_bos(tmp_path, kind, 2)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": template("[CLS]", "$", "[SEP]")}))
    refuses("nothing but `bos_token` around a prompt", starts_with_bos, tmp_path, kind, 2)
    (tmp_path / "tokenizer_config.json").write_text('{"add_eos_token": true}')
    refuses("add_eos_token=True", starts_with_bos, tmp_path, kind, 2)


@pytest.mark.parametrize("name", ["RobertaTokenizer", "BertJapaneseTokenizer", "T5TokenizerFast"])
def test_another_class_of_tokenizers_is_refused(name, tmp_path):
    folder = word_piece(tmp_path, {"tokenizer_class": name}, {})
    message = f"`tokenizer_class` .*tokenizer_class='{name.removesuffix('Fast')}'"
    refuses(message, tokenizers_from_huggingface, folder)


def byte_level(folder, model_type, **config):
    """A folder with a tokenizer.json of GPT-2's pattern."""
    vocabulary, merges = byte_pieces()
    transformers().GPT2Tokenizer(vocab=vocabulary, merges=merges, unk_token="</s>").save_pretrained(folder)
    return described(folder, model_type, **config)


def test_parts_that_a_class_makes_otherwise_are_refused(tmp_path):
    folder = byte_level(tmp_path, "qwen2", tokenizer_class="Qwen2Tokenizer")
    message = r"parts of its class.*tokenizer_class='Qwen2Tokenizer', pre_tokenizer='gpt2'"
    refuses(message, tokenizers_from_huggingface, folder)
    described(tmp_path, "qwen3", tokenizer_class="PreTrainedTokenizerFast")
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert tokenizer.get_config()["pattern"] == "gpt2"


@pytest.mark.parametrize("name", ["LlamaTokenizerFast", "PreTrainedTokenizerFast"])
def test_qwen2_has_one_class_under_any_name(name, tmp_path, caplog):
    folder = byte_level(tmp_path, "qwen2", tokenizer_class=name)
    with pytest.raises(ValueError, match=r"parts of its class\. Received: tokenizer_class='Qwen2Tokenizer'"):
        tokenizers_from_huggingface(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": PRE_TOKENIZERS["qwen2"]}))
    (tokenizer,) = tokenizers_from_huggingface(folder)
    there = transformers().AutoTokenizer.from_pretrained(folder)
    assert_same_ids(tokenizer, there, ["x12345 dog's", "e\u0301 the  dog"])
    assert "in place of the missing `normalizer`" in caplog.text


def older_files(folder):
    """Replaces the tokenizer.json of a folder by vocab.json and merges.txt."""
    parts = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(parts["vocab"]))
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in parts["merges"])
    (folder / "merges.txt").write_text("\n".join(merges))


@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer"])
def test_qwens_older_files_are_split_as_its_class_does(name, tmp_path):
    folder = byte_level(tmp_path, "qwen2", tokenizer_class=name)
    older_files(folder)
    (tokenizer,) = tokenizers_from_huggingface(folder)
    there = transformers().AutoTokenizer.from_pretrained(folder)
    assert_same_ids(tokenizer, there, ["x12345 dog's", "e\u0301 the  dog"])


@pytest.mark.parametrize(
    ("family", "name"),
    [("gpt2", "LlamaTokenizerFast"), ("gpt2", "PreTrainedTokenizerFast"), ("llama", None), ("mistral", None)],
)
def test_older_files_are_refused_where_no_class_says_how_texts_are_split(family, name, tmp_path):
    folder = byte_level(tmp_path, family, **({"tokenizer_class": name} if name else {}))
    older_files(folder)
    message = r"`tokenizer_class` must be one of .* where tokenizer\.json is missing"
    refuses(message, tokenizers_from_huggingface, folder)


def test_byte_level_pieces_with_the_class_of_code_llama_are_refused(tmp_path):
    folder = byte_level(tmp_path, "llama", tokenizer_class="CodeLlamaTokenizer")
    refuses("tokenizer_class='CodeLlamaTokenizer'", tokenizers_from_huggingface, folder)


def test_a_sequence_of_one_part_is_the_part(tmp_path):
    folder = word_piece(tmp_path, GENERIC, {})
    path = folder / "tokenizer.json"
    parts = json.loads(path.read_text())
    for name, listed in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        parts[name] = {"type": "Sequence", listed: [parts[name]]}
    path.write_text(json.dumps(parts))
    (tokenizer,) = tokenizers_from_huggingface(folder)
    assert_same_ids(tokenizer, transformers().AutoTokenizer.from_pretrained(folder), TEXTS)


def llama_json(folder):
    """Writes the tokenizer.json of a Llama; returns its path and its parts."""
    train_pieces(folder / "tokenizer.model", vocab_size=400, **BYTES)
    described(folder, "llama", tokenizer_class="LlamaTokenizer")
    transformers().LlamaTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder / "tokenizer.json", json.loads((folder / "tokenizer.json").read_text())


BLANKS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


@pytest.mark.parametrize(("config", "changes", "message"), [
    ({"bos_token": "<start>"}, {}, "`bos_token` of tokenizer_config.json must be a piece"),
    ({}, {"normalizer": BLANKS}, "`normalizer`"),
    ({}, {"model": {"byte_fallback": False}}, "`normalizer`, `pre_tokenizer` and `model` must do"),
], ids=["bos", "blanks", "bytes"])  # fmt: skip
def test_parts_that_contradict_llamas_class_are_refused(config, changes, message, tmp_path):
    path, parts = llama_json(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    for name, part in changes.items():
        parts[name] = {**(parts[name] or {}), **part}
    path.write_text(json.dumps(parts))
    described(tmp_path, "llama", tokenizer_class="LlamaTokenizer", **config)
    refuses(message, tokenizers_from_huggingface, tmp_path)


@pytest.mark.parametrize(
    ("family", "options"), [("phi3", {"tokenizer_class": "LlamaTokenizer"}), ("llama", {})]
)
def test_tokenizer_json_counts_where_transformers_takes_it_as_it_is(family, options, tmp_path):
    path, parts = llama_json(tmp_path)
    parts["pre_tokenizer"]["prepend_scheme"] = "never"
    path.write_text(json.dumps(parts))
    described(tmp_path, family, **options)
    (tokenizer,) = tokenizers_from_huggingface(tmp_path)
    assert_same_ids(
        tokenizer, transformers().AutoTokenizer.from_pretrained(tmp_path), ["the dog", " the dog"]
    )


def test_a_first_token_that_the_files_disagree_about_is_refused(tmp_path):
    kind = FAMILIES["llama"].tokenizer
    (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": template("[CLS]", "$")}))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    refuses(r"`add_bos_token` .*add_bos_token=False, puts_bos_first=True", starts_with_bos, tmp_path, kind, 2)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": None}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(GENERIC))
    assert starts_with_bos(tmp_path, kind, 2) is False
