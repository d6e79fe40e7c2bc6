"""A small web application that speaks OpenAI's API in front of models in TensorFlow Serving."""

import asyncio
import contextlib
import hmac
import json
import logging
import traceback

from keras_transformer.checks import check, check_positive
from keras_transformer.client import openai_forms as forms
from keras_transformer.client.access import checked_origins
from keras_transformer.client.openai_forms import RefusedError, require
from keras_transformer.client.stream import RefusedOptions, RefusedRequest, Stream, text_output
from keras_transformer.client.tensors import errors_of_rows
from keras_transformer.request_options import SIGNATURE, repeated

log = logging.getLogger(__name__)
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
COMMON = {*forms.NUMBERS, "stop", "n", "stream", "max_tokens", "logprobs"}
CHAT = {*COMMON, "messages", "max_completion_tokens", "top_logprobs"}
# The fields that hold the text, by whether the request is a chat.
PROMPTS = {True: "messages", False: "prompt"}
# OpenAI's default of `max_tokens` for `/v1/completions`.
COMPLETION_TOKENS = 16
# Number of tokens that a growing answer gains with each request to the server.
STREAM_TOKENS = 8
# The failures of the model's server. Any other error is the proxy's own.
FAILURES = {TimeoutError: 504, ConnectionError: 503, OSError: 502, RefusedRequest: 502}


def openai_app(
    clients,
    template=None,
    *,
    key=None,
    hosts=LOCAL_HOSTS,
    origins=(),
    max_tokens=4096,
    max_answers=16,
    max_texts=256,
    max_bytes=2**20,
):
    """Makes an ASGI application with `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` and `/v1/models`.

    It needs the package starlette; any ASGI server runs it, such as uvicorn. The clients are closed when it stops.

    Args:
        clients: A dict from the name of a model to its `AsyncClient`. A request names one of them.
        template: The `ChatTemplate` that makes the prompt of a chat; None refuses chats.
        key: The key that callers must send, `Authorization: Bearer KEY`; None for none.
        hosts: The names of this server in a request's `Host`, so that no web page reaches it under another name;
            `("*",)` for any.
        origins: The origins of the web pages that a browser may let ask, such as `("https://my.site",)`. Every reader
            of such a page can ask, and reads a key that the page holds.
        max_tokens: The largest `max_tokens` of a request.
        max_answers: The largest `n` of a request, and of all its prompts together.
        max_texts: The largest number of messages of a chat, and of texts to embed.
        max_bytes: The largest number of bytes of a request.

    Returns:
        A `starlette.applications.Starlette`.

    Raises:
        ValueError: If `clients` is empty, a limit is not positive, or an origin is not one that browsers send.
        ImportError: If starlette is not installed.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    check(
        isinstance(clients, dict) and clients, "`clients` must be a dict of clients by name.", clients=clients
    )
    limits = {"max_tokens": max_tokens, "max_answers": max_answers}
    limits |= {"max_texts": max_texts, "max_bytes": max_bytes}
    check_positive(**limits)
    proxy = _Proxy(clients, template, key, limits)
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    if origins := checked_origins(origins):
        # A named site on the web may also ask a proxy in the network of its reader.
        allowed = {
            "allow_methods": ("GET", "POST"),
            # OpenAI's JavaScript client sends headers of its own. No cookie goes along.
            "allow_headers": ("*",),
            "allow_private_network": True,
        }
        middleware.append(Middleware(CORSMiddleware, allow_origins=origins, **allowed))

    def refused(error):
        # It may name half of a surrogate pair, which `JSONResponse` cannot encode.
        return Response(json.dumps(error.body), error.status, media_type="application/json")

    def unknown(request, error):
        return refused(RefusedError(error.detail, status=error.status_code))

    def guarded(answer):
        """Returns an answer to a route that raises nothing: Starlette would answer outside of `middleware`."""

        async def guarded_answer(request):
            try:
                proxy.check_key(request)
                found = await answer(request)
                return JSONResponse(found) if isinstance(found, dict) else found
            except ClientDisconnect:
                # Nobody reads this.
                return refused(RefusedError("The caller left before the end of the request."))
            except Exception as error:
                return refused(_refusal(error))

        return guarded_answer

    @contextlib.asynccontextmanager
    async def lifespan(app):
        yield
        for client in clients.values():
            await client.close()

    routes = {
        "/v1/chat/completions": proxy.chat,
        "/v1/completions": proxy.complete,
        "/v1/embeddings": proxy.embed,
    }
    return Starlette(
        routes=[
            *(Route(path, guarded(answer), methods=["POST"]) for path, answer in routes.items()),
            Route("/v1/models", guarded(proxy.models)),
            Route("/v1/models/{model}", guarded(proxy.model)),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: unknown},
        lifespan=lifespan,
    )


class _Proxy:
    """The answers to the routes."""

    def __init__(self, clients, template, key, limits):
        self.clients, self.template, self.key, self.limits = clients, template, key, limits

    async def models(self, request):
        """Lists the models."""
        return {"object": "list", "data": [_model(name) for name in self.clients]}

    async def model(self, request):
        """Describes one model."""
        return _model(self._known(request.path_params["model"]))

    async def chat(self, request):
        """Answers a chat."""
        body, model = await self._body(request, CHAT)
        messages = forms.messages_of(body, self.limits["max_texts"])
        message = "Chats need a chat template: start the proxy with one, or use /v1/completions."
        require(self.template is not None, message, "messages", "unsupported_parameter")
        try:
            # A template may take any time.
            prompt = await asyncio.to_thread(self.template.prompt, messages)
        except ValueError as error:
            raise RefusedError(str(error), "messages", "invalid_value") from None
        options = forms.options_of(body, self.limits["max_tokens"])
        return await self._written(body, model, [prompt], options, True)

    async def complete(self, request):
        """Continues prompts."""
        body, model = await self._body(request, {*COMMON, "prompt"})
        prompts = forms.texts_of(body, "prompt", self.limits["max_answers"])
        options = forms.options_of(body, self.limits["max_tokens"], COMPLETION_TOKENS)
        return await self._written(body, model, prompts, options, False)

    async def embed(self, request):
        """Makes the vectors of texts."""
        body, model = await self._body(request, {"input"})
        texts = forms.texts_of(body, "input", self.limits["max_texts"])
        form = body.get("encoding_format")
        rule = "`encoding_format` must be float or base64."
        require(form in (None, "float", "base64"), rule, "encoding_format")
        outputs = await self.clients[model].predict(text=texts)
        require("vector" in outputs, f"The model {model!r} makes no vectors.", "model")
        _check_whole(outputs["truncated"], "input")
        data = [forms.embedding(i, vector, form == "base64") for i, vector in enumerate(outputs["vector"])]
        return {"object": "list", "model": model, "data": data}

    async def _written(self, body, model, prompts, options, is_chat):
        """Answers prompts, at once or as a stream.

        Args:
            body: The body of the request.
            model: Name of the model.
            prompts: List of str.
            options: The options of the rows, a dict.
            is_chat: Whether the form of the answer is that of chats.
        """
        from starlette.responses import StreamingResponse

        n = forms.number_of(body, "n", int, 1, self.limits["max_answers"], 1)
        most = self.limits["max_answers"]
        require(n * len(prompts) <= most, f"`n` times the number of prompts must be at most {most}.", "n")
        wanted = forms.wanted_logprobs(body, is_chat)
        if forms.flag_of(body, "stream"):
            answer = self._pieces(body, model, prompts, n, options, wanted, is_chat)
            # What is wrong with the request is known with the first piece, and has an HTTP status.
            first = await anext(answer)
            return StreamingResponse(_events(first, answer), media_type="text/event-stream")
        texts, inputs = repeated(prompts, n, logprobs=wanted, **options)
        outputs = await self.clients[model].predict(SIGNATURE, text=texts, **inputs)
        for _, reason in errors_of_rows(outputs):
            raise _refused_option(reason, reason.partition("`")[2].partition("`")[0])
        written = _written_of(outputs, model)
        _check_whole(outputs["truncated"], PROMPTS[is_chat])
        choices = []
        for i, text in enumerate(written):
            text = text.decode("utf-8", "replace")
            logprobs = None
            if wanted is not None:
                logged = outputs["logprob_tokens"][i], outputs["logprobs"][i]
                logprobs = forms.logprobs_of(*logged, text, "stop" in options, is_chat)
            choices.append(forms.choice(i, text, outputs["ended"][i], is_chat, logprobs))
        kind = "chat.completion" if is_chat else "text_completion"
        used = forms.usage(outputs["source_length"][::n].sum(), outputs["length"].sum())
        return {**forms.head(kind, model), "choices": choices, "usage": used}

    async def _pieces(self, body, model, prompts, n, options, wanted, is_chat):
        """Yields the parts of answers that grow, one answer after the other, each part a dict."""
        client, read, written = self.clients[model], 0, 0
        about = forms.head("chat.completion.chunk" if is_chat else "text_completion", model)
        length, options = options.pop("max_length", self.limits["max_tokens"]), dict(options)
        texts, inputs = repeated(prompts, n, seed=options.pop("seed", None))
        for i, (text, seed) in enumerate(zip(texts, inputs["seed"].tolist(), strict=True)):
            options["seed"] = seed
            stream = Stream(text, STREAM_TOKENS, length, options, wanted)
            first = True
            while not stream.finished:
                try:
                    new, _ = await client.next_piece(stream)
                except RefusedOptions as error:
                    raise _refused_option(error.reason, error.option) from None
                if first:
                    _check_whole([stream.truncated], PROMPTS[is_chat])
                if new or first:
                    logprobs = None
                    if stream.logged is not None:
                        start = len(stream.written) - len(new)
                        logprobs = forms.logprobs_of(*stream.logged, new, False, is_chat, start)
                    yield {**about, "choices": [forms.piece(i, new, is_chat, first=first, logprobs=logprobs)]}
                first = False
            reason = "stop" if stream.ended else "length"
            yield {**about, "choices": [forms.piece(i, "", is_chat, reason)]}
            read, written = read + (0 if i % n else stream.source_length), written + stream.length
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**about, "choices": [], "usage": forms.usage(read, written)}

    async def _body(self, request, known):
        """Returns the body of a request, a dict, and the name of its model."""
        # A web page of another origin can send any other type without asking first.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        require(kind == "application/json", "`Content-Type` must be application/json.", code=None, status=415)
        content, most = bytearray(), self.limits["max_bytes"]
        async for part in request.stream():
            content += part
            require(len(content) <= most, f"A request must have at most {most} bytes.", code=None, status=413)
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        require(isinstance(body, dict), "The body must be a JSON object.", code=None)
        model = self._known(body.get("model"))
        forms.check_fields(body, known)
        fits = isinstance(body.get("stream_options"), dict | None)
        require(fits, "`stream_options` must be an object.", "stream_options", "invalid_type")
        return body, model

    def _known(self, model):
        """Returns the name of a model, or raises `RefusedError` where there is no such model."""
        fits = isinstance(model, str) and model in self.clients
        require(fits, f"The model {model!r:.200} does not exist.", "model", "model_not_found", 404)
        return model

    def check_key(self, request):
        """Raises `RefusedError` unless a request has the key."""
        given = request.headers.get("authorization", "").encode()
        fits = self.key is None or hmac.compare_digest(given, f"Bearer {self.key}".encode())
        require(fits, "Incorrect API key provided.", code="invalid_api_key", status=401)


async def _events(first, pieces):
    """Yields the lines of server-sent events for parts of an answer."""
    try:
        yield _event(first)
        async for part in pieces:
            yield _event(part)
    except Exception as error:
        yield _event(_refusal(error).body)
        return
    yield "data: [DONE]\n\n"


def _event(content):
    return f"data: {json.dumps(content)}\n\n"


def _refusal(error):
    """Returns the `RefusedError` that a caller is told: the error itself, or one for a failure, which the log gets.

    The message for a failure, of the model's server or of the proxy itself, holds no address: callers read it.
    """
    if isinstance(error, RefusedError):
        return error
    for kind, status in FAILURES.items():
        if isinstance(error, kind):
            log.error("%s", error)
            what = "refuses the request" if kind is RefusedRequest else "does not answer"
            return RefusedError(f"The model's server {what}.", status=status)
    # The log of the command has a line for each event, and no `exc_info`.
    log.error("the proxy failed: %s", "".join(traceback.format_exception(error)))
    return RefusedError("The proxy failed. Its log says why.", status=500)


def _refused_option(reason, option):
    """Returns the `RefusedError` for an option of a row that the model refuses."""
    field = forms.FIELDS.get(option, option)
    return RefusedError(reason.replace(f"`{option}`", f"`{field}`"), field, "invalid_value")


def _written_of(outputs, model):
    """Returns the texts of an answer."""
    name = text_output(outputs)
    require(name in outputs, f"The model {model!r} writes no text.", "model")
    return outputs[name]


def _check_whole(truncated, param):
    """Raises `RefusedError` where a text of a field is longer than the model reads."""
    message = "The text is longer than the model's maximum context length."
    require(not any(truncated), message, param, "context_length_exceeded")


def _model(name):
    return {"id": name, "object": "model", "created": 0, "owned_by": "keras_transformer"}
