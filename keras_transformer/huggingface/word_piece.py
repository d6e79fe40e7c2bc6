"""The files of a WordPiece tokenizer: tokenizer.json, or vocab.txt and tokenizer_config.json."""

from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_object

# Their words for what ours does.
CONFIG = {
    "do_basic_tokenize": True,
    "tokenize_chinese_chars": True,
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
PARTS = {
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}


def word_piece(folder):
    """The `WordPieceTokenizer` of a folder.

    Raises:
        ValueError: If a file is missing or damaged, or asks for what ours does not do.
    """
    from keras_transformer.text import WordPieceTokenizer  # loads tensorflow_text

    config = folder / "tokenizer_config.json"
    said = read_object(config) if config.is_file() else {}
    for key, value in said.items():
        if isinstance(value, dict) and "content" in value:  # a token with options of its own
            said[key] = value["content"]
    check_config(said, **CONFIG)
    whole = folder / "tokenizer.json"
    if not whole.is_file():
        lower_case, strip_accents = said.get("do_lower_case", True), said.get("strip_accents")
        return WordPieceTokenizer(folder / "vocab.txt", lower_case, strip_accents)
    parts = read_object(whole)
    for name, expected in PARTS.items():
        found = parts.get(name)
        check_config({"type": "none", **(found if isinstance(found, dict) else {})}, **expected)
    vocabulary, normalizer = parts["model"].get("vocab"), parts["normalizer"]
    ids = sorted(vocabulary.values()) if isinstance(vocabulary, dict) else None
    if ids != list(range(len(vocabulary or ()))):
        raise ValueError(f"`vocab` of {whole} must have the ids from 0 on, each once.")
    outside = [token for token in parts.get("added_tokens") or () if token.get("content") not in vocabulary]
    if outside:
        raise ValueError(f"`added_tokens` of {whole} must be in its vocabulary. Received: {outside[0]}.")
    pieces = sorted(vocabulary, key=vocabulary.get)
    return WordPieceTokenizer(pieces, normalizer.get("lowercase", True), normalizer.get("strip_accents"))
