"""WordPiece: ids by hand and as transformers gives them, text of any kind, training, and what is saved."""

import json
import os
import random
import subprocess
import sys
import unicodedata

import pytest
import tensorflow as tf
from contracts import refuses

from keras_transformer.text import TOKENIZERS, WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["un", "##aff", "##able", "the", "cat", ",", "##s", "中", "国", "e", "##a", "a", "[", "]", "sep"]
PIECES = [*SPECIAL, *WORDS]


def made(pieces=PIECES, **arguments):
    return WordPieceTokenizer(pieces, **arguments)


def ids_of(tokenizer, text):
    return tokenizer.tokenize([text]).to_list()[0]


def spelled(tokenizer, *texts):
    return [" ".join(tokenizer.pieces(ids)) for ids in tokenizer.tokenize(texts).to_list()]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def subwords(request, sentences):
    return WordPieceTokenizer.train(sentences, 900, lower_case=request.param)


def read_back(tokenizer, strings):
    return [s.decode() for s in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


def test_the_longest_piece_begins_and_the_longest_goes_on_by_hand():
    expected = {
        "The unaffable cats, cat": "the un ##aff ##able cat ##s , cat",
        "unaffablex catt": "[UNK] [UNK]",  # a word is known as a whole or not at all
        "中国cat": "中 国 cat",
        "Éa É": "e ##a e",
        "[SEP] the": "[ sep ] the",
    }
    assert spelled(made(), *expected) == [*expected.values()]
    assert made().tokenize(["the"]).dtype == tf.int32


def test_capitals_and_accents_stay_where_asked():
    assert spelled(made(lower_case=False), "The the é") == ["[UNK] the [UNK]"]
    assert spelled(made(strip_accents=False), "The é") == ["the [UNK]"]
    assert spelled(made(lower_case=False, strip_accents=True), "The é") == ["[UNK] e"]
    # A capital sigma becomes the same small letter everywhere, also at the end of a word.
    assert spelled(made([*SPECIAL, "σ", "##σ"]), "ΣΣ σσ") == ["σ ##σ σ ##σ"]


def test_special_ids_are_those_of_their_names():
    tokenizer = made(["a", "[SEP]", "[MASK]", "[PAD]", "[CLS]", "[UNK]"])
    found = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert found == [3, 5, 4, 1, 2]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (4, 1, 6)
    assert TOKENIZERS["WordPieceTokenizer"] is WordPieceTokenizer


@pytest.mark.parametrize("special", [("[PAD]", "[UNK]"), ("[PAD]", "[UNK]", "[CLS]", "[SEP]", 4)])
def test_special_tokens_that_are_not_five_strings_are_named(special):
    message = r"`special_tokens` must be 5 str, for \[PAD\], .*Received: .*'\[UNK\]'"
    refuses(message, made, special_tokens=special)


# Any text.


def test_control_characters_are_removed_and_blanks_of_all_kinds_end_a_word():
    texts = ["\0", "\u200b", "\ufeff", "\u2028", "c\0a\u200bt\x7f", "the\tcat\nthe\r\ncat\u3000the"]
    assert spelled(made(), *texts) == [""] * 4 + ["cat", "the cat the cat the"]


def test_invalid_utf8_is_read_as_if_the_bytes_were_not_there():
    assert read_back(made(), [b"the \xf0\x9f", b"\xed\xa0\x80", b"c\xffat"]) == ["the", "", "cat"]


def test_a_hundred_thousand_characters_are_tokenized_and_change_no_neighbour():
    texts = [unit * (100_000 // len(unit)) for unit in ("a", "\0", "the ", ",")]
    *rows, short = made().tokenize([*texts, "the cat"]).to_list()
    the, cat, comma = map(PIECES.index, ("the", "cat", ","))
    assert rows == [[1], [], 25_000 * [the], 100_000 * [comma]] and short == [the, cat]


def test_words_of_more_than_a_hundred_characters_are_unknown():
    """Characters and not bytes: a hundred Korean ones have three hundred."""
    tokenizer = made([*SPECIAL, "a", "##a", "가", "##가"], lower_case=False)
    for letter in "a가":
        known, unknown = spelled(tokenizer, letter * 100, f"{letter * 101},{letter}")
        assert len(known.split()) == 100 and unknown == f"[UNK] [UNK] {letter}"


# Back to text.


@pytest.mark.slow
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
    found = made().detokenize([[8, 4, 99, -1, 1, 8, 0]]).numpy().tolist()
    assert found == [b"the [MASK] [UNK] [UNK] [UNK] the"]


# Training.


def test_training_keeps_frequent_words_whole_and_spells_the_others():
    tokenizer = WordPieceTokenizer.train(["the cat sat"] * 9 + ["tech"], 60)
    assert tokenizer.pieces(range(5)) == SPECIAL
    whole, spelt, unknown = spelled(tokenizer, "the cat sat", "tech chest teach", "dog")
    assert whole == "the cat sat" and "[UNK]" not in spelt and "[UNK]" in unknown


def test_a_larger_vocabulary_is_used():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(300)]
    texts = [word for i, word in enumerate(words) for _ in range(1 + 200 // (i + 1))]
    sizes = [WordPieceTokenizer.train(texts, most).vocab_size for most in (60, 120, 240)]
    assert all(0.7 * most < size <= most for size, most in zip(sizes, (60, 120, 240), strict=True))


@pytest.mark.slow
def test_training_twice_gives_the_same_pieces_with_any_hashes(sentences):
    code = (
        "import sys, json; from keras_transformer.text import WordPieceTokenizer as T;"
        "print(json.dumps(T.train(json.load(sys.stdin), 250)._pieces))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has another, or none
    options = {"input": json.dumps(sentences), "env": environment, "capture_output": True, "text": True}
    run = subprocess.run([sys.executable, "-c", code], check=True, **options)
    assert json.loads(run.stdout) == list(WordPieceTokenizer.train(sentences, 250)._pieces)


def test_rare_characters_are_left_out_where_asked():
    texts = ["aaa bbb"] * 5 + ["xyz"]
    assert 1 not in ids_of(WordPieceTokenizer.train(texts, 60), "xyz")
    few = WordPieceTokenizer.train(texts, 60, max_characters=2)
    assert spelled(few, "xyz ab") == ["[UNK] a ##b"]


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
def test_training_on_too_little_is_refused(texts, arguments, message):
    refuses(message, WordPieceTokenizer.train, texts, **{"vocab_size": 50, **arguments})


# Files.


@pytest.mark.parametrize(("start", "end"), [("", "\r\n"), ("\ufeff", "\n")])
def test_a_vocabulary_file_is_read_line_by_line(end, start, tmp_path):
    pieces = [*PIECES, "\u2028", "x\x85y"]  # lines only to others
    (tmp_path / "vocab.txt").write_bytes((start + end.join(pieces) + end).encode())
    tokenizer = made(tmp_path / "vocab.txt")
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == pieces
    for content in (b"", b"junk", b"\xff"):
        (tmp_path / "vocab.txt").write_bytes(content)
        refuses("`vocabulary`", made, tmp_path / "vocab.txt")


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
    refuses(message, WordPieceTokenizer, pieces)


def test_pieces_of_any_kind_are_taken():
    odd = ["##", "#", "###", "##,", "it's", "a\u3000b", "[unused1]", "가" * 85, "\ue000"]
    tokenizer = made([*SPECIAL, *odd, "a"])
    assert tokenizer.tokenize(["a", "#", "##"]).to_list()[0] == [5 + len(odd)]


# In a graph.


@pytest.mark.slow
def test_a_graph_has_no_tables_that_a_loaded_module_would_have_to_fill():
    function = tf.function(made().tokenize, input_signature=[tf.TensorSpec((None,), tf.string)])
    operations = {node.op for node in function.get_concrete_function().graph.as_graph_def().node}
    assert "FastWordpieceTokenizeWithOffsets" in operations
    assert not {op for op in operations if "Table" in op or "Resource" in op or "Py" in op}


# The ids of transformers.


@pytest.fixture(scope="module")
def assert_same_ids():
    """A function that compares ids with those of transformers' tokenizer of the same pieces."""
    transformers = pytest.importorskip("transformers")

    def assert_same_ids(tokenizer, texts, **options):
        vocabulary = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
        there = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=tokenizer.lower_case, **options)
        expected = there(texts, add_special_tokens=False)["input_ids"]
        found = tokenizer.tokenize(texts).to_list()
        differing = [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]
        assert not differing, (len(differing), differing[:3])

    return assert_same_ids


def test_ids_of_sentences(assert_same_ids, subwords, sentences):
    assert_same_ids(subwords, sentences)
    assert_same_ids(subwords, [s.upper() for s in sentences])


def test_ids_of_every_character_that_all_tables_know(assert_same_ids, subwords):
    """A character between letters: kept, dropped, a space or a word of its own. The tables there are of Unicode 8."""
    category, before = unicodedata.category, unicodedata.ucd_3_2_0.category
    characters = [c for c in map(chr, range(0x10000)) if category(c) == before(c)]
    letters = [c for c in characters if category(c) not in ("Cn", "Cs", "Co")]
    assert len(letters) > 45000
    pieces = [*SPECIAL, *(f"{mark}{c}" for c in letters if c > " " for mark in ("", "##"))]
    tokenizer = WordPieceTokenizer(list(dict.fromkeys(pieces)), subwords.lower_case)
    assert_same_ids(tokenizer, [f"a{c}b" for c in letters])


@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_where_accents_do_not_follow_capitals(assert_same_ids, lower_case, strip_accents):
    texts = ["ÀÉÎõü ΑΣ Σ ΑΣΑ σας", "İI ı ẞß ﬁ ① Ａａ", "각낮 한국"]
    cases = [x for t in texts for x in (t, t.lower())]
    letters = {c for form in ("NFC", "NFD") for x in cases for c in unicodedata.normalize(form, x)}
    pieces = [*SPECIAL, *(mark + c for c in sorted(letters - {" "}) for mark in ("", "##"))]
    tokenizer = WordPieceTokenizer(pieces, lower_case, strip_accents)
    assert_same_ids(tokenizer, texts, strip_accents=strip_accents)
    assert len(set(tokenizer.tokenize(texts).flat_values.numpy())) > 20


def test_ids_of_words_of_any_length(assert_same_ids, subwords):
    rng = random.Random(0)
    words = ["".join(rng.choice("aäe한n,中") for _ in range(n)) for n in (99, 100, 101, 102, 300)]
    words += ["a" * n for n in (99, 100, 101, 400, 401)] + ["한" * n for n in (33, 34, 50, 51, 100, 101, 134)]
    assert_same_ids(subwords, [" ".join(words), *words])
