"""The languages of multilingual checkpoints: their ids, and where a model expects them."""

import logging
import re
from pathlib import Path

from keras_transformer.huggingface.files import (
    CONFIG,
    GENERATION_CONFIG,
    read_generation_config,
    read_if_there,
)
from keras_transformer.huggingface.tokenizers.kinds import TOKENIZER_CONFIG

log = logging.getLogger(__name__)

FILES = ("tokenizer.json", "special_tokens_map.json", TOKENIZER_CONFIG)
LISTS = ("added_tokens", "additional_special_tokens", "extra_special_tokens")
MASK = "<mask>"
START = "decoder_start_token_id"
LANGUAGE = re.compile("__[a-z]{2,3}__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
MARK = re.compile("_|>>")
NAME = "([a-z]{2,3}(?:_[A-Z][A-Za-z]{1,3})?)"  # "de", "deu", "de_DE", "deu_Latn"
# The families whose texts have ids of languages around them, and transformers' usual class of their tokenizer.
MULTILINGUAL = {"mbart": "MBartTokenizer", "m2m_100": "NllbTokenizer"}


def language_tokens(folder):
    """Reads the tokens of a checkpoint's languages, in the order of their ids.

    Args:
        folder: A path. The folder holds tokenizer.json, special_tokens_map.json or tokenizer_config.json.

    Returns:
        A list of str, such as `["deu_Latn", "eng_Latn"]`.

    Raises:
        ValueError: If none of the files names a token that is written like a language's.
    """
    for name in FILES:
        config = read_if_there(folder, name)
        listed = [token for key in LISTS for token in config.get(key) or ()]
        listed.sort(key=lambda token: token.get("id", 0) if isinstance(token, dict) else 0)
        names = [token.get("content") if isinstance(token, dict) else token for token in listed]
        names = [name for name in dict.fromkeys(names) if isinstance(name, str)]
        languages = [name for name in names if LANGUAGE.fullmatch(name)]
        if languages:
            return languages
    raise ValueError(
        f"`folder` must name its languages as special tokens in {' or '.join(FILES)}: their ids are unknown without. "
        f"Received: {folder}."
    )


def translator_options(folder, source_tokenizer, source_language=None, target_language=None):
    """Reads which ids transformers puts around the texts of an encoder-decoder.

    Args:
        folder: A path. The folder holds the checkpoint.
        source_tokenizer: Its tokenizer, or the one of its sources.
        source_language: The language of the sources, as the checkpoint names it: "de_DE" in mBART, "deu_Latn" in NLLB,
            "de" in M2M-100. None for `src_lang` of tokenizer_config.json.
        target_language: The language of the translations. None for the one that generation_config.json forces, or
            config.json where there is no such file. Marian's models with several target languages take it too, such
            as "deu".

    Returns:
        Two dicts: arguments of `from_huggingface`, and of `serving.Translator`.

    Raises:
        ValueError: If the model has no such language, or needs one that is not given.

    >>> import tempfile
    >>> from keras_transformer.text import ByteTokenizer
    >>> folder = tempfile.mkdtemp()
    >>> _ = Path(folder, "config.json").write_text('{"model_type": "t5"}')
    >>> translator_options(folder, ByteTokenizer())
    ({}, {'source_start': (), 'target_start': ()})
    """
    config, generation = read_if_there(folder, CONFIG), read_generation_config(folder)
    ids, forced = _start(config, generation), generation.get("forced_bos_token_id")
    target_start = () if forced is None else (forced,)
    model_type = config.get("model_type")
    if model_type not in MULTILINGUAL:
        start = (source_tokenizer.bos_id,) if model_type == "bart" else ()
        if target_language is not None:
            start = (_language_id(source_tokenizer, "target_language", target_language, ">>{}<<"), *start)
        if source_language is not None:
            raise ValueError(
                f"`source_language` must be None for a {model_type!r} model. Received: {source_language!r:.200}."
            )
        return ids, {"source_start": start, "target_start": target_start}
    tokenizer_config = read_if_there(folder, TOKENIZER_CONFIG)
    usual = "M2M100Tokenizer" if (Path(folder) / "vocab.json").is_file() else MULTILINGUAL[model_type]
    kind = (tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class") or usual).removesuffix(
        "Fast"
    )
    pattern = "__{}__" if kind == "M2M100Tokenizer" else "{}"
    if source_language is None:
        source_language = tokenizer_config.get("src_lang")
    source_id = _language_id(source_tokenizer, "source_language", source_language, pattern)
    eos_id = source_tokenizer.eos_id
    last = kind == "MBartTokenizer" or bool(tokenizer_config.get("legacy_behaviour"))
    options = {
        "source_start": () if last else (source_id,),
        "source_end": (eos_id, source_id) if last else (eos_id,),
        "target_start": target_start,
    }
    begin = ids.get("bos_id", config.get(START))
    starts_with_language = kind == "MBartTokenizer" and begin not in (None, eos_id)
    if target_language is None and (target_start or starts_with_language):
        return ids, options
    target_id = _language_id(source_tokenizer, "target_language", target_language, pattern)
    # Its decoder reads the language where others read eos.
    if kind == "MBartTokenizer":
        return {"bos_id": target_id}, {**options, "target_start": ()}
    return ids, {**options, "target_start": (target_id,)}


def _start(config, generation):
    """Returns the id that transformers begins outputs with, `{"bos_id": ...}`; `{}` where config.json has the same."""
    before, start = config.get(START), generation.get(START)
    start = generation.get("bos_token_id") if start is None else start
    if start in (None, before):
        return {}
    if before is not None:
        rule = "outputs begin with %s of %s, as in transformers, and not with %s=%s of %s"
        log.warning(rule, start, GENERATION_CONFIG, START, before, CONFIG)
    return {"bos_id": start}


def _language_id(tokenizer, argument, language, pattern):
    """Returns the id of a language's token."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    token = pattern.format(language)
    if language is None or token not in pieces:
        # The marks tell a language's token from an ordinary piece, such as "de".
        names = [re.fullmatch(pattern.format(NAME), piece) for piece in pieces if MARK.search(piece)]
        known = ", ".join(name[1] for name in names if name)
        raise ValueError(
            f"`{argument}` must be a language of the checkpoint: {known:.1500}. Received: {argument}={language!r:.200}."
        )
    return pieces.index(token)
