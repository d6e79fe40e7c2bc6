"""Where the ids of a text stand in it."""

import random

import pytest
import tensorflow as tf
from test_contract import CASES

from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

TEXTS = [
    "Die Kinder spielen.", "", "  Größe\tÉ\u0301 ", "안녕 Kinder!", "x" * 120 + " im", "中国 und \u200b Garten",
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_spans_cover_all_characters_in_their_order(name, sentences):
    tokenizer, numbers = CASES[name](sentences).tokenizer, random.Random(0)
    if tokenizer.hides_characters:
        with pytest.raises(ValueError, match="hide where a character stood"):
            tokenizer.spans(TEXTS)
        return
    texts = TEXTS + ["".join(numbers.choices(" aeinßk.!É中🎉", k=n)) for n in range(40)]
    ids, starts, ends, begins = tf.function(tokenizer.spans)(tf.constant(texts))
    assert ids.to_list() == tokenizer.tokenize(texts).to_list()
    for text, *places in zip(texts, starts.to_list(), ends.to_list(), begins.to_list(), strict=True):
        assert places[0] == sorted(places[0]) and places[1] == sorted(places[1])
        assert all(0 <= start <= end <= len(text) for start, end in zip(*places[:2], strict=True))
        assert all(text[start:end] == text[start:end].strip() for start, end in zip(*places[:2], strict=True))
        covered = {i for start, end in zip(*places[:2], strict=True) for i in range(start, end)}
        # Zero-width spaces and accents are removed by some tokenizers.
        assert {
            i for i, letter in enumerate(text) if not letter.isspace() and letter not in "\u0301\u200b"
        } <= covered
        assert not places[2] or places[2][0]


def words_of(tokenizer, text):
    """The words of a text, as `begins` joins its pieces."""
    _, starts, ends, begins = (each.to_list()[0] for each in tokenizer.spans([text]))
    words = []
    for start, end, is_first in zip(starts, ends, begins, strict=True):
        if is_first:
            words.append([])
        words[-1] += [(start, end)] if start < end else []
    return [text[min(word)[0] : max(end for _, end in word)] for word in words if word]


def test_words_are_those_between_blanks(sentences):
    unigram = SentencePieceTokenizer.train(sentences, 300, character_coverage=1.0)
    merges = ["a n", "Ġ l"]
    pieces = [*BYTE_CHARACTERS, "an", "Ġl", "<|e|>"]
    for tokenizer in (
        unigram,
        SentencePieceTokenizer(unigram.model, ["<pad>", "<unk>", "<s>", "</s>", "▁", *"aeinrs"]),
        BytePairTokenizer(pieces, merges, eos_token="<|e|>"),
        BytePairTokenizer(pieces, merges, eos_token="<|e|>", prefix_space=True),
    ):
        assert words_of(tokenizer, " Éa's  リan lan ") == ["Éa's", "リan", "lan"]


def test_a_sign_is_a_word_of_its_own_in_word_pieces():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPieceTokenizer([*special, "u", "##n", ".", "s"])
    assert words_of(tokenizer, "Ûn U.S. xyz") == ["Ûn", "U", ".", "S", ".", "xyz"]


def test_a_blank_that_is_a_piece_begins_the_word_after_it():
    _, starts, ends, begins = ByteTokenizer().spans(["a é"])
    assert begins.to_list() == [[True, True, False, False]]
    assert (starts.to_list(), ends.to_list()) == ([[0, 1, 2, 2]], [[1, 1, 3, 3]])
