import random

import tensorflow as tf

from keras_transformer.text import ByteTokenizer

tokenizer = ByteTokenizer()


def read_back(strings):
    return [s.decode() for s in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


def test_a_byte_has_the_id_four_above_it():
    assert tokenizer.tokenize(["Hi", "가", ""]).to_list() == [[76, 109], [0xEA + 4, 0xB0 + 4, 0x80 + 4], []]
    assert tokenizer.tokenize(["Hi"]).dtype == tf.int32
    assert tokenizer.vocab_size == 260


def test_every_text_comes_back_exactly():
    strings = ["\ufeffBOM", "\0NUL\0", "\u2028", "\ufffe\uffff\U0010ffff", "e\u0301", "🏳️‍🌈", " ", "\r\n", ""]
    numbers, characters = random.Random(0), [*range(0xD800), *range(0xE000, 0x110000)]
    strings += ["".join(map(chr, numbers.choices(characters, k=n % 12))) for n in range(200)]
    assert read_back(strings) == strings


def test_invalid_utf8_reads_as_replacement_characters_and_keeps_the_rest():
    invalid = [b"\xff", b"\xc3", b"\xf0\x9f", b"\xed\xa0\x80"]
    before, *found, after = read_back([b"a", *(b"b" + part + b"c" for part in invalid), b"d"])
    assert (before, after) == ("a", "d")
    for text in found:
        assert text[0] == "b" and text[-1] == "c" and set(text[1:-1]) == {"\ufffd"}


def test_ids_of_half_a_character_read_as_a_replacement_character():
    assert tokenizer.detokenize([[76, 0xEA + 4]]).numpy()[0].decode() == "H\ufffd"


def test_pieces_name_each_id():
    pieces = ByteTokenizer().pieces(range(260))
    assert len(set(pieces)) == 260
    assert pieces[:5] == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>"]
    assert [pieces[4 + byte] for byte in "a~ ö".encode()] == ["a", "~", "<0x20>", "<0xC3>", "<0xB6>"]
