"""Unicode's normal forms: those of Python where marks are few, and parts of 30 marks where they are many."""

import itertools
import unicodedata

import pytest
import tensorflow as tf

from keras_transformer.text import BytePairTokenizer, WordPieceTokenizer
from keras_transformer.text.byte_pair import BYTE_CHARACTERS
from keras_transformer.text.normal_forms import LONGEST_RUN, normalized

# Of the combining classes 230, 220, 202, 10 and 1: a normal form sorts them.
MARKS = "\u0301\u0323\u0327\u05b0\u0334"
TEXTS = [
    "", "plain", "Ångström", "e\u0301\u0323 n\u0303", "\u1112\u1161\u11ab", "한글", "ﬁ ² ｱ", "\u0344x\u0f73",
]  # fmt: skip


def marks(count):
    return "".join(itertools.islice(itertools.cycle(MARKS), count))


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_a_text_with_short_runs_of_marks_gets_its_normal_form(form):
    texts = [*TEXTS, *(f"a{marks(count)}b{marks(count)}" for count in range(LONGEST_RUN + 1))]
    found = normalized(tf.constant(texts), form).numpy().tolist()
    assert [text.decode() for text in found] == [unicodedata.normalize(form, text) for text in texts]


def test_a_long_run_is_normalised_in_parts_and_keeps_all_of_its_marks():
    part, rest = f"a{marks(LONGEST_RUN)}", marks(LONGEST_RUN + 7)
    found = normalized(tf.constant([f"{part}{rest}b"]), "NFD").numpy()[0].decode()
    parts = part, rest[:LONGEST_RUN], f"{rest[LONGEST_RUN:]}b"
    assert found == "".join(unicodedata.normalize("NFD", each) for each in parts)
    assert sorted(found) == sorted(f"{part}{rest}b")


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_the_shape_stays(shape):
    texts = tf.fill(shape, "e\u0301")

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.string)])
    def function(texts):
        found = normalized(texts, "NFC")
        assert found.shape == shape
        return found

    found = function(texts)
    assert found.shape == shape
    assert set(tf.reshape(found, [-1]).numpy()) <= {"\xe9".encode()}


@pytest.mark.parametrize("make", [lambda: byte_pair(), lambda: word_piece()], ids=["byte_pair", "word_piece"])
def test_a_hundred_thousand_marks_are_tokenized(make):
    """Sorted as one run, they would take hours."""
    tokenizer = make()
    found = tokenizer.tokenize([f"a{marks(10**5)} b", "b"]).to_list()
    assert len(found[0]) > 1 and found[1] == tokenizer.tokenize(["b"]).to_list()[0]


def test_a_hundred_thousand_marks_are_read_back():
    tokenizer = word_piece(strip_accents=False)
    found = tokenizer.detokenize([[5] + [7] * 3_000]).numpy()[0].decode()
    assert len(found) >= 90_000


def byte_pair():
    return BytePairTokenizer([*BYTE_CHARACTERS, "<end>"], [], "qwen2", nfc=True, eos_token="<end>")


def word_piece(**arguments):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return WordPieceTokenizer([*special, "a", "b", f"##{marks(31)}"], **arguments)
