"""The types and ranges of the values in a checkpoint's JSON files, which are checked where a file is read.

A key that is not here has its own check where it is used. None means that the key is missing.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from keras_transformer.checks import check
from keras_transformer.untrusted import is_name

# The largest id or size.
LARGEST = 2**31 - 1
TEMPLATE = "chat_template.jinja"
# Paths of the files that a model may keep (`checkpoint_files`).
KEPT = re.compile(
    r"(generation_|preprocessor_|tokenizer_|sentence_bert_)?config\.json|config_sentence_transformers\.json|modules\.json"
    r"|[^/]+/config\.json|chat_template\.jinja|additional_chat_templates/[^/]+\.jinja"
)


def text_of_parts(content):
    """Returns the text of OpenAI's list of parts of a text; another content as it is.

    >>> text_of_parts([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    'ab'
    """
    is_text = isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    )
    return "".join(part["text"] for part in content) if is_text else content


class Rule(NamedTuple):
    """What a value must be: a description, and a function that returns whether it holds."""

    description: str
    holds: Callable


def _is_int(value, low=0, high=LARGEST):
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def integer(low, high=LARGEST):
    """Returns the rule for an integer in [low, high]."""
    return Rule(f"an integer from {low} to {high}", lambda value: _is_int(value, low, high))


def listed(kind, description):
    """Returns the rule for a list of values of a class."""
    return Rule(
        description, lambda value: isinstance(value, list) and all(isinstance(each, kind) for each in value)
    )


OBJECT = Rule("an object", lambda value: isinstance(value, dict))
TEXT = Rule("a str", lambda value: isinstance(value, str))
BOOL = Rule("true or false", lambda value: isinstance(value, bool))
TEXTS, OBJECTS = listed(str, "a list of str"), listed(dict, "a list of objects")
NUMBER = Rule(
    "a finite number",
    lambda value: type(value) in (int, float) and abs(value) < 1e30 and not math.isnan(value),
)
IDS = Rule("an id or a list of ids", lambda value: all(_is_int(each, -1) for each in _several(value)))
TEXT_OR_TEXTS = Rule(
    "a str or a list of str", lambda value: all(isinstance(each, str) for each in _several(value))
)
TEXTS_BY_NAME = Rule(
    "an object of str",
    lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
)
IDS_BY_NAME = Rule(
    "an object of ids",
    lambda value: isinstance(value, dict) and all(_is_int(each) for each in value.values()),
)
PAIRS = Rule(
    "a list of pairs of integers",
    lambda value: (
        isinstance(value, list)
        and all(isinstance(each, list) and len(each) == 2 and all(map(_is_int, each)) for each in value)
    ),
)
MODULES = Rule(
    "a list of modules, each with a str as `type`, and the name of a folder in it or an empty str as `path`",
    lambda value: (
        isinstance(value, list)
        and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in value)
        and all(each.get("path") == "" or is_name(each.get("path")) for each in value)
    ),
)
TEXT_OF_UTF_8 = Rule(
    "text of UTF-8", lambda value: isinstance(value, str) and not re.search("[\ud800-\udfff]", value)
)
ID, SIZE, COUNT = integer(-1), integer(1), integer(0)


def _several(value):
    return value if isinstance(value, list) else [value]


TOKEN_IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "decoder_start_token_id"), ID) | {
    "eos_token_id": IDS
}
SEARCH = {
    **TOKEN_IDS,
    **dict.fromkeys(("max_new_tokens", "max_length"), SIZE),
    **dict.fromkeys(("min_length", "min_new_tokens", "top_k", "no_repeat_ngram_size"), COUNT),
    **dict.fromkeys(("num_beams", "num_return_sequences"), integer(1, 10_000)),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens"), IDS),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p"), NUMBER),
    **dict.fromkeys(("repetition_penalty", "length_penalty"), NUMBER),
    "bad_words_ids": listed(list, "a list of lists of ids"),
}
SPEECH = {
    **dict.fromkeys(("lang_to_id", "task_to_id"), IDS_BY_NAME),
    **dict.fromkeys(("no_timestamps_token_id", "prev_sot_token_id"), ID),
    "begin_suppress_tokens": IDS,
    "is_multilingual": BOOL,
    "max_initial_timestamp_index": COUNT,
    "alignment_heads": PAIRS,
    "forced_decoder_ids": listed(list, "a list of lists"),
    **dict.fromkeys(("language", "task"), TEXT),
}
TOKENIZER_OPTIONS = {"extra_ids": integer(0, 100_000), "added_tokens_decoder": OBJECT}
# By the name of the file, or by the name that `known_keys.IGNORED` has for it. A rule is that of the whole file.
SCHEMAS = {
    "config.json": {
        **SEARCH,
        **dict.fromkeys(("model_type", "problem_type", "position_embedding_type"), TEXT),
        **dict.fromkeys(("rope_parameters", "rope_scaling", "quantization_config"), OBJECT),
        "architectures": TEXTS,
        "layer_types": TEXTS,
        "id2label": OBJECT,
        "num_labels": COUNT,
    },
    "generation_config.json": {**SEARCH, **SPEECH},
    "preprocessor_config.json": {
        **dict.fromkeys(("feature_size", "n_fft", "hop_length"), integer(1, 10_000)),
        "sampling_rate": integer(1, 1_000_000),
    },
    "tokenizer.json": {
        **dict.fromkeys(("model", "normalizer", "pre_tokenizer", "decoder", "post_processor"), OBJECT),
        "added_tokens": OBJECTS,
    },
    "tokenizer_config.json": TOKENIZER_OPTIONS,
    "config_sentence_transformers.json": {"prompts": TEXTS_BY_NAME, "default_prompt_name": TEXT},
    "sentence_bert_config.json": {"max_seq_length": SIZE, "do_lower_case": BOOL},
    "config.json of a Pooling": {"pooling_mode": TEXT_OR_TEXTS, "include_prompt": BOOL},
    "config.json of a Dense": {
        "out_features": SIZE,
        "in_features": SIZE,
        "bias": BOOL,
        "activation_function": TEXT,
    },
    "modules.json": MODULES,
    TEMPLATE: TEXT_OF_UTF_8,
    "adapter_config.json": {
        **dict.fromkeys(("peft_type", "task_type"), TEXT),
        **dict.fromkeys(("alpha_pattern", "rank_pattern"), OBJECT),
        "r": SIZE,
        "lora_alpha": NUMBER,
        "use_rslora": BOOL,
    },
}


def check_schema(content, file, name):
    """Raises `ValueError` for a value of another type or out of the range that the schema of a file has.

    Args:
        content: The content of the file.
        file: Path of the file, for the message.
        name: A key of `SCHEMAS`; a file of another name may hold any object.
    """
    schema = SCHEMAS.get(name, {})
    whole = schema if isinstance(schema, Rule) else OBJECT
    check(whole.holds(content), f"{file} must hold {whole.description}.", content=content)
    for key, rule in () if whole is schema else schema.items():
        value = content.get(key)
        if value is not None:
            check(rule.holds(value), f"`{key}` of {file} must be {rule.description}.", **{key: value})


def check_kept(name, content):
    """Raises `ValueError` for a file that a model may not keep, because `to_huggingface` would write it.

    Args:
        name: Path of the file in its folder.
        content: A str, or plain data.
    """
    rule = "`checkpoint_files` must hold the files of a checkpoint."
    check(KEPT.fullmatch(name) and all(map(is_name, name.split("/"))), rule, name=name)
    check_schema(content, name, TEMPLATE if name.endswith(".jinja") else name)
    # It names code on the network.
    check(isinstance(content, str) or "auto_map" not in content, rule, name=name, auto_map=True)
