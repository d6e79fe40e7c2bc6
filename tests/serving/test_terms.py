"""What a translation must hold: terms of a glossary, copied text, and source words for unknown tokens."""

import itertools
import re

import keras
import numpy as np
import pytest
from commands import assert_refused, run
from contracts import refuses

from keras_transformer.decoding import Beam, MinLength, SuppressTokens
from keras_transformer.models import Transformer
from keras_transformer.serving import Glossary, TermTranslator, Translator, translate_file, translate_lines
from keras_transformer.serving.glossary import UnknownWords
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

URL = "https?://[^ ]+"


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        ({"dog": "Hund"}, "A dog runs, dog!", ["Hund"]),
        ({"dog": "Hund"}, "Dog hotdog dogs dog_ dog1", []),
        ({"dog": "Hund", "guide dog": "Blindenhund"}, "a guide dog and a dog", ["Blindenhund", "Hund"]),
        ({"C++": "C++", ".NET": "dotnet"}, "C++ in .NET.", ["C++", "dotnet"]),
        ({"학생": "student"}, "저는 학생입니다. 대학생", ["student"]),
        ({"학생": "student"}, "대학생입니다", []),
        ({"東京": "Tokyo"}, "私は東京に住む", ["Tokyo"]),
        ({"café": "Kaffeehaus"}, "the cafe\u0301 here", ["Kaffeehaus"]),
        ({"Docker": "Docker"}, "Docker를 쓴다", ["Docker"]),
        ({"GPU": "GPU"}, "使用GPU加速", ["GPU"]),
        ({"GPU": "GPU"}, "GPUを使う", ["GPU"]),
        ({"GPU": "GPU", "使": "x"}, "eGPUを MyGPU GPUs", []),
        ({"a": "x"}, "", []),
    ],
)
def test_a_glossary_finds_terms_that_are_words_of_their_own(terms, text, expected):
    assert Glossary(terms).found_in(text) == expected


def test_a_match_that_is_copied_wins_over_a_term():
    glossary = Glossary({"b.c": "x", "see": "y", "see http": "z"}, URL)
    assert glossary.found_in("see http://b.c/see and b.c") == ["y", "http://b.c/see", "x"]


@pytest.mark.parametrize("pattern", [r"\b", "(?=http)", r"\b|http[^ ]+"])
def test_empty_matches_are_no_copied_text(pattern):
    found = Glossary({"dog": "Hund"}, pattern).found_in("a dog: http://b")
    assert found == ["Hund", "http://b"][: 1 + pattern.endswith("+")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"dog": " "},), "must hold a text and its translation.*term='dog'"),
        (({"": "Hund"},), "must hold a text and its translation"),
        (({"dog": 3},), "translation=3"),
        (({}, "("), r"`copy` must be a regular expression"),
        (({}, "a*"), "`copy` must not match an empty text"),
    ],
)
def test_empty_terms_and_patterns_are_refused(arguments, message):
    refuses(message, Glossary, *arguments)


def test_a_file_with_two_translations_of_a_term_is_refused(tmp_path):
    (tmp_path / "terms.tsv").write_text("dog\tHund\ncat\tKatze\ndog\tHund\n")
    assert Glossary.read(tmp_path / "terms.tsv").terms == {"dog": "Hund", "cat": "Katze"}
    (tmp_path / "terms.tsv").write_text("dog\tHund\ndog\tDogge\n")
    with pytest.raises(
        ValueError, match=r"line 2: .*one translation for each term.*'dog'.*\['Hund', 'Dogge'\]"
    ):
        Glossary.read(tmp_path / "terms.tsv")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cat", r"terms\.tsv, line 2: expected source<TAB>target"),
        ("", r"terms\.tsv, line 2: expected source<TAB>target"),
        ("cat\t ", r"terms\.tsv, line 2: `glossary` must have a term and its translation.*term='cat'"),
        ("\tKatze", r"line 2: `glossary` must have a term and its translation.*translation='Katze'"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(line, message, tmp_path):
    (tmp_path / "terms.tsv").write_text(f"dog\tHund\n{line}\ncow\tKuh\n")
    refuses(message, Glossary.read, tmp_path / "terms.tsv")


def test_a_term_inside_a_longer_word_is_lacking():
    terms = {"council": "Rat", "docker": "Docker"}
    glossary = Glossary(terms, "[0-9]")
    found = ["Rat", "Docker", "7"]
    assert glossary.lacking(found, "Rathaus Dockers") == found
    assert glossary.lacking(found, "Rathaus, Rat. Docker를 a78") == []
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    translator = TermTranslator(Translator(model, ByteTokenizer(), max_length=40), glossary)
    counts = [translator._lacking(b"council", ["Rat"], text) for text in (b"Das Rathaus", b"Der Rat.")]
    assert counts == [1, 0]


@pytest.fixture(scope="module")
def texts(pairs):
    return [source for source, _ in pairs[:12]]


@pytest.fixture(scope="module")
def glossary(pairs, texts):
    """Two words of the sentences, each with a translation that no training pair has."""
    words = [word.strip(".?") for text in texts for word in text.split()]
    chosen = sorted({word for word in words if len(word) > 1}, key=words.count)[-2:]
    terms = dict(zip(chosen, ("mint", "Tunis"), strict=True))
    assert not any(term in target for _, target in pairs for term in terms.values())
    return terms


COPIED = "[a-z]+"


@pytest.fixture(scope="module")
def terms(translator, glossary):
    return TermTranslator(translator, Glossary(glossary, COPIED))


def assert_held(terms, plain, texts):
    """Each translation holds the terms of its text, and that of a text without terms is the translator's."""
    found, usual = terms.translate(texts, batch_size=5), plain.translate(texts)
    wanted = [terms.glossary.found_in(text) for text in texts]
    assert sum(map(len, wanted)) >= 4 and [] in wanted
    for translation, of_plain, expected in zip(found, usual, wanted, strict=True):
        assert all(term in translation for term in expected), (translation, expected)
        if not expected:
            assert translation == of_plain
    assert not any(term in text for text in usual for term in terms.glossary.terms.values())


@pytest.mark.slow
def test_every_translation_holds_the_terms_of_its_text(terms, translator, texts):
    assert_held(terms, translator, texts)
    assert not terms.answer([text.encode() for text in texts])["missing"].any(), "each is a word of its own"


@pytest.mark.slow
def test_ids_inside_words_are_those_that_make_a_term_longer(terms):
    tokenizer = terms.target_tokenizer
    ids = terms._ids_of("mint")
    (term,) = tokenizer.detokenize([ids]).numpy()
    texts = tokenizer.detokenize([[*ids, i] for i in range(tokenizer.vocab_size)]).numpy()
    first = [text[len(term) :].decode("utf-8", "replace")[:1] for text in texts]
    longer = [i for i, character in enumerate(first) if character.isascii() and character.isalnum()]
    assert any("가" <= character <= "힣" for character in first), "a particle may follow"
    assert longer and terms._ids_inside_words(ids[-1]) == longer


def test_ids_that_close_words_end_without_a_letter(terms):
    tokenizer = terms.target_tokenizer
    texts = [
        text.decode() for text in tokenizer.detokenize([[i] for i in range(tokenizer.vocab_size)]).numpy()
    ]
    closed = {texts[i] for i in terms._ids_that_close_words()}
    assert closed and not any(text[-1].isascii() and text[-1].isalnum() for text in closed)
    assert {text for text in texts if text[-1:] in set(".,?!")} <= closed


def test_bytes_of_a_letter_close_no_word():
    model = Transformer(260, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    terms = TermTranslator(Translator(model, ByteTokenizer(), max_length=40), Glossary(copy="[$]"))
    texts = ByteTokenizer().detokenize([[i] for i in terms._ids_that_close_words()]).numpy()
    assert {b"$", b"-", b" "} <= set(texts) and not set("é".encode()) & {text[0] for text in texts}


@pytest.mark.slow
def test_translations_of_a_beam_hold_the_terms(terms, translator, texts):
    beam = translator.changed(strategy=Beam(3))
    assert_held(TermTranslator(beam, terms.glossary), beam, texts)


@pytest.mark.slow
def test_copied_text_arrives_where_the_vocabulary_can_write_it(terms, texts):
    texts = [text for text in texts if not terms.glossary.found_in(text)]  # they need beams of one width
    found = terms.translate([f"{text} rooster" for text in texts])
    assert found and all("rooster" in translation for translation in found)
    with pytest.warns(UserWarning, match="1 translations lack a term of their text"):
        terms.translate([f"{texts[0]} rooster qqqq"])


@pytest.mark.slow
def test_lines_files_and_documents_hold_the_terms(terms, texts, tmp_path):
    expected = terms.translate(texts)
    assert list(translate_lines(terms, texts)) == expected
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    translate_file(terms, tmp_path / "in", tmp_path / "out", say=lambda line: None)
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == expected
    pytest.importorskip("sentencex")
    document = terms.translate_document(f"{texts[0]} {texts[1]}\n\n{texts[2]}", "ko")
    assert document == f"{expected[0]} {expected[1]}\n\n{expected[2]}"


def test_terms_that_no_text_asks_for_are_counted(translator, texts, monkeypatch):
    plain = {"translation": np.array([b"a dog"], object)}
    monkeypatch.setattr(Translator, "answer", lambda self, texts, **options: dict(plain))
    turned_round = TermTranslator(translator, Glossary({"xyz": "dog", "zyx": "cat"}, URL))
    turned_round.answer([texts[0].encode()])
    told = "the texts ask for 0 of 2 translations of the glossary and 0 different matches of `copy`"
    assert turned_round.terms_in_texts == told


def test_another_glossary_is_another_translation(translator, glossary):
    assert TermTranslator(translator, glossary).terms != TermTranslator(translator, {}).terms
    assert TermTranslator(translator, glossary).terms != TermTranslator(translator, glossary, True).terms


@pytest.mark.slow
def test_a_limit_that_leaves_no_room_for_a_term_is_a_warning(translator, texts, glossary):
    short = TermTranslator(translator.changed(max_length=4), dict.fromkeys(glossary, "Tunis mint Tunis"))
    count = sum(bool(short.glossary.found_in(text)) for text in texts)
    with pytest.warns(
        UserWarning, match=f"{count} translations lack a term of their text, for example that of '"
    ):
        short.translate(texts)


@pytest.mark.slow
def test_a_term_that_the_vocabulary_cannot_write_is_refused(translator):
    with pytest.raises(
        ValueError, match=r"can write as they are.*count=2, translations=\['🎉', 'two  blanks'\]"
    ):
        TermTranslator(translator, {"a": "🎉", "b": "two  blanks", "c": "Tunis"})
    refuses("can write as they are", TermTranslator, translator, {"a": "two  blanks"})


def test_term_translator_is_neither_saved_nor_exported(translator, tmp_path):
    terms = TermTranslator(translator, {"a": "b"})
    refuses("not saved: save its translator", terms.save, tmp_path / "saved")
    refuses("not exported: export its translator", terms.export, tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # the functions that it calls have quick tests
def test_the_command_takes_a_glossary(tiny_run, terms, texts, glossary, tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in glossary.items()), encoding="utf-8")
    stdin = "".join(f"{text}\n" for text in texts).encode()
    code, out, err = run("translate", tiny_run, "--glossary", path, stdin=stdin)
    found = {term for text in texts for term in terms.glossary.found_in(text)}
    assert code == 0 and f"ask for {len(found)} of {len(glossary)} translations of the glossary" in err
    assert out.decode().splitlines() == terms.translate(texts)
    path.write_text("no tab\n")
    assert_refused("translate", tiny_run, "--glossary", path, named="tab", stdin=stdin)
    assert_refused(
        "translate", tiny_run, "--copy", "(", named="--copy must be a regular expression", stdin=stdin
    )


@pytest.mark.parametrize("frame", [(), (2, 2)])
@pytest.mark.parametrize(
    ("text", "written", "attended", "expected"),
    [
        ("he sees \u00df\u00f0", "the dog sees \u00f8", [-1], "the dog sees \u00df\u00f0"),
        ("\u00df\u00f0 sees", "\u00f8 sees.", [1], "\u00df\u00f0 sees."),
        ("he runs to \u00dfdog.", "to \u00f8dog me", ["first unknown"], "to \u00dfdog me"),
        ("he sees two \u00abcats\u00bb", "the \u00f8.", [-2], "the cats."),
        ("\u00df sees \u00f0", "\u00f8 sees \u00f8", [-1, 1], "\u00f0 sees \u00df"),
    ],
)
@pytest.mark.sampled
def test_an_unknown_token_becomes_what_it_attends_to(text, written, attended, expected, frame):
    """`written` holds the letter \u00f8 for each unknown token, and `attended` the number of a token of `text`."""
    tokenizer = SentencePieceTokenizer.train(["the dog runs to me.", "he sees two cats"] * 9, 32)
    model = Transformer(tokenizer.vocab_size, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    unknown = UnknownWords(Translator(model, tokenizer, source_start=frame))
    ids, source = tokenizer.tokenize(written).numpy(), tokenizer.tokenize(text).numpy()
    attention = np.zeros((len(ids), len(source) + 5), "float32")
    for place, token in zip(np.flatnonzero(ids == tokenizer.unk_id), attended, strict=True):
        token = (
            np.flatnonzero(source == tokenizer.unk_id)[0] if isinstance(token, str) else token % len(source)
        )
        attention[place, len(frame) + token] = 1
    translation = tokenizer.detokenize([ids]).numpy()
    assert unknown.in_texts([*translation, b"the dog"]).tolist() == [True, False]
    pieces = [piece.encode() for piece in tokenizer.pieces(ids)]
    assert unknown.replaced(text.encode(), translation[0], pieces, attention).decode() == expected


@pytest.mark.slow
def test_a_translator_that_writes_unknown_tokens_copies_words(pairs):
    """A model that writes only unknown tokens: each becomes a word of the source, in Python and on the command line."""
    tokenizer = SentencePieceTokenizer.train(["the dog runs to me.", "he sees two cats"] * 9, 32)
    keras.utils.set_random_seed(1)
    model = Transformer(tokenizer.vocab_size, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    others = [i for i in range(tokenizer.vocab_size) if i not in (tokenizer.unk_id, tokenizer.eos_id)]
    translator = Translator(
        model, tokenizer, max_length=3, constraints=[SuppressTokens(others), MinLength(2)]
    )
    texts = ["the dog", "he sees two cats"]
    for text, found in zip(
        texts, TermTranslator(translator, replace_unknown=True).translate(texts), strict=True
    ):
        assert found and set(re.findall(r"\w+", found)) <= {
            "".join(words) for n in (1, 2, 3) for words in itertools.product(text.split(), repeat=n)
        }


@pytest.mark.slow
def test_texts_without_an_unknown_token_stay(translator, texts):
    terms = TermTranslator(translator, replace_unknown=True)
    assert terms.translate(texts) == translator.translate(texts)
