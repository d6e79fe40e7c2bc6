"""`Client.stream` and `ask --stream`: an answer that grows, request by request."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf
from commands import assert_refused, run

pytest.importorskip("tensorflow_serving")
from servers import refuse

from keras_transformer.client import AsyncClient, Client
from keras_transformer.client.openai_forms import RefusedError, logprobs_of, number_of
from keras_transformer.client.stream import Stream
from keras_transformer.request_options import OPTIONS

ANSWER = "Ein Hund läuft über die 가나 Wiese."  # what the models write: a token is a byte
SPECS = {
    "text": tf.TensorSpec((None,), tf.string, name="text"),
    **{name: tf.TensorSpec((None,), option.dtype, name=name) for name, option in OPTIONS.items()},
}


def writer(output, counts_prefix, limit=1000):
    """A model that writes bytes of an answer: with `options`, from a prefix up to a length."""

    def write(text, prefix, max_length, seed, **_):
        length = tf.where(max_length > 0, max_length, limit)
        written = tf.strings.length(prefix)
        end = length if counts_prefix else written + length
        whole = tf.strings.substr(tf.fill(tf.shape(text), ANSWER), tf.zeros_like(end), end)
        unknown = tf.math.equal(prefix, ANSWER[:6]) & tf.math.equal(text, "unknown")
        error = tf.where(unknown, b"`prefix` must leave room within `max_length`.", b"")
        error = tf.where(max_length > limit, b"`max_length` must be smaller.", error)
        return {
            output: tf.where(tf.math.equal(error, ""), whole, b""),
            "error": error,
            "ended": end > len(ANSWER.encode()),
            "truncated": tf.math.equal(text, "long"),
            "unknown": tf.zeros_like(seed, tf.int32),
        }

    return tf.function(write).get_concrete_function(**SPECS)


class Model:
    def __init__(self, *arguments):
        self.signatures = {"options": writer(*arguments)}


@pytest.fixture(scope="module")
def models():
    return {
        "translator": {1: Model("translation", True)},
        "generator": {1: Model("continuation", False)},
        "short": {1: Model("translation", True, 20)},
    }


def pieces(url, model, text="a", **options):
    with Client(url, model) as client:
        return list(client.stream(text, **options))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["translator", "generator"])
@pytest.mark.parametrize("tokens", [4, 100])
def test_the_pieces_are_the_answer_and_no_character_is_cut(backend, url, model, tokens):
    found = pieces(url, model, tokens=tokens)
    assert "".join(found) == ANSWER and "" not in found
    assert (
        backend.sizes == [[1]] * len(backend.sizes)
        and len(backend.sizes) <= 2 + len(ANSWER.encode()) // tokens * 2
    )


def test_the_length_is_limited_by_the_caller_and_by_the_row(backend, url):
    for model in ("translator", "generator"):
        assert "".join(pieces(url, model, tokens=3, max_length=7)) == ANSWER[:7]
    assert "".join(pieces(url, "short", tokens=8)) == ANSWER.encode()[:20].decode("utf-8", "replace")


def test_an_answer_that_cannot_go_on_is_asked_for_as_a_whole(backend, url):
    """A prefix may not hold an unknown token, which a model may write. The limit of the caller stays."""
    found = pieces(url, "translator", "unknown", tokens=3)
    assert found == [ANSWER[:3], ANSWER[3:6], ANSWER[6:]]
    assert pieces(url, "translator", "unknown", tokens=3, max_length=8) == [
        ANSWER[:3],
        ANSWER[3:6],
        ANSWER[6:8],
    ]


def answered(stream, text, ended=False, output="translation"):
    """Takes an answer: the request before it, and the text that it adds."""
    return stream.request(), stream.add({output: np.array([text], object), "ended": np.array([ended])})


def test_a_stream_ends_where_the_model_ends_it():
    """Neither tokens without text nor bytes that are no text end it, and no request follows the end."""
    stream = Stream("a", 2, 9, {})
    assert answered(stream, b"a") == (("", 2), "a") and not stream.finished
    assert answered(stream, b"a") == (("a", 4), "") and not stream.finished
    assert answered(stream, b"a b\xff") == (("a", 6), " b") and not stream.finished
    assert answered(stream, b"a b\xff", ended=True) == (("a b", 8), "\ufffd") and stream.finished
    stream = Stream("a", 2, 9, {})
    limits = [
        answered(stream, text, False, "continuation")[0][1]
        for text in (b"a", b"a", b"a\xea", b"a b", b"a b c")
    ]
    assert limits == [2, 2, 4, 6, 1] and stream.finished  # tokens without text are computed again


def test_limit_of_a_caller_holds_for_refused_requests():
    stream = Stream("a", 8, 20, {})
    assert stream.request_after(("a", 8), "max_length") == ("a", 0)
    assert stream.request_after(("a", 8), "prefix") == ("a", 20)
    for max_length in (20, 0):
        assert stream.request_after(("a", max_length), "prefix") == ("", 20)
    for request, option in ((("a", 0), "max_length"), (("", 8), "prefix"), (("a", 8), "top_p")):
        assert stream.request_after(request, option) is None


def test_text_that_may_begin_a_stop_string_is_held_back():
    stream = Stream("a", 2, 9, {"stop": ("abc", b"b!")})
    assert answered(stream, b"xa") == (("", 2), "x")
    # The longest of the beginnings, "ab" and "b".
    assert answered(stream, b"xab") == (("x", 4), "")
    assert answered(stream, b"xabd a") == (("x", 6), "abd ")
    assert answered(stream, b"xabd a", ended=True) == (("xabd ", 8), "a") and stream.finished
    stream = Stream("a", 2, 9, {"stop": "abc"})
    assert answered(stream, b"abab") == (("", 2), "ab")


def test_a_continuation_whose_row_has_a_low_limit_goes_on_with_new_text():
    stream = Stream("a", 8, 20, {})
    for text, added in ((b"a", "a"), (b"ab", "b"), (b"ab", "")):
        assert not stream.finished
        stream.request_after(stream.request(), "max_length")
        assert stream.add({"continuation": np.array([text], object), "ended": np.array([False])}) == added
    assert stream.finished


def test_export_without_ended_is_named(monkeypatch):
    with Client("grpc://127.0.0.1:1") as client:
        monkeypatch.setattr(client, "_send", no_end)
        with pytest.raises(OSError, match="with `ended`, which an older export does not have"):
            next(client.stream("a"))


async def no_end(*_):
    return {"translation": np.array([b"a"], object), "error": np.array([b""], object)}


def test_a_caller_that_stops_sends_no_further_request(backend, url):
    with Client(url, "translator") as client:
        stream = client.stream("a", tokens=3)
        before = backend.calls
        assert before == 0
        assert next(stream) == ANSWER[:3]
        stream.close()
        assert len(backend.sizes) == 1

    async def first():
        async with AsyncClient(url, "translator") as client:
            async for piece in client.stream("a", tokens=3):
                return piece

    assert asyncio.run(first()) == ANSWER[:3]
    assert len(backend.sizes) == 2


@pytest.mark.slow
def test_an_asynchronous_client_gives_the_same_pieces(url):
    async def all_pieces():
        async with AsyncClient(url, "translator") as client:
            return [piece async for piece in client.stream("a", tokens=5)]

    assert asyncio.run(all_pieces()) == pieces(url, "translator", tokens=5)


@pytest.mark.slow
def test_a_warning_is_given_once_and_an_error_ends_the_stream(backend, url):
    with pytest.warns(UserWarning, match="are longer than the model reads") as warned:
        pieces(url, "translator", "long", tokens=3)
    assert [warning.filename for warning in warned] == [__file__]
    with Client(url, "translator", retries=0) as client:
        stream = client.stream("a", tokens=3)
        next(stream)
        backend.faults.append(refuse("UNAVAILABLE", "busy"))
        with pytest.raises(ConnectionError, match="busy"):
            next(stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": ["a"]}, r"`text` must be a str, or UTF-8 bytes\. Received: text=\['a'\]"),
        ({"tokens": 0}, "`tokens` must be a positive integer"),
        ({"max_length": 0}, "`max_length` must be a positive integer"),
        (
            {"prefix": "a"},
            r"The options must be temperature, top_k, .*, frequency_penalty\. Received: options=\['prefix'\]",
        ),
        ({"seed": "a"}, "`seed` must be int64"),
    ],
)
def test_arguments_are_checked_before_the_first_piece(options, message):
    with Client("grpc://127.0.0.1:1") as client, pytest.raises(ValueError, match=message):
        client.stream(**{"text": "a", **options})


def test_a_tokenizer_may_write_the_blanks_of_the_begin_otherwise():
    stream = Stream("a", 3, 9, {})
    for text, new in ((b"a  b", "a  b"), (b"a b c", " c"), (b"a b c d", " d")):
        assert answered(stream, text)[1] == new
    with pytest.raises(OSError, match="begins with its prefix"):
        answered(stream, b"x")


@pytest.mark.slow
def test_ask_writes_the_lines_as_they_grow(backend, url):
    code, out, err = run("ask", url, "--model", "translator", "--stream", stdin=b"a\nb\n")
    assert (code, out.decode(), err) == (0, f"{ANSWER}\n{ANSWER}\n", "")
    assert len(backend.sizes) > 6
    for options, named in (
        (["--pairs"], "Give one of --pairs, --split-sentences, --stream"),
        (["--prefix", "a"], "The options must be temperature, top_k, top_p, min_p, seed, stop"),
    ):
        assert_refused("ask", url, "--stream", *options, stdin=b"a", named=named)


@pytest.mark.sampled
def test_error_within_an_answer_ends_its_line(backend, url, monkeypatch):
    monkeypatch.setattr(Client, "stream", broken_stream)
    code, out, err = run("ask", url, "--model", "translator", "--stream", stdin=b"a\nb\n")
    assert (code, out) == (5, b"x\nEin \n")
    assert "the answer of line 2 is not complete: gone" in err


def broken_stream(client, text):
    if text == b"a":
        yield "x"
    else:
        yield "Ein "
        raise ConnectionError("gone")


@pytest.mark.slow
def test_a_translation_that_grows_is_that_of_one_request(url_of_export, pairs):
    lines = [source for source, _ in pairs[:12]]
    with Client(url_of_export, "ko_en") as client:
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}):
            whole = client.translate(lines, **options)
            grown = ["".join(client.stream(line, tokens=5, **options)) for line in lines]
            assert sum(one == other for one, other in zip(whole, grown, strict=True)) >= len(lines) - 2


@pytest.fixture
def url_of_export(served_model):
    from servers import SERVERS, Backend

    with SERVERS["grpc"](Backend({"ko_en": {1: served_model}})) as url:
        yield url


@pytest.mark.parametrize("value", [3, -1, "1", True, 1.5, [1]], ids=repr)
def test_a_field_that_is_no_number_or_out_of_range_is_refused(value):
    with pytest.raises(RefusedError, match="`n` must be int, from 0 to 2"):
        number_of({"n": value}, "n", int, 0, 2)
    assert [number_of(body, "n", int, 0, 2, default=1) for body in ({"n": 2}, {"n": None}, {})] == [2, 1, 1]


def test_log_probabilities_end_with_a_text_that_has_invalid_bytes():
    tokens = np.array([[each] for each in (b"a", b"\xff", b"\xff", b"b", b"c", b"d")], object)
    found = logprobs_of(tokens, np.arange(6.0)[:, None], "a\ufffd\ufffdb", True, False)
    assert found["tokens"] == ["a", r"bytes:\xff", r"bytes:\xff", "b"]


def test_parts_of_a_character_are_not_taken_for_one_another():
    """All were U+FFFD, so the likeliest of them was lost among the keys of `top_logprobs`."""
    tokens = np.array([[b"\xea", b"\xea", b"\xeb"]], object)
    (found,) = logprobs_of(tokens, np.array([[-1.0, -1.0, -2.0]]), "\ufffd", False, False)["top_logprobs"]
    assert found == {r"bytes:\xea": -1.0, r"bytes:\xeb": -2.0}


def test_a_stream_has_each_token_once_where_bytes_are_invalid():
    tokens, found = [b"a", b"\xff", b"b", *(bytes([each]) for each in "한".encode()), b"c", b"\xea", b"d"], []
    stream = Stream("", 1, len(tokens), {"stop": "xyz"}, logprobs=0)
    for size in range(1, len(tokens) + 1):
        stream.request()
        outputs = {"translation": np.array([b"".join(tokens[:size])], object), "ended": [False]}
        outputs["logprob_tokens"] = np.array([[[each] for each in tokens[:size]]], object)
        outputs["logprobs"] = np.arange(size, dtype="float32")[None, :, None]
        stream.add(outputs)
        found += stream.logged[0][:, 0].tolist()
    assert found == tokens
