"""Chat templates: the messages of a chat become the text that a chat model reads, as in transformers."""

import functools
import json
import re
import string
import unicodedata
from datetime import datetime
from pathlib import Path

from keras_transformer.checks import check, printable, short_errors
from keras_transformer.huggingface.files import read_if_there
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG
from keras_transformer.untrusted import read_text

TEMPLATE = "chat_template.jinja"
# The folder of the named templates.
TEMPLATES = "additional_chat_templates"
SPECIAL_TOKENS = "special_tokens_map.json"
# The texts under these names choose what a template does; no user writes them.
CHOICES = ("role", "type", "name")
TOKENIZER = "tokenizer.json"
LARGEST_FACTOR = 10_000  # in a template
WIDEST = 80  # blanks before a line
WIDENING = ("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes")
# The width to which a format may widen a number or a text.
LARGEST_WIDTH = 1000
PERCENT = re.compile(r"%(?:\([^)]*\))?[#0 +-]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")
PROBE = (("user", "a"), ("assistant", "b"), ("user", "c"))


class ChatTemplate:
    """A chat template, which makes one text of the messages of a chat.

    A template is a program in Jinja's language that comes with a checkpoint. It runs in Jinja's sandbox, and sees plain
    data only. So it reads no file, but it can take any time and memory, as in transformers.

    Args:
        source: The template, a str.
        tokens: The special tokens that it may name, a dict such as `{"bos_token": "<s>"}`.
        special: All special tokens of the tokenizer, a sequence of str. Empty ones are left out.
        lowercased: Those that the tokenizer finds in a text in small letters, a sequence of str.

    Raises:
        ValueError: If `source` is not a template, or a special token is not a str.
        ImportError: If Jinja is not installed.

    >>> template = ChatTemplate("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hello"}], bos_token="<s>")
    '<s>[user] Hello'
    """

    def __init__(self, source, tokens=None, special=(), lowercased=()):
        special = tuple(special)
        check(all(isinstance(each, str) for each in special), "`special` must hold str.", special=special)
        self.source, self.tokens = source, dict(tokens or {})
        self.special, self.lowercased = tuple(filter(None, special)), frozenset(lowercased)
        self._template = _compiled(source)

    def render(self, messages, add_generation_prompt=True, **variables):
        """Makes the text of a chat: what `apply_chat_template(..., tokenize=False)` of transformers gives.

        Args:
            messages: The messages, a list of dicts such as `{"role": "user", "content": "Hello"}`.
            add_generation_prompt: Whether the text ends with the start of the model's answer.
            **variables: Further variables of the template, such as `tools`, a list of dicts.

        Returns:
            A str.

        Raises:
            ValueError: If a value is not plain data, or the template refuses the messages.
        """
        listed = isinstance(messages, (list, tuple)) and all(isinstance(each, dict) for each in messages)
        check(listed, "`messages` must be a list of dicts.", messages=messages)
        given = {"messages": messages, "tools": None, "documents": None, **self.tokens, **variables}
        try:
            plain = json.loads(json.dumps({**given, "add_generation_prompt": add_generation_prompt}))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`messages` must be plain data, as in JSON. {error}") from None
        try:
            return self._template.render(**plain)
        except Exception as error:
            # A template may raise anything.
            raise ValueError(
                f"The chat template refuses `messages`: {printable(str(error) or repr(error), 500)}. "
                f"Received: {messages!r:.200}."
            ) from None

    def prompt(self, messages, **variables):
        """Makes the prompt of a chat for a `TextGenerator` of `keras-transformer convert --chat`.

        It is the text of `render` without the `bos_token` at its start, which the generator puts there itself.

        Args:
            messages: The messages, as in `render`.
            **variables: Further variables of the template.

        Raises:
            ValueError: As in `render`, or if texts of messages or variables make a special token: their author could
                end his turn and begin another one.
        """
        given, starts = [messages, variables], {token[0] for token in self.special if not token[0].isalnum()}
        for name in _names(given):
            rule = "A key, a role, a type and a name must not contain what begins a special token."
            check(
                starts.isdisjoint(name) and not any(token in name for token in self.special), rule, name=name
            )
        text = self.render(messages, **variables)
        # The same chat, in which no text of a message can be a part of a special token.
        apart = self.render(_apart(messages), **{name: _apart(value) for name, value in variables.items()})
        forms = [(form, form(text), form(apart)) for form in (str, _normalized, _folded)]
        for token in self.special:
            compared = forms if token in self.lowercased else forms[:2]
            if any(made.count(form(token)) > kept.count(form(token)) for form, made, kept in compared):
                raise ValueError(f"`messages` must not contain special tokens. Received: {token!r:.200}.")
        return text.removeprefix(self.tokens.get("bos_token") or "")

    @property
    def starts_with_bos(self):
        """Whether a chat begins with `bos_token`."""
        bos = self.tokens.get("bos_token")
        return bool(bos) and self._probe().startswith(bos)

    def _probe(self):
        return self.render([{"role": role, "content": content} for role, content in PROBE])

    def with_special_tokens(self, tokenizer):
        """Returns a tokenizer that gives the special tokens of a chat their ids.

        Args:
            tokenizer: The checkpoint's tokenizer.

        Raises:
            ValueError: If it cannot.
        """
        from keras_transformer.text import BytePairTokenizer  # loads TensorFlow

        if isinstance(tokenizer, BytePairTokenizer):
            tokenizer = BytePairTokenizer(**{**tokenizer.get_config(), "parse_special": True})
        text = self._probe().removeprefix(self.tokens.get("bos_token") or "")
        for token in self.special:
            if token in text and tokenizer.pieces(tokenizer.tokenize([token]).to_list()[0]) != [token]:
                raise ValueError(
                    "Each special token of the chat template must have one id in a text. Received: "
                    f"{token!r:.200}, which this tokenizer reads as plain text. Convert without a chat, and give the "
                    "ids of transformers to the signature `tokens`."
                )
        return tokenizer


@short_errors()
def chat_template_from_huggingface(folder, name="default"):
    """Reads the chat template of a checkpoint.

    Args:
        folder: A path. The folder holds chat_template.jinja, or tokenizer_config.json with a `chat_template`.
        name: Which one, where there are several.

    Returns:
        A `ChatTemplate`.

    Raises:
        ValueError: If there is no such template, or a file is damaged.
        ImportError: If Jinja is not installed.
    """
    folder = Path(folder)
    config = {**read_if_there(folder, SPECIAL_TOKENS), **read_if_there(folder, TOKENIZER_CONFIG)}
    try:
        return _read(folder, config, name)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} has damaged files of a chat template: {error!r:.200}") from None


def _read(folder, config, name):
    """Reads the template of a name, with the special tokens of the configuration."""
    templates = config.get("chat_template") or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    elif isinstance(templates, list):
        templates = {each.get("name"): each.get("template") for each in templates if isinstance(each, dict)}
    files = {path.stem: path for path in (folder / TEMPLATES).glob("*.jinja")} | {
        "default": folder / TEMPLATE
    }
    templates |= {key: read_text(path) for key, path in files.items() if path.is_file()}
    if not isinstance(templates.get(name), str):
        raise ValueError(
            f"`folder` must have a chat template {name!r:.200}, in {TEMPLATE} or {TOKENIZER_CONFIG}. Received: "
            f"{folder} with {sorted(map(str, templates))!r:.200}."
        )
    tokenizer = read_if_there(folder, TOKENIZER)
    added = tokenizer.get("added_tokens") or []
    added = [*added, *(config.get("added_tokens_decoder") or {}).values()]
    contents = {
        key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()
    }
    tokens = {
        key: value for key, value in contents.items() if key.endswith("_token") and isinstance(value, str)
    }
    special = [*tokens.values(), *(token["content"] for token in added if token.get("special"))]
    lowercases = _lowercases(tokenizer.get("normalizer"))
    lowercased = [token["content"] for token in added if lowercases and token.get("normalized")]
    return ChatTemplate(templates[name], tokens, dict.fromkeys(special), lowercased)


def _names(value, key=None):
    """Lists the texts in plain data that `_apart` leaves as they are."""
    if isinstance(value, dict):
        return [
            *filter(lambda name: isinstance(name, str), value),
            *(n for k in value for n in _names(value[k], k)),
        ]
    if isinstance(value, (list, tuple)):
        return [name for each in value for name in _names(each)]
    return [value] if isinstance(value, str) and key in CHOICES else []


def _normalized(text):
    """Returns a text as a tokenizer may normalise it before it looks for tokens."""
    return unicodedata.normalize("NFKC", text)


def _folded(text):
    return _normalized(text).casefold()


def _lowercases(normalizer):
    """Returns whether a normaliser of tokenizer.json, or one in its sequence, makes small letters."""
    if not isinstance(normalizer, dict):
        return False
    if normalizer.get("type") == "Sequence":
        return any(map(_lowercases, normalizer.get("normalizers") or ()))
    return normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True


def _apart(value, key=None):
    """Puts an invisible character between all characters of each text in plain data, but for `CHOICES`."""
    if isinstance(value, dict):
        return {name: _apart(each, name) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_apart(each) for each in value]
    return "\u2060".join(value) if isinstance(value, str) and key not in CHOICES else value


def _compiled(source):
    """Compiles a template with what transformers gives to one."""
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportError("Chat templates are rendered with Jinja: pip install jinja2") from error

    class Generation(jinja2.ext.Extension):
        """The tag `generation` around the model's own answer, which changes no text."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            return jinja2.nodes.Scope(
                parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line
            )

    def refuse(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        widths = (indent if isinstance(indent, int) else len(indent or ""),)
        bounded(*widths, most=WIDEST)
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def bounded(*sizes, most):
        if any(size > most for size in sizes):
            raise jinja2.sandbox.SecurityError(f"a size is above {most}")

    def percent(text, values):
        widths = [width for pair in PERCENT.findall(text) for width in pair if width]
        if "*" in widths:
            raise jinja2.sandbox.SecurityError("the width of a format must be written in it")
        bounded(*(len(width) for width in widths), most=len(str(LARGEST_WIDTH)))
        bounded(*map(int, widths), most=LARGEST_WIDTH)
        return text % values

    def check_fields(text):
        for _, _, spec, _ in string.Formatter().parse(text):
            if "{" in (spec or ""):
                raise jinja2.sandbox.SecurityError("the width of a format must be written in it")
            widths = re.findall("[0-9]+", spec or "")
            bounded(*(len(width) for width in widths), most=len(str(LARGEST_WIDTH)))
            bounded(*map(int, widths), most=LARGEST_WIDTH)

    def with_bounded_size(function):
        most = 100 if function.__name__ == "do_round" else LARGEST_FACTOR

        # It keeps the marks of Jinja, such as that a filter gets the environment.
        @functools.wraps(function)
        def filtered(*args, **kwargs):
            sizes = [each for each in (*args[1:], *kwargs.values()) if isinstance(each, (int, float))]
            bounded(*sizes, most=most)
            return function(*args, **kwargs)

        return filtered

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """Jinja's sandbox, which also refuses products and powers of gigabytes, such as `"a" * 10 ** 10`."""

        intercepted_binops = frozenset({"*", "**", "%"})

        def is_safe_attribute(self, value, name, attribute):
            if name in ("format", "format_map") and isinstance(value, str):  # before Jinja 3.1.6
                check_fields(value)
            return name not in WIDENING and super().is_safe_attribute(value, name, attribute)

        def wrap_str_format(self, value):
            wrapped = super().wrap_str_format(value)
            if wrapped is not None:
                check_fields(value.__self__)
            return wrapped

        def call_binop(self, context, operator, left, right):
            numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
            if operator == "%" and isinstance(left, str):
                return percent(left, right)
            if operator == "%" and not numbers:
                raise jinja2.sandbox.SecurityError("% is for numbers and texts")
            if operator == "**" or not numbers:
                sizes = [each if isinstance(each, (int, float)) else len(each) for each in (left, right)]
                if any(abs(size) > LARGEST_FACTOR for size in sizes):
                    raise jinja2.sandbox.SecurityError(f"{operator} has a factor above {LARGEST_FACTOR}")
            return super().call_binop(context, operator, left, right)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    for name, taken in (("globals", "lipsum"), ("filters", "center")):
        # A few characters of them ask for gigabytes.
        del getattr(environment, name)[taken]
    environment.filters["format"] = lambda text, *args, **kwargs: percent(str(text), kwargs or args)
    for name in ("batch", "slice", "round"):
        environment.filters[name] = with_bounded_size(environment.filters[name])
    indent = environment.filters["indent"]
    environment.filters["indent"] = lambda text, width=4, *args, **kwargs: indent(
        text, width if isinstance(width, str) else min(width, WIDEST), *args, **kwargs
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(
            f"The chat template is not a template of Jinja: {printable(str(error) or repr(error), 500)}"
        ) from None
