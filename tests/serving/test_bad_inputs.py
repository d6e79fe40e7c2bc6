"""Whatever arrives is answered, and what stands beside it is answered as if it were alone."""

import os

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer.serving.translator import TranslatorSignatures

ROWS = 20
INPUTS = int(os.environ.get("BAD_INPUTS", "200"))  # BAD_INPUTS=10000 for a thorough look
PIECES = [
    b"", b" ", b"\0", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"</s>", b"<unk>", b"\xe2\x96\x81",
    b"\xef\xbb\xbf",
]  # fmt: skip
PIECES += [
    text.encode()
    for text in ("\u3000", "\u202e", "e\u0301", "\u1100\u1161", "🏴\u200d☠\ufe0f", "ﷺ", "𐎀", "\u2028")
]
piece = st.one_of(
    st.sampled_from(PIECES),
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(st.characters(categories=["Cs", "Co", "Cn", "Cc", "Cf"]), max_size=20).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    ),
)
bad = st.one_of(
    piece,
    st.lists(piece, max_size=6).map(b"".join),
    st.tuples(piece, st.integers(2, 3000)).map(lambda drawn: drawn[0] * drawn[1]),
)


@pytest.fixture(scope="module")
def function(translator):
    chunked = TranslatorSignatures(translator, [8]).functions()["serving_default"]
    return chunked.get_concrete_function()


@pytest.fixture(scope="module")
def good(pairs, function):
    """Texts and their answers, each alone."""
    texts = [source.encode() for source, _ in pairs[:4]]
    return {text: answer(function, [text])[0] for text in texts}


def answer(function, texts):
    """Translation and flag of each row."""
    found = function(text=tf.constant(texts, tf.string))
    assert tf.reduce_all(tf.math.is_finite(found["score"])) and found["score"].shape == (len(texts),)
    return list(zip(found["translation"].numpy(), found["truncated"].numpy().tolist(), strict=True))


@settings(
    max_examples=INPUTS // ROWS,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(rows=st.lists(bad, min_size=ROWS, max_size=ROWS), random=st.randoms())
@pytest.mark.slow
def test_bad_inputs_are_answered_and_change_no_neighbour(function, good, rows, random):
    texts = [*rows, *good]
    random.shuffle(texts)
    for text, (translation, truncated) in zip(texts, answer(function, texts), strict=True):
        translation.decode()
        if text in good:
            assert (translation, truncated) == good[text]
        if not text.strip():
            assert translation == b""
