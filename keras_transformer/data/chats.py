"""Chats as rows of ids, to train a language model on their answers."""

import json
import re

import numpy as np

from keras_transformer.checks import check, check_choice
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.packing import PackedRows
from keras_transformer.schemas import text_of_parts

# The roles of the speakers in ShareGPT's files.
ROLES = {
    **{name: name for name in ("system", "user", "assistant", "tool")},
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), "assistant"),
}
# The roles of messages in OpenAI's form, and those of Gemma and of Llama 3.1.
OPENAI_ROLES = {*ROLES.values(), "developer", "function", "model", "ipython"}


class Chats(PackedRows):
    """Chats, to train a `LanguageModel` on their answers: a chat template writes them, and only answers are targets.

    The ids are those of `apply_chat_template` of transformers. Train with `MaskedCrossentropy(pad_id=-100)`, as -100 is
    the target of all that is not learned.

    Args:
        conversations: List of chats, each a list of messages such as `{"role": "user", "content": "Hello"}`.
        template: A `keras_transformer.huggingface.ChatTemplate`.
        tokenizer: The checkpoint's tokenizer.
        length: Number of tokens in a row.
        batch_size: Number of rows in a batch.
        answers_only: Whether only answers are targets; else all tokens are.
        too_long: What happens to a chat that is longer than a row. "turns" ends it after the last answer that fits,
            and leaves it out if none does, with a warning. "skip" leaves it out, with a warning. "error" raises.
        variables: Further variables of the template, a dict such as `{"enable_thinking": False}`.
        **options: `seed`, `pad_id` and `packed` of `PackedRows`. With `packed=False` each row holds one chat.

    Attributes:
        cut: Number of chats that end early. The others are those of `PackedRows`.

    Raises:
        ValueError: If a text of a chat makes a special token, or as `ChatTemplate.tokenize` and `PackedRows` say.
    """

    def __init__(
        self,
        conversations,
        template,
        tokenizer,
        length,
        batch_size,
        *,
        answers_only=True,
        too_long="turns",
        variables=None,
        **options,
    ):
        check_choice(("turns", "skip", "error"), too_long=too_long)
        pairs = template.tokenize(conversations, tokenizer, **(variables or {}))
        self.cut, texts = 0, []
        for ids, answers in pairs:
            # The inputs are all ids but the last one, the targets all but the first one.
            fitting = [end for _, end in answers if end <= length + 1]
            if too_long == "turns" and len(ids) > length + 1 and fitting:
                ids, self.cut = ids[: fitting[-1]], self.cut + 1
            mask = np.full(len(ids), not answers_only)
            for first, end in answers:
                mask[first:end] = True
            texts.append((ids, mask))
        super().__init__(
            texts,
            length,
            batch_size,
            too_long="error" if too_long == "error" else "skip",
            target_pad_id=-100,
            **options,
        )


def read_chats(path):
    """Reads a file of JSON Lines with a chat in each line, in OpenAI's form or in ShareGPT's.

    A line is `{"messages": [{"role": "user", "content": "..."}, ...]}`, or `{"conversations": [{"from": "human",
    "value": "..."}, {"from": "gpt", ...}]}`. A content may be a list of parts, `{"type": "text", "text": "..."}`, which
    are joined. Other keys of the line are left out, other keys of a message are kept.

    Args:
        path: Path of a plain file or of a `.gz`. Blank lines are left out.

    Returns:
        A list of chats, each a list of messages, dicts with "role" and "content".

    Raises:
        ValueError: If the file cannot be read, or a line is not a chat or has `tools`. The error names the line.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write('{"conversations": [{"from": "human", "value": "Hello"}]}'), file.flush()
    ...     read_chats(file.name)
    [[{'role': 'user', 'content': 'Hello'}]]
    """
    return [
        _chat(line, f"{path}, line {number}")
        for number, line in enumerate(read_lines(path), 1)
        if line.strip()
    ]


def _chat(line, place):
    try:
        described = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error}).") from None
    names = {"messages": ("role", "content"), "conversations": ("from", "value")}
    key = next((key for key in names if isinstance(described, dict) and key in described), None)
    rule = f"{place}: a line must be an object with a list of `messages` or of `conversations`."
    check(key is not None and isinstance(described[key], list), rule, line=line)
    # JSON can write half of a character, which no text of UTF-8 holds.
    halves = "\\u" in line and re.search("[\ud800-\udfff]", json.dumps(described[key], ensure_ascii=False))
    check(not halves, f"{place}: a text must be UTF-8, without halves of surrogate pairs.", line=line)
    # Without them the chat would teach to call tools that no prompt names.
    rule = f"{place}: `tools` must be left out: those of all chats are `variables` of `Chats`."
    check(not described.get("tools"), rule, tools=described.get("tools"))
    return [_message(message, *names[key], place) for message in described[key]]


def _message(message, role, content, place):
    """Returns a message with "role" and "content", whose names are `role` and `content` in the line."""
    fits = isinstance(message, dict) and isinstance(message.get(role), str) and content in message
    rule = f"{place}: a message must be an object with a text as `{role}`, and with `{content}`."
    check(fits, rule, message=message)
    rule = f"{place}: `weight` must be left out: each answer of a chat is learned."
    check(message.get("weight") in (None, 1), rule, weight=message.get("weight"))
    text = text_of_parts(message[content])
    rule = f"{place}: `{content}` must be a text, a list of parts of text, or null."
    check(text is None or isinstance(text, str), rule, **{content: text})
    name, known = message[role], ROLES if role == "from" else OPENAI_ROLES
    check(name in known, f"{place}: `{role}` must be one of {sorted(known)}.", **{role: name})
    name = ROLES.get(name, name)
    others = {key: value for key, value in message.items() if key not in (role, content)}
    return {"role": name, "content": text, **others}
