"""Forbidden words: against regular expressions, in every spelling; with real tokenizers; in a search."""

import re

import numpy as np
import pytest
from contracts import as_numpy, check_refused, refuses
from keras import ops

from keras_transformer.decoding import Beam, ForbidWords, Greedy, Search, decode
from keras_transformer.decoding.hypotheses import Beams

PIECES = [
    "", " cat", " c", "c", "at", "a", "t", "T", "CAT", " Ca", "s", " ", ".", "é", " not", "no", "x (cat", "t. A ",
]  # fmt: skip


class Written:
    """A tokenizer of given texts."""

    def __init__(self, texts):
        self.texts = [text if isinstance(text, bytes) else text.encode() for text in texts]

    def written(self):
        return self.texts


def blocked(constraint, rows, count, limit=99):
    """Which ids may not follow each row: bool `(rows, count)`."""
    length = max(map(len, rows)) + 1
    tokens = np.array([[*row, *[0] * (length - len(row))] for row in rows], "int32")[:, None]
    beams = Beams(tokens, np.array([[len(row)] for row in rows], "int32"), None, None)
    beams = beams._replace(tokens=ops.convert_to_tensor(tokens), lengths=ops.convert_to_tensor(beams.lengths))
    return as_numpy(constraint.blocked(beams, Search(limit), count))[:, 0]


def test_exactly_the_tokens_that_complete_a_word_are_forbidden():
    constraint = ForbidWords.of(["Cat", "not a"], Written(PIECES))
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, len(PIECES), n).tolist() for n in rng.integers(0, 9, 80)]
    found, last = (blocked(constraint, rows, len(PIECES), limit) for limit in (99, 1))
    word = r"(?<![^\W_])(cat|not a)"
    for row, forbidden, at_limit in zip(rows, found, last, strict=True):
        text = "".join(PIECES[i] for i in row)
        for i, piece in enumerate(PIECES):
            found_words = re.finditer(f"(?={word}(?=[\\W_]))", text + piece, re.IGNORECASE)
            # A word that an earlier token completed is no matter of this one.
            completes = any(match.end(1) >= len(text) for match in found_words)
            is_whole = re.search(f"{word}$", text, re.IGNORECASE) is not None
            assert forbidden[i] == (completes if piece else is_whole), (text, piece)
            if piece:
                ended = re.search(f"{word}$", text + piece, re.IGNORECASE) is not None
                assert at_limit[i] == (completes or ended), (text, piece)


@pytest.mark.parametrize(
    ("word", "text", "is_forbidden"),
    [
        ("student", "A Student.", True),
        ("student", "students ", False),
        ("student", "prestudent ", False),
        ("Straße", "STRASSE ", True),
        ("é", "un É!", True),
        ("été", "étés ", False),
        ("学生", "我是学生们", True),
        ("학생", "학생은", True),
        ("학생", "대학생 ", False),
        ("มา", "เขามาแล้ว", True),
        ("New York", "in new york,", True),
        ("ну", "нужно ", False),
        ("ну", "да НУ ", True),
        ("việt", "Việt Nam", True),
        ("vi", "Việt ", False),
        ("كتاب", "هذا كتاب؟", True),
        ("كتاب", "كتاب، نعم", True),
        ("كتاب", "كتابه ", False),
        ("शब्द", "यह शब्द।", True),
        ("שלום", "שלום־עולם", True),
        ("λογος", "ΛΟΓΟΣ ", True),
        ("New York", "New \n\u00a0York.", True),
        ("New York", "NewYork.", False),
    ],
)
def test_words_of_all_scripts_byte_by_byte(word, text, is_forbidden):
    bytes_alone = Written([b"", *(bytes([byte]) for byte in range(256))])
    constraint = ForbidWords.of([word], bytes_alone)
    ids = [byte + 1 for byte in text.encode()]
    found = blocked(constraint, [ids[:i] for i in range(len(ids))], 257)
    assert any(found[i, ids[i]] for i in range(len(ids))) is is_forbidden
    whole = Written([b"", text.encode()])
    assert blocked(ForbidWords.of([word], whole), [[]], 2)[0, 1] == is_forbidden


def test_too_many_words_for_a_vocabulary_are_refused():
    constraint = ForbidWords.of(["a" * 12], Written(["", "a"]))
    refuses("too many for this vocabulary", blocked, constraint, [[1]], 2**28)


@pytest.mark.parametrize("strategy", [Greedy(), Beam(3)])
def test_a_search_writes_another_word(strategy):
    texts = ["", "", "", "", " cat", " dog", "s", "c", "at", " "]
    constraint = ForbidWords.of(["cat"], Written(texts))
    logits = np.full((len(texts),), -9.0, "float32")
    logits[[4, 7, 8, 9, 5, 3]] = [5, 4, 4, 4, 3, 1]

    def step(tokens, cache, index):
        shape = (*ops.shape(tokens), len(texts))
        return ops.broadcast_to(ops.convert_to_tensor(logits), shape), cache

    prompt, cache = np.array([[2]], "int32"), ops.zeros((1, strategy.width))
    for constraints, has_word in (((), True), ((constraint,), False)):
        rows = decode(step, cache, strategy, prompt, Search(7), target_len=7, constraints=constraints)
        for row, length in zip(as_numpy(rows.tokens)[0], as_numpy(rows.lengths)[0], strict=True):
            text = "".join(texts[int(i)] for i in row[: int(length)])
            assert (re.search(r"\bcat\b", text) is not None) is has_word


@pytest.mark.tensorflow
def test_what_a_tokenizer_has_written_is_what_it_detokenizes():
    from keras_transformer import text

    sentences = ["The cat sat on the mat.", "a dog and a cat", "é and ü"] * 30
    tokenizers = [
        text.ByteTokenizer(),
        text.SentencePieceTokenizer.train(sentences, 60, byte_fallback=False),
        text.SentencePieceTokenizer.train(sentences, 300, model_type="bpe", byte_fallback=True),
        text.WordPieceTokenizer.train(sentences, 80),
        text.BytePairTokenizer(
            [*text.byte_pair.BYTE_CHARACTERS, "ca", "Ġca", "<|end|>"], ["c a", "Ġ ca"], eos_token="<|end|>"
        ),
    ]
    for tokenizer in tokenizers:
        written = tokenizer.written()
        assert len(written) == tokenizer.vocab_size
        ids = tokenizer.tokenize(["The cat sat, é."]).to_list()[0]
        expected = tokenizer.detokenize([ids])[0].numpy()
        assert b"".join(written[i] for i in ids).strip() == expected
        for special in {tokenizer.pad_id, tokenizer.eos_id} - {None}:
            assert written[special] == b""


def test_wrong_words_are_named():
    check_refused(
        ForbidWords, {"words": ()}, {"words": ("a", " ")}, {"words": "cat"}, {"written": 3}, words=("a",)
    )
    refuses("more than the model has", blocked, ForbidWords.of(["a"], Written(["a", "b"])), [[]], 1)
