"""The classes of transformers' tokenizers: some take tokenizer.json as it is, others make their own parts."""

from keras_transformer.checks import check
from keras_transformer.huggingface.files import CONFIG, read_if_there

TOKENIZER_CONFIG = "tokenizer_config.json"
# These classes take tokenizer.json as it is. Others make the normalizer, and most of them the post-processor, from
# tokenizer_config.json and their own defaults.
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
# For these families transformers takes tokenizer.json as it is, whatever class is named.
AS_IT_IS = ("mistral", "ministral", "modernbert", "olmo2", "phi3", "umt5")
# The same for these families where no class is named.
WITHOUT_CLASS = ("llama", "smollm3")
# For these families transformers takes one class, whatever class is named.
ONE_CLASS = {"qwen2": "Qwen2Tokenizer"}


def class_of(folder):
    """Returns the name of a tokenizer's class without "Fast" at its end, a str; None where no file names one.

    Args:
        folder: A `pathlib.Path`.
    """
    if has_one_class(folder):
        return ONE_CLASS[family_of(folder)]
    names = (read_if_there(folder, file).get("tokenizer_class") for file in (TOKENIZER_CONFIG, CONFIG))
    name = next((name for name in names if name), None)
    return name if name is None or name in GENERIC else str(name).removesuffix("Fast")


def takes_file(folder):
    """Whether transformers takes tokenizer.json as it is.

    Args:
        folder: A `pathlib.Path`.
    """
    name, family = class_of(folder), family_of(folder)
    return name in GENERIC or family in AS_IT_IS or (name is None and family in WITHOUT_CLASS)


def family_of(folder):
    """Returns the `model_type` of a folder, or None.

    Args:
        folder: A `pathlib.Path`.
    """
    return read_if_there(folder, CONFIG).get("model_type")


def has_one_class(folder):
    """Whether transformers takes one class for the model's family, whatever class is named.

    Args:
        folder: A `pathlib.Path`.
    """
    return family_of(folder) in ONE_CLASS


def has_own_file(folder, name):
    """Whether the pieces are those of SentencePiece's own file: not where transformers takes tokenizer.json as it is.

    Args:
        folder: A `pathlib.Path`.
        name: Name of SentencePiece's file.
    """
    return (folder / name).is_file() and not (takes_file(folder) and (folder / "tokenizer.json").is_file())


def reader_of(read, *classes, generic=True):
    """Returns a function that reads a folder where its tokenizer is of one of these classes.

    Another class makes other parts of the same files, or puts other ids around a text.

    Args:
        read: `read(folder)` reads the tokenizers of a folder.
        *classes: Names of classes without "Tokenizer" at their end. A folder that names no class is read too.
        generic: Whether a class of `GENERIC` is allowed.
    """
    names = [f"{name}Tokenizer" for name in classes] + (list(GENERIC) if generic else [])

    def checked(folder):
        name = class_of(folder)
        rule = f"`tokenizer_class` of {TOKENIZER_CONFIG} or {CONFIG} must be one of {names} for these files."
        check(name is None or name in names or family_of(folder) in AS_IT_IS, rule, tokenizer_class=name)
        return read(folder)

    return checked


def check_roles(folder, tokenizer, **roles):
    """Raises `ValueError` where tokenizer_config.json gives another token a role whose id the tokenizer knows already.

    Args:
        folder: A `pathlib.Path`.
        tokenizer: The tokenizer.
        **roles: For each role, such as `cls`, the name of the tokenizer's attribute with its id, such as "bos_id".
    """
    config = read_if_there(folder, TOKENIZER_CONFIG)
    for role, name in roles.items():
        key = f"{role}_token"
        if key in config:
            token = config[key].get("content") if isinstance(config[key], dict) else config[key]
            token_id = getattr(tokenizer, name)
            own = None if token_id is None else tokenizer.pieces([token_id])[0]
            rule = f"`{key}` of {TOKENIZER_CONFIG} must be a piece, and the one that the family's models have: {own!r}."
            check(own is not None and token == own, rule, **{key: token})
