"""Requests and answers in the forms of OpenAI's API: what a body may hold, and the JSON of answers and errors."""

import base64
import time
import uuid

import numpy as np

from keras_transformer.client.stream import rows_of_text
from keras_transformer.request_options import LONGEST_STOP, MOST_STOPS, OPTIONS
from keras_transformer.schemas import text_of_parts

# By name: the type of the field, its smallest and its largest value.
NUMBERS = {
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "top_k": (int, 0, 2**31 - 1),
    "repetition_penalty": (float, 0, 100),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "seed": (int, -(2**63), 2**63 - 1),
}
# They change no answer.
WITHOUT_EFFECT = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("stream_options", "encoding_format"),
}
# Fields that are read only at the value that changes nothing.
NEUTRAL = {
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
# The fields that are sent as options of other names.
FIELDS = {"max_length": "max_tokens"}


class RefusedError(Exception):
    """A request that is refused.

    Args:
        message: What is wrong, for the caller.
        param: Name of the field, or None.
        code: OpenAI's code of the error, or None.
        status: The HTTP status.
    """

    def __init__(self, message, param=None, code=None, status=400):
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def require(holds, message, param=None, code="invalid_value", status=400):
    """Raises `RefusedError` with these arguments unless a rule holds."""
    if not holds:
        raise RefusedError(message, param, code, status)


def check_fields(body, known):
    """Raises `RefusedError` for a field that is not known, or that is not supported at its value."""
    for name, value in body.items():
        is_read = value is None or name in known or name in WITHOUT_EFFECT or name == "model"
        what = "is not supported with this value" if name in NEUTRAL else "is not supported"
        fits = is_read or value in NEUTRAL.get(name, ())
        require(fits, f"`{name:.100}` {what}.", name[:100], "unsupported_parameter")


def number_of(body, name, kind, low, high, default=None):
    """Returns the number in a field, or the default where there is none."""
    value = body.get(name)
    if value is None:
        return default
    fits = type(value) is int or (kind is float and type(value) is float)
    require(fits and low <= value <= high, f"`{name}` must be {kind.__name__}, from {low} to {high}.", name)
    return value


def flag_of(body, name):
    """Returns the bool in a field, False where there is none."""
    value = body.get(name)
    require(value is None or type(value) is bool, f"`{name}` must be true or false.", name, "invalid_type")
    return bool(value)


def texts_of(body, name, most):
    """Returns the texts in a field that holds a str or a list of str, at most `most` of them."""
    value = body.get(name)
    texts = [value] if isinstance(value, str) else value
    fits = isinstance(texts, list) and 0 < len(texts) <= most and all(isinstance(x, str) for x in texts)
    message = f"`{name}` must be a string, or a list of 1 to {most} strings; token ids are not read."
    require(fits, message, name, "invalid_type")
    return texts


def messages_of(body, most):
    """Returns the messages of a chat, whose contents are str."""
    messages = body.get("messages")
    fits = isinstance(messages, list) and 0 < len(messages) <= most
    require(fits, f"`messages` must be a list of 1 to {most} messages.", "messages", "invalid_type")
    return [_message(each) for each in messages]


def _message(message):
    is_named = isinstance(message, dict) and isinstance(message.get("role"), str)
    text = text_of_parts(message.get("content")) if is_named else None
    rule = "`messages` must hold objects with a `role` and a `content` of text; pictures and sounds are not read."
    require(isinstance(text, str), rule, "messages", "invalid_type")
    return {**message, "content": text}


def options_of(body, most_tokens, default_tokens=None):
    """Returns the options of the rows of a request, a dict as `Client.answer` takes them.

    Args:
        body: The body of the request, a dict.
        most_tokens: The largest number of tokens that a request may ask for.
        default_tokens: The number of tokens where the request does not say one; None for the limit of the row.
    """
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    length = number_of(body, name, int, 1, most_tokens, default_tokens)
    options = {name: number_of(body, name, *rule) for name, rule in NUMBERS.items()}
    # That of OpenAI. Without a value, this library takes the likeliest token.
    options["temperature"] = 1.0 if options["temperature"] is None else options["temperature"]
    options |= {"max_length": length, "stop": None}
    if body.get("stop") not in (None, []):
        stops = texts_of(body, "stop", MOST_STOPS)
        sizes = [len(text.encode("utf-8", "replace")) for text in stops]
        fits = min(sizes) > 0 and max(sizes) <= LONGEST_STOP and not any("\0" in text for text in stops)
        require(fits, f"`stop` must hold strings of 1 to {LONGEST_STOP} bytes.", "stop")
        options["stop"] = tuple(stops)
    return {name: value for name, value in options.items() if value is not None}


def wanted_logprobs(body, is_chat):
    """Returns the number of likeliest tokens whose log probabilities are wanted, or None for none at all."""
    if not is_chat:
        return number_of(body, "logprobs", int, 0, OPTIONS["logprobs"].high)
    wanted = flag_of(body, "logprobs")
    most = number_of(body, "top_logprobs", int, 0, OPTIONS["logprobs"].high)
    require(most is None or wanted, "`top_logprobs` needs `logprobs`: true.", "top_logprobs")
    return (most or 0) if wanted else None


def head(kind, model):
    """Returns the fields that all answers begin with, for a kind such as `chat.completion`."""
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def usage(read, written):
    """Returns the numbers of tokens."""
    return {
        "prompt_tokens": int(read),
        "completion_tokens": int(written),
        "total_tokens": int(read) + int(written),
    }


def choice(index, text, ended, is_chat, logprobs=None):
    """Returns one of the answers."""
    message = {"role": "assistant", "content": text, "refusal": None}
    content = {"message": message} if is_chat else {"text": text}
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": "stop" if ended else "length"}


def piece(index, text, is_chat, reason=None, first=False, logprobs=None):
    """Returns a part of an answer that grows."""
    role = {"role": "assistant"} if first else {}
    delta = {**role, **({"content": text} if text or first else {})}
    content = {"delta": delta} if is_chat else {"text": text}
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}


def logprobs_of(tokens, values, text, was_cut, is_chat, start=0):
    """Returns the log probabilities of an answer, or of a part of it.

    Args:
        tokens: The bytes of each token, and after it those of the likeliest in its place, `(n, 1 + k)`.
        values: Their log probabilities, `(n, 1 + k)`.
        text: The answer, a str.
        was_cut: Whether the answer may end before its tokens, at a stop string.
        is_chat: Whether the form is that of chats.
        start: The number of characters before the answer.
    """
    kept = rows_of_text(tokens, text, 0, len(text) if was_cut else None)
    rows = [
        [
            (_text_of(token), float(value), list(token))
            for token, value in zip(tokens[i], values[i], strict=True)
        ]
        for i in kept
    ]
    if is_chat:
        named = [
            [dict(zip(("token", "logprob", "bytes"), each, strict=True)) for each in row] for row in rows
        ]
        return {"content": [{**row[0], "top_logprobs": row[1:]} for row in named], "refusal": None}
    offsets = np.cumsum([0, *(len(tokens[i][0]) for i in kept)])
    written = b"".join(tokens[i][0] for i in kept)
    return {
        "tokens": [row[0][0] for row in rows],
        "token_logprobs": [row[0][1] for row in rows],
        "top_logprobs": [{token: value for token, value, _ in row[1:]} for row in rows],
        "text_offset": [start + len(written[:offset].decode("utf-8", "replace")) for offset in offsets[:-1]],
    }


def _text_of(token):
    """Returns the text of a token, or its bytes as OpenAI writes those that are a part of a character.

    >>> _text_of(b"a"), _text_of(b"\\xe2\\x80")
    ('a', 'bytes:\\\\xe2\\\\x80')
    """
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def embedding(index, vector, as_base64):
    """Returns a vector, float32, as a list or as the bytes of its numbers in base64."""
    vector = np.asarray(vector, "<f4")
    value = base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": value}
