"""`kt.client.openai_app` and `keras-transformer proxy`, asked by OpenAI's own client, in front of exports."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import requests
from contracts import randomized, refuses

pytest.importorskip("tensorflow_serving")
pytest.importorskip("openai", reason="the package openai is not installed: pip install openai")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[proxy]'")
pytest.importorskip("starlette", reason="starlette is not installed: pip install -e '.[proxy]'")
import openai
import uvicorn
from servers import ServedModel, refuse

from keras_transformer.client import AsyncClient, Client, openai_app
from keras_transformer.client.openai_forms import logprobs_of
from keras_transformer.decoding import SuppressTokens
from keras_transformer.huggingface import ChatTemplate
from keras_transformer.layers import Decoder, Embeddings, Encoder, LearnedPositions
from keras_transformer.models import EncoderModel, LanguageModel
from keras_transformer.serving import Embedder, TextGenerator
from keras_transformer.text import ByteTokenizer

pytestmark = pytest.mark.slow

TEMPLATE = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<a>", special=["<a>"]
)
MESSAGES = [{"role": "user", "content": "one"}]
PROMPT = "<user>one<a>"
KEY = "a key of a test"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    embeddings = Embeddings(260, 8, LearnedPositions(64))
    decoder = Decoder(1, 2, 16, dropout=0.0, normalize_first=True)
    model = randomized(LanguageModel(embeddings, decoder), 1, scale=0.5)
    # What is no text is another token when a stream reads it again.
    others = [i for i in range(260) if i != 3 and not 32 <= i - 4 < 127]
    options = {"max_length": 20, "constraints": [SuppressTokens(others)]}
    writer = TextGenerator(model, ByteTokenizer(), max_source_length=40, **options)
    encoder = EncoderModel(Embeddings(260, 8, LearnedPositions(64)), Encoder(1, 2, 16, dropout=0.0))
    embedder = Embedder(randomized(encoder, 2), ByteTokenizer(), 32)
    folder = tmp_path_factory.mktemp("models")
    names = {"chat": (writer, ("serving_default", "options")), "embedder": (embedder, ("serving_default",))}
    options = {"check": False, "warmup": False}
    return {
        name: {1: ServedModel(servable.export(folder / name, signatures=signatures, **options))}
        for name, (servable, signatures) in names.items()
    }


@contextlib.contextmanager
def running(app):
    """Runs an application in a thread, and gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address(served):
    clients = {name: AsyncClient(served[1], name, timeout=30, retries=0) for name in ("chat", "embedder")}
    with running(
        openai_app(clients, TEMPLATE, key=KEY, max_bytes=10_000, max_texts=5, max_answers=6)
    ) as found:
        yield found


@pytest.fixture
def ask(address, backend):
    with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def server(url):
    with Client(url, "chat") as client:
        yield client


def chat(ask, **options):
    return ask.chat.completions.create(model="chat", messages=MESSAGES, **{"temperature": 0, **options})


def test_chat_is_the_answer_of_the_server(ask, server):
    found = chat(ask, max_tokens=12)
    outputs = server.answer([PROMPT], max_length=12)
    (choice,) = found.choices
    assert choice.message.content == outputs["continuation"][0].decode("utf-8", "replace")
    assert (choice.message.role, choice.index) == ("assistant", 0)
    assert choice.finish_reason == ("stop" if outputs["ended"][0] else "length")
    assert (
        found.usage.prompt_tokens == len(PROMPT) + 1 and found.usage.completion_tokens == outputs["length"][0]
    )
    assert (found.object, found.model) == ("chat.completion", "chat") and found.id.startswith("chatcmpl-")
    parts = [{"role": "user", "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]}]
    again = ask.chat.completions.create(model="chat", messages=parts, temperature=0, max_completion_tokens=12)
    assert again.choices[0].message.content == choice.message.content


def test_options_are_those_of_the_server(ask, server):
    """OpenAI's default of the temperature is 1."""
    options = {"top_p": 0.8, "presence_penalty": 1.5, "frequency_penalty": -0.5, "seed": 7}
    more = {"top_k": 30, "min_p": 0.01, "repetition_penalty": 1.2}
    found = ask.chat.completions.create(model="chat", messages=MESSAGES, extra_body=more, **options)
    (expected,) = server.generate([PROMPT], temperature=1, **options, **more)
    assert found.choices[0].message.content == expected
    found = ask.completions.create(model="chat", prompt=["ab", "one"], temperature=0)
    assert [choice.text for choice in found.choices] == server.generate(["ab", "one"], max_length=16)
    assert (found.object, found.usage.prompt_tokens) == ("text_completion", 3 + 4)


def test_stream_is_the_whole_answer_in_pieces(ask, server):
    parts = list(chat(ask, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    whole = chat(ask, max_tokens=20)
    *pieces, last, used = parts
    assert used.choices == [] and used.usage == whole.usage
    assert "".join(part.choices[0].delta.content or "" for part in pieces) == whole.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant" and len(pieces) > 1
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({part.id for part in parts}) == 1
    texts = ask.completions.create(model="chat", prompt="ab", temperature=0, max_tokens=9, stream=True)
    assert "".join(part.choices[0].text for part in texts) == server.generate(["ab"], max_length=9)[0]


def test_stop_strings_end_an_answer(ask):
    whole = chat(ask, max_tokens=20).choices[0].message.content
    stop = whole[6:8]
    options = {"max_tokens": 20, "stop": ["zzz", stop]}
    found = chat(ask, **options).choices[0]
    assert found.message.content == whole[: whole.find(stop)] and found.finish_reason == "stop"
    parts = list(chat(ask, **options, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == found.message.content
    assert parts[-1].choices[0].finish_reason == "stop"
    assert chat(ask, max_tokens=20, stop=stop).choices[0].message.content == found.message.content


def test_several_answers(ask, server):
    options = {"temperature": 1.0, "seed": 3, "max_tokens": 8}
    found = chat(ask, n=3, **options)
    texts = [choice.message.content for choice in found.choices]
    assert texts == [server.generate([PROMPT], temperature=1, seed=3 + i, max_length=8)[0] for i in range(3)]
    assert len(set(texts)) == 3 and found.usage.prompt_tokens == len(PROMPT) + 1
    joined = ["", "", ""]
    for part in chat(ask, n=3, stream=True, **options):
        joined[part.choices[0].index] += part.choices[0].delta.content or ""
    assert joined[0] != "" and len(set(joined)) == 3
    several = ask.completions.create(model="chat", prompt=["ab", "b"], n=2, **options)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def test_log_probabilities(ask, server):
    found = chat(ask, logprobs=True, top_logprobs=2, max_tokens=6).choices[0]
    outputs = server.answer([PROMPT], logprobs=2, max_length=6)
    tokens = found.logprobs.content
    assert b"".join(bytes(each.bytes) for each in tokens) == b"".join(outputs["logprob_tokens"][0, :, 0])
    np.testing.assert_allclose([each.logprob for each in tokens], outputs["logprobs"][0, :, 0], rtol=1e-6)
    likeliest = [[bytes(other.bytes) for other in each.top_logprobs] for each in tokens]
    assert likeliest == outputs["logprob_tokens"][0, :, 1:].tolist()
    plain = chat(ask, logprobs=True, max_tokens=6).choices[0].logprobs.content
    assert [each.top_logprobs for each in plain] == [[]] * len(plain)
    of_text = ask.completions.create(model="chat", prompt=PROMPT, temperature=0, logprobs=2, max_tokens=6)
    of_text = of_text.choices[0].logprobs
    assert of_text.token_logprobs == [each.logprob for each in tokens] and of_text.text_offset[0] == 0
    assert chat(ask).choices[0].logprobs is None


@pytest.mark.parametrize("more", [{}, {"stop": True}], ids=["whole", "stop"])
def test_a_stream_has_the_log_probabilities_of_its_pieces(ask, more):
    if more:
        more = {"stop": chat(ask, max_tokens=20).choices[0].message.content[6:8]}
    options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 20, **more}
    whole = chat(ask, **options).choices[0]
    parts = [part.choices[0] for part in chat(ask, **options, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == whole.message.content
    tokens = [each for part in parts if part.logprobs is not None for each in part.logprobs.content]
    assert [each.token for each in tokens] == [each.token for each in whole.logprobs.content]
    for found, expected in zip(tokens, whole.logprobs.content, strict=True):
        assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert [each.token for each in found.top_logprobs] == [each.token for each in expected.top_logprobs]
    options = {"prompt": "ab", "temperature": 0, "max_tokens": 19, "logprobs": 1, **more}
    parts = [
        part.choices[0].logprobs for part in ask.completions.create(model="chat", stream=True, **options)
    ]
    whole = ask.completions.create(model="chat", **options).choices[0].logprobs
    assert [place for part in parts if part for place in part.text_offset] == whole.text_offset
    assert next(iter(chat(ask, max_tokens=3, stream=True))).choices[0].logprobs is None


def test_log_probabilities_end_with_the_text():
    tokens = np.array([[b"a"], [b"bc"], [b"\xea\xb0"], [b""]], object)
    found = logprobs_of(tokens, np.arange(4.0)[:, None], "ab", True, False)
    assert (found["tokens"], found["text_offset"]) == (["a", "bc"], [0, 1])
    found = logprobs_of(tokens, np.arange(4.0)[:, None], "abc", False, True)
    assert [each["bytes"] for each in found["content"]] == [[97], [98, 99], [0xEA, 0xB0]]


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_are_the_vectors_of_the_server(ask, url, encoding):
    options = {} if encoding is None else {"encoding_format": encoding}
    found = ask.embeddings.create(model="embedder", input=["ab", "한국어"], **options)
    with Client(url, "embedder") as client:
        expected = client.predict(text=["ab", "한국어"])["vector"]
    vectors = [each.embedding for each in found.data]
    if encoding == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(each), "<f4") for each in vectors]
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    assert [each.index for each in found.data] == [0, 1]
    with pytest.raises(openai.BadRequestError, match="must be float or base64") as caught:
        ask.embeddings.create(model="embedder", input="a", encoding_format="hex")
    assert caught.value.param == "encoding_format"


def test_models_are_listed_and_another_one_is_not_found(ask):
    assert [model.id for model in ask.models.list()] == ["chat", "embedder"]
    assert ask.models.retrieve("chat").id == "chat"
    for call in (
        lambda: ask.chat.completions.create(model="gpt", messages=MESSAGES),
        lambda: ask.embeddings.create(model="gpt", input="a"),
        lambda: ask.models.retrieve("gpt"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="makes no vectors"):
        ask.embeddings.create(model="chat", input="a")


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_is_too_long_is_refused(ask, stream):
    messages = [{"role": "user", "content": "one two three " * 9}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask.chat.completions.create(model="chat", messages=messages, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as caught:
        ask.embeddings.create(model="embedder", input="one two three " * 9)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


def test_sixteen_at_once(address, server, backend):
    prompts = [f"{'ab' * (i % 5)}{i}" for i in range(16)]

    async def every():
        async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
            calls = [
                client.completions.create(model="chat", prompt=prompt, temperature=0, max_tokens=9)
                for prompt in prompts
            ]
            return [found.choices[0].text for found in await asyncio.gather(*calls)]

    assert asyncio.run(every()) == server.generate(prompts, max_length=9)


WRONG = {
    "temperature": ({"temperature": 3}, "from 0 to 2"),
    "n": ({"n": 7}, "from 1 to 6"),
    "max_tokens": ({"max_tokens": 21}, "from 1 to the limit of the row"),
    "top_logprobs": ({"top_logprobs": 2}, "needs `logprobs`"),
    "stop": ({"stop": ["a"] * 5}, "1 to 4 strings"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "not supported"),
    "top_p": ({"top_p": 0}, "above 0 and at most 1"),
    "seed": ({"seed": "a"}, "must be int"),
    "typical_p": ({"extra_body": {"typical_p": 1}}, "not supported"),
    "messages": ({"messages": [{"role": "user", "content": "<a>"}]}, "special token"),
}


@pytest.mark.parametrize("param", WRONG)
def test_what_is_wrong_is_named(ask, param):
    options, message = WRONG[param]
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask.chat.completions.create(model="chat", **{"messages": MESSAGES, **options})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_requests_are_bounded_and_come_from_here(address, ask):
    with pytest.raises(openai.APIStatusError, match="at most 10000 bytes") as caught:
        ask.completions.create(model="chat", prompt="a" * 10_000)
    assert caught.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="1 to 5 messages"):
        ask.chat.completions.create(model="chat", messages=MESSAGES * 6)
    with pytest.raises(openai.BadRequestError, match="at most 6"):
        ask.completions.create(model="chat", prompt=["a"] * 2, n=4)
    with openai.OpenAI(base_url=address, api_key="another", max_retries=0) as other:
        for call in (other.models.list, lambda: chat(other)):
            with pytest.raises(openai.AuthenticationError):
                call()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = json.dumps({"model": "chat", "prompt": "a"})

    def status(body=body, path="/completions", **changed):
        return requests.post(address + path, data=body, headers={**headers, **changed}, timeout=30)

    assert status().status_code == 200
    assert status(Host="evil.example").status_code == 400
    assert status(**{"Content-Type": "text/plain"}).status_code == 415
    assert status(path="/nothing").json()["error"]["type"] == "invalid_request_error"
    unknown = r'{"model": "chat", "prompt": "a", "\ud800": 1}'
    for wrong in ("[]", "{", "[" * 9000, '{"model": []}', '{"model": "chat", "prompt": [[1]]}', unknown):
        found = status(wrong)
        assert found.status_code in (400, 404) and found.json()["error"]["message"]


def test_failures_of_the_server_have_no_address(ask, backend):
    for code, status in (("UNAVAILABLE", 503), ("INVALID_ARGUMENT", 502)):
        backend.faults.append(refuse(code, "10.1.2.3 is secret"))
        with pytest.raises(openai.InternalServerError) as caught:
            chat(ask)
        assert caught.value.status_code == status and "10.1" not in str(caught.value)
    # After the first piece the status is sent already.
    pieces = chat(ask, stream=True, max_tokens=20)
    next(pieces)
    backend.faults.append(refuse("UNAVAILABLE", "10.1.2.3 is secret"))
    with pytest.raises(openai.APIError, match="does not answer"):
        list(pieces)


def test_a_value_error_of_the_proxy_itself_is_its_own_failure(ask, monkeypatch, caplog):
    def fail(*arguments, **options):
        raise ValueError("10.1.2.3 is secret")

    monkeypatch.setattr(sys.modules["keras_transformer.client.openai_app"], "repeated", fail)
    for options in ({}, {"stream": True}):
        with pytest.raises(openai.InternalServerError, match="The proxy failed") as caught:
            chat(ask, **options)
        assert caught.value.status_code == 500 and "10.1" not in str(caught.value)
    assert "the proxy failed" in caplog.text and "10.1.2.3" in caplog.text


def test_chats_need_a_template(url, backend):
    client = AsyncClient(url, "chat")
    with running(openai_app({"chat": client})) as address:
        ask = openai.OpenAI(base_url=address, api_key="any", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="Chats need a chat template"):
            chat(ask)
    refuses("must be open", lambda: asyncio.run(client.predict(text=["a"])))


def test_the_command_listens_on_this_machine(url, backend, tmp_path):
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE.source)
    with socket_port() as port:
        pass
    command = f"proxy {url} --model chat --embedder embedder --template {tmp_path} --port {port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", *command.split()], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == f"http://127.0.0.1:{port}/v1\n"
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=9) as ask:
            assert [model.id for model in ask.models.list()] == ["chat", "embedder"]
            assert chat(ask, max_tokens=3).choices[0].message.content
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def socket_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]
