"""Reading and writing of a WordPiece tokenizer: tokenizer.json, or vocab.txt and tokenizer_config.json."""

from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_if_there, read_json
from keras_transformer.huggingface.parts import check_parts
from keras_transformer.huggingface.tokenizers import (
    TOKENIZER_CONFIG,
    WORD_PIECE_TOKENS,
    TokenizerKind,
    check_tokenizers,
    write_tokenizer_config,
)

MPNET_TOKENS = {"pad": "<pad>", "unk": "[UNK]", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
# What `WordPieceTokenizer` does, in the words of tokenizer_config.json.
EXPECTED_CONFIG = {"do_basic_tokenize": True, "tokenize_chinese_chars": True}
# The same in the words of tokenizer.json.
EXPECTED_PARTS = {
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}


def read_word_piece(folder, tokens=WORD_PIECE_TOKENS):
    """Reads the `WordPieceTokenizer` of a folder.

    Args:
        folder: A `pathlib.Path`.
        tokens: A dict of the special tokens: "pad", "unk", "cls", "sep", "mask".

    Raises:
        ValueError: If a file is missing or damaged, or asks for something that `WordPieceTokenizer` does not do.
    """
    from keras_transformer.text import WordPieceTokenizer  # loads tensorflow_text

    config = read_if_there(folder, TOKENIZER_CONFIG)
    for key, value in config.items():
        if isinstance(value, dict) and "content" in value:  # a token with options of its own
            config[key] = value["content"]
    check_config(config, **EXPECTED_CONFIG, **{f"{name}_token": token for name, token in tokens.items()})
    special = tuple(tokens.values())
    path = folder / "tokenizer.json"
    if not path.is_file():
        lower_case, strip_accents = config.get("do_lower_case", True), config.get("strip_accents")
        return WordPieceTokenizer(folder / "vocab.txt", lower_case, strip_accents, special)
    parts = read_json(path)
    for name, expected in EXPECTED_PARTS.items():
        part = parts.get(name)
        check_config({"type": "none", **(part if isinstance(part, dict) else {})}, **expected)
    vocabulary, normalizer = parts["model"].get("vocab"), parts["normalizer"]
    ids = sorted(vocabulary.values()) if isinstance(vocabulary, dict) else None
    if ids != list(range(len(vocabulary or ()))):
        raise ValueError(f"`vocab` of {path} must have the ids from 0 on, each once.")
    unknown = [token for token in parts.get("added_tokens") or () if token.get("content") not in vocabulary]
    if unknown:
        raise ValueError(f"`added_tokens` of {path} must be in its vocabulary. Received: {unknown[0]}.")
    pieces = sorted(vocabulary, key=vocabulary.get)
    return WordPieceTokenizer(
        pieces, normalizer.get("lowercase", True), normalizer.get("strip_accents"), special
    )


def _kind(family, tokenizer_class, tokens):
    """Makes the `TokenizerKind` of WordPiece with these special tokens."""

    def write(tokenizers, folder, model):
        """Writes vocab.txt, with one piece in a line, and tokenizer_config.json."""
        (tokenizer,) = check_tokenizers(family, tokenizers, "WordPieceTokenizer", model)
        check_parts(family, special_tokens=(tokenizer.special_tokens, tuple(tokens.values())))
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8", newline="")
        write_tokenizer_config(
            folder,
            tokenizer_class,
            tokens,
            do_lower_case=tokenizer.lower_case,
            strip_accents=tokenizer.strip_accents,
            model_max_length=model.positions.max_length,
        )

    return TokenizerKind(
        (("tokenizer.json", "vocab.txt"),), lambda folder: (read_word_piece(folder, tokens),), write
    )


WORD_PIECE = _kind("bert", "BertTokenizer", WORD_PIECE_TOKENS)
MPNET_WORD_PIECE = _kind("mpnet", "MPNetTokenizer", MPNET_TOKENS)
