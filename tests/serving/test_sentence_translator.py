"""Texts of several sentences: each is translated alone, and the layout stays."""

import sys

import pytest
from commands import assert_refused, run
from mirrors import Mirror

from keras_transformer.sentences import SentenceSplitter
from keras_transformer.serving.documents import SentenceTranslator

TEXT = "  Dr. Wu sleeps. He runs!  Who?\n\n\tOne more line.\r\nlast"


class Upper(Mirror):
    """Writes each sentence in capitals between marks."""

    def answer_all(self, texts, *arguments):
        return [
            {
                "translation": f"<{text.upper()}>".encode(),
                "ended": True,
                "truncated": "MORE" in text.upper(),
                "unknown": 2 * ("He" in text) + ("Who" in text),
            }
            for text in texts
        ]


def test_each_sentence_is_translated_alone_and_the_layout_stays():
    pytest.importorskip("sentencex")
    with (
        pytest.warns(UserWarning, match="1 of 4 lines are longer"),
        pytest.warns(UserWarning, match="1 of 4 lines hold text that the vocabulary cannot write"),
    ):
        found = Upper().translate_document(TEXT, "en", batch_size=2)
    assert found == "  <DR. WU SLEEPS.> <HE RUNS!>  <WHO?>\n\n\t<ONE MORE LINE.>\r\n<LAST>"


def test_a_language_without_blanks_gets_one_between_sentences():
    pytest.importorskip("sentencex")
    line = "\u6211\u662f\u5b66\u751f\u3002\u4f60\u662f\u8c01\uff1f"
    assert SentenceTranslator(Upper(), "zh").translate_batch([line.encode()])[0].count("> <") == 1


@pytest.mark.parametrize("line", ["Plan B\u00a0. \u4e2d\u3002 x", "中" * 9_000, "a b. C " * 2_000 + "\u3000"])
def test_sentences_joined_are_their_line(line):
    pytest.importorskip("sentencex")
    parts = SentenceSplitter("en").split(line)
    assert "".join("".join(part) for part in parts) == line
    assert max(len(part.sentence) for part in parts) <= 8_000


def test_a_text_at_which_the_splitter_panics_stays_whole(monkeypatch):
    """What Rust raises is no `Exception`."""
    pytest.importorskip("sentencex")
    splitter = SentenceSplitter("en")

    def segment(language, text):
        raise type("PanicException", (BaseException,), {})

    monkeypatch.setattr(splitter, "_segment", segment)
    assert splitter.split("One. Two.") == [("", "One. Two.", "")]


@pytest.mark.slow
def test_the_command_translates_the_sentences_of_a_line(tiny_run, translator, pairs):
    pytest.importorskip("sentencex")
    one, other = (source for source, _ in pairs[:2])
    code, out, err = run(
        "translate", tiny_run, "--split-sentences", "ko", stdin=f"{one} {other}\n\n".encode()
    )
    assert (code, err) == (0, "")
    assert out.decode() == f"{' '.join(translator.translate([one, other]))}\n\n"


@pytest.mark.parametrize("language", ["English", "", None, 3])
def test_a_language_must_be_a_code(language):
    with pytest.raises(ValueError, match="`language` must be the code of a language"):
        SentenceTranslator(Upper(), language)


def test_a_missing_package_is_named(tiny_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    assert_refused(
        "translate", tiny_run, "--split-sentences", "en", named="pip install sentencex", stdin=b"a\n"
    )
