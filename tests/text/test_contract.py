"""What every tokenizer promises, checked the same way for each."""

import random
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from contracts import refuses, slow_but

from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "a b", "1 2", "12 3", "ì ķ", "ìķ Ī"]
END, START, PAD = "<|end|>", "<|start|>", "<pad>"


class Case(NamedTuple):
    """A tokenizer, a text that comes back exactly, and what an unknown id after that text reads as."""

    tokenizer: Any
    text: str
    unknown: str


def byte_pair(sentences):
    pieces = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in MERGES), END, START, PAD]
    tokens = {"eos_token": END, "bos_token": START, "pad_token": PAD}
    return Case(BytePairTokenizer(pieces, MERGES, "llama3", **tokens), "hello  hello, 안녕! 12345", "\ufffd")


def sentence_piece(model_type):
    def make(sentences):
        tokenizer = SentencePieceTokenizer.train(
            sentences, 300, model_type=model_type, character_coverage=1.0
        )
        return Case(tokenizer, "Die Kinder spielen im Garten.", " ⁇")

    return make


def of_vocabulary(sentences):
    """Ids that are not those of the model."""
    tokenizer, text, unknown = sentence_piece("unigram")(sentences)
    pieces = tokenizer.pieces(range(4, tokenizer.vocab_size))
    vocabulary = ["</s>", "<unk>", *reversed(pieces), ">>de<<", "<pad>", "<s>"]
    return Case(SentencePieceTokenizer(tokenizer.model, vocabulary), text, unknown)


def word_piece(**arguments):
    def make(sentences):
        text = "die kinder spielen im garten ."
        return Case(WordPieceTokenizer.train([*sentences, text], 900, **arguments), text, " [UNK]")

    return make


CASES = {
    "bytes": lambda sentences: Case(ByteTokenizer(), "Hi 가", "\ufffd"),
    "byte_pair": byte_pair,
    "unigram": sentence_piece("unigram"),
    "bpe": sentence_piece("bpe"),
    "vocabulary": of_vocabulary,
    "uncased": word_piece(),
    "cased": word_piece(lower_case=False, strip_accents=True),
}
# fmt: off
BROKEN = [
    b"", b"junk", b"\xff", b"\0" * 64, b"{", b"{}", b"[]", b"5", b"[" * 100_000, b'{"a":' * 100_000,
    b'{"vocabulary": 5, "merges": [], "pieces": 3, "model": 3}',
]
# fmt: on
# These differ from the others by their model alone.
SLOW = ("bpe", "cased")


@pytest.fixture(scope="module", params=slow_but({*CASES} - {*SLOW}, CASES))
def case(request, sentences):
    return CASES[request.param](sentences)


only_words = pytest.mark.parametrize(
    "case", slow_but(("unigram", "vocabulary", "uncased"), [*CASES][2:]), indirect=True
)


def special_of(tokenizer):
    return [i for i in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) if i is not None]


def read_back(tokenizer, ids):
    return [text.decode() for text in tokenizer.detokenize(ids).numpy()]


def rows_of(case, sentences):
    return [case.text, *sentences, "", b"\xff\xfea", "🎉", "Größe É", ">>de<< a"]


def test_any_bytes_become_the_ids_of_each_row_alone(case):
    tokenizer, numbers = case.tokenizer, random.Random(0)
    rows = [numbers.randbytes(n % 40) for n in range(120)]
    rows += ["".join(map(chr, numbers.choices(range(0xD800), k=n % 20))).encode() for n in range(80)]
    ids = tokenizer.tokenize(tf.constant(rows, tf.string))
    assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32 and ids.nrows() == len(rows)
    values = set(ids.flat_values.numpy().tolist())
    assert values <= set(range(tokenizer.vocab_size)) - set(special_of(tokenizer))
    found = ids.to_list()
    for number in (1, 7, 39, 130, 199):
        assert tokenizer.tokenize(rows[number]).numpy().tolist() == found[number]
    assert tokenizer.tokenize(rows[::-1]).to_list() == found[::-1]
    read_back(tokenizer, ids)


def test_any_ids_become_valid_text(case):
    numbers = random.Random(0)
    ids = [
        [numbers.randrange(-(2**31), 2**31) >> numbers.randrange(31) for _ in range(n % 9)] for n in range(90)
    ]
    assert len(read_back(case.tokenizer, tf.ragged.constant(ids, tf.int32, ragged_rank=1))) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("unknown", [-1, -(2**31), "vocab_size", 2**31 - 1, 2**32 + 6, -(2**40)])
def test_an_id_out_of_range_reads_as_one_unknown_id(case, unknown):
    unknown = case.tokenizer.vocab_size if unknown == "vocab_size" else unknown
    ids = case.tokenizer.tokenize(case.text).numpy().tolist()
    rows = [[*ids, unknown], [*ids, 76]]
    forms = [rows, tf.constant(rows, tf.int64), tf.ragged.constant(rows, tf.int64)]
    forms += [tf.constant(rows)] if -(2**31) <= unknown < 2**31 else []
    for form in forms:
        assert read_back(case.tokenizer, form)[0].rstrip() == case.text + case.unknown


@pytest.mark.slow
def test_special_ids_are_dropped_at_any_place(case):
    ids = case.tokenizer.tokenize(case.text).numpy().tolist()
    special = special_of(case.tokenizer)
    mixed = [[each, *ids[:1], each, each, *ids[1:], each] for each in special]
    alone = [[each] * len(ids) for each in special]
    assert read_back(case.tokenizer, mixed + alone) == [case.text] * len(special) + [""] * len(special)


def test_text_that_spells_a_special_piece_does_not_become_one(case):
    special = special_of(case.tokenizer)
    pieces = case.tokenizer.pieces(special)
    ids = case.tokenizer.tokenize([*pieces, " ".join(pieces), "".join(pieces)])
    assert not set(special) & set(ids.flat_values.numpy().tolist())


def test_a_single_string_gives_a_single_row_and_no_strings_no_rows(case):
    ids = case.tokenizer.tokenize(case.text)
    assert ids.shape.rank == 1 and ids.dtype == tf.int32
    for form in (ids.numpy(), ids.numpy().tolist()):
        assert case.tokenizer.detokenize(form).numpy().decode() == case.text
    assert case.tokenizer.tokenize("").shape == (0,)
    ids = case.tokenizer.tokenize([])
    assert ids.nrows() == 0
    for form in (ids, tf.zeros((0, 5), tf.int32)):
        assert case.tokenizer.detokenize(form).shape == (0,)


@pytest.mark.slow
def test_a_very_long_text_comes_back_whole_and_harms_no_neighbour(case):
    long = " ".join([case.text] * 1000)
    assert read_back(case.tokenizer, case.tokenizer.tokenize([long, case.text])) == [long, case.text]


@pytest.mark.slow
def test_padded_rows_read_like_ragged_rows(case, sentences):
    ragged = case.tokenizer.tokenize(sentences)
    pad, first, last = special_of(case.tokenizer)
    around = [tf.fill((ragged.nrows(), 1), each) for each in (first, last)]
    padded = tf.concat([around[0], ragged, around[1]], axis=1).to_tensor(pad)
    assert read_back(case.tokenizer, padded) == read_back(case.tokenizer, ragged)


@only_words
def test_blank_texts_have_no_ids(case):
    ids = case.tokenizer.tokenize(["", " ", "\t\n ", "\u3000", "\u00a0", case.text])
    assert ids.row_lengths().numpy()[:5].tolist() == [0] * 5
    assert read_back(case.tokenizer, ids) == [""] * 5 + [case.text]


@pytest.mark.slow
def test_invalid_utf8_harms_no_neighbour(case):
    rows = [b"\xff\xfe", case.text.encode(), case.text.encode() + b" \xf0\x9f", b"\xed\xa0\x80"]
    _, whole, start, _ = read_back(case.tokenizer, case.tokenizer.tokenize(rows))
    # Bytes are read as U+FFFD, or as if they were not there.
    assert whole == start.rstrip(" \ufffd") == case.text


@only_words
def test_frequent_words_are_shorter_than_their_characters(case, sentences):
    ids = case.tokenizer.tokenize(sentences)
    assert case.tokenizer.unk_id not in ids.flat_values.numpy()
    assert sum(ids.row_lengths().numpy()) < 0.7 * sum(map(len, sentences))


@pytest.mark.slow
def test_save_and_load_give_an_equal_tokenizer(case, sentences, tmp_path):
    tokenizer, rows = case.tokenizer, rows_of(case, sentences)
    tokenizer.save(tmp_path / "tokenizer")
    again = type(tokenizer).load(tmp_path / "tokenizer")
    assert again.tokenize(rows).to_list() == tokenizer.tokenize(rows).to_list()
    for name in ("content", "vocab_size", "pad_id", "unk_id", "bos_id", "eos_id"):
        assert getattr(again, name) == getattr(tokenizer, name)
    every = range(tokenizer.vocab_size)
    assert list(again.pieces(every)) == list(tokenizer.pieces(every))


@pytest.mark.parametrize("case", ["byte_pair", "unigram", "vocabulary", "uncased"], indirect=True)
def test_files_that_hold_no_tokenizer_are_refused(case, tmp_path):
    content = case.tokenizer.content
    for broken in (*BROKEN, content[: len(content) // 2]):
        (tmp_path / "broken.model").write_bytes(broken)
        with pytest.raises(ValueError, match=r"broken\.model|not a SentencePiece model"):
            type(case.tokenizer).load(tmp_path / "broken.model")
    refuses(r"missing\.model", type(case.tokenizer).load, tmp_path / "missing.model")


@pytest.mark.parametrize("case", ["unigram"], indirect=True)  # the test of saved modules has the others
def test_a_tokenizer_outlives_a_new_random_seed(case, sentences):
    function, rows = tf.function(case.tokenizer.tokenize), tf.constant(rows_of(case, sentences))
    expected = function(rows).to_list()
    tf.random.set_seed(7)  # clears TensorFlow's cache of kernels
    assert case.tokenizer.tokenize(rows).to_list() == function(rows).to_list() == expected


@pytest.mark.slow
def test_functions_and_saved_modules_give_the_same_after_a_new_seed_too(case, sentences, tmp_path):
    tokenizer, rows = case.tokenizer, tf.constant(rows_of(case, sentences))
    module = tf.Module()
    module.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def there_and_back(strings):
        ids = tokenizer.tokenize(strings).to_tensor(tokenizer.pad_id)
        return tokenizer.detokenize(ids), ids

    module.there_and_back = there_and_back
    tf.saved_model.save(module, str(tmp_path / "module"))
    expected = tokenizer.tokenize(rows).to_tensor(tokenizer.pad_id).numpy()
    texts = tokenizer.detokenize(expected).numpy().tolist()
    assert texts[0].decode() == case.text
    loaded = tf.saved_model.load(str(tmp_path / "module")).there_and_back
    for function in (there_and_back, loaded):
        strings, ids = function(rows)
        assert (ids.numpy() == expected).all()
        assert strings.numpy().tolist() == texts
    tf.random.set_seed(7)
    assert (tokenizer.tokenize(rows).to_tensor(tokenizer.pad_id).numpy() == expected).all()
    for function in (there_and_back, loaded):
        assert function(rows)[0].numpy().tolist() == texts
