"""Byte-level pieces: merges and words by hand, text of any kind, special tokens, and what is saved."""

import json
import random

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.text import BytePairTokenizer
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

END, START, CALL = "<|end|>", "<|start|>", "<call>"
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "a b", "ab a", "1 2", "12 3", "ì ķ", "ìķ Ī"]
PIECES = [*BYTE_CHARACTERS, *("".join(merge.split(" ")) for merge in MERGES), END, START, CALL]
TOKENS = {"eos_token": END, "bos_token": START, "added_tokens": [CALL]}


def made(merges=MERGES, vocabulary=PIECES, **arguments):
    return BytePairTokenizer(vocabulary, merges, **{**TOKENS, **arguments})


def spelled(tokenizer, text):
    return tokenizer.pieces(tokenizer.tokenize(text).numpy())


def read_back(tokenizer, strings):
    return [text.decode() for text in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


@pytest.fixture(scope="module")
def tokenizer():
    return made()


@pytest.fixture(scope="module")
def round_trips(tokenizer):
    """Functions from texts to the texts of their ids."""

    def round_trip(each):
        strings = tf.TensorSpec((None,), tf.string)
        return tf.function(lambda strings: each.detokenize(each.tokenize(strings)), input_signature=[strings])

    return [round_trip(each) for each in (tokenizer, made(pattern="llama3"))]


@pytest.mark.slow
def test_the_first_merge_of_the_list_comes_first(tokenizer):
    assert spelled(tokenizer, "hello hello! hel") == ["hello", "▁hello", "!", "▁", "he", "l"]
    assert tokenizer.tokenize(["hello"]).dtype == tf.int32
    assert tokenizer.tokenize(["A", ""]).to_list() == [[0x41], []]
    assert spelled(tokenizer, "ll안a") == ["ll", "안", "a"]
    assert spelled(tokenizer, "é") == ["\\xc3", "\\xa9"]
    turned = made(["l l", "h e", "e ll"], [*PIECES, "ell"])
    assert spelled(turned, "hell") == ["he", "ll"]
    assert spelled(made(["l l", "e ll", "h e"], [*PIECES, "ell"]), "hell") == ["h", "ell"]


@pytest.mark.slow
def test_only_the_token_of_an_unknown_byte_is_unknown_text():
    end = PIECES.index(END)
    without = [piece for piece in PIECES if piece != "!"]
    for missing, pieces in (("refused", PIECES), ("dropped", without)):
        tokenizer = made(vocabulary=pieces, unk_token=END, missing_bytes=missing, parse_special=True)
        ids = tokenizer.tokenize(f"a!{END}")
        assert tokenizer.unk_id in ids.numpy() and not any(tokenizer.is_unknown(ids))
    assert not any(made(unk_token=None).is_unknown(tf.constant([0, end])))
    tokenizer = made(vocabulary=without, unk_token=START, missing_bytes="unknown")
    assert tokenizer.is_unknown(tokenizer.tokenize("a!a")).numpy().tolist() == [False, True, False]


@pytest.mark.slow
def test_equal_neighbours_are_merged_from_the_left():
    merged = made(["a a", "aa aa"], [*PIECES, "aa", "aaaa"])
    rows = ["a" * n for n in range(1, 8)]
    found = [" ".join(spelled(merged, row)) for row in rows]
    assert found == ["a", "aa", "aa a", "aaaa", "aaaa a", "aaaa aa", "aaaa aa a"]
    assert spelled(merged, "a" * 601) == ["aaaa"] * 150 + ["a"]


def test_a_merge_of_an_earlier_rank_comes_next_even_if_another_pair_waits():
    # "ab" and "ab" would both be merged, if "aba" did not come before them in the list.
    assert spelled(made(["ab a", "a b"]), "abab") == ["aba", "b"]
    assert spelled(made(["a b", "ab a"]), "abab") == ["ab", "ab"]


def test_a_word_of_the_vocabulary_is_taken_whole_where_merges_are_ignored():
    assert spelled(made(["he ll"]), "hello hello") == [*"hello", "▁", *"hello"]
    assert spelled(made(["he ll"], ignore_merges=True), "hello hello") == ["hello", "▁hello"]
    # "안" has three bytes, and this piece does not spell them.
    assert len(made([], [*PIECES[:256], END, START, CALL, "안"], ignore_merges=True).tokenize("안")) == 3


WORDS = [
    ("gpt2", "Don't I'LL go", ["Don", "'t", " I", "'", "LL", " go"]),
    ("llama3", "Don't I'LL go", ["Don", "'t", " I", "'LL", " go"]),
    ("gpt2", "a   b\n\n c\n\nd ", ["a", "  ", " b", "\n\n", " c", "\n", "\n", "d", " "]),
    ("llama3", "a   b\n\n c\n\nd ", ["a", "  ", " b", "\n\n", " c", "\n\n", "d", " "]),
    ("gpt2", "12345 6é7", ["12345", " 6", "é", "7"]),
    ("llama3", "12345 6é7", ["123", "45", " ", "6", "é", "7"]),
    ("qwen2", "12345 6é7", ["1", "2", "3", "4", "5", " ", "6", "é", "7"]),
    ("gpt2", "x_y (z)!\n", ["x", "_", "y", " (", "z", ")!", "\n"]),
    ("llama3", "x_y (z)!\n", ["x", "_y", " (", "z", ")!\n"]),
    ("gpt2", "\u3000\u3000한\t국", ["\u3000", "\u3000", "한", "\t", "국"]),
    ("llama3", "\u3000\u3000한\t국", ["\u3000", "\u3000한", "\t국"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "text", "words"), WORDS)
def test_the_words_of_a_pattern_by_hand(pattern, text, words):
    spelling = ["".join(BYTE_CHARACTERS[byte] for byte in word.encode()) for word in words]
    pieces = list(dict.fromkeys([*BYTE_CHARACTERS, *spelling]))
    # With `ignore_merges` each word that is in the vocabulary is one id, so ids show where words end.
    tokenizer = BytePairTokenizer(pieces, [], pattern, ignore_merges=True)
    assert tokenizer.tokenize(text).numpy().tolist() == [pieces.index(word) for word in spelling]


@settings(deadline=None, max_examples=12, derandomize=True)
@given(strings=st.lists(st.text(), min_size=1, max_size=12))
@example(["\ufeffBOM", "\0NUL\0", "\u2028", "\ufffe\uffff\U0010ffff", "e\u0301", "🏳️‍🌈", " ", "\r\n \t"])
@pytest.mark.slow
def test_every_text_comes_back_exactly(round_trips, strings):
    for round_trip in round_trips:
        assert [text.decode() for text in round_trip(tf.constant(strings)).numpy()] == strings


def test_any_bytes_read_as_utf8_with_replacement_characters(tokenizer):
    rows = [random.Random(n).randbytes(n % 20) for n in range(200)]
    assert read_back(tokenizer, rows) == [row.decode("utf-8", "replace") for row in rows]


@pytest.mark.slow
def test_a_special_token_in_a_text_is_text_unless_it_is_asked_for(tokenizer):
    text = f"a {END}{START}<call> b"
    end, start, call = (PIECES.index(token) for token in (END, START, CALL))
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id) == (end, start, None, end)
    ids = tokenizer.tokenize(text).numpy().tolist()
    assert call in ids and not {end, start} & set(ids)
    assert tokenizer.detokenize(ids).numpy().decode() == text
    tokenize = made(parse_special=True).tokenize
    parsed = tokenize([text, END]).to_list()
    assert parsed == [[0x61, 0x20, end, start, call, 0x20, 0x62], [end]]
    assert tf.function(tokenize)(tf.constant([text, END])).to_list() == parsed
    assert tokenizer.detokenize(parsed).numpy().tolist() == [b"a <call> b", b""]


def test_of_special_tokens_that_begin_alike_the_longest_is_found():
    longer = END + END
    tokenizer = made(vocabulary=[*PIECES, longer], special_tokens=[longer], parse_special=True)
    end = tokenizer.eos_id
    assert tokenizer.tokenize(END * 5).numpy().tolist() == [len(PIECES), len(PIECES), end]


def test_blanks_before_a_special_token_are_those_at_the_end_of_a_text():
    pieces = [*PIECES, "ĠĠ"]
    tokenizer = made([*MERGES, "Ġ Ġ"], pieces, parse_special=True)
    assert tokenizer.tokenize(f"  {END}").numpy().tolist() == [len(PIECES), tokenizer.eos_id]
    assert tokenizer.tokenize("  a").numpy().tolist() == [0x20, 0x20, 0x61]


@pytest.mark.slow
def test_nfc_composes_characters():
    composed = made(nfc=True)
    rows = ["e\u0301", "\u1112\u1161\u11ab", "a\uffff\u0301"]
    assert read_back(composed, rows) == ["é", "한", "a\uffff\u0301"]
    assert read_back(made(), ["e\u0301"]) == ["e\u0301"]


def test_save_and_load_give_an_equal_tokenizer(tmp_path):
    arguments = dict.fromkeys(["nfc", "ignore_merges", "parse_special"], True)
    arguments |= {"pattern": "qwen2", "pad_token": END}
    tokenizer = made(**arguments)
    tokenizer.save(tmp_path / "new.model")
    loaded = BytePairTokenizer.load(tmp_path / "new.model")
    assert loaded.get_config() == tokenizer.get_config()
    assert loaded.get_config() | arguments == loaded.get_config()
    text = f"hello {END} 12 e\u0301"
    assert loaded.tokenize(text).numpy().tolist() == tokenizer.tokenize(text).numpy().tolist()


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_no_text_has_an_empty_piece(ignore_merges):
    """As the vocabulary of Whisper has one."""
    texts = ["", "hello hello!", " \n"]
    plain = made(ignore_merges=ignore_merges).tokenize(texts).to_list()
    tokenizer = made(vocabulary=[*PIECES, ""], ignore_merges=ignore_merges)
    assert tokenizer.tokenize(texts).to_list() == plain
    assert tokenizer.detokenize([[len(PIECES), *plain[1]]]).numpy().tolist() == [b"hello hello!"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"pattern": "bert"}, "`pattern` must be one of"),
    ({"pattern": ["gpt2"]}, "`pattern` must be one of"),
    ({"vocabulary": PIECES[1:]}, "must have a piece for each byte. Received: 'Ā' is missing"),
    ({"vocabulary": [*PIECES, "he"]}, "must hold different str"),
    ({"vocabulary": [*PIECES, 7]}, "must hold different str"),
    ({"vocabulary": [*PIECES, ""], "merges": ["he"]}, "`merges` must be lines of two pieces.* Received: 'he'"),
    ({"vocabulary": [*PIECES, ""], "special_tokens": [""]}, "`special_tokens` must be in `vocabulary`"),
    ({"vocabulary": [*PIECES, "\ud800"]}, "half of a surrogate pair"),
    ({"merges": ["h e", "x y"]}, "`merges` must be lines of two pieces.* Received: 'x y'"),
    ({"merges": ["he"]}, "`merges` must be lines of two pieces.* Received: 'he'"),
    ({"merges": [["h", "e"]]}, "`merges` must be lines of two pieces"),
    ({"pad_token": "<pad>"}, "`special_tokens` must be in `vocabulary`. Received: '<pad>'"),
    ({"added_tokens": [5]}, "`added_tokens` must hold texts or `AddedToken`. Received: token=5"),
    ({"vocabulary": [*PIECES, "e\u0301"], "added_tokens": ["e\u0301"], "nfc": True}, "form NFC"),
])  # fmt: skip
def test_arguments_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        made(**arguments)


def test_other_arguments_of_a_file_are_refused(tmp_path):
    config = {**made().get_config(), "hook": "os.system"}
    (tmp_path / "odd.model").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"odd\.model.*hook"):
        BytePairTokenizer.load(tmp_path / "odd.model")
