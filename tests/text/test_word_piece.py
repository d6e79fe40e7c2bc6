"""WordPiece: ids by hand and as transformers gives them, text of any kind, training, and what is saved."""

import json
import os
import random
import subprocess
import sys
import unicodedata

import pytest
import tensorflow as tf

from keras_transformer.text import TOKENIZERS, WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL,
    *["un", "##aff", "##able", "the", "cat", ",", "##s", "中", "国", "e", "##a", "a", "[", "]", "sep"],
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
    # A capital sigma becomes the same small letter everywhere, also at the end of a word.
    assert spelled(made([*SPECIAL, "σ", "##σ"]), "ΣΣ σσ") == ["σ", "##σ"] * 2


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


def test_control_characters_go_and_leave_one_word():
    assert spelled(made(), "c\0a\u200bt\x7f") == ["cat"]
    assert [spelled(made(), text) for text in ("\0", "\u200b", "\ufeff", "\u2028")] == [[]] * 4
    assert spelled(made(), "the\tcat\nthe\r\ncat\u3000the") == ["the", "cat"] * 2 + ["the"]


def test_invalid_utf8_is_read_as_if_the_bytes_were_not_there():
    assert read_back(made(), [b"the \xf0\x9f", b"\xed\xa0\x80", b"c\xffat"]) == ["the", "", "cat"]


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


def test_masks_and_unknown_ids_are_read_as_their_pieces():
    assert made().detokenize([[8, 4, 99, -1, 1, 8, 0]]).numpy().tolist() == [
        b"the [MASK] [UNK] [UNK] [UNK] the"
    ]


# Training.


def test_training_keeps_frequent_words_whole_and_spells_the_others():
    tokenizer = WordPieceTokenizer.train(["the cat sat"] * 9 + ["tech"], 60)
    assert tokenizer.pieces(range(5)) == SPECIAL
    assert spelled(tokenizer, "the cat sat") == ["the", "cat", "sat"]
    assert 1 not in ids_of(tokenizer, "tech chest teach")
    assert 1 in ids_of(tokenizer, "dog")


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


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_vocabulary_file_is_read_line_by_line(end, start, tmp_path):
    pieces = [*PIECES, "\u2028", "x\x85y"]  # lines only to others
    (tmp_path / "vocab.txt").write_bytes((start + end.join(pieces) + end).encode())
    tokenizer = made(tmp_path / "vocab.txt")
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == pieces


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff"])
def test_files_that_hold_no_vocabulary_are_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
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


def test_a_graph_has_no_tables_that_a_loaded_module_would_have_to_fill():
    function = tf.function(made().tokenize, input_signature=[tf.TensorSpec((None,), tf.string)])
    operations = {node.op for node in function.get_concrete_function().graph.as_graph_def().node}
    assert "FastWordpieceTokenizeWithOffsets" in operations
    assert not {op for op in operations if "Table" in op or "Resource" in op or "Py" in op}


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
