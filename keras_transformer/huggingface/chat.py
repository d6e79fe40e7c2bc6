"""Chat templates: the messages of a chat become the text that a chat model reads, as in transformers."""

import itertools
import json
import unicodedata
from pathlib import Path

import numpy as np

from keras_transformer.checks import check, printable, short_errors
from keras_transformer.huggingface.files import read_if_there
from keras_transformer.huggingface.sandbox import ANSWER, compiled
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG
from keras_transformer.untrusted import read_text

TEMPLATE = "chat_template.jinja"
# The folder of the named templates.
TEMPLATES = "additional_chat_templates"
SPECIAL_TOKENS = "special_tokens_map.json"
# The texts under these names choose what a template does; no user writes them.
CHOICES = ("role", "type", "name")
TOKENIZER = "tokenizer.json"
PROBE = [
    {"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), "abc", strict=True)
]


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
        rule = "`source` must not contain the characters U+FDD0 and U+FDD1, which mark answers."
        check(not any(mark in source for mark in ANSWER), rule, source=source)
        self.source, self.tokens = source, dict(tokens or {})
        self.special, self.lowercased = tuple(filter(None, special)), frozenset(lowercased)
        self._template = compiled(source)

    def render(self, messages, add_generation_prompt=True, **variables):
        """Makes the text of a chat: what `apply_chat_template(..., tokenize=False)` of transformers gives.

        The checkpoint's tokenizer reads the special tokens in it as plain text. `tokenize` gives the ids of a chat.

        Args:
            messages: The messages, a list of dicts such as `{"role": "user", "content": "Hello"}`.
            add_generation_prompt: Whether the text ends with the start of the model's answer.
            **variables: Further variables of the template, such as `tools`, a list of dicts.

        Returns:
            A str.

        Raises:
            ValueError: If a value is not plain data, or the template refuses the messages.
        """
        return _without_marks(self._marked(messages, add_generation_prompt, **variables))

    def _marked(self, messages, add_generation_prompt, **variables):
        """Makes the text of a chat, with `ANSWER` around each answer that the template marks."""
        listed = isinstance(messages, (list, tuple)) and all(isinstance(each, dict) for each in messages)
        check(listed, "`messages` must be a list of dicts.", messages=messages)
        given = {"messages": messages, "tools": None, "documents": None, **self.tokens, **variables}
        try:
            plain = json.loads(json.dumps({**given, "add_generation_prompt": add_generation_prompt}))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`messages` must be plain data, as in JSON. {error}") from None
        rule = "`messages` must not contain the characters U+FDD0 and U+FDD1, which belong to no text."
        check(not any(mark in text for text in _texts(plain) for mark in ANSWER), rule, messages=messages)
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
        text = self._guarded(messages, True, **variables)
        return _without_marks(text).removeprefix(self.tokens.get("bos_token") or "")

    def _guarded(self, messages, add_generation_prompt, **variables):
        """Makes the text of a chat with its marks. Refuses texts of messages or variables that make a special token."""
        given, starts = [messages, variables], {token[0] for token in self.special if not token[0].isalnum()}
        for name in _names(given):
            rule = "A key, a role, a type and a name must not contain what begins a special token."
            check(
                starts.isdisjoint(name) and not any(token in name for token in self.special), rule, name=name
            )
        text = self._marked(messages, add_generation_prompt, **variables)
        # The same chat, in which no text of a message can be a part of a special token.
        others = {name: _apart(value) for name, value in variables.items()}
        apart = self._marked(_apart(messages), add_generation_prompt, **others)
        forms = [(form, form(text), form(apart)) for form in (str, _normalized, _folded)]
        for token in self.special:
            compared = forms if token in self.lowercased else forms[:2]
            if any(made.count(form(token)) > kept.count(form(token)) for form, made, kept in compared):
                raise ValueError(f"`messages` must not contain special tokens. Received: {token!r:.200}.")
        return text

    @property
    def starts_with_bos(self):
        """Whether a chat begins with `bos_token`."""
        bos = self.tokens.get("bos_token")
        return bool(bos) and self.render(PROBE).startswith(bos)

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
        text = self.render(PROBE).removeprefix(self.tokens.get("bos_token") or "")
        for token in self.special:
            fits = token not in text or tokenizer.pieces(tokenizer.tokenize([token]).to_list()[0]) == [token]
            rule = (
                "Each special token of the chat template must have one id in a text. Convert without a chat, and give "
                "the ids of transformers to the signature `tokens`."
            )
            check(fits, rule, read_as_plain_text=token)
        return tokenizer

    def tokenize(self, chats, tokenizer, **variables):
        """Makes the ids of whole chats, and says which ids are answers, to train on them.

        The ids are those of `apply_chat_template(chat)` of transformers. An answer is what a message of the role
        `assistant` adds after the text that asks for it, to the special token that ends it; or, where the template has
        the tag `{% generation %}`, what stands between the tags. A token that holds the last characters of the
        question and the first ones of the answer is a part of the answer.

        Args:
            chats: A list of chats, each a list of messages as in `render`.
            tokenizer: The checkpoint's tokenizer.
            **variables: Further variables of the template.

        Returns:
            A list of pairs: the ids of a chat, int32 `(length,)`, and for each of its answers the first id and the
            end, ints `(answers, 2)`.

        Raises:
            ValueError: If a text of a chat makes a special token, the tokenizer does not read those of the template,
                or the template changes earlier messages and has no tag. The error names the chat by its number.
        """
        for name in ("messages", "add_generation_prompt"):
            check(name not in variables, f"`variables` must not have `{name}`.", variables=sorted(variables))
        tokenizer, bos = self.with_special_tokens(tokenizer), self.tokens.get("bos_token") or ""
        rendered = []
        for number, chat in enumerate(chats):
            try:
                text, answers = self._answers(chat, variables)
            except ValueError as error:
                raise ValueError(f"Chat {number}: {error}") from None
            begins = bool(bos) and text.startswith(bos)
            cut = len(bos) if begins else 0
            rendered.append((begins, text[cut:], [(first - cut, end - cut) for first, end in answers]))
        has_bos = tokenizer.bos_id is not None or not any(begins for begins, _, _ in rendered)
        check(has_bos, "`tokenizer` must have the `bos_token` of the template.", bos_token=bos)
        texts = [text[:end] for _, text, answers in rendered for end in (None, *itertools.chain(*answers))]
        ids = iter(tokenizer.tokenize(texts).to_list() if texts else [])
        made = []
        for begins, _, answers in rendered:
            whole = next(ids)
            ends = [[_shared(whole, next(ids)) for _ in answer] for answer in answers]
            start = [tokenizer.bos_id] if begins else []
            made.append((np.array(start + whole, "int32"), np.array(ends, int).reshape(-1, 2) + len(start)))
        return made

    def _answers(self, chat, variables):
        """Returns the text of a chat, and for each answer its first character and its end."""
        marked = self._guarded(chat, False, **variables)
        text = _without_marks(marked)
        if any(mark in marked for mark in ANSWER):
            begin, end = ANSWER
            before = marked.split(begin)
            firsts = np.cumsum([len(_without_marks(each)) for each in before[:-1]])
            return text, [
                (int(first), int(first) + each.index(end))
                for first, each in zip(firsts, before[1:], strict=True)
            ]
        spans = []
        for i, message in enumerate(chat):
            if message.get("role") != "assistant":
                continue
            first, answered = (
                self.render(chat[:i], **variables),
                self.render(chat[: i + 1], False, **variables),
            )
            if not (answered.startswith(first) and text.startswith(answered.rstrip())):
                raise ValueError(
                    "The template must write a message the same way whatever follows it, or mark the answers by "
                    f"the tag `generation`. Received: {message!r:.200}, which it writes in another way later."
                )
            end = len(answered.rstrip())
            is_ended = any(answered[:end].endswith(token) for token in self.special)
            spans.append((len(first), end if is_ended else len(answered)))
        return text, spans


def _without_marks(text):
    return text.translate(dict.fromkeys(map(ord, ANSWER)))


def _shared(ids, others):
    """Returns how many first ids two lists share."""
    pairs = zip(ids, others, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _texts(value):
    """Yields each text in plain data."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


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


def templates_of(folder):
    """Returns the chat templates of a folder, a dict from their names to str; empty where there is none.

    Args:
        folder: A `pathlib.Path`.
    """
    templates = read_if_there(folder, TOKENIZER_CONFIG).get("chat_template") or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    elif isinstance(templates, list):
        templates = {each.get("name"): each.get("template") for each in templates if isinstance(each, dict)}
    files = {path.stem: path for path in (folder / TEMPLATES).glob("*.jinja")} | {
        "default": folder / TEMPLATE
    }
    return templates | {key: read_text(path) for key, path in files.items() if path.is_file()}


def _read(folder, config, name):
    """Reads the template of a name, with the special tokens of the configuration."""
    templates = templates_of(folder)
    rule = f"`folder` must have a chat template {name!r:.200}, in {TEMPLATE} or {TOKENIZER_CONFIG}."
    found = sorted(map(str, templates))
    check(isinstance(templates.get(name), str), rule, folder=str(folder), templates=found)
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
