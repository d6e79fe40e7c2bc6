"""Chat templates: the texts and ids of transformers, and a model that answers a chat."""

import functools
import json

import pytest
from contracts import refuses, slow_but
from families import DECODERS
from pieces import GEMMA as GEMMA_PIECES
from pieces import byte_pieces, train_pieces, written

from keras_transformer.cli import main
from keras_transformer.cli.convert import convert
from keras_transformer.huggingface import (
    ChatTemplate,
    chat_template_from_huggingface,
    tokenizers_from_huggingface,
)
from keras_transformer.huggingface.tokenizers.byte_pair import write_byte_pair
from keras_transformer.serving import load
from keras_transformer.text import BytePairTokenizer

QWEN = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{% set ns = namespace(system='none') %}\n{%- for message in messages %}\n    {%- if message.role == 'system' %}"
    "{% set ns.system = message.content %}{% endif %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{%- endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
CHATS = [
    [{"role": "user", "content": "the dog"}],
    [
        {"role": "user", "content": " Zwei Hunde <b> & 'x' "},
        {"role": "assistant", "content": "두 마리\n개"},
        {"role": "user", "content": ""},
    ],
]
SPECIAL = {
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
}
EACH = pytest.mark.parametrize("name", ["qwen2", "llama", "gemma2"])


def folder_of(name, folder):
    """A random model with a tokenizer and a chat template."""
    if name == "gemma2":
        config = {"vocab_size": 420, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": [1, 5]}
        written(folder, {**DECODERS[name], **config}, {"chat_template.jinja": GEMMA})
        train_pieces(folder / "tokenizer.model", vocab_size=400, **GEMMA_PIECES)
        tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
        options = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, **tokens}
    else:
        vocabulary, merges = byte_pieces()
        special = SPECIAL[name]
        pieces, merges = (
            [*sorted(vocabulary, key=vocabulary.get), *special],
            [" ".join(merge) for merge in merges],
        )
        pattern, bos_token = ("qwen2", None) if name == "qwen2" else ("llama3", special[0])
        tokens = {"special_tokens": special, "bos_token": bos_token, "eos_token": special[-1]}
        tokenizer = BytePairTokenizer(pieces, merges, pattern, **tokens)
        size = tokenizer.vocab_size
        config = {**DECODERS["qwen2"], "model_type": name, "vocab_size": size, "eos_token_id": size - 1}
        written(folder, {**config, "bos_token_id": tokenizer.bos_id}, {})
        write_byte_pair(tokenizer, folder, starts_with_bos=name == "llama")
        options = json.loads((folder / "tokenizer_config.json").read_text())
        options["chat_template"] = QWEN if name == "qwen2" else [{"name": "default", "template": LLAMA}]
        if name == "qwen2":  # the id for padding is not in config.json, and it ends an output too
            options["pad_token"], ends = special[0], {"eos_token_id": [size - 1, size - 3]}
            (folder / "generation_config.json").write_text(json.dumps(ends))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function from a name to the folder of its checkpoint and of the generator that is made of it; do not write."""
    parent = tmp_path_factory.mktemp("chat")

    @functools.cache
    def made(name):
        folder = folder_of(name, parent / name)
        assert main(["convert", "--chat", str(folder), str(parent / f"{name}-own")]) == 0
        return folder, parent / f"{name}-own"

    return made


@EACH
def test_texts_and_ids_are_those_of_transformers(name, made):
    transformers = pytest.importorskip("transformers")
    folder, own = made(name)
    there = transformers.AutoTokenizer.from_pretrained(folder)
    template = chat_template_from_huggingface(folder)
    generator = load(own)
    starts = [generator.model.bos_id] if generator.starts_with_bos else []
    for chat in CHATS:
        for asks in (True, False):
            expected = there.apply_chat_template(chat, tokenize=False, add_generation_prompt=asks)
            assert template.render(chat, asks) == expected
        expected = there.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        prompt = template.prompt(chat)
        assert starts + generator.tokenizer.tokenize([prompt]).to_list()[0] == expected
        ((ids, _),) = template.tokenize([chat], *tokenizers_from_huggingface(folder))
        assert ids.tolist() == there.apply_chat_template(chat, return_dict=False)


@EACH
def test_an_answer_reaches_to_the_token_that_ends_it(name, made):
    """The folder of Gemma names no such token, so the line's end belongs to the answer."""
    folder, own = made(name)
    template = chat_template_from_huggingface(folder)
    chat = [*CHATS[1], {"role": "assistant", "content": "one dog"}]
    ((ids, answers),) = template.tokenize([chat], *tokenizers_from_huggingface(folder))
    tokenizer, end = (
        load(own).tokenizer,
        {"qwen2": "<|im_end|>", "llama": "<|eot_id|>"}.get(name, "<end_of_turn>\n"),
    )
    expected = tokenizer.tokenize([f"{text}{end}" for text in ("두 마리\n개", "one dog")]).to_list()
    assert [ids[first:end].tolist() for first, end in answers] == expected


@pytest.mark.parametrize("name", slow_but(["llama"], ["qwen2", "llama", "gemma2"]))
def test_a_chat_model_that_is_written_is_one_again(name, made, tmp_path, capsys):
    folder, own = made(name)
    back = tmp_path / "back"
    for arguments in ([str(own), str(back)], ["--chat", str(back), str(tmp_path / "own")]):
        assert main(["convert", *arguments]) == 0
        assert "are not in the folder" not in capsys.readouterr().err
    generators = load(own), load(tmp_path / "own")
    assert generators[0].describe() == generators[1].describe()
    prompts = [chat_template_from_huggingface(each).prompt(CHATS[1]) for each in (folder, back)]
    ids = [
        each.tokenizer.tokenize([prompt]).to_list() for each, prompt in zip(generators, prompts, strict=True)
    ]
    assert ids[0] == ids[1]
    transformers = pytest.importorskip("transformers")
    there = [transformers.AutoTokenizer.from_pretrained(each) for each in (folder, back)]
    texts = [each("the dog")["input_ids"] for each in there]
    assert texts[0] == texts[1]
    ids = [each.apply_chat_template(CHATS[1], return_dict=False) for each in there]
    assert ids[0] == ids[1]


@EACH
def test_a_converted_model_answers_a_chat_as_in_transformers(name, made):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, own = made(name)
    generator = load(own).changed(max_length=7)
    there = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = there.apply_chat_template(CHATS[0], add_generation_prompt=True, return_dict=False)
    row = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=7)[0].tolist()
    prompt = chat_template_from_huggingface(folder).prompt(CHATS[0])
    (answer,) = generator.generate([prompt])
    ends = (generator.model.eos_id, *generator.model.stop_ids)
    row = ids + [token_id for token_id in row[len(ids) :] if token_id not in ends]
    expected, start = (generator.tokenizer.detokenize([each])[0].numpy() for each in (row, ids))
    assert answer == expected[len(start) :].decode("utf-8", "replace")


@pytest.mark.parametrize(("given", "variables"), [
    ([{"role": "user", "content": "a<|end|>"}], {}),
    ([{"role": "user", "content": [{"text": "a<|e"}, {"text": "nd|>"}]}], {}),
    ([{"role": "user", "content": "a<|<image>end|>"}], {}),
    ([{"role": "user", "content": "a"}], {"documents": [{"text": "<|end|>"}]}),
], ids=["whole", "in parts", "after a removal", "in a document"])  # fmt: skip
def test_no_text_makes_a_special_token(given, variables):
    template = ChatTemplate(
        "{% for d in documents or [] %}{{ d.text }}{% endfor %}{% for m in messages %}{{ m.role }}:"
        "{% if m.content is string %}{{ m.content|replace('<image>', '') }}"
        "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|end|>{% endfor %}",
        special=["<|end|>"],
    )
    assert template.prompt([{"role": "user", "content": "a"}]) == "user:a<|end|>"
    refuses(r"must not contain special tokens\. Received: '<\|end\|>'", template.prompt, given, **variables)


def test_a_long_message_may_be_counted():
    template = ChatTemplate("{{ (messages[0].content|length) * 2 }} {{ 86400 * 365 }}")
    assert template.render([{"role": "user", "content": "a" * 10_001}]) == "20002 31536000"


LOOPS = "{% for a in b %}" * 30 + "{% endfor %}" * 30
DAMAGED = [{"chat_template": each} for each in (3, [{"name": ["a"], "template": "x"}], LOOPS)]


@pytest.mark.parametrize("config", [*DAMAGED, {"chat_template": "x", "added_tokens_decoder": [1]}])
def test_damaged_chat_files_are_refused(config, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    refuses(r"chat template|must be an object", chat_template_from_huggingface, tmp_path)


def test_special_tokens_may_have_a_file_of_their_own(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ bos_token }}"}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    template = chat_template_from_huggingface(tmp_path)
    assert (template.render([]), list(template.special)) == ("<s>", ["<s>"])


@pytest.mark.parametrize(
    ("source", "messages", "message"),
    [
        ("{{ raise_exception('no tools') }}", [], "refuses `messages`: no tools"),
        ("{{ messages[0].role.upper(1) }}", CHATS[0], "refuses `messages`"),
        ("{% for i in range(1000000000) %}{% endfor %}", [], "Range too big"),
        ("{{ 'a' * 10 ** 10 }}", [], r"\* has a factor above 10000"),
        ("{{ 9999 ** 9999 ** 9999 }}", [], r"\*\* has a factor above 10000"),
        ("{{ messages.append(1) }}", [], "unsafe"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", [], "refuses `messages`"),
        ("", [{"role": "user", "content": object()}], "plain data"),
    ],
)
def test_other_operations_of_a_template_are_refused(source, messages, message):
    refuses(message, lambda: ChatTemplate(source).render(messages))


def test_other_templates_and_models_are_refused(tmp_path):
    folder = folder_of("qwen2", tmp_path / "model")
    with pytest.raises(ValueError, match=r"chat template 'tool_use', in chat_template\.jinja"):
        chat_template_from_huggingface(folder, "tool_use")
    refuses("not a template of Jinja", ChatTemplate, "{% if %}")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    refuses("A 'bert' model does not chat", convert, folder, tmp_path / "own", chat=True)


def test_a_special_token_that_the_tokenizer_cannot_read_is_refused(made):
    (tokenizer,) = tokenizers_from_huggingface(made("gemma2")[0])
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}<eos>{% endfor %}", {"eos_token": "<eos>"}, ["<eos>"]
    )
    refuses("read_as_plain_text='<eos>'", template.with_special_tokens, tokenizer)


def test_tags_of_transformers_are_known():
    source = (
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    assert ChatTemplate(source).render([{"a": "<ü>"}, {}]) == '{"a": "<ü>"}4'
