"""Every answer says how many tokens of its text the vocabulary cannot write, in Python and in exports."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import Decoder, Embeddings, Encoder
from keras_transformer.models import EncoderModel, LanguageModel, Transformer
from keras_transformer.models.heads import ClassificationHead
from keras_transformer.request_options import columns
from keras_transformer.serving import Classifier, Embedder, Similarity, TextGenerator, Translator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer, WordPieceTokenizer

LINES = ["the dog runs", "a cat sleeps"] * 9
# Each with the number of its unknown tokens. SentencePiece makes one token of several unknown characters.
TEXTS = {
    "the dog": 0, "the \N{PARTY POPPER} dog \u00e9": 2, "\N{PARTY POPPER}\N{PARTY POPPER}": 1, "": 0, "a " * 40: 0,
}  # fmt: skip
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}


@pytest.fixture(scope="module")
def pieces():
    return SentencePieceTokenizer.train(LINES, 99, character_coverage=1.0)


@pytest.fixture(scope="module")
def translator(pieces):
    keras.utils.set_random_seed(1)
    return Translator(Transformer(pieces.vocab_size, **SIZES), pieces, max_source_length=20, max_length=9)


def encoder(tokenizer, head=None):
    return EncoderModel(Embeddings(tokenizer.vocab_size, 8), Encoder(1, 2, 16), head=head)


def writer(tokenizer):
    model = LanguageModel(Embeddings(tokenizer.vocab_size, 8), Decoder(1, 2, 16))
    return TextGenerator(model, tokenizer, max_length=4)


def expected(tokenizer, texts):
    rows = tokenizer.tokenize(list(texts)).to_list()
    return [row.count(tokenizer.unk_id) for row in rows]


def inputs_of(signature, texts, translator):
    more = {
        "score": [["\N{PARTY POPPER}"] * len(texts)],
        "options": [column for column in columns(len(texts)).values()],
    }
    if signature == "tokens":
        return [translator.source_tokenizer.tokenize(texts)[:, :19].to_tensor().numpy()]
    return [texts, *more.get(signature, [])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "signature", ["serving_default", "n_best", "alignment", "score", "tokens", "options"]
)
def test_each_signature_of_a_translator_counts_unknown_tokens(translator, signature):
    texts = list(TEXTS)
    assert expected(translator.source_tokenizer, texts) == list(TEXTS.values())
    found = translator.answer(*inputs_of(signature, texts, translator), signature=signature)["unknown"]
    assert found.dtype == np.int32
    assert found.tolist() == [count + (signature == "score") for count in TEXTS.values()]


def notes_of(translator, text):
    """What the answer to a text says of the text, without a search."""
    signatures = translator.signatures([1])
    found = signatures._notes(*signatures._tokenize(tf.constant([text])))
    return bool(found["truncated"][0]), int(found["unknown"][0])


def test_truncated_text_does_not_count(translator):
    assert notes_of(translator, "the \N{PARTY POPPER} dog \u00e9") == (False, 2)
    assert notes_of(translator, "the dog " * 20 + "\N{PARTY POPPER}") == (True, 0)


@pytest.mark.slow
def test_ids_that_the_model_does_not_know_count(translator):
    ids = np.array([[-5, 10**6, 5, 3], [5, 6, 3, 0]], "int32")
    assert translator.answer(ids, signature="tokens")["unknown"].tolist() == [2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["generator", "classifier", "embedder"])
def test_other_servables_count_unknown_tokens(pieces, kind):
    model = {
        "generator": lambda: writer(pieces),
        "classifier": lambda: Classifier(encoder(pieces, ClassificationHead(2)), pieces),
        "embedder": lambda: Embedder(encoder(pieces), pieces),
    }[kind]()
    for signature in set(model.signatures_class.descriptions) - {"tokens"}:
        found = model.answer(*inputs_of(signature, list(TEXTS), model), signature=signature)
        assert found["unknown"].tolist() == list(TEXTS.values()), signature


@pytest.mark.parametrize("head", [pytest.param(None, marks=pytest.mark.slow), 1])
def test_pair_counts_the_unknown_tokens_of_both_texts(pieces, head):
    model = Similarity(encoder(pieces, head and ClassificationHead(head)), pieces)
    found = model.answer(["the \N{PARTY POPPER}", "a cat"], ["\u00e9 dog \u00e9", "a"])
    assert found["unknown"].tolist() == [3, 0]


@pytest.mark.slow
def test_words_of_a_word_piece_vocabulary_count():
    tokenizer = WordPieceTokenizer.train(LINES, 99)
    found = Embedder(encoder(tokenizer), tokenizer).answer(["the dog \u0e01", "a cat"])
    assert found["unknown"].tolist() == [1, 0]


def test_bytes_know_every_text():
    translator = Translator(Transformer(260, **SIZES), ByteTokenizer())
    assert notes_of(translator, "\N{PARTY POPPER}") == (False, 0)


@pytest.mark.slow
def test_warning_has_the_number_of_texts_with_unknown_tokens(translator, pieces):
    with pytest.warns(UserWarning, match="2 of 3 sentences hold text that the vocabulary cannot write"):
        translator.translate(["a cat", "\N{PARTY POPPER}", "the \u00e9"])
    with pytest.warns(UserWarning, match="1 of 2 prompts hold text"):
        writer(pieces).generate(["a", "\u00e9"])
    with pytest.warns(UserWarning, match="1 of 1 texts hold text"):
        Embedder(encoder(pieces), pieces).embed(["\u00e9"])
    with pytest.warns(UserWarning, match="1 of 1 texts hold text"):
        Classifier(encoder(pieces, ClassificationHead(2)), pieces).classify(["\u00e9"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*hold text")
        translator.translate(["a cat"])


@pytest.mark.slow
def test_warning_of_a_document_counts_its_lines(translator):
    pytest.importorskip("sentencex")
    with pytest.warns(UserWarning, match="1 of 2 lines hold text"):
        translator.translate_document("The dog. A \N{PARTY POPPER}! The \u00e9.\na cat\n", "en")
