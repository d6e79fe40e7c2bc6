"""Added tokens in texts: the flags worked by hand, each tokenizer after saving, and the parts of `tokenizers`."""

import random

import pytest
import tensorflow as tf

from keras_transformer.text import AddedToken, BytePairTokenizer, SentencePieceTokenizer, WordPieceTokenizer
from keras_transformer.text.added_tokens import AddedTokens, as_added_tokens
from keras_transformer.text.byte_pair import BYTE_CHARACTERS


def lowered(texts):
    return tf.strings.lower(texts, encoding="utf-8")


def split(tokens, texts, normalize=None, run=tf.function):
    """The parts of each text, with the tokens that were found in it as ids, which count from 0."""
    ids = {token.content: i for i, token in enumerate(tokens)}
    parts, ids, rows = run(AddedTokens(tokens, ids, normalize).split)(tf.constant(texts))
    found = [[] for _ in texts]
    for part, i, row in zip(parts.numpy(), ids.numpy(), rows.numpy(), strict=True):
        if part or i >= 0:
            found[row].append(part.decode() if i < 0 else int(i))
    return found


def test_a_token_is_found_as_its_flags_say():
    flags = {"<e>": {}, "<l>": {"lstrip": True}, "<r>": {"rstrip": True}, "dog": {"single_word": True}}
    flags |= {"Cow": {"normalized": True}, "Hen": {}}
    expected = {
        "a<e> <e>b": ["a", 0, " ", 0, "b"],
        "a \u3000<l> b": ["a", 1, " b"],
        "a <r>\n b": ["a ", 2, "b"],
        "dog dogs hotdog -dog dog_": [3, " dogs hotdog -", 3, " dog_"],
        "cOW Cow": [4, " ", 4],
        "hEN Hen": ["hen ", 5],
        "": [],
    }
    tokens = [AddedToken(content, **each) for content, each in flags.items()]
    assert split(tokens, [*expected], lowered) == [*expected.values()]


def test_the_longest_token_is_found_and_raw_texts_come_first():
    def run(function):
        return function

    assert split(as_added_tokens(["<e>", "<e><e>", "e"]), ["<e><e><e>e"], run=run) == [[1, 0, 2]]
    assert split([AddedToken("ab", normalized=True), AddedToken("b")], ["ab"], run=run) == [["a", 1]]
    assert split([AddedToken("Hen")], ["hEN Hen"], run=run) == [["hEN ", 0]]


@pytest.mark.parametrize("tokens", [[""], ["a", "a"], [3], [["a", 1]], [()]])
def test_other_added_tokens_are_refused(tokens):
    with pytest.raises(ValueError, match="`added_tokens` must"):
        as_added_tokens(tokens)


ADDED = [AddedToken("[E1]", lstrip=True), AddedToken("[E2]", special=True)]


def tokenizers(sentences):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ein", "mann", "[", "]", "e", "##1"]
    yield WordPieceTokenizer(words, added_tokens=ADDED), "ein [E1] mann"
    pieces = SentencePieceTokenizer.train(sentences, 200)
    vocabulary = [*pieces.pieces(range(pieces.vocab_size)), "[E1]", "[E2]"]
    yield SentencePieceTokenizer(pieces.model, vocabulary, ADDED), "ein[E1] mann"
    yield BytePairTokenizer([*BYTE_CHARACTERS, "[E1]", "[E2]"], [], added_tokens=ADDED), "ein[E1] mann"


def test_each_tokenizer_finds_writes_and_saves_added_tokens(sentences, tmp_path):
    for tokenizer, expected in tokenizers(sentences):
        ids = tokenizer.tokenize(["ein [E1] mann[E2]", ""])
        assert tokenizer.pieces(ids.to_list()[0]).count("[E1]") == 1
        assert ids.to_list()[0][-1] == tokenizer.vocab_size - 1 and ids.to_list()[1] == []
        assert tokenizer.detokenize(ids).numpy()[0].decode() == expected
        tokenizer.save(tmp_path / "saved")
        again = type(tokenizer).load(tmp_path / "saved")
        assert again.tokenize(["ein [E1] mann[E2]", ""]).to_list() == ids.to_list()
        assert again.vocab_size == tokenizer.vocab_size


def test_sampled_pieces_keep_added_tokens_and_blanks(sentences):
    _, (tokenizer, _), _ = tokenizers(sentences)
    (row,) = tokenizer.sampled(["ein [E1] mann"], alpha=0.1, seed=3)
    assert tokenizer.pieces(row).count("[E1]") == 1


BLANKS = {
    "first": ["▁the", "[E1]", "the"],
    "always": ["▁the", "[E1]", "▁the"],
    "never": ["the", "[E1]", "the"],
}


@pytest.mark.parametrize(("blank", "expected"), BLANKS.items())
def test_a_blank_is_put_where_it_is_asked_for(blank, expected):
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, "the": 1, "▁the": 1, "▁": 1, "[E1]": 3}
    for piece, kind in kinds.items():
        model.pieces.add(piece=piece, type=kind, score=-1.0)
    model.normalizer_spec.remove_extra_whitespaces = False
    tokenizer = SentencePieceTokenizer(model.SerializeToString(), None, ["[E1]"], blank)
    ids = tokenizer.tokenize(["the[E1]the", " the"]).to_list()
    assert tokenizer.pieces(ids[0]) == expected
    assert tokenizer.pieces(ids[1]) == ["▁the"]


def test_the_parts_are_those_of_tokenizers():
    tokenizers = pytest.importorskip("tokenizers")
    numbers = random.Random(5)
    letters = ["a", "b", "A", " ", "[", "]", "\u3000", "é", "E\u0301", "_", "1"]
    for _ in range(12):
        made = {}
        for _ in range(4):
            content = "".join(numbers.choice(letters) for _ in range(numbers.randint(1, 3)))
            made[content] = AddedToken(content, False, *[numbers.random() < 0.3 for _ in range(4)])
        tokens = [token._replace(rstrip=False) for token in made.values()]  # tokenizers stops at some of them
        there = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        there.normalizer = tokenizers.normalizers.Lowercase()
        for token in tokens:
            flags = {name: value for name, value in token._asdict().items() if name != "special"}
            there.add_tokens([tokenizers.AddedToken(**flags)])
        ids = {token.content: there.token_to_id(token.content) for token in tokens}
        own = AddedTokens(tokens, ids, lowered)
        texts = ["".join(numbers.choice(letters) for _ in range(numbers.randint(0, 12))) for _ in range(20)]
        parts, found, rows = (each.numpy() for each in own.split(tf.constant(texts)))
        for i, text in enumerate(texts):
            pairs = zip(found[rows == i], parts[rows == i], strict=True)
            row = [max(n, 0) for n, part in pairs if part or n >= 0]
            assert row == there.encode(text).ids, (text, tokens)
