"""Every answer says whether it was cut at its largest length, and translators warn of it."""

import warnings

import keras
import numpy as np
import pytest

from keras_transformer.decoding import Beam, SuppressTokens
from keras_transformer.layers import Decoder, Embeddings
from keras_transformer.models import LanguageModel, Transformer
from keras_transformer.serving import (
    TermTranslator,
    TextGenerator,
    Translator,
    translate_file,
    translate_lines,
)
from keras_transformer.text import SentencePieceTokenizer

TOKENIZER = SentencePieceTokenizer.train(["a b c dog cat q"] * 3, 17)
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
# One lets no end be written, the other nothing else.
LETTERS = SuppressTokens((TOKENIZER.eos_id,))
END = SuppressTokens(tuple(i for i in range(TOKENIZER.vocab_size) if i != TOKENIZER.eos_id))


def translator_of(constraint, strategy=None, max_length=5):
    keras.utils.set_random_seed(1)
    model = Transformer(TOKENIZER.vocab_size, **SIZES)
    options = {} if strategy is None else {"strategy": strategy}
    return Translator(model, TOKENIZER, max_length=max_length, constraints=[constraint], **options)


@pytest.fixture(scope="module")
def cut():
    """A translator that never writes the end."""
    return translator_of(LETTERS)


@pytest.fixture(scope="module")
def whole():
    """A translator that writes the end alone."""
    return translator_of(END)


def test_an_output_without_its_end_is_marked(cut):
    assert cut.answer([b"a dog", b""])["ended"].tolist() == [False, True]


@pytest.mark.slow
def test_tokens_without_an_end_are_marked(cut, whole):
    source = np.array([[7, 3, 0], [7, 7, 3]], "int32")
    assert cut.answer(source, signature="tokens")["ended"].tolist() == [[False], [False]]
    assert whole.answer([b"a dog", b""])["ended"].tolist() == [True, True]
    assert whole.answer(source, signature="tokens")["ended"].tolist() == [[True], [True]]


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["n_best", "alignment"])
def test_each_signature_marks_an_output_without_its_end(signature):
    translator = translator_of(LETTERS, Beam(2, n_best=2))
    ended = translator.answer([b"a dog"], signature=signature)["ended"]
    assert not ended.any() and ended.shape == ((1, 2) if signature == "n_best" else (1,))


@pytest.mark.slow
def test_a_continuation_without_its_end_is_marked():
    model = LanguageModel(Embeddings(TOKENIZER.vocab_size, 8), Decoder(1, 2, 16))
    for constraint, ended in ((LETTERS, False), (END, True)):
        generator = TextGenerator(model, TOKENIZER, max_length=3, constraints=[constraint])
        assert generator.answer([b"a"])["ended"].tolist() == [ended]


def act(translator, translate, text, folder):
    """Translates a text and an empty one in one of the ways."""
    if translate == "translate":
        translator.translate([text, ""])
    elif translate == "document":
        translator.translate_document(f"{text}\n\n", "en")
    elif translate == "lines":
        list(translate_lines(translator, [text, ""]))
    elif translate == "file":
        folder.mkdir()
        (folder / "source").write_text(f"{text}\n\n")
        translate_file(translator, folder / "source", folder / "output", say=lambda message: None)
    else:
        TermTranslator(translator, {"cat": "q"}).translate([text, "a cat" if text else ""])


@pytest.mark.parametrize(
    "translate", ["translate", "document", "lines", "file", pytest.param("terms", marks=pytest.mark.slow)]
)
def test_a_translation_without_its_end_is_a_warning(cut, translate, tmp_path):
    cut.translate_batch([b"of an earlier call"])
    count = "[12]" if translate == "terms" else "1"
    with pytest.warns(UserWarning, match=f"^{count} of 2 translations were cut at .* `max_length`=5"):
        act(cut, translate, "a dog", tmp_path / "cut")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "[0-9,]+ of [0-9,]+ translations were cut")
        act(cut, translate, "", tmp_path / "whole")


@pytest.mark.parametrize("translate", ["translate", "lines", "file"])
def test_an_empty_translation_is_a_warning_unless_its_source_is_blank(cut, whole, translate, tmp_path):
    with pytest.warns(UserWarning, match="^1 of 2 translations are empty, and their sources are not"):
        act(whole, translate, "a dog", tmp_path / "empty")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "[0-9,]+ of [0-9,]+ translations are empty")
        act(whole, translate, "\u3000", tmp_path / "blank")
        act(cut, translate, "a dog", tmp_path / "text")


def test_a_line_that_failed_is_not_counted_as_an_empty_translation(whole, monkeypatch):
    def fail(texts):
        if texts != [b"a"]:  # with which a translator is tried
            raise OSError("no memory")
        return [""]

    monkeypatch.setattr(whole, "translate_batch", fail)
    with pytest.warns(UserWarning, match="line 1 failed") as warned:
        list(translate_lines(whole, ["a dog"]))
    assert not any("translations are empty" in str(each.message) for each in warned)
