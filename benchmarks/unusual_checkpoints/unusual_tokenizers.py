"""Makes folders of tokenizers with unusual, legal parts, and compares their ids with those of transformers.

usage: python benchmarks/unusual_checkpoints/unusual_tokenizers.py [--folders 155] [--first 0]

It needs the extra `parity`.

A number names each folder, as in `unusual_models.py`. A tokenizer of one of the kinds is trained on a few lines and
saved; then parts of tokenizer.json and keys of tokenizer_config.json are changed. The ids of hard lines, alone and with
the ids around a text or a pair, must be those of transformers' `AutoTokenizer`, or the library must refuse the folder.
"""

import argparse
import collections
import importlib
import json
import logging
import random
import sys
import tempfile
import unicodedata
import warnings
from pathlib import Path

import compare_byte_level
import sentencepiece

from keras_transformer.huggingface import DECODERS, ENCODERS, FAMILIES, tokenizers_from_huggingface
from keras_transformer.huggingface.languages import translator_options
from keras_transformer.huggingface.tokenizers.byte_pair import DIGITS, REGEXES
from keras_transformer.huggingface.tokenizers.kinds import starts_with_bos

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "huggingface"))
from pieces import BYTES, GEMMA, LINES, T5_IDS, train_pieces

ATTEMPTS = 20
TEXTS = [
    *LINES[:7],
    "The Café of Zoë: naïve, ÀÉÎ, straße, İstanbul",
    "중국어 漢字 한국어, 日本語 テスト",
    "x2 = 3.14159; y_1 -= 0x1F // 12,345 678",
    "don't can't we'll I'M you'Re",
]
PLAIN = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}
BERT_NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
NORMALIZERS = [
    None,
    {"type": "NFC"},
    {"type": "NFD"},
    {"type": "NFKC"},
    {"type": "Lowercase"},
    {"type": "StripAccents"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Nmt"},
    SPACES,
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    {"type": "Replace", "pattern": {"String": "e"}, "content": "a"},
    BERT_NORMALIZER,
    {**BERT_NORMALIZER, "lowercase": False},
    {**BERT_NORMALIZER, "strip_accents": False},
    {**BERT_NORMALIZER, "handle_chinese_chars": False},
    {**BERT_NORMALIZER, "clean_text": False},
]


def split(regex, **changes):
    """Describes the pre-tokenizer that splits by a regular expression."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **changes}


PRE_TOKENIZERS = [
    None,
    BYTE_LEVEL,
    {**BYTE_LEVEL, "add_prefix_space": True},
    {**BYTE_LEVEL, "use_regex": False},
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "BertPreTokenizer"},
    {"type": "Punctuation", "behavior": "Isolated"},
    DIGITS,
    {**DIGITS, "individual_digits": False},
    METASPACE,
    {**METASPACE, "split": False},
    {**METASPACE, "prepend_scheme": "first"},
    {**METASPACE, "prepend_scheme": "never"},
    {**METASPACE, "replacement": "_"},
    *(split(regex) for regex in REGEXES.values()),
    split(REGEXES["llama3"], behavior="Removed"),
    split(REGEXES["llama3"].replace("{1,3}", "{1,2}")),
    split(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    split(" ", behavior="MergedWithPrevious"),
    {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    {"type": "UnicodeScripts"},
]
CLASSES = {
    "bert": ("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizerFast"),
    "byte": (
        "GPT2Tokenizer",
        "GPT2TokenizerFast",
        "RobertaTokenizer",
        "Qwen2Tokenizer",
        "LlamaTokenizerFast",
    ),
    "unigram": ("T5Tokenizer", "T5TokenizerFast", "XLMRobertaTokenizer", "CamembertTokenizerFast"),
    "bpe": ("LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"),
}
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Keys of tokenizer_config.json and their values.
OPTIONS = {
    "do_lower_case": (True, False),
    "strip_accents": (True, False, None),
    "tokenize_chinese_chars": (True, False),
    "do_basic_tokenize": (True, False),
    "never_split": (["the"],),
    "add_prefix_space": (True, False),
    "add_bos_token": (True, False),
    "add_eos_token": (True, False),
    "legacy": (True, False),
    "clean_up_tokenization_spaces": (True, False),
    "model_max_length": (5, 512),
    "keep_accents": (True, False),
    "remove_space": (False,),
    "extra_ids": (0, 100),
    "trim_offsets": (False,),
    "errors": ("strict",),
    "split_special_tokens": (True, False),
    "truncation_side": ("left",),
    "padding_side": ("left",),
    "additional_special_tokens": (["<e1>", "[NEW]"],),
    "extra_special_tokens": (["<x1>"], {"image_token": "<image>"}),
    "fix_mistral_regex": (True, False),
    "from_slow": (True,),
    "use_default_system_prompt": (True,),
    "sp_model_kwargs": ({}, {"enable_sampling": False}),
    "vocab_size": (11,),
    "do_remove_accents": (True,),
    "lowercase": (True,),
}
ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
ADDED = ("[E1]", "<hl>", "quay", "the", "{", "Dog", "é", "  ", "\n", "한국", "runs in")


def word_pieces(numbers, folder):
    """A tokenizer of WordPiece: tokenizer.json, perhaps with vocab.txt."""
    import tokenizers
    import transformers

    own = {"mpnet": ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]}
    family = numbers.choice(("bert", "bert", "distilbert", "electra", "ernie", "mpnet", "roberta"))
    special = own.get(family, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if family == "roberta":
        special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    lower = numbers.random() < 0.5
    trained = tokenizers.BertWordPieceTokenizer(
        lowercase=lower, strip_accents=numbers.choice((None, True, False))
    )
    trained.train_from_iterator(TEXTS * 3, 300, min_frequency=1, special_tokens=special, show_progress=False)
    ids = trained.get_vocab()
    name = "MPNetTokenizer" if family == "mpnet" else "BertTokenizer"
    getattr(transformers, name)(vocab=ids, do_lower_case=lower).save_pretrained(folder)
    form = numbers.choice(("json", "json", "both", "txt"))
    if form != "json":
        (folder / "vocab.txt").write_text(
            "".join(f"{piece}\n" for piece in sorted(ids, key=ids.get)), "utf-8"
        )
    if form == "txt":
        (folder / "tokenizer.json").unlink()
    return family, "bert"


def byte_level(numbers, folder):
    """A tokenizer of byte-level pieces: tokenizer.json, perhaps with vocab.json and merges.txt."""
    import transformers

    family = numbers.choice(
        (
            "gpt2",
            "gpt2",
            "roberta",
            "bart",
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "modernbert",
            "data2vec-text",
        )
    )
    pattern = {"llama": "llama3", "mistral": "llama3", "qwen2": "qwen2", "qwen3": "qwen2"}.get(family, "gpt2")
    if numbers.random() < 0.15:
        pattern = numbers.choice(("gpt2", *REGEXES))
    trained = compare_byte_level.trained(pattern, TEXTS * 3, 400, ignore_merges=numbers.random() < 0.3)
    special = {
        "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "modernbert": ["[CLS]", "[SEP]", "[PAD]", "[UNK]"],
    }
    special["bart"] = special["data2vec-text"] = special["roberta"]
    trained.add_special_tokens(special.get(family, []))
    if family in special:
        import tokenizers

        first, last = ("[CLS]", "[SEP]") if family == "modernbert" else ("<s>", "</s>")
        ends = (last, trained.token_to_id(last)), (first, trained.token_to_id(first))
        made = (
            tokenizers.processors.BertProcessing
            if family == "modernbert"
            else tokenizers.processors.RobertaProcessing
        )
        trained.post_processor = made(*ends)
        roles = {"bos": first, "eos": last, "cls": first, "sep": last}
        roles |= (
            {"pad": "[PAD]", "unk": "[UNK]"} if family == "modernbert" else {"pad": "<pad>", "unk": "<unk>"}
        )
    else:
        roles = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
        if numbers.random() < 0.5:
            roles["pad"] = numbers.choice(("<|im_start|>", "<|endoftext|>"))
    tokens = {f"{role}_token": token for role, token in roles.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=trained, **tokens).save_pretrained(folder)
    usual = {"roberta": "RobertaTokenizer", "bart": "BartTokenizer", "gpt2": "GPT2Tokenizer"}
    usual |= dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer") | {"data2vec-text": "RobertaTokenizer"}
    if numbers.random() < 0.5 and family in usual:
        change(folder / "tokenizer_config.json", {"tokenizer_class": usual[family]})
    if (
        family in ("gpt2", "roberta", "bart", "data2vec-text")
        and pattern == "gpt2"
        and numbers.random() < 0.3
    ):
        model = json.loads((folder / "tokenizer.json").read_text())
        ids = {
            **model["model"]["vocab"],
            **{token["content"]: token["id"] for token in model["added_tokens"]},
        }
        (folder / "vocab.json").write_text(json.dumps(ids))
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["model"]["merges"]]
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
        if numbers.random() < 0.5:
            (folder / "tokenizer.json").unlink()
    return family, "byte"


UNIGRAM = {"model_type": "unigram"}
LANGUAGES = {"mbart": "mbart.tokenization_mbart", "m2m_100": "nllb.tokenization_nllb"}
PLAIN_TEXT = {"normalization_rule_name": "identity"}
SENTENCE_PIECE = {
    # family: transformers' class, the file, the options of the training
    "t5": ("T5Tokenizer", "spiece.model", {**T5_IDS, **UNIGRAM}),
    "mt5": ("T5Tokenizer", "spiece.model", {**T5_IDS, **UNIGRAM, "byte_fallback": True}),
    "umt5": ("T5Tokenizer", "spiece.model", {**T5_IDS, **UNIGRAM}),
    "xlm-roberta": ("XLMRobertaTokenizer", "sentencepiece.bpe.model", UNIGRAM),
    "bert": ("XLMRobertaTokenizer", "sentencepiece.bpe.model", UNIGRAM),
    "camembert": ("CamembertTokenizer", "sentencepiece.bpe.model", UNIGRAM),
    "pegasus": ("PegasusTokenizer", "spiece.model", {**T5_IDS, **UNIGRAM}),
    "llama": ("LlamaTokenizer", "tokenizer.model", BYTES),
    "mistral": ("LlamaTokenizer", "tokenizer.model", BYTES),
    "phi3": ("LlamaTokenizer", "tokenizer.model", BYTES),
    "gemma2": ("GemmaTokenizer", "tokenizer.model", GEMMA),
    "gemma3_text": ("GemmaTokenizer", "tokenizer.model", GEMMA),
    "mbart": ("MBartTokenizer", "sentencepiece.bpe.model", UNIGRAM),
    "m2m_100": ("NllbTokenizer", "sentencepiece.bpe.model", {"model_type": "bpe"}),
}


def sentence_pieces(numbers, folder):
    """A SentencePiece model, or the tokenizer.json that transformers makes of it, or both."""
    import transformers

    family = numbers.choice(sorted(SENTENCE_PIECE))
    name, file, options = SENTENCE_PIECE[family]
    options = dict(options)
    if numbers.random() < 0.25:
        options |= numbers.choice(
            (
                {"normalization_rule_name": "nfkc_cf"},
                {"normalization_rule_name": "nmt_nfkc"},
                PLAIN_TEXT,
                {"add_dummy_prefix": False},
                {"remove_extra_whitespaces": False},
                {"byte_fallback": True},
                {"split_digits": True},
                {"user_defined_symbols": ["<b>", "Dog"]},
                {"treat_whitespace_as_suffix": True},
                {"allow_whitespace_only_pieces": True},
                {"split_by_whitespace": False},
                {"model_type": "bpe"},
                {"model_type": "unigram"},
            )
        )
    train_pieces(folder / file, TEXTS * 5, 520 if options.get("byte_fallback") else 220, **options)
    config = {"tokenizer_class": name}
    if name in ("LlamaTokenizer", "GemmaTokenizer"):
        config["add_bos_token"] = True  # the default of transformers 4, but not of 5
    if family in LANGUAGES:
        languages = importlib.import_module(f"transformers.models.{LANGUAGES[family]}").FAIRSEQ_LANGUAGE_CODES
        config |= {"src_lang": languages[0], "tgt_lang": languages[1], "additional_special_tokens": languages}
        (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": languages}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    form = numbers.choice(("model", "json", "json", "both"))
    if family == "m2m_100":  # of a model alone, transformers 5 gives the languages other ids than NLLB has
        form = "json"
    if form != "model":
        there = getattr(transformers, name).from_pretrained(folder)
        there.save_pretrained(folder)
    if form == "json":
        (folder / file).unlink(missing_ok=True)
    return family, "unigram" if options.get("model_type") == "unigram" else "bpe"


KINDS = (word_pieces, byte_level, sentence_pieces, sentence_pieces)


def change(path, keys):
    """Changes keys of a JSON object in a file, which may be missing; the value `DROP` drops a key."""
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    config |= keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not DROP}), "utf-8")


DROP = object()


def changed_part(numbers, part, pool, name):
    """Returns another normalizer or pre-tokenizer: one of a pool, the old one with another, or nearly the old one."""
    listed = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[name]
    old = [] if part is None else part.get(listed, [part])
    way, new = numbers.random(), numbers.choice(pool)
    if way < 0.25:
        return new
    if way < 0.4:
        return {"type": "Sequence", listed: old}
    if way < 0.7 and old:
        place, old = numbers.randrange(len(old)), [dict(each) for each in old]
        flags = [key for key, value in old[place].items() if isinstance(value, bool)]
        if flags:
            key = numbers.choice(flags)
            old[place][key] = not old[place][key]
        elif len(old) > 1:
            old.pop(place)
        return {"type": "Sequence", listed: old} if part.get("type") == "Sequence" or len(old) > 1 else old[0]
    together = [*old, new] if numbers.random() < 0.5 else [new, *old]
    return {"type": "Sequence", listed: [each for each in together if each is not None]}


def processors(numbers, parts, config):
    """Returns another `post_processor`."""
    ids = {token["content"]: token["id"] for token in parts.get("added_tokens") or ()}
    names = sorted(ids) or None
    if names is None:
        return None
    first, last = (config.get(f"{role}_token") for role in numbers.choice((("bos", "eos"), ("cls", "sep"))))
    first, last = (token.get("content") if isinstance(token, dict) else token for token in (first, last))
    first, last = (token if token in ids else numbers.choice(names) for token in (first, last))
    mark = {token: {"SpecialToken": {"id": token, "type_id": 0}} for token in (first, last)}
    text, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    tokens = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (first, last)}

    def template(before, after):
        single = [*(mark[t] for t in before), text, *(mark[t] for t in after)]
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, second, *(mark[t] for t in after)],
            "special_tokens": tokens,
        }

    ends = {"sep": [last, ids[last]], "cls": [first, ids[first]]}
    pool = [
        None,
        BYTE_LEVEL,
        template([first], [last]),
        template([first], []),
        template([], [last]),
        template([], []),
        template([first, first], [last]),
        {"type": "BertProcessing", **ends},
        {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False},
        {"type": "Sequence", "processors": [BYTE_LEVEL, template([first], [])]},
    ]
    return numbers.choice(pool)


def added(numbers, size, vocabulary):
    """Returns one or two added tokens with random flags; those in the vocabulary have its id."""
    tokens = []
    for content in numbers.sample(ADDED, numbers.randint(1, 2)):
        flags = {key: numbers.random() < 0.3 for key in PLAIN}
        at = vocabulary.get(content)
        tokens.append({"id": size if at is None else at, "content": content, **flags})
        size += at is None
    return tokens


def unusual(numbers, folder, kind):
    """Changes the files of a tokenizer, and returns the names of what is changed."""
    names, path, options = [], folder / "tokenizer.json", folder / "tokenizer_config.json"
    parts = json.loads(path.read_text("utf-8")) if path.is_file() else None
    config = json.loads(options.read_text("utf-8")) if options.is_file() else {}
    ways = ["option", "option", "class", "token"]
    if parts is not None:
        ways += ["normalizer", "pre_tokenizer", "post_processor", "model", "added_tokens", "cut", "decoder"]
    for way in numbers.sample(ways, numbers.choice((0, 1, 1, 2, 2, 3))):
        names.append(way)
        if way == "option":
            key = numbers.choice(sorted(OPTIONS))
            config[key] = numbers.choice(OPTIONS[key])
            names[-1] = f"{key}={config[key]!r}"
        elif way == "class":
            config["tokenizer_class"] = numbers.choice((*CLASSES[kind], *GENERIC, *GENERIC, DROP))
            names[-1] = (
                f"tokenizer_class={'' if config['tokenizer_class'] is DROP else config['tokenizer_class']}"
            )
        elif way == "token":
            role = numbers.choice(ROLES)
            config[f"{role}_token"] = numbers.choice((DROP, None, "<new>", "the"))
            names[-1] = f"{role}_token={'' if config[f'{role}_token'] is DROP else config[f'{role}_token']}"
        elif way in ("normalizer", "pre_tokenizer"):
            pool = NORMALIZERS if way == "normalizer" else PRE_TOKENIZERS
            parts[way] = changed_part(numbers, parts.get(way), pool, way)
            names[-1] = f"{way}={json.dumps(parts[way])[:150]}"
        elif way == "post_processor":
            parts[way] = processors(numbers, parts, config)
            names[-1] = f"{way}={json.dumps(parts[way])[:300]}"
        elif way == "model":
            key, values = numbers.choice(
                (
                    ("unk_token", (None, "<unk>", "[UNK]")),
                    ("fuse_unk", (True, False)),
                    ("byte_fallback", (True, False)),
                    ("ignore_merges", (True, False)),
                    ("dropout", (None, 0.0, 0.1)),
                    ("max_input_chars_per_word", (5, 100, 200)),
                    ("continuing_subword_prefix", ("", "##", "@@")),
                    ("end_of_word_suffix", ("", "</w>", None)),
                )
            )
            parts["model"][key] = numbers.choice(values)
            names[-1] = f"model.{key}={parts['model'][key]!r}"
        elif way == "added_tokens":
            vocabulary = parts["model"]["vocab"]
            if isinstance(vocabulary, list):
                vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
            every = {**vocabulary, **{token["content"]: token["id"] for token in parts["added_tokens"]}}
            new = added(numbers, len(every), every)
            parts["added_tokens"] = sorted([*parts["added_tokens"], *new], key=lambda token: token["id"])
            if "added_tokens_decoder" in config or numbers.random() < 0.3:
                decoder = {
                    str(token["id"]): {k: v for k, v in token.items() if k != "id"}
                    for token in parts["added_tokens"]
                }
                config["added_tokens_decoder"] = decoder
            names[-1] = f"added_tokens={new}"
        elif way == "cut":
            parts["truncation"] = {
                "max_length": 4,
                "strategy": "LongestFirst",
                "stride": 0,
                "direction": "Right",
            }
            parts["padding"] = {
                "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "x",
            }  # fmt: skip
        elif way == "decoder":
            parts["decoder"] = numbers.choice(
                (None, {"type": "Fuse"}, {"type": "WordPiece", "prefix": "##", "cleanup": True})
            )
    if parts is not None:
        path.write_text(json.dumps(parts), "utf-8")
    change(options, config)
    # Without the file, transformers would take another class, or put no first id before a text.
    own = kind != "bpe" and config.get("tokenizer_class") in (
        "T5Tokenizer",
        "GPT2Tokenizer",
        "MPNetTokenizer",
    )
    if not names and numbers.random() < 0.3 and options.is_file() and own:
        options.unlink()
        names.append("no tokenizer_config.json")
    return names


def make(number, attempt, folder):
    """Makes the files of folder `number`: returns its family and the names of what is changed."""
    numbers = random.Random(f"{number}-{attempt}")
    family, kind = KINDS[number % len(KINDS)](numbers, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return family, unusual(numbers, folder, kind)


def lines_of(number, kind, roles):
    """Returns hard lines that all of the documented differences leave out."""
    numbers = random.Random(f"{number}-lines")
    lines = [
        *TEXTS,
        *(" ".join(numbers.choices(ADDED, k=3)) for _ in range(8)),
        "",
        " ",
        "  x  y ",
        "the\tdog\n runs",
    ]
    lines += [compare_byte_level.noise(numbers, TEXTS) for _ in range(120)]
    return [line for line in dict.fromkeys(lines) if _comparable(line, kind, roles)]


def _comparable(line, kind, roles):
    if any(token and token in line for token in (*roles, *compare_byte_level.SPECIAL, "<tool_call>")):
        return False
    if kind == "byte_level":
        return True
    old = unicodedata.ucd_3_2_0
    if any(old.category(c) != unicodedata.category(c) for c in line):
        return False
    if any(old.category(c) in ("Co", "Cn", "Cc") and c not in "\t\n\r" for c in line):
        return False
    if kind == "word_pieces":
        return True
    # transformers loses a mark after a character that a map replaces.
    replaced = (unicodedata.normalize("NFKC", c).casefold() != c for c in line)
    if any(each and unicodedata.combining(c) for each, c in zip(replaced, line[1:], strict=False)):
        return False
    # In SentencePiece: no blank at an end, also not one that a normalizer makes, and no Hangul in NFD.
    return line == line.strip() and not any("\u1100" <= c <= "\u11ff" or c == "\ufeff" for c in line)


def compare(folder, family, number):
    """Compares a folder: returns "equal", "refused", "wrong", "crash" or "illegal", and a sentence."""
    import transformers

    try:
        there = transformers.AutoTokenizer.from_pretrained(folder)
        there("the dog")
    except Exception as error:  # transformers raises errors of many classes
        return "illegal", repr(error)
    kind = KINDS[number % len(KINDS)].__name__
    roles = {str(getattr(there, f"{role}_token", None) or "[UNK]") for role in ROLES}
    try:
        tokenizer = tokenizers_from_huggingface(folder)[0]
        before, after, between = _around(folder, family, tokenizer)
    except ValueError as error:
        return "refused", str(error)
    except Exception as error:
        return "crash", repr(error)
    if family in DECODERS:  # every special token is plain text in a text
        roles |= {token.content for token in there.added_tokens_decoder.values() if token.special}
    lines = lines_of(number, kind, roles)
    if family in ("pegasus", "m2m_100"):  # transformers keeps a blank before an added token as a piece
        lines = [line for line in lines if not any(f" {token}" in line for token in ADDED)]
    if family == "mbart":  # whose characters transformers does not normalise
        lines = [line for line in lines if unicodedata.normalize("NFKC", line) == line]
    found = tokenizer.tokenize(lines).to_list()
    wrong, pieces = [], _sentence_pieces(folder)
    alone = {"truncation": False, "padding": False}
    first_equal = found[0] == there(lines[0], add_special_tokens=False, **alone)["input_ids"]
    for line, own in zip(lines, found, strict=True):
        expected = there(line, add_special_tokens=False, **alone)["input_ids"]
        whole = there(line, **alone)["input_ids"]
        if own != expected:
            if tokenizer.pieces(own) != pieces(line):
                wrong.append((line, tokenizer.pieces(own), there.convert_ids_to_tokens(expected)))
        elif [*before, *own, *after] != whole:
            wrong.append((line, [*before, *own, *after], whole))
        elif between is not None and first_equal:
            pair = there(line, lines[0], **alone)["input_ids"]
            if [*before, *own, *between, *found[0], *after] != pair:
                wrong.append((line, [*before, *own, *between, *found[0], *after], pair))
    if wrong:
        return (
            "wrong",
            f"{len(wrong)} of {len(lines)} lines, {type(there).__name__}, such as {wrong[0]!r:.500}",
        )
    return "equal", ""


def _sentence_pieces(folder):
    """Returns a function that gives the pieces of SentencePiece itself, whose reading is the library's."""
    paths = sorted(folder.glob("*.model"))
    if not paths:
        return lambda line: None
    model = sentencepiece.SentencePieceProcessor(model_file=str(paths[0]))
    return lambda line: model.IdToPiece(model.EncodeAsIds(line))


def _around(folder, family, tokenizer):
    """Returns the ids that the library puts before and after a text, and between those of a pair or None."""
    if family in ENCODERS:
        bert = type(tokenizer).__name__ == "WordPieceTokenizer" and "[SEP]" in tokenizer.special_tokens
        count = 1 if bert or family == "modernbert" else 2
        return [tokenizer.bos_id], [tokenizer.eos_id], [tokenizer.eos_id] * count
    if family in DECODERS:
        starts = starts_with_bos(folder, FAMILIES[family].tokenizer, tokenizer.bos_id)
        return ([tokenizer.bos_id] if starts else []), [], None
    target = {"mbart": "en_XX", "m2m_100": "eng_Latn"}.get(family)
    _, options = translator_options(folder, tokenizer, None, target)
    return options["source_start"], options.get("source_end", (tokenizer.eos_id,)), None


def try_folder(number):
    """Makes folder `number` and compares it: returns the family, what is changed, the outcome and a sentence."""
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                family, names = make(number, attempt, Path(temporary))
            except Exception:  # the tokenizer cannot be trained with these options
                continue
            outcome, sentence = compare(Path(temporary), family, number)
            if outcome != "illegal":
                return family, names, outcome, sentence
    return "", [], "illegal", sentence


def main():
    """Prints a line for each folder that is neither equal nor refused, and the numbers of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folders", type=int, default=155)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--refused", action="store_true", help="show the sentences of refusals too")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    counts = collections.Counter()
    for number in range(options.first, options.first + options.folders):
        family, names, outcome, sentence = try_folder(number)
        counts[outcome] += 1
        if outcome != "equal" and (outcome != "refused" or options.refused):
            print(number, KINDS[number % len(KINDS)].__name__, family, names, outcome, sentence, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
