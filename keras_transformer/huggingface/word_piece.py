"""Reading of a WordPiece tokenizer: tokenizer.json, or vocab.txt and tokenizer_config.json."""

from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_json
from keras_transformer.huggingface.tokenizers import TOKENIZER_CONFIG, WORD_PIECE_TOKENS

# What `WordPieceTokenizer` does, in the words of tokenizer_config.json.
EXPECTED_CONFIG = {
    "do_basic_tokenize": True,
    "tokenize_chinese_chars": True,
    **{f"{name}_token": token for name, token in WORD_PIECE_TOKENS.items()},
}
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


def read_word_piece(folder):
    """Reads the `WordPieceTokenizer` of a folder.

    Raises:
        ValueError: If a file is missing or damaged, or asks for something that `WordPieceTokenizer` does not do.
    """
    from keras_transformer.text import WordPieceTokenizer  # loads tensorflow_text

    path = folder / TOKENIZER_CONFIG
    config = read_json(path) if path.is_file() else {}
    for key, value in config.items():
        if isinstance(value, dict) and "content" in value:  # a token with options of its own
            config[key] = value["content"]
    check_config(config, **EXPECTED_CONFIG)
    path = folder / "tokenizer.json"
    if not path.is_file():
        lower_case, strip_accents = config.get("do_lower_case", True), config.get("strip_accents")
        return WordPieceTokenizer(folder / "vocab.txt", lower_case, strip_accents)
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
    return WordPieceTokenizer(pieces, normalizer.get("lowercase", True), normalizer.get("strip_accents"))
