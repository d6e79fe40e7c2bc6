import io
import warnings

import numpy as np
import pytest
import sentencepiece
from contracts import refuses
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text import SentencePieceTokenizer, WordPieceTokenizer


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def subwords(request, sentences):
    return SentencePieceTokenizer.train(sentences, 300, model_type=request.param, character_coverage=1.0)


def read_back(tokenizer, strings):
    return [s.decode() for s in tokenizer.detokenize(tokenizer.tokenize(strings)).numpy()]


def test_long_sentences_are_not_dropped():
    """SentencePiece's default limit is 4192 bytes."""
    tokenizer = SentencePieceTokenizer.train(["abc def " * 600], 20, character_coverage=1.0)
    assert tokenizer.unk_id not in tokenizer.tokenize("abc def").numpy()
    tokenizer = SentencePieceTokenizer.train(["xyz"] * 9 + ["abc def " * 600], 20, character_coverage=1.0)
    assert tokenizer.unk_id not in tokenizer.tokenize("xyz abc def").numpy()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("line", "symbols", "expected", "kind"),
    [
        ("x !~ a", [], "x !~ a", "bpe"),
        ("x 2 a", [], "x 2 a", "unigram"),
        ("２ a", [], "2 a", "bpe"),  # full width
        ("a {name} b", ["{name}"], "a {name} b", "unigram"),
        ("a # b", ["#"], "a # b", "bpe"),
        ("a Z\u030c b", [], "a \u2047 b", "unigram"),  # SentencePiece composes the letter
    ],
)
def test_rare_characters_of_ascii_have_an_id(line, symbols, expected, kind):
    lines = ["abcd efgh ijkl " * 50] * 40 + [line]
    options = {"model_type": kind, "character_coverage": 0.999, "symbols": symbols}
    tokenizer = SentencePieceTokenizer.train(lines, 60, **options)
    text = tokenizer.detokenize(tokenizer.tokenize([line])).numpy()[0].decode()
    assert text.split() == expected.split()
    assert any(tokenizer.is_unknown(tokenizer.tokenize("ù").numpy().tolist()))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_symbol_with_blanks_is_one_piece(kind):
    symbols = ["{first  name}", "<a href='x'>", "a\u2581b", "a b"]
    tokenizer = SentencePieceTokenizer.train(
        ["the dog runs {first name}"] * 9, 60, model_type=kind, symbols=symbols
    )
    for symbol in symbols:
        pieces = tokenizer.pieces(tokenizer.tokenize(f"go {symbol} on").numpy().tolist())
        assert " ".join(symbol.split()).replace(" ", "\u2581") in pieces


@pytest.mark.parametrize(("kind", "reserved"), [("unigram", "\u2585\u2585"), ("bpe", "\ud800")], ids=ascii)
def test_a_sentence_with_a_reserved_character_gets_pieces(kind, reserved):
    lines = ["the dog runs"] * 9 + [f"zebra quiz jumps vex {reserved}"] * 5
    tokenizer = SentencePieceTokenizer.train(lines, 99, model_type=kind, character_coverage=1.0)
    assert tokenizer.unk_id not in tokenizer.tokenize("zebra quiz jumps vex").numpy()


def test_a_text_of_reserved_characters_alone_is_refused():
    refuses("`sentences` must hold text", SentencePieceTokenizer.train, ["\u2585"], 99)


def test_ids_begin_with_pad_unk_bos_eos_and_sentences_come_back(subwords, sentences):
    assert subwords.pieces(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert read_back(subwords, sentences) == sentences


def test_unknown_characters_become_unk_and_leave_their_neighbours(subwords):
    ids = subwords.tokenize(["Garten 🎉 Straße"])[0].numpy().tolist()
    assert ids.count(1) == 1
    back = read_back(subwords, ["Garten 🎉 Straße"])[0]
    assert back.split()[0] == "Garten" and back.split()[-1] == "Straße"


@pytest.mark.parametrize("taken", [False, True])
def test_a_text_may_hold_the_character_of_a_control_symbol(taken):
    """Its id is for the model alone, so the character is unknown. SentencePiece would fail."""
    made = SentencePieceTokenizer.train(["a café on the sé", "résumé sea"] * 9, 40, model_type="bpe")
    proto = sentencepiece_model_pb2.ModelProto.FromString(made.model)
    (piece,) = (piece for piece in proto.pieces if piece.piece == "é")
    piece.type = piece.CONTROL
    if taken:
        # The name that it would get first.
        proto.pieces.add(piece="<é>", type=piece.CONTROL)
    tokenizer = SentencePieceTokenizer(proto.SerializeToString())
    ids = tokenizer.tokenize(["sea é", "ne\u0301"]).to_list()
    assert [row[-1] for row in ids] == [tokenizer.unk_id] * 2
    assert tokenizer.sampled(["né"], 0.1, seed=1)[0][-1] == tokenizer.unk_id


def test_text_after_a_nul_is_kept(subwords):
    assert read_back(subwords, ["Garten\0Straße"])[0].endswith("Straße")


def test_training_twice_gives_the_same_model(sentences):
    first, second = (SentencePieceTokenizer.train(iter(sentences), 260) for _ in range(2))
    assert first.model == second.model


def test_a_path_is_read_as_a_model_and_other_bytes_are_refused(tokenizer, tmp_path):
    for content in (b"", b"junk", tokenizer.model[: len(tokenizer.model) // 2]):
        refuses("not a SentencePiece model", SentencePieceTokenizer, content)
    (tmp_path / "model").write_bytes(tokenizer.model)
    assert SentencePieceTokenizer(str(tmp_path / "model")).model == tokenizer.model
    refuses(r"nowhere\.model", SentencePieceTokenizer, tmp_path / "nowhere.model")


def trained(sentences, **options):
    """A SentencePiece model that was trained elsewhere."""
    model, options = io.BytesIO(), {"vocab_size": 260, "hard_vocab_limit": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    return model.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (None, 0, 1, 2)),
        ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, (0, 2, None, 1)),
        ({"pad_id": 3, "eos_id": -1, "unk_id": 0, "bos_id": -1}, (3, 0, None, None)),
        ({"pad_id": -1, "eos_id": -1, "unk_id": 1, "bos_id": -1}, (None, 1, None, None)),
    ],
)
def test_a_models_own_special_ids_are_the_tokenizers(sentences, options, expected, tmp_path):
    tokenizer = SentencePieceTokenizer(trained(sentences, **options))
    tokenizer.save(tmp_path / "model")
    for each in (tokenizer, SentencePieceTokenizer.load(tmp_path / "model")):
        special = (each.pad_id, each.unk_id, each.bos_id, each.eos_id)
        assert special == expected
        ids = each.tokenize("Garten").numpy().tolist()
        assert not set(special) & set(ids)
        there = [i for i in (each.pad_id, each.bos_id, each.eos_id) if i is not None]
        rows = [[*there, *ids, *there], [each.unk_id], [each.vocab_size]]
        text, unknown, beyond = each.detokenize(rows).numpy()
        assert text == b"Garten" and unknown == beyond


def of_vocabulary(sentences, **options):
    """A tokenizer whose ids are not its model's, and the model's."""
    own = SentencePieceTokenizer(trained(sentences, **options))
    pieces = own.pieces(range(3, own.vocab_size))
    others = ["▁überzählig", ">>de<<", ">>d.e<<", "<extra_id_12>", "<pad>"]
    vocabulary = ["</s>", "<unk>", *reversed(pieces), *others]
    return SentencePieceTokenizer(own.model, vocabulary), own


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def reversed_ids(request, sentences):
    return of_vocabulary(sentences, model_type=request.param, character_coverage=1.0)


def test_a_vocabulary_gives_the_ids_of_the_pieces(reversed_ids, sentences):
    tokenizer, own = reversed_ids
    assert tokenizer.vocab_size == own.vocab_size - 3 + 7
    special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    assert special == (tokenizer.vocab_size - 1, 1, None, 0)
    expected = [[own.vocab_size + 1 - i for i in row] for row in own.tokenize(sentences).to_list()]
    assert tokenizer.tokenize(sentences).to_list() == expected
    for ids, row in zip(expected, own.tokenize(sentences).to_list(), strict=True):
        assert tokenizer.pieces(ids) == own.pieces(row)
    assert read_back(tokenizer, sentences) == read_back(own, sentences) == sentences


def test_a_piece_outside_the_vocabulary_is_unk(sentences):
    own = SentencePieceTokenizer(trained(sentences))
    ids = own.tokenize("Die Kinder").numpy().tolist()
    missing = own.pieces(ids[:1])[0]
    pieces = [piece for piece in own.pieces(range(3, own.vocab_size)) if piece != missing]
    tokenizer = SentencePieceTokenizer(own.model, ["<unk>", *pieces])
    assert tokenizer.tokenize("Die Kinder").numpy()[0] == tokenizer.unk_id == 0
    assert tokenizer.pieces(tokenizer.tokenize("Die Kinder")[1:].numpy()) == own.pieces(ids[1:])


def test_an_unknown_character_that_the_vocabulary_has_is_its_id(sentences):
    """As a joint vocabulary has pieces that the model of one language does not make."""
    own = SentencePieceTokenizer(trained(sentences))
    tokenizer = SentencePieceTokenizer(own.model, [*own.pieces(range(own.vocab_size)), "🎉"])
    assert tokenizer.tokenize("Garten 🎉").numpy()[-1] == own.vocab_size
    assert read_back(tokenizer, ["Garten 🎉"]) == ["Garten 🎉"]


def test_symbols_of_a_vocabulary_are_spelled_out(reversed_ids):
    tokenizer, _ = reversed_ids
    german, dotted, sentinel = range(tokenizer.vocab_size - 4, tokenizer.vocab_size - 1)
    words = tokenizer.tokenize("Die Kinder").numpy().tolist()
    rows = ["Die Kinder", ">>de<< Die Kinder", "", "Die Kinder<extra_id_12>Die Kinder", ">>d.e<<>>dxe<<"]
    found = tokenizer.tokenize(rows).to_list()
    assert found[:4] == [words, [german, *words], [], [*words, sentinel, *words]]
    assert found[4][0] == dotted and not {german, dotted, sentinel} & set(found[4][1:])
    assert tokenizer.tokenize(rows[1]).numpy().tolist() == found[1]
    assert read_back(tokenizer, rows[3:4]) == ["Die Kinder<extra_id_12> Die Kinder"]


def test_no_text_becomes_a_special_id_of_a_vocabulary(sentences):
    """Unknown characters in a row are one piece, which may read like a special one."""
    own = SentencePieceTokenizer(trained(["가나 다라", "마바 사아"] * 9))
    tokenizer = SentencePieceTokenizer(
        own.model, ["</s>", *own.pieces(range(3, own.vocab_size)), "<unk>", "<pad>"]
    )
    ids = tokenizer.tokenize(["</s>", "가 <pad> 나", "<unk></s>"])
    assert not {tokenizer.eos_id, tokenizer.pad_id} & set(ids.flat_values.numpy())


def test_bytes_of_a_vocabulary_are_read_as_bytes(sentences):
    tokenizer, _ = of_vocabulary(sentences, byte_fallback=True, vocab_size=600)
    assert read_back(tokenizer, ["Garten 🎉"]) == ["Garten 🎉"]


@pytest.mark.parametrize("vocabulary", [["a", "b"], ["<unk>", "a", "a"], ["<unk>", 3], []])
def test_a_vocabulary_is_of_different_pieces(tokenizer, vocabulary):
    message = "`vocabulary` must hold different str, and '<unk>' must be one of them"
    refuses(message, SentencePieceTokenizer, tokenizer.model, vocabulary)


def test_a_vocabularys_segmentations_are_drawn_too(reversed_ids, sentences):
    tokenizer, own = reversed_ids
    drawn, expected = (each.sampled(sentences, 0.3, seed=5) for each in (tokenizer, own))
    for row, other in zip(drawn, expected, strict=True):
        assert row.dtype == np.int32
        assert tokenizer.pieces(row) == own.pieces(other.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"vocab_size": 20}, "vocab_size=20"),
        ({"vocab_size": 300, "character_coverage": 1.5}, "character_coverage"),
        ({"vocab_size": 300, "model_type": "words"}, "'words'"),
    ],
)
def test_arguments_out_of_range_are_refused_with_their_values(sentences, arguments, message):
    refuses(message, SentencePieceTokenizer.train, sentences, **arguments)


def test_training_on_no_text_is_refused_with_the_number_of_sentences():
    for texts in ([], ["", "  "]):
        refuses(f"Received: {len(texts)} sentences", SentencePieceTokenizer.train, texts, 100)


def test_sentences_of_a_few_letters_are_enough():
    tokenizer = SentencePieceTokenizer.train(["ab", "b"], 20, character_coverage=1.0)
    assert read_back(tokenizer, ["b ab"]) == ["b ab"]


@pytest.mark.parametrize("tokenizer_class", [SentencePieceTokenizer, WordPieceTokenizer])
def test_a_text_in_place_of_sentences_is_refused(tokenizer_class):
    refuses(r"iterable of str\. Received: one string, 'corpus.txt'", tokenizer_class.train, "corpus.txt", 100)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_more_ids_than_the_text_yields_are_not_invented(model_type):
    lines = ["the cat sat", "the dog sat"] * 3
    with pytest.warns(
        UserWarning, match=r"`vocab_size` asks for 5,000 ids, .* only \d+\. Train on"
    ) as warned:
        tokenizer = SentencePieceTokenizer.train(lines, 5000, model_type=model_type)
    assert tokenizer.vocab_size < 100 and f"only {tokenizer.vocab_size}." in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SentencePieceTokenizer.train(lines, tokenizer.vocab_size + 3, model_type=model_type)
    assert read_back(tokenizer, ["the cat sat"]) == ["the cat sat"]


def test_byte_fallback_spells_unknown_characters(sentences):
    tokenizer = SentencePieceTokenizer.train(sentences, 600, byte_fallback=True)
    assert read_back(tokenizer, ["Garten 🎉"]) == ["Garten 🎉"]
    assert 1 not in tokenizer.tokenize("Garten 🎉").numpy()
