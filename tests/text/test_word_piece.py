"""WordPiece: ids by hand and as transformers gives them, text of any kind, training, and what is saved."""

import json
import os
import random
import subprocess
import sys
import unicodedata

import pytest
import tensorflow as tf
from graphs import assert_same_in_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.text import TOKENIZERS, WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL,
    "un",
    "##aff",
    "##able",
    "the",
    "cat",
    ",",
    "##s",
    "中",
    "国",
    "e",
    "##a",
    "a",
    "[",
    "]",
    "sep",
]


def made(pieces=PIECES, **arguments):
    return WordPieceTokenizer(pieces, **arguments)


def ids_of(tokenizer, text):
    return tokenizer.tokenize([text]).to_list()[0]


def spelled(tokenizer, text):
    return tokenizer.pieces(ids_of(tokenizer, text))


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def subwords(request, sentences):
    return WordPieceTokenizer.train(sentences, 900, lower_case=request.param)


def read_back(tokenizer, strings):
    return [s.decode() for s in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


def test_the_longest_piece_begins_and_the_longest_goes_on_by_hand():
    assert spelled(made(), "The unaffable cats, cat") == [
        "the",
        "un",
        "##aff",
        "##able",
        "cat",
        "##s",
        ",",
        "cat",
    ]
    # A word is known as a whole or not at all.
    assert spelled(made(), "unaffablex catt") == ["[UNK]", "[UNK]"]
    assert spelled(made(), "中国cat") == ["中", "国", "cat"]
    assert spelled(made(), "Éa É") == ["e", "##a", "e"]
    assert made().tokenize(["the"]).dtype == tf.int32


def test_capitals_and_accents_stay_where_asked():
    assert spelled(made(lower_case=False), "The the é") == ["[UNK]", "the", "[UNK]"]
    assert spelled(made(strip_accents=False), "The é") == ["the", "[UNK]"]
    assert spelled(made(lower_case=False, strip_accents=True), "The é") == ["[UNK]", "e"]


def test_special_ids_are_those_of_their_names():
    tokenizer = made(["a", "[SEP]", "[MASK]", "[PAD]", "[CLS]", "[UNK]"])
    found = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert found == [3, 5, 4, 1, 2]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (4, 1, 6)
    assert TOKENIZERS["WordPieceTokenizer"] is WordPieceTokenizer


@pytest.mark.parametrize("special", [("[PAD]", "[UNK]"), ("[PAD]", "[UNK]", "[CLS]", "[SEP]", 4)])
def test_special_tokens_that_are_not_five_strings_are_named(special):
    with pytest.raises(
        ValueError, match=r"`special_tokens` must be 5 str, for \[PAD\], .*Received: .*'\[UNK\]'"
    ):
        WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], special_tokens=special)


def test_text_that_spells_a_special_piece_does_not_become_one():
    assert spelled(made(), "[SEP] the") == ["[", "sep", "]", "the"]


# Any text.


@pytest.mark.parametrize("blank", ["", " ", "\t\n ", "　", "\u2028", "\u00a0", "\0", "\u200b", "\ufeff"])
def test_blank_text_has_no_ids(blank):
    assert made().tokenize([blank, "the"]).to_list() == [[], [8]]
    assert read_back(made(), [blank]) == [""]


def test_control_characters_go_and_leave_one_word():
    assert spelled(made(), "c\0a\u200bt\x7f") == ["cat"]
    assert spelled(made(), "the\tcat\nthe\r\ncat\u3000the") == ["the", "cat"] * 2 + ["the"]


def test_invalid_utf8_is_read_as_if_the_bytes_were_not_there_and_harms_no_neighbour():
    rows = [b"\xff\xfe", b"the \xf0\x9f", b"the", b"\xed\xa0\x80", b"c\xffat"]
    assert read_back(made(), rows) == ["", "the", "the", "", "cat"]


@pytest.mark.parametrize(("unit", "expected"), [("a", ["[UNK]"]), ("the ", None), (",", None), ("\0", [])])
def test_a_million_characters_get_an_answer_and_harm_no_neighbour(unit, expected):
    text = unit * (1_000_000 // len(unit))
    long, short = made().tokenize([text, "the cat"])
    assert made().pieces(short.numpy()) == ["the", "cat"]
    if expected is None:
        assert long.shape == (len(text) // len(unit),)
    else:
        assert made().pieces(long.numpy()) == expected


def test_words_of_more_than_a_hundred_characters_are_unknown():
    """Characters and not bytes: a hundred Korean ones have three hundred."""
    tokenizer = made([*SPECIAL, "a", "##a", "가", "##가"], lower_case=False)
    for letter in "a가":
        assert len(ids_of(tokenizer, letter * 100)) == 100
        assert spelled(tokenizer, f"{letter * 101},{letter}") == ["[UNK]", "[UNK]", letter]


def test_no_strings_and_single_strings():
    assert made().tokenize([]).nrows() == 0
    assert made().detokenize(tf.zeros((0, 5), tf.int32)).shape == (0,)
    assert made().tokenize("the cat").numpy().tolist() == [8, 9]
    assert made().detokenize([8, 9]).numpy() == b"the cat"


ANYTHING = st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)), max_size=12)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(rows=ANYTHING)
@pytest.mark.slow
def test_any_bytes_become_valid_ids_each_row_as_it_would_alone(subwords, rows):
    ids = subwords.tokenize(tf.constant(rows, tf.string))
    assert ids.nrows() == len(rows)
    assert not {0, 2, 3, 4} & set(ids.flat_values.numpy().tolist())
    assert all(0 < i < subwords.vocab_size for i in ids.flat_values.numpy())
    for text, row in zip(rows, ids.to_list(), strict=True):
        assert ids_of(subwords, text) == row
    for text in subwords.detokenize(ids).numpy():
        text.decode("utf-8")


# Back to text.


def test_sentences_come_back_with_spaces_around_signs(subwords, sentences):
    for sentence, back in zip(sentences, read_back(subwords, sentences), strict=True):
        letters, expected = back.replace(" ", ""), sentence.replace(" ", "")
        if subwords.strip_accents:
            assert all(unicodedata.normalize("NFC", c) == c for c in letters)  # syllables, whole again
            expected = unicodedata.normalize("NFD", expected.lower())
            expected = "".join(c for c in expected if unicodedata.category(c) != "Mn")
            expected = unicodedata.normalize("NFC", expected)
        assert letters == expected


def test_special_ids_are_dropped_and_ids_out_of_range_read_as_unk():
    back = made().detokenize([[2, 8, 0, 3, 9, 11, 3, 0], [8, 4, 99, -1, 2**31 - 1, 1, 8, 0]]).numpy()
    assert back.tolist() == [b"the cats", b"the [MASK] [UNK] [UNK] [UNK] [UNK] the"]
    assert made().detokenize([[2**40 + 8, 8]]).numpy().tolist() == [b"[UNK] the"]


# Training.


def test_training_keeps_frequent_words_whole_and_spells_the_others():
    tokenizer = WordPieceTokenizer.train(["the cat sat"] * 9 + ["tech"], 60)
    assert tokenizer.pieces(range(5)) == SPECIAL
    assert spelled(tokenizer, "the cat sat") == ["the", "cat", "sat"]
    assert 1 not in ids_of(tokenizer, "tech chest teach")
    assert 1 in ids_of(tokenizer, "dog")


def test_all_characters_of_the_text_are_known(subwords, sentences):
    assert subwords.unk_id not in subwords.tokenize(sentences).flat_values.numpy()
    assert subwords.vocab_size <= 900
    lengths = subwords.tokenize(sentences).row_lengths().numpy()
    assert sum(lengths) < 0.7 * sum(map(len, sentences))


def test_a_larger_vocabulary_is_used():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(300)]
    texts = [word for i, word in enumerate(words) for _ in range(1 + 200 // (i + 1))]
    sizes = [WordPieceTokenizer.train(texts, most).vocab_size for most in (60, 120, 240)]
    assert all(0.7 * most < size <= most for size, most in zip(sizes, (60, 120, 240), strict=True))


@pytest.mark.slow
def test_training_twice_gives_the_same_pieces_whatever_the_hashes(sentences):
    code = (
        "import sys, json; from keras_transformer.text import WordPieceTokenizer as T;"
        "print(json.dumps(T.train(json.load(sys.stdin), 250)._pieces))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has another, or none
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(sentences),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == list(WordPieceTokenizer.train(sentences, 250)._pieces)


def test_rare_characters_are_left_out_where_asked():
    texts = ["aaa bbb"] * 5 + ["xyz"]
    assert WordPieceTokenizer.train(texts, 60).tokenize(["xyz"]).to_list()[0].count(1) == 0
    few = WordPieceTokenizer.train(texts, 60, max_characters=2)
    assert spelled(few, "xyz ab") == ["[UNK]", "a", "##b"]


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        ([], {}, "Received: 0 sentences"),
        (["", " \0"], {}, "Received: 2 sentences"),
        (["the cat"], {"vocab_size": 9}, "vocab_size=9, and the characters alone need 17 ids"),
        (["the cat"], {"vocab_size": 0}, "vocab_size=0"),
        (["the cat"], {"max_characters": 0}, "max_characters=0"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_named(texts, arguments, message):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer.train(texts, **{"vocab_size": 50, **arguments})


# Files.


def test_save_and_load_keep_every_id(subwords, sentences, tmp_path):
    subwords.save(tmp_path / "tokenizer")
    again = WordPieceTokenizer.load(tmp_path / "tokenizer")
    assert again.tokenize(sentences).to_list() == subwords.tokenize(sentences).to_list()
    assert (again.lower_case, again.strip_accents) == (subwords.lower_case, subwords.strip_accents)


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_vocabulary_file_is_read_line_by_line(end, start, tmp_path):
    pieces = [*PIECES, "\u2028", "x\x85y"]  # lines only to others
    (tmp_path / "vocab.txt").write_bytes((start + end.join(pieces) + end).encode())
    tokenizer = made(tmp_path / "vocab.txt")
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == pieces


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff", b"{}", b'{"pieces": 3}', b"[]"])
def test_files_that_hold_no_tokenizer_are_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="Cannot read a tokenizer from"):
        WordPieceTokenizer.load(tmp_path / "file")
    with pytest.raises(ValueError, match="`vocabulary`"):
        WordPieceTokenizer(tmp_path / "file")


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (SPECIAL[1:], r"\[PAD\] is missing"),
        ([*SPECIAL, "a", "a"], "'a', 2 times"),
        ([*SPECIAL, ""], "'', 1 times"),
        ([*SPECIAL, "a b"], "'a b', 1 times"),
        ([*SPECIAL, "가" * 86], "가', 1 times"),
        ([*SPECIAL, 3], "3, 1 times"),
        ([*SPECIAL, "a", "a\0b"], "tensorflow-text can use\\. tensorflow-text reports"),
        ("nowhere.txt", "nowhere.txt"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(pieces, message):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer(pieces)


def test_pieces_of_any_kind_are_taken():
    odd = ["##", "#", "###", "##,", "it's", "a\u3000b", "[unused1]", "가" * 85, "\ue000"]
    tokenizer = made([*SPECIAL, *odd, "a"])
    assert tokenizer.tokenize(["a", "#", "##"]).to_list()[0] == [5 + len(odd)]


# In a graph.


@pytest.mark.slow
def test_works_inside_a_function_and_in_a_saved_module(subwords, sentences, tmp_path):
    _, loaded = assert_same_in_graphs(subwords, [*sentences, "", b"\xff", "🎉"], tmp_path / "module")
    graph = loaded.concrete_functions[0].graph.as_graph_def()
    operations = {node.op for node in graph.node} | {n.op for f in graph.library.function for n in f.node_def}
    assert "FastWordpieceTokenizeWithOffsets" in operations
    assert not {op for op in operations if "Table" in op or "Resource" in op or "Py" in op}


def test_a_tokenizer_outlives_a_new_random_seed(sentences, subwords):
    function = tf.function(subwords.tokenize)
    expected = function(tf.constant(sentences)).to_list()
    tf.random.set_seed(7)
    assert subwords.tokenize(sentences).to_list() == expected
    assert function(tf.constant(sentences)).to_list() == expected


# Beside transformers.


def theirs_of(tokenizer, strip_accents=None):
    """transformers' tokenizer of the same pieces."""
    transformers = pytest.importorskip("transformers")
    vocabulary = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    return transformers.BertTokenizer(
        vocab=vocabulary, do_lower_case=tokenizer.lower_case, strip_accents=strip_accents
    )


def assert_same_ids(tokenizer, texts, **arguments):
    expected = theirs_of(tokenizer, **arguments)(texts, add_special_tokens=False)["input_ids"]
    found = tokenizer.tokenize(texts).to_list()
    differing = [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert not differing, (len(differing), differing[:3])


def test_ids_are_theirs_on_sentences(subwords, sentences):
    assert_same_ids(subwords, sentences)
    assert_same_ids(subwords, [s.upper() for s in sentences])


def test_ids_are_theirs_for_every_character_that_all_tables_know(subwords):
    """A character between letters: kept, dropped, a space or a word of its own. Theirs are of Unicode 8."""
    category, before = unicodedata.category, unicodedata.ucd_3_2_0.category
    letters = [
        c
        for c in map(chr, range(0x10000))
        if category(c) == before(c) and category(c) not in ("Cn", "Cs", "Co")
    ]
    assert len(letters) > 45000
    pieces = [*SPECIAL, *(f"{mark}{c}" for c in letters if c > " " for mark in ("", "##"))]
    tokenizer = WordPieceTokenizer(list(dict.fromkeys(pieces)), subwords.lower_case)
    assert_same_ids(tokenizer, [f"a{c}b" for c in letters])


@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_are_theirs_where_accents_go_or_stay_by_themselves(lower_case, strip_accents):
    texts = ["ÀÉÎõü ΑΣ Σ ΑΣΑ σας", "İI ı ẞß ﬁ ① Ａａ", "각낮 한국"]
    letters = {
        c
        for t in texts
        for x in (t, t.lower())
        for form in ("NFC", "NFD")
        for c in unicodedata.normalize(form, x)
    }
    pieces = [*SPECIAL, *(mark + c for c in sorted(letters - {" "}) for mark in ("", "##"))]
    tokenizer = WordPieceTokenizer(pieces, lower_case, strip_accents)
    assert_same_ids(tokenizer, texts, strip_accents=strip_accents)
    assert len(set(tokenizer.tokenize(texts).flat_values.numpy())) > 20


def test_ids_are_theirs_for_words_of_any_length(subwords):
    rng = random.Random(0)
    words = ["".join(rng.choice("aäe한n,中") for _ in range(n)) for n in (99, 100, 101, 102, 300)]
    words += ["a" * n for n in (99, 100, 101, 400, 401)] + ["한" * n for n in (33, 34, 50, 51, 100, 101, 134)]
    assert_same_ids(subwords, [" ".join(words), *words])
