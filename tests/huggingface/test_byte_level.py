"""Byte-level tokenizers: the ids that tokenizers recorded (compare_byte_level.py), the files, and text generators."""

import json
from pathlib import Path

import pytest
import tensorflow as tf
from families import GPT2, LLAMA, randomized

from keras_transformer.huggingface import (
    FAMILIES,
    from_huggingface,
    to_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.huggingface.tokenizers.kinds import starts_with_bos
from keras_transformer.serving import TextGenerator
from keras_transformer.text import BytePairTokenizer
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

RECORDED = json.loads(Path(__file__).with_name("recorded_byte_level.json").read_text())
ROWS = RECORDED["rows"]
PATTERNS = ("gpt2", "llama3", "qwen2")
END = "<|endoftext|>"


def folder_of(path, model_type, tokenizer, **tokenizer_config):
    """Writes a folder with a recorded tokenizer.json, without a model."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def changed(**changes):
    """GPT-2's recorded tokenizer.json, with other parts."""
    return {**RECORDED["gpt2"]["tokenizer"], **changes}


def changed_model(**changes):
    return changed(model={**RECORDED["gpt2"]["tokenizer"]["model"], **changes})


def model_of(family, tokenizer):
    """A model of a family, with random weights and the ids of a tokenizer."""
    bos_id, eos_id = (
        tokenizer.vocab_size - 1 if i is None else i for i in (tokenizer.bos_id, tokenizer.eos_id)
    )
    config = {**GPT2, "n_layer": 1} if family == "gpt2" else {**LLAMA, "num_hidden_layers": 1}
    ids = {"vocab_size": tokenizer.vocab_size, "bos_token_id": bos_id, "eos_token_id": eos_id}
    return randomized(family, FAMILIES[family].make_model({**config, **ids}), 2, scale=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_ids_are_those_of_tokenizers(pattern, tmp_path):
    recorded = RECORDED[pattern]
    (tokenizer,) = tokenizers_from_huggingface(folder_of(tmp_path, "llama", recorded["tokenizer"]))
    parsing = BytePairTokenizer(**{**tokenizer.get_config(), "parse_special": True})
    assert recorded["ids"] != recorded["ids_with_special_tokens"]
    for each, expected in ((tokenizer, "ids"), (parsing, "ids_with_special_tokens")):
        found = each.tokenize(ROWS).to_list()
        for row, own, other in zip(ROWS, found, recorded[expected], strict=True):
            assert own == other, row
    config = tokenizer.get_config()
    assert (config["special_tokens"], config["added_tokens"]) == ([END, "<|im_start|>"], ["<tool_call>"])
    assert config["pattern"] == pattern
    assert (config["nfc"], config["ignore_merges"]) == (pattern == "qwen2", pattern == "llama3")


@pytest.mark.parametrize(
    "family, expected",
    [("gpt2", False), ("qwen2", False), ("llama", True), ("mistral", True), ("gemma2", True)],
)
def test_prompts_begin_as_in_transformers_by_default(family, expected, tmp_path):
    assert starts_with_bos(tmp_path, FAMILIES[family].tokenizer, 0) is expected


def test_gpt2s_special_tokens_have_defaults_and_llama3s_are_in_its_configuration(tmp_path):
    recorded = RECORDED["gpt2"]["tokenizer"]
    (tokenizer,) = tokenizers_from_huggingface(folder_of(tmp_path / "a", "gpt2", recorded))
    end = next(token["id"] for token in recorded["added_tokens"] if token["content"] == END)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (None, end, end, end)
    options = {"eos_token": {"content": "<|im_start|>", "lstrip": False}, "bos_token": None, "pad_token": END}
    (tokenizer,) = tokenizers_from_huggingface(folder_of(tmp_path / "b", "gpt2", recorded, **options))
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (end, None, end + 1)
    (tokenizer,) = tokenizers_from_huggingface(folder_of(tmp_path / "c", "llama", recorded))
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (None, 0, None, None)


def test_the_older_files_of_gpt2_are_read(tmp_path):
    recorded = RECORDED["gpt2"]["tokenizer"]["model"]
    vocabulary, merges = recorded["vocab"], [" ".join(merge) for merge in recorded["merges"]]
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "vocab.json").write_text(json.dumps({**vocabulary, END: len(vocabulary)}))
    for first, end in (("#version: 0.2\n", "\n"), ("", "\r\n")):
        content = first + "".join(merge + end for merge in merges)
        (tmp_path / "merges.txt").write_bytes(content.encode())
        (tokenizer,) = tokenizers_from_huggingface(tmp_path)
        assert tokenizer.get_config()["merges"] == merges
        assert tokenizer.eos_id == len(vocabulary)
    rows = [i for i, row in enumerate(ROWS) if "<tool_call>" not in row]
    found = tokenizer.tokenize([ROWS[i] for i in rows]).to_list()
    assert found == [RECORDED["gpt2"]["ids"][i] for i in rows]
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ValueError, match=r"Cannot read .*merges\.txt"):
        tokenizers_from_huggingface(tmp_path)


def digits(**changes):
    """The pre-tokenizer of SmolLM, which cuts digits out first."""
    parts = [
        {"type": "Digits", "individual_digits": True, **changes},
        RECORDED["gpt2"]["tokenizer"]["pre_tokenizer"],
    ]
    return {"type": "Sequence", "pretokenizers": parts}


def without_bytes(characters, **changes):
    """GPT-2's recorded tokenizer.json without the pieces that contain some bytes, whose ids are counted again."""
    parts = RECORDED["gpt2"]["tokenizer"]
    spelled = {BYTE_CHARACTERS[byte] for byte in characters.encode("latin1")}
    vocabulary = parts["model"]["vocab"]
    kept = [piece for piece in sorted(vocabulary, key=vocabulary.get) if not {*piece} & spelled]
    merges = [merge for merge in parts["model"]["merges"] if not {*"".join(merge)} & spelled]
    ids = {piece: i for i, piece in enumerate(kept)}
    added = [token["content"] for token in parts["added_tokens"]]
    ids |= {token: len(ids) + i for i, token in enumerate(token for token in added if token not in ids)}
    tokens = [{**token, "id": ids[token["content"]]} for token in parts["added_tokens"]]
    return changed(model={**parts["model"], "vocab": ids, "merges": merges, **changes}, added_tokens=tokens)


TEXTS = [
    "a\x04b\x04\x04c", "\x04", "", "x 12  3 4a\x04 b7", "e\x04r \x7f the", "price: 1,234.50 - 2\u00bd \u0664",
]  # fmt: skip


@pytest.mark.parametrize("unknown", [False, True])
def test_bytes_that_are_missing_are_dropped_or_unknown(unknown, tmp_path):
    parts = without_bytes("\x04\x7f", **({"unk_token": END} if unknown else {}))
    folder = folder_of(tmp_path / "model", "llama", parts, **({"unk_token": END} if unknown else {}))
    (tokenizer,) = tokenizers_from_huggingface(folder)
    (whole,) = tokenizers_from_huggingface(folder_of(tmp_path / "whole", "llama", changed()))
    unk = [parts["model"]["vocab"][END]] if unknown else []
    text = "the dog, 1234 and a cat"
    *missing, between, known = tokenizer.tokenize(["\x04", "\x04\x7f\x04", "the\x04re a\x04", text]).to_list()
    assert missing == [unk, 3 * unk]
    assert "".join(tokenizer.pieces(between)) == "the{0}re\u2581a{0}".format(END if unknown else "")
    assert tokenizer.pieces(known) == whole.pieces(whole.tokenize(text).numpy())
    again = BytePairTokenizer(**tokenizer.get_config())
    assert again.get_config() == tokenizer.get_config()


def test_digits_are_cut_out_first(tmp_path):
    (tokenizer,) = tokenizers_from_huggingface(folder_of(tmp_path, "llama", changed(pre_tokenizer=digits())))
    assert tokenizer.get_config()["pattern"] == "gpt2_digits"
    found = [tokenizer.pieces(ids) for ids in tokenizer.tokenize(["10 11", "a  1", "  a1"]).to_list()]
    blank = "\u2581"
    assert found[0] == ["1", "0", blank, "1", "1"]
    assert "".join(found[1]) == f"a{blank * 2}1" and found[1][-1] == "1"
    assert found[2][-1] == "1" and found[2][:2] == [blank, f"{blank}a"]


@pytest.mark.parametrize("kind", ["missing", "unknown", "digits", "smollm"])
def test_the_same_ids_as_tokenizers_with_missing_bytes_and_digits(kind, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    parts = changed() if kind == "digits" else without_bytes("\x04\x7f\xc3")
    if kind == "unknown":
        parts["model"]["unk_token"] = END
    if kind in ("digits", "smollm"):
        parts["pre_tokenizer"] = digits()
    there = tokenizers.Tokenizer.from_str(json.dumps(parts))
    options = {"unk_token": END} if kind == "unknown" else {}
    (tokenizer,) = tokenizers_from_huggingface(folder_of(tmp_path, "llama", parts, **options))
    rows = [row for row in (*ROWS, *TEXTS) if "<|" not in row]
    for row, own in zip(rows, tokenizer.tokenize(rows).to_list(), strict=True):
        assert own == there.encode(row, add_special_tokens=False).ids, repr(row)


def test_a_byte_level_without_use_regex_has_it(tmp_path):
    part = dict(RECORDED["gpt2"]["tokenizer"]["pre_tokenizer"])
    assert part["type"] == "ByteLevel" and part.pop("use_regex")
    (found,) = tokenizers_from_huggingface(folder_of(tmp_path, "gpt2", changed(pre_tokenizer=part)))
    (expected,) = tokenizers_from_huggingface(folder_of(tmp_path, "gpt2", changed()))
    assert found.get_config() == expected.get_config()


def test_words_may_be_kept_by_removing_what_is_between_them(tmp_path):
    """As in OLMo 2. The expression matches each character, so nothing is between."""
    whole, (split, bytes_) = (
        RECORDED["llama3"],
        RECORDED["llama3"]["tokenizer"]["pre_tokenizer"]["pretokenizers"],
    )
    parts = [{**split, "behavior": "Removed", "invert": True}, bytes_]
    given = {**whole["tokenizer"], "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}
    (tokenizer,) = tokenizers_from_huggingface(
        folder_of(tmp_path, "olmo2", given, tokenizer_class="GPT2Tokenizer")
    )
    assert tokenizer.tokenize(ROWS[:20]).to_list() == whole["ids"][:20]


SPLIT = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
TOKEN = {"id": 0, "content": "Ā", "special": True}
REFUSED = [
    (lambda: changed_model(type="Unigram"), "`type` of tokenizer.json must be 'BPE'"),
    (lambda: changed_model(byte_fallback=True), "`byte_fallback` of tokenizer.json must be False"),
    (lambda: changed_model(dropout=0.1), "dropout=0.1"),
    (lambda: changed_model(end_of_word_suffix="</w>"), "end_of_word_suffix='</w>'"),
    (lambda: changed_model(vocab={"a": 0}), "must be those from 0 to"),
    (lambda: changed_model(vocab={"a": 10**15}), "must be those from 0 to"),
    (lambda: changed_model(vocab=[]), r"Received: TypeError"),
    (lambda: changed_model(merges=[["a", "\u00e9\u00e9"]]), "`merges` must be lines of two pieces"),
    (lambda: changed_model(merges=None), r"Received: TypeError"),
    (lambda: without_bytes("\x04", unk_token="Ġ"), "`unk_token` of its model must be that of the tokenizer"),
    (
        lambda: changed(pre_tokenizer=digits(individual_digits=False)),
        "`pre_tokenizer` must be that of one of",
    ),
    (lambda: changed(model=None), "Received: AttributeError"),
    (lambda: changed(pre_tokenizer=SPLIT), "`pre_tokenizer` must be that of one of"),
    (lambda: changed(normalizer={"type": "NFKC"}), "type='NFKC'"),
    (lambda: changed(decoder={"type": "WordPiece"}), "type='WordPiece'"),
    (lambda: changed(added_tokens=[{**TOKEN, "id": 1}]), "must be those from 0 to"),
    (lambda: changed(added_tokens=[{"special": True}]), "Received: KeyError"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_other_tokenizers_are_refused_with_the_name_of_the_file(make, message, tmp_path):
    folder_of(tmp_path, "llama", make())
    with pytest.raises(ValueError, match=message) as error:
        tokenizers_from_huggingface(tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(error.value)


@pytest.mark.parametrize(("family", "pattern"), [("gpt2", "gpt2"), ("llama", "llama3"), ("llama", "qwen2")])
def test_written_tokenizers_are_read_again(family, pattern, tmp_path):
    names = {"eos_token": END, "bos_token": "<|im_start|>"}
    (given,) = tokenizers_from_huggingface(
        folder_of(tmp_path / "a", family, RECORDED[pattern]["tokenizer"], **names)
    )
    to_huggingface(model_of(family, given), tmp_path / "b", tokenizers=(given,))
    (again,) = tokenizers_from_huggingface(tmp_path / "b")
    assert again.get_config() == given.get_config()


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """A text generator of a GPT-2 with random weights, read from a folder of Hugging Face."""
    path = tmp_path_factory.mktemp("gpt2")
    (tokenizer,) = tokenizers_from_huggingface(folder_of(path / "a", "gpt2", RECORDED["gpt2"]["tokenizer"]))
    to_huggingface(model_of("gpt2", tokenizer), path / "b", tokenizers=(tokenizer,))
    (tokenizer,) = tokenizers_from_huggingface(path / "b")
    return TextGenerator(from_huggingface(path / "b"), tokenizer, max_source_length=12, max_length=8)


@pytest.mark.slow
def test_a_gpt2_continues_a_text(generator):
    tokenizer = generator.tokenizer
    ids = [tokenizer.bos_id, *tokenizer.tokenize("def f(x):").numpy()]
    tokens = generator.model.generate([ids], max_length=8, jit_compile=False).tokens[:, 0]
    expected = tokenizer.detokenize(tokens).numpy()[0].decode()
    assert generator.generate(["def f(x):"]) == [expected] != [""]


@pytest.mark.slow
def test_the_export_of_a_gpt2_answers_as_python_does(generator, tmp_path):
    prompts = ["def f(x):", "", "안녕", "two  blanks "]
    export = generator.export(tmp_path)
    found = tf.saved_model.load(str(export)).signatures["serving_default"](text=tf.constant(prompts))
    texts = [text.decode("utf-8", "replace") for text in found["continuation"].numpy()]
    assert texts == generator.generate(prompts) and len(set(texts)) > 2
