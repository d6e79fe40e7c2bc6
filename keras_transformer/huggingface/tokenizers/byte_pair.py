"""Reading and writing of a tokenizer of byte-level pieces: tokenizer.json, or the older vocab.json and merges.txt."""

import logging

from keras_transformer.checks import check
from keras_transformer.data import read_lines
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import CONFIG, read_if_there, read_json, write_json
from keras_transformer.huggingface.tokenizers.added_tokens import read_added_tokens
from keras_transformer.huggingface.tokenizers.classes import (
    check_roles,
    class_of,
    has_one_class,
    reader_of,
    takes_file,
)
from keras_transformer.huggingface.tokenizers.kinds import (
    SENTENCE_PIECE_TOKENS,
    TOKENIZER_CONFIG,
    TokenizerKind,
    check_tokenizers,
    without_sequence,
    write_tokenizer_config,
    writes_bos,
)
from keras_transformer.huggingface.tokenizers.post_processor import check_ends

log = logging.getLogger(__name__)

FILE = "tokenizer.json"
# The special tokens that `BytePairTokenizer` has names for.
TOKENS = ("pad", "unk", "bos", "eos")

# The regular expressions of tokenizer.json, by the names that `BytePairTokenizer` gives them.
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REGEXES = {
    "llama3": rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_OTHERS}",
    "qwen2": rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_OTHERS}",
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS = {
    "gpt2": BYTE_LEVEL,
    "gpt2_digits": {"type": "Sequence", "pretokenizers": [DIGITS, BYTE_LEVEL]},  # SmolLM
    **{
        name: {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                {**BYTE_LEVEL, "use_regex": False},
            ],
        }
        for name, regex in REGEXES.items()
    },
}
# The options of `BytePairTokenizer`, as tokenizer.json names them.
EXPECTED_MODEL = {"type": "BPE", "byte_fallback": False}
EXPECTED_DECODER = {"type": "ByteLevel"}
# The patterns of transformers' classes that do not take it from tokenizer.json, and the usual ones of families.
OWN_PATTERNS = {
    **dict.fromkeys(("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "WhisperTokenizer"), "gpt2"),
    **dict.fromkeys(("gpt2", "roberta", "bart", "data2vec-text", "whisper"), "gpt2"),
    **dict.fromkeys(("Qwen2Tokenizer", "qwen2", "qwen3"), "qwen2"),
}


def read_byte_pair(folder, names=None, finds_special=False, **default_tokens):
    """Reads the `BytePairTokenizer` of a folder.

    Args:
        folder: A `pathlib.Path`.
        names: A dict from names of special tokens to those that tokenizer_config.json has for them, where they differ.
        finds_special: Whether special tokens without a role, such as `[E1]`, are found in texts.
        **default_tokens: The tokens that the special tokens of these names are where tokenizer_config.json says
            nothing of them: `pad`, `unk`, `bos`, `eos`. Those that are not in the vocabulary do not count.

    Raises:
        ValueError: If a file is missing or damaged, or asks for something that `BytePairTokenizer` does not do.
    """
    from keras_transformer.text import BytePairTokenizer  # loads tensorflow_text

    config = read_if_there(folder, TOKENIZER_CONFIG)
    config |= {f"{own}_token": config.get(f"{name}_token") for own, name in (names or {}).items()}
    path = folder / FILE
    if path.is_file():
        parts = read_json(path)
    else:
        path, lines = folder / "vocab.json", read_lines(folder / "merges.txt")
        merges = [line for i, line in enumerate(lines) if line and (i or not line.startswith("#version"))]
        pattern = _own_pattern(folder)
        classes = sorted(name for name in OWN_PATTERNS if name.endswith("Tokenizer"))
        rule = f"`tokenizer_class` must be one of {classes} where {FILE} is missing."
        check(pattern is not None, rule, tokenizer_class=class_of(folder))
        normalizer = {"type": "NFC"} if pattern == "qwen2" else None
        parts = {"model": {"vocab": read_json(path), "merges": merges}, "normalizer": normalizer}
        parts["pre_tokenizer"] = PRE_TOKENIZERS[pattern]
    try:
        return BytePairTokenizer(**_arguments(parts, config, default_tokens, folder, finds_special))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error if isinstance(error, ValueError) else f"Received: {error!r:.200}."
        raise ValueError(f"{path} must hold a tokenizer of byte-level pieces. {reason}") from None


def _arguments(parts, config, default_tokens, folder, finds_special):
    """Returns the arguments of a `BytePairTokenizer`.

    Args:
        parts: The content of tokenizer.json, a dict.
        config: The content of tokenizer_config.json, a dict.
        default_tokens: A dict, as in `read_byte_pair`.
        folder: A `pathlib.Path`.
        finds_special: As in `read_byte_pair`.
    """
    model, normalizer = parts["model"], without_sequence(parts.get("normalizer"), "normalizers")
    check_config(model, FILE, **EXPECTED_MODEL)
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        check_config({key: model.get(key) or None}, FILE, **{key: None})
    check_config(parts.get("decoder") or {}, FILE, **EXPECTED_DECODER)
    check_config(normalizer or {}, FILE, type="NFC")
    added = parts.get("added_tokens") or ()
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"The ids of its {len(ids)} pieces must be those from 0 to {len(ids) - 1}.")
    defaults = {f"{name}_token": token for name, token in default_tokens.items()}
    pieces, in_texts = read_added_tokens(
        folder, sorted(ids, key=ids.get), roles=default_tokens.values(), finds_special=True
    )
    names = {f"{name}_token": None for name in TOKENS}
    names |= {name: token for name, token in defaults.items() if token in pieces}
    names |= {name: _content(config[name]) for name in names if name in config}
    contents = {token.content for token in in_texts if finds_special or not token.special}
    special = [token["content"] for token in added if token.get("special")]
    special += [token.content for token in in_texts if token.special]
    pattern, prefix_space = _pattern(parts.get("pre_tokenizer"))
    own = _own_pattern(folder)
    # A Qwen 2 that DeepSeek trained further.
    if own == "qwen2" and normalizer is None and has_one_class(folder):
        normalizer = {"type": "NFC"}
        log.warning("transformers takes %s in place of the missing `normalizer` of %s", normalizer, FILE)
    if not takes_file(folder) and config.get("add_prefix_space") is not None:
        prefix_space = bool(config["add_prefix_space"])
    if own is not None:
        rule = f"{FILE} must have the parts of its class"
        rule += "." if has_one_class(folder) else ", or `tokenizer_class` must be 'PreTrainedTokenizerFast'."
        # transformers 5 splits the digits of such a file in another way than the model was trained with.
        same = pattern in (own, f"{own}_digits") and bool(normalizer) == (own == "qwen2")
        asked = {
            "pre_tokenizer": pattern,
            "normalizer": normalizer,
            "ignore_merges": model.get("ignore_merges"),
        }
        check(same and not model.get("ignore_merges"), rule, tokenizer_class=class_of(folder), **asked)
    rule = "`add_prefix_space` must be False where words are not those of GPT-2."
    check(not prefix_space or pattern == "gpt2", rule, add_prefix_space=prefix_space, pattern=pattern)
    return {
        "vocabulary": pieces,
        "merges": [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]],
        "pattern": pattern,
        "nfc": bool(normalizer),
        "ignore_merges": bool(model.get("ignore_merges")),
        "special_tokens": [token for token in dict.fromkeys(special) if token not in contents],
        "added_tokens": [token for token in in_texts if token.content in contents],
        "prefix_space": prefix_space,
        **_missing_bytes(model, pieces, names),
        **names,
    }


def _own_pattern(folder):
    """Returns the pattern of a class that does not take it from tokenizer.json; None for any other class."""
    if takes_file(folder):
        return None
    model_type = read_if_there(folder, CONFIG).get("model_type")
    return OWN_PATTERNS.get(class_of(folder) or model_type)


def _missing_bytes(model, pieces, names):
    """Returns the argument `missing_bytes` of a `BytePairTokenizer`, a dict; empty where no byte is missing."""
    from keras_transformer.text.byte_pair import BYTE_CHARACTERS  # loads tensorflow_text

    if {*BYTE_CHARACTERS} <= {*pieces}:
        return {}
    unknown = model.get("unk_token") or None
    if unknown is None:
        return {"missing_bytes": "dropped"}
    rule = "`unk_token` of its model must be that of the tokenizer, as the vocabulary lacks a byte."
    check(unknown == names["unk_token"], rule, model=unknown, tokenizer=names["unk_token"])
    check_config(model, FILE, fuse_unk=False)
    return {"missing_bytes": "unknown"}


def _content(token):
    """Returns the text of a token of tokenizer_config.json, which may have options of its own."""
    return token.get("content") if isinstance(token, dict) else token


def _pattern(pre_tokenizer):
    """Returns the name of the pattern that a part of tokenizer.json describes, and whether texts get a first blank."""
    received = _without_offsets(without_sequence(pre_tokenizer, "pretokenizers"))
    prefix_space = received == _without_offsets({**BYTE_LEVEL, "add_prefix_space": True})
    for name, expected in PRE_TOKENIZERS.items():
        if received == _without_offsets(expected) or (prefix_space and name == "gpt2"):
            return name, prefix_space
    raise ValueError(
        f"`pre_tokenizer` must be that of one of {sorted(PRE_TOKENIZERS)}. Received: {pre_tokenizer!r:.400}."
    )


def _without_offsets(part):
    """Removes `trim_offsets`, sets `use_regex` of ByteLevel to its default, True, and names one split in one way.

    Nothing stands between the words of an expression of `REGEXES`. So they are the same where that is removed.
    """
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Sequence":
        return {**part, "pretokenizers": [_without_offsets(each) for each in part["pretokenizers"]]}
    if part.get("behavior") == "Removed" and part.get("invert") is True:
        part = {**part, "behavior": "Isolated", "invert": False}
    defaults = {"use_regex": True} if part.get("type") == "ByteLevel" else {}
    return {**defaults, **{key: value for key, value in part.items() if key != "trim_offsets"}}


def write_byte_pair(tokenizer, folder, starts_with_bos=False, post_processor=None, names=None):
    """Writes tokenizer.json and tokenizer_config.json.

    Args:
        tokenizer: A `BytePairTokenizer`.
        folder: A `pathlib.Path`.
        starts_with_bos: Whether transformers puts `bos_token` before each text.
        post_processor: That part of tokenizer.json, a dict; None for one that `starts_with_bos` describes.
        names: As in `read_byte_pair`.
    """
    from keras_transformer.text.added_tokens import AddedToken, as_added_tokens  # loads TensorFlow

    config = tokenizer.get_config()
    vocabulary = config["vocabulary"]
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    marked = as_added_tokens(config["added_tokens"])
    marked += tuple(AddedToken(token, special=True) for token in config["special_tokens"])
    added = [
        {"id": ids[token.content], **token._asdict()}
        for token in sorted(marked, key=lambda token: ids[token.content])
    ]
    post_processor = post_processor or BYTE_LEVEL
    if starts_with_bos and tokenizer.bos_id is not None:
        bos, text = config["bos_token"], {"Sequence": {"id": "A", "type_id": 0}}
        start = {"SpecialToken": {"id": bos, "type_id": 0}}
        second = [{kind: {**value, "type_id": 1} for kind, value in each.items()} for each in (start, text)]
        second[1]["Sequence"]["id"] = "B"
        post_processor = {
            "type": "TemplateProcessing",
            "single": [start, text],
            "pair": [start, text, *second],
            "special_tokens": {bos: {"id": bos, "ids": [tokenizer.bos_id], "tokens": [bos]}},
        }
    parts = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if config["nfc"] else None,
        "pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}
        if config["prefix_space"]
        else PRE_TOKENIZERS[config["pattern"]],
        "post_processor": post_processor,
        "decoder": BYTE_LEVEL,
        "model": {
            **EXPECTED_MODEL,
            **({"unk_token": config["unk_token"]} if config["missing_bytes"] == "unknown" else {}),
            "ignore_merges": config["ignore_merges"],
            "vocab": ids,
            "merges": config["merges"],
        },
    }
    write_json(folder / FILE, parts)
    tokens = {name: config[f"{name}_token"] for name in TOKENS if config[f"{name}_token"] is not None}
    tokens = {(names or {}).get(name, name): token for name, token in tokens.items()}
    write_tokenizer_config(folder, "PreTrainedTokenizerFast", tokens, clean_up_tokenization_spaces=False)


def byte_pair_kind(
    family,
    files=(FILE, "vocab.json"),
    names=None,
    ends=None,
    starts_with_bos=True,
    adds_bos=False,
    separators=1,
    classes=("GPT2", "Qwen2", "Llama"),
    **default_tokens,
):
    """Makes the `TokenizerKind` of byte-level pieces.

    Args:
        family: The `model_type`.
        files: Names that the file of the pieces may have.
        names: As in `read_byte_pair`.
        ends: The part of tokenizer.json that adds a token before each text and one after it, but for the tokens
            themselves: a dict. None where nothing follows a text.
        starts_with_bos: As in `TokenizerKind`.
        separators: How many tokens stand between the texts of a pair, where there are `ends`.
        classes: Names of transformers' classes that read such files, as `reader_of` takes them.
        adds_bos: Whether a written tokenizer puts `bos_token` before each text, where there are no `ends`.
        **default_tokens: As in `read_byte_pair`.
    """

    def write(tokenizers, folder, model):
        (tokenizer,) = check_tokenizers(family, tokenizers, "BytePairTokenizer", model)
        processor = None
        if ends is not None:
            config = tokenizer.get_config()
            added = {"cls": ("bos_token", tokenizer.bos_id), "sep": ("eos_token", tokenizer.eos_id)}
            processor = {**ends, **{key: [config[name], token_id] for key, (name, token_id) in added.items()}}
        write_byte_pair(tokenizer, folder, writes_bos(model, adds_bos), processor, names)

    def read(folder):
        tokenizer = read_byte_pair(folder, names, ends is not None, **default_tokens)
        if ends is not None:
            last = [tokenizer.eos_id]
            check_ends(folder, [tokenizer.bos_id], last, last * separators)
            check_roles(folder, tokenizer, cls="bos_id", sep="eos_id")
        return (tokenizer,)

    return TokenizerKind((files,), reader_of(read, *classes), write, starts_with_bos)


# The tokenizer of RoBERTa and BART: `<s>` before each text, `</s>` after it.
ROBERTA_BYTE_PAIR = byte_pair_kind(
    "roberta",
    ends={"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False},
    separators=2,
    classes=("Roberta", "Bart"),
    **SENTENCE_PIECE_TOKENS,
)
# The same with `[CLS]` and `[SEP]`.
MODERNBERT_BYTE_PAIR = byte_pair_kind(
    "modernbert",
    (FILE,),
    {"bos": "cls", "eos": "sep"},
    ends={"type": "BertProcessing"},
    classes=("Roberta", "Bart"),
)
# The ids around a text, such as those of a language and a task, are the caller's.
WHISPER_BYTE_PAIR = byte_pair_kind("whisper", classes=("Whisper",), **dict.fromkeys(TOKENS, "<|endoftext|>"))
# Without tokens around a text, as for Qwen.
BYTE_PAIR = byte_pair_kind("byte-level", starts_with_bos=False)
