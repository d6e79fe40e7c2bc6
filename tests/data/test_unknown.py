"""Counts of the text that a vocabulary cannot write."""

import warnings

import pytest

from keras_transformer.data import Batches
from keras_transformer.data.unknown import UnknownTokens
from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

LINES = ["the dog runs", "a cat sleeps"] * 9
TEXTS = ["the dog \N{PARTY POPPER} \ub0b4\uc77c", "a cat", "", "\ub0b4\uc77c \ud559\uad50"]
TOKENIZERS = {
    "unigram": lambda: SentencePieceTokenizer.train(LINES, 99, character_coverage=1.0),
    "words": lambda: WordPieceTokenizer.train(LINES, 99),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_unknown_tokens_are_counted_with_examples(name):
    tokenizer = TOKENIZERS[name]()
    unknown = UnknownTokens.of(TEXTS, tokenizer)
    ids = tokenizer.tokenize(TEXTS)
    assert unknown.count == sum(row.count(tokenizer.unk_id) for row in ids.to_list()) > 0
    assert (unknown.tokens, unknown.texts) == (ids.flat_values.shape[0], 2)
    assert unknown.examples == ["\N{PARTY POPPER}", "\ub0b4\uc77c", "\ud559\uad50"]
    assert f"{unknown.share:.2%} of the tokens are unknown" in str(unknown)


def test_texts_that_are_not_utf8_are_counted():
    texts = [b"the dog", b"the d\xf6g", b"", "\ub0b4".encode("euc-kr")]
    for tokenizer in (TOKENIZERS["unigram"](), ByteTokenizer()):
        assert UnknownTokens.of(texts, tokenizer).invalid == 2
        assert UnknownTokens.of(TEXTS, tokenizer).invalid == 0


def test_a_vocabulary_of_bytes_knows_all_texts():
    assert UnknownTokens.of(TEXTS, ByteTokenizer()).count == 0
    assert UnknownTokens.of(TEXTS, BytePairTokenizer(BYTE_CHARACTERS, [])).count == 0
    byte_fallback = SentencePieceTokenizer.train(LINES, 300, byte_fallback=True)
    assert UnknownTokens.of(TEXTS, byte_fallback).count == 0


def test_batches_count_each_side_and_warn_above_a_small_share():
    tokenizer = TOKENIZERS["unigram"]()
    pairs = list(zip(LINES, reversed(LINES), strict=True))
    with warnings.catch_warnings(action="error"):
        batches = Batches(pairs, tokenizer)
    assert [unknown.count for unknown in batches.unknown.values()] == [0, 0]
    message = r"^target: .* unknown to the vocabulary .*in '\ub0b4\uc77c'\. Their text is lost"
    with pytest.warns(UserWarning, match=message):
        batches = Batches([(source, "\ub0b4\uc77c") for source in LINES], tokenizer)
    assert batches.unknown["source"].count == 0 < batches.unknown["target"].count
