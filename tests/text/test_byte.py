import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.text import ByteTokenizer

tokenizer = ByteTokenizer()


def read_back(strings):
    return [s.decode() for s in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


def test_a_byte_has_the_id_four_above_it():
    assert tokenizer.tokenize(["Hi", "가", ""]).to_list() == [[76, 109], [0xEA + 4, 0xB0 + 4, 0x80 + 4], []]
    assert tokenizer.tokenize(["Hi"]).dtype == tf.int32
    assert tokenizer.vocab_size == 260


@settings(deadline=None, max_examples=20, derandomize=True)
@given(strings=st.lists(st.text(), min_size=1, max_size=12))
@example(strings=["\ufeffBOM", "\0NUL\0", "\u2028", "\ufffe\uffff\U0010ffff", "e\u0301", "🏳️‍🌈", " ", "\r\n"])
def test_every_text_comes_back_exactly(strings):
    assert read_back(strings) == strings


@pytest.mark.parametrize("invalid", [b"\xff", b"\xc3", b"\xf0\x9f", b"\xed\xa0\x80"])
def test_invalid_utf8_reads_as_replacement_characters_and_keeps_the_rest(invalid):
    before, middle, after = read_back([b"a", b"b" + invalid + b"c", b"d"])
    assert (before, after) == ("a", "d")
    assert middle[0] == "b" and middle[-1] == "c" and set(middle[1:-1]) == {"\ufffd"}


def test_ids_of_half_a_character_read_as_a_replacement_character():
    assert tokenizer.detokenize([[76, 0xEA + 4]]).numpy()[0].decode() == "H\ufffd"


def test_pieces_name_each_id():
    pieces = ByteTokenizer().pieces(range(260))
    assert len(set(pieces)) == 260
    assert pieces[:5] == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>"]
    assert [pieces[4 + byte] for byte in "a~ ö".encode()] == ["a", "~", "<0x20>", "<0xC3>", "<0xB6>"]
