"""Reading and writing of a WordPiece tokenizer: tokenizer.json, or vocab.txt and tokenizer_config.json."""

import logging

from keras_transformer.checks import check
from keras_transformer.data import read_lines
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_if_there, read_json
from keras_transformer.huggingface.tokenizers.added_tokens import added_tokens_decoder, read_added_tokens
from keras_transformer.huggingface.tokenizers.classes import reader_of, takes_file
from keras_transformer.huggingface.tokenizers.kinds import (
    TOKENIZER_CONFIG,
    WORD_PIECE_TOKENS,
    TokenizerKind,
    check_properties,
    check_tokenizers,
    without_sequence,
    write_tokenizer_config,
)
from keras_transformer.huggingface.tokenizers.post_processor import check_ends

log = logging.getLogger(__name__)

MPNET_TOKENS = {"pad": "<pad>", "unk": "[UNK]", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
# The options of `WordPieceTokenizer`, as tokenizer_config.json names them.
EXPECTED_CONFIG = {"do_basic_tokenize": True}
# Options of tokenizer_config.json, the same in tokenizer.json, and transformers' defaults.
OPTIONS = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
# The same, as tokenizer.json names them.
EXPECTED_PARTS = {
    "normalizer": {"type": "BertNormalizer", "clean_text": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}


def read_word_piece(folder, tokens=WORD_PIECE_TOKENS, separators=1):
    """Reads the `WordPieceTokenizer` of a folder.

    Where tokenizer_config.json and tokenizer.json differ in the case, accents or ideographs, the first counts, with
    transformers' defaults. Only for the classes of transformers that take tokenizer.json as it is, that file counts.

    Args:
        folder: A `pathlib.Path`.
        tokens: A dict of the special tokens: "pad", "unk", "cls", "sep", "mask".
        separators: How many tokens "sep" stand between the texts of a pair.

    Raises:
        ValueError: If a file is missing or damaged, or asks for something that `WordPieceTokenizer` does not do.
    """
    from keras_transformer.text import WordPieceTokenizer  # loads tensorflow_text

    config = read_if_there(folder, TOKENIZER_CONFIG)
    for key, value in config.items():
        # A token may have options of its own.
        if isinstance(value, dict) and "content" in value:
            config[key] = value["content"]
    check_config(
        config,
        TOKENIZER_CONFIG,
        **EXPECTED_CONFIG,
        **{f"{key}_token": token for key, token in tokens.items()},
    )
    special, generic = tuple(tokens.values()), takes_file(folder)
    options = {key: config.get(key, usual) for key, (_, usual) in OPTIONS.items()}
    path = folder / "tokenizer.json"
    if path.is_file():
        pieces, stored = _read_json(path)
        differing = [key for key in OPTIONS if _effect(options)[key] != _effect(stored)[key]]
        if differing and not generic:
            log.warning(
                "transformers takes %s of tokenizer_config.json, or its default, in place of %s in tokenizer.json",
                {key: options[key] for key in differing},
                {OPTIONS[key][0]: stored[key] for key in differing},
            )
        options = stored if generic else options
    else:
        pieces = read_lines(folder / "vocab.txt")
    all_pieces, added = read_added_tokens(folder, pieces, roles=special)
    check_config(options, "the tokenizer", tokenize_chinese_chars=True)
    tokenizer = WordPieceTokenizer(pieces, options["do_lower_case"], options["strip_accents"], special, added)
    same = tokenizer.pieces(range(tokenizer.vocab_size)) == all_pieces
    check(same, "Added tokens with a role must be in the vocabulary.", added_tokens=all_pieces[len(pieces) :])
    ends = [tokenizer.cls_id], [tokenizer.sep_id], [tokenizer.sep_id] * separators
    check_ends(folder, *ends)
    return tokenizer


def lowers_case(folder):
    """Whether a folder has a WordPiece tokenizer that makes all letters small.

    Args:
        folder: A `pathlib.Path`.
    """
    path, config = folder / "tokenizer.json", read_if_there(folder, TOKENIZER_CONFIG)
    if path.is_file():
        if (read_json(path).get("model") or {}).get("type") != "WordPiece":
            return False
        if takes_file(folder):
            return bool(_read_json(path)[1]["do_lower_case"])
    elif not (folder / "vocab.txt").is_file():
        return False
    return bool(config.get("do_lower_case", True))


def _read_json(path):
    """Returns the pieces of tokenizer.json in the order of their ids, and its `OPTIONS`."""
    parts = read_json(path)
    parts["normalizer"] = without_sequence(parts.get("normalizer"), "normalizers")
    parts["pre_tokenizer"] = without_sequence(parts.get("pre_tokenizer"), "pretokenizers")
    for name, expected in EXPECTED_PARTS.items():
        part = parts.get(name)
        check_config({"type": "none", **(part if isinstance(part, dict) else {})}, path.name, **expected)
    vocabulary, normalizer = parts["model"].get("vocab"), parts["normalizer"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else [None]
    if not all(isinstance(each, int) for each in ids) or {*ids} != {*range(len(ids))}:
        raise ValueError(f"`vocab` of {path} must have the ids from 0 on, each once.")
    options = {key: normalizer.get(name, usual) for key, (name, usual) in OPTIONS.items()}
    return sorted(vocabulary, key=vocabulary.get), options


def _effect(options):
    """Returns options in which accents that go with the case are spelled out."""
    strip = options["strip_accents"]
    return {**options, "strip_accents": options["do_lower_case"] if strip is None else strip}


def _kind(family, tokenizer_class, tokens, separators=1, classes=()):
    """Makes the `TokenizerKind` of WordPiece with these special tokens, of these classes of transformers."""

    def write(tokenizers, folder, model):
        """Writes vocab.txt, with one piece in a line, and tokenizer_config.json."""
        (tokenizer,) = check_tokenizers(family, tokenizers, "WordPieceTokenizer", model)
        check_properties(family, special_tokens=(tokenizer.special_tokens, tuple(tokens.values())))
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        words = pieces[: tokenizer.num_pieces]
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in words), "utf-8", newline="")
        added = added_tokens_decoder(tokenizer.added_tokens, pieces)
        write_tokenizer_config(
            folder,
            tokenizer_class,
            tokens,
            do_lower_case=tokenizer.lower_case,
            strip_accents=tokenizer.strip_accents,
            **({"added_tokens_decoder": added} if added else {}),
            model_max_length=model.embeddings.positions.max_length,
        )

    return TokenizerKind(
        (("tokenizer.json", "vocab.txt"),),
        reader_of(lambda folder: (read_word_piece(folder, tokens, separators),), *classes),
        write,
    )


ALIKE = ("Bert", "DistilBert", "Electra", "Ernie", "MobileBert", "ConvBert", "SqueezeBert", "RetriBert")
WORD_PIECE = _kind("bert", "BertTokenizer", WORD_PIECE_TOKENS, classes=ALIKE)
MPNET_WORD_PIECE = _kind("mpnet", "MPNetTokenizer", MPNET_TOKENS, 2, ("MPNet",))
