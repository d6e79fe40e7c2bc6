"""Chats as rows: only answers are targets, and long chats end with a whole answer."""

import gzip
import json

import numpy as np
import pytest
from contracts import check_refused, refuses

from keras_transformer.data import Chats, read_chats
from keras_transformer.huggingface import ChatTemplate
from keras_transformer.text import BytePairTokenizer
from keras_transformer.text.byte_pair import BYTE_CHARACTERS

# A question is `<q>`, its text and `<e>`; an answer its text and `<e>`.
SOURCE = "{% for m in messages %}{{ '<q>' if m.role == 'user' else '' }}{{ m.content }}<e>{% endfor %}"
TEMPLATE = ChatTemplate(SOURCE, special=["<q>", "<e>"])
PIECES = [*BYTE_CHARACTERS, "<q>", "<e>"]
SHORT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def tokenizer():
    return BytePairTokenizer(PIECES, [], special_tokens=["<q>", "<e>"])


def texts_of(row):
    """The pieces of a row of ids; `.` stands for a target that is not learned."""
    return ["." if i < 0 else PIECES[i] for i in row.tolist()]


def test_only_answers_are_targets_in_rows_of_several_chats():
    chats = Chats([SHORT, [*SHORT, *SHORT]], TEMPLATE, tokenizer(), 13, 1, pad_id=0)
    ((inputs, targets),) = [chats.batch([0])]
    assert texts_of(inputs["token_ids"][0])[:9] == ["<q>", "a", "<e>", "b", "<e>", "<q>", "a", "<e>", "b"]
    assert texts_of(targets[0])[:9] == [".", ".", "b", "<e>", ".", ".", ".", "b", "<e>"]
    assert inputs["segment_ids"][0].tolist() == [1] * 9 + [2] * 4
    assert (chats.rows, chats.tokens, chats.cut) == (1, 6, 0)


def test_the_tag_generation_marks_the_answers_and_changes_no_text():
    inside = "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<e>{% endgeneration %}{% else %}"
    source = SOURCE.replace("{{ m.content }}<e>", inside + "{{ m.content }}<e>{% endif %}")
    tagged, chats = ChatTemplate(source, special=["<q>", "<e>"]), [SHORT, [*SHORT, *SHORT]]
    for one, other in zip(*(each.tokenize(chats, tokenizer()) for each in (TEMPLATE, tagged)), strict=True):
        np.testing.assert_equal(one, other)
    assert tagged.prompt(SHORT) == tagged.render(SHORT) == TEMPLATE.prompt(SHORT)


@pytest.mark.parametrize(
    ("answer", "source", "message"),
    [
        ("a<e>", SOURCE, "Chat 1: `messages` must not contain special tokens"),
        ("\ufdd0", SOURCE, r"Chat 1: .* U\+FDD0"),
        ("a", SOURCE.replace("m.content", "m.content[loop.revindex0:]"), "Chat 1: .* tag `generation`"),
    ],
)
def test_chats_that_cannot_be_learned_are_refused_by_number(answer, source, message):
    chat = [SHORT[0], {"role": "assistant", "content": answer}, SHORT[0]]
    refuses(message, ChatTemplate(source, special=["<q>", "<e>"]).tokenize, [SHORT[:1], chat], tokenizer())


def test_all_tokens_are_targets_where_asked_for_and_a_row_may_hold_one_chat():
    chats = Chats([SHORT, SHORT], TEMPLATE, tokenizer(), 13, 2, pad_id=0, answers_only=False, packed=False)
    _, targets = chats.batch([0, 1])
    assert [texts_of(row)[:5] for row in targets] == [["a", "<e>", "b", "<e>", "."]] * 2


def test_a_long_chat_ends_with_its_last_whole_answer():
    long = [*SHORT, SHORT[0], {"role": "assistant", "content": "c" * 20}]
    with pytest.warns(UserWarning, match="Of 2 texts: 1 skipped"):
        chats = Chats([long, long[2:]], TEMPLATE, tokenizer(), 9, 1, pad_id=0)
    assert (chats.cut, chats.kept, chats.skipped) == (1, 1, 1)
    inputs, _ = chats.batch([0])
    assert np.sum(inputs["segment_ids"]) == 4
    with pytest.raises(ValueError, match="2 of 2 texts are longer than `length`=9"):
        Chats([long, long], TEMPLATE, tokenizer(), 9, 1, too_long="error")


def test_both_forms_of_files_are_read(tmp_path):
    turns = [{"from": "human", "value": "a"}, {"from": "chatgpt", "value": "b"}]
    lines = [json.dumps({"messages": SHORT}), "", json.dumps({"conversations": turns, "id": "\N{DOG}"})]
    assert "\\ud83d\\udc15" in lines[2], "a whole surrogate pair"
    path = tmp_path / "chats.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read_chats(path) == [SHORT, SHORT]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": parts}, call], "tools": []}))
    assert read_chats(path) == [[{"role": "user", "content": "ab"}, call]]


@pytest.mark.parametrize(("line", "message"), [
    ("{", r"line 2: not JSON"),
    ("[1]", r"line 2: a line must be an object with a list of `messages`"),
    ('{"messages": {}}', r"line 2: a line must be an object"),
    ('{"messages": [{"role": 1, "content": "a"}]}', r"line 2: a message must .* a text as `role`"),
    ('{"messages": [{"role": "asistant", "content": "a"}]}', r"line 2: `role` must be one of .*role='asistant'"),
    ('{"conversations": [{"from": "human"}]}', r"line 2: a message must .* with `value`"),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": 1}]}', r"line 2: a message must .* as `role`"),
    ('{"conversations": [{"from": "me", "value": "a"}]}', r"line 2: `from` must be one of"),
    ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', r"line 2: a text must be UTF-8"),
    ('{"messages": [{"role": "user", "content": "a", "weight": 0}]}', r"line 2: `weight` must be left out"),
    ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', r"line 2: `content` must be a text"),
    ('{"messages": [], "tools": [{"type": "function"}]}', r"line 2: `tools` must be left out"),
])  # fmt: skip
def test_a_line_that_is_no_chat_is_named(line, message, tmp_path):
    (tmp_path / "chats.jsonl").write_text(f'{{"messages": []}}\n{line}\n')
    refuses(message, read_chats, tmp_path / "chats.jsonl")


def test_wrong_arguments_are_named():
    right = {
        "conversations": [SHORT],
        "template": TEMPLATE,
        "tokenizer": tokenizer(),
        "length": 9,
        "batch_size": 1,
    }
    check_refused(Chats, {"too_long": "split"}, **right)
