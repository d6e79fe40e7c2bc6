"""Kinds of tokenizers, checks of those that are written into folders, and the file tokenizer_config.json."""

from collections.abc import Callable
from dataclasses import dataclass

from keras_transformer.checks import check
from keras_transformer.huggingface.configs import check_config
from keras_transformer.huggingface.files import read_if_there, write_json
from keras_transformer.huggingface.tokenizers.classes import TOKENIZER_CONFIG, class_of, takes_file
from keras_transformer.huggingface.tokenizers.post_processor import FILE, ids_around, puts_first

# transformers writes 10**30 for no limit.
NO_LIMIT = 10**9
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # SentencePiece's numbers
WORD_PIECE_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SENTENCE_PIECE_TOKENS = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}


@dataclass(frozen=True)
class TokenizerKind:
    """How tokenizers of a kind are read from a folder and written into one.

    Attributes:
        files: Files that are needed: a tuple for each, with the names that it may have.
        read: `read(folder)` reads the tokenizers of a folder: a tuple of the source's and the target's, or of one for
            both.
        write: `write(tokenizers, folder, model)` writes their files.
        starts_with_bos: Whether transformers puts `bos_token` before a prompt where tokenizer_config.json does not say.
    """

    files: tuple
    read: Callable
    write: Callable
    starts_with_bos: bool = True


def without_sequence(part, name):
    """Returns the only part of a Sequence, None for an empty one, and any other part as it is."""
    listed = part.get(name) if isinstance(part, dict) and part.get("type") == "Sequence" else None
    return part if not isinstance(listed, list) or len(listed) > 1 else next(iter(listed), None)


def starts_with_bos(folder, kind, bos_id):
    """Whether transformers puts `bos_token` before each prompt.

    Args:
        folder: A `pathlib.Path`.
        kind: The `TokenizerKind`.
        bos_id: The tokenizer's id of `bos_token`, an int or None.

    Raises:
        ValueError: If other ids stand around a prompt.
    """
    config = read_if_there(folder, TOKENIZER_CONFIG)
    check_config(config, TOKENIZER_CONFIG, add_eos_token=False)
    asked, puts_first_id = config.get("add_bos_token"), puts_first(folder, bos_id)
    if puts_first_id is not None:
        rule = f"`add_bos_token` of {TOKENIZER_CONFIG} must be what `post_processor` of {FILE} does."
        check(asked in (None, puts_first_id), rule, add_bos_token=asked, puts_bos_first=puts_first_id)
        return puts_first_id
    if takes_file(folder) and (folder / FILE).is_file():
        return bool(asked)
    # GPT-2's class puts none, whatever the family is (SmolLM).
    usual = kind.starts_with_bos and class_of(folder) != "GPT2Tokenizer"
    return usual if asked is None else bool(asked)


def writes_bos(model, usual):
    """Whether a written tokenizer puts `bos_token` before each text: as the one that the model was read with did.

    Args:
        model: The model.
        usual: A bool for a model that was not read.
    """
    return model.checkpoint_files.get(TOKENIZER_CONFIG, {}).get("add_bos_token", usual)


def tokenizer_limit(folder):
    """Returns the largest number of tokens of a text in tokenizer_config.json, an int or None."""
    limit = read_if_there(folder, TOKENIZER_CONFIG).get("model_max_length")
    return limit if isinstance(limit, int) and limit < NO_LIMIT else None


def with_ends(tokenizer, folder):
    """Returns the tokenizer of a language model that makes vectors, with the ids around a text as its own.

    Args:
        tokenizer: The tokenizer that the files describe.
        folder: A `pathlib.Path`.

    Returns:
        A tokenizer, whose `eos_id` ends a text and whose `pad_id` is in no text; and whether `bos_id` begins a text.

    Raises:
        ValueError: If nothing ends a text, or other ids stand around it.
    """
    config = read_if_there(folder, TOKENIZER_CONFIG)
    asked = {key: config.get(key) for key in ("add_bos_token", "add_eos_token")}
    if any(value is not None for value in asked.values()):
        first = [tokenizer.bos_id] if asked["add_bos_token"] else []
        last = [tokenizer.eos_id] if asked["add_eos_token"] else []
    else:
        first, last = ids_around(folder)
    rule = (
        "A token must end each text in a model that makes vectors, and none but `bos_token` may begin it: by "
        f"`add_bos_token` and `add_eos_token` of {TOKENIZER_CONFIG}, or by `post_processor` of tokenizer.json."
    )
    fits = first in ([], [tokenizer.bos_id]) and len(last) == 1 and None not in (*first, *last)
    check(fits, rule, **asked, before=first, after=last)
    return _with_end(tokenizer, last[0]), bool(first)


def _with_end(tokenizer, end_id):
    """Returns a tokenizer whose `eos_id` is an id, and whose `pad_id` is that of another special token."""
    if tokenizer.eos_id == end_id and tokenizer.pad_id not in (None, end_id):
        return tokenizer
    from keras_transformer.text import BytePairTokenizer  # loads TensorFlow

    rule = "`pad_token` must not be the token that ends a text, in a model that makes vectors."
    check(isinstance(tokenizer, BytePairTokenizer), rule, pad_id=tokenizer.pad_id, end_id=end_id)
    config = tokenizer.get_config()
    (end,) = tokenizer.pieces([end_id])
    # Special tokens are plain text in a text, so any other one can fill rows up.
    others = [token for token in (config["pad_token"], *config["special_tokens"]) if token not in (None, end)]
    check(others, "The tokenizer must have a special token that is not the end of a text.", end=end)
    return BytePairTokenizer(**{**config, "eos_token": end, "pad_token": others[0]})


def first_of(*kinds):
    """Joins kinds: the first that does not refuse a folder reads it, and the first that takes tokenizers writes them.

    Where all refuse, the error has the reason of each.
    """

    def tried(step, *arguments):
        reasons = []
        for kind in kinds:
            try:
                return getattr(kind, step)(*arguments)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(" Or: ".join(reasons))

    files = tuple(dict.fromkeys(name for kind in kinds for names in kind.files for name in names))
    return TokenizerKind(
        (files,),
        lambda folder: tried("read", folder),
        lambda tokenizers, folder, model: tried("write", tokenizers, folder, model),
    )


def check_properties(family, **properties):
    """Raises `ValueError` for a property that the tokenizers of a family do not have.

    Args:
        family: The `model_type`.
        **properties: For each property a pair: the value, and what it must be. A class means an object of just that
            class; anything else means an equal value.
    """
    for name, (received, expected) in properties.items():
        if isinstance(expected, type):
            fits, rule = type(received) is expected, f"a `{expected.__name__}`"
        else:
            fits, rule = received == expected, repr(expected)
        if not fits:
            raise ValueError(
                f"`{name}` of a {family!r} model must be {rule}. Received: {name}={received!r:.200}."
            )


def check_tokenizers(family, tokenizers, kind, model, max_count=1):
    """Checks the tokenizers that a caller wants to write.

    Args:
        family: The `model_type`.
        tokenizers: A tuple of one tokenizer, or of the source's and the target's.
        kind: Name of the class of the tokenizers in `keras_transformer.text`.
        model: The model; the tokenizers must have its ids.
        max_count: 2 for a family whose sources and targets have tokenizers of their own, else 1.

    Returns:
        A tuple of `max_count` tokenizers. One tokenizer serves for both sides.

    Raises:
        ValueError: If there are too many tokenizers, or one has another class, more ids than the model, or other ids of
            special tokens.
    """
    from keras_transformer.text import TOKENIZERS  # loads TensorFlow

    source, target = tokenizers[0], tokenizers[-1]
    rule = f"`tokenizers` of a {family!r} model must be {max_count} at most."
    check(len(tokenizers) <= 2 and (max_count != 1 or source is target), rule, tokenizers=tokenizers)
    for side, tokenizer in (("source_", source), ("target_", target)):
        check_properties(family, tokenizer=(tokenizer, TOKENIZERS[kind]))
        sizes = [getattr(model, f"{name}vocab_size", None) for name in (side, "target_", "")]
        size = next(filter(None, sizes))
        if tokenizer.vocab_size > size:
            raise ValueError(
                f"`tokenizers` must have no more ids than the model. Received: {side}vocab_size={size}, and a "
                f"tokenizer of {tokenizer.vocab_size}."
            )
        for name in ("pad_id", "eos_id", "cls_id", "sep_id"):
            model_id, tokenizer_id = getattr(model, name, None), getattr(tokenizer, name, None)
            # Without an id for padding, a model uses the one of the end, or Whisper the first one.
            first, end = (getattr(model, key, None) for key in ("bos_id", "eos_id"))
            no_padding = name == "pad_id" and (model_id == end or (model_id, tokenizer_id) == (first, end))
            if None not in (model_id, tokenizer_id) and model_id != tokenizer_id and not no_padding:
                raise ValueError(
                    f"`tokenizers` must have the model's ids. Received: {name}={model_id}, and a tokenizer of "
                    f"{name}={tokenizer_id}."
                )
    return (source, target)[:max_count]


def check_sentence_piece(family, tokenizer, **expected):
    """Raises `ValueError` for a SentencePiece model that transformers would read as another one.

    Args:
        family: The `model_type`.
        tokenizer: A `SentencePieceTokenizer`.
        **expected: Properties that transformers takes for granted in the family's models: `ids` (a tuple of the first
            pieces), `model_type`, `bytes` (whether it has pieces for bytes), `charsmap` (whether it normalises
            characters), `remove_extra_whitespaces`, `add_dummy_prefix`.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    pieces = [piece.piece for piece in model.pieces]
    received = {
        "model_type": MODEL_TYPES[model.trainer_spec.model_type],
        "ids": tuple(pieces[: len(expected.get("ids", ()))]),
        "bytes": "<0x00>" in pieces,
        "charsmap": bool(model.normalizer_spec.precompiled_charsmap),
        "remove_extra_whitespaces": model.normalizer_spec.remove_extra_whitespaces,
        "add_dummy_prefix": model.normalizer_spec.add_dummy_prefix,
    }
    check_properties(
        family, **{f"tokenizer's {name}": (received[name], rule) for name, rule in expected.items()}
    )


def write_tokenizer_config(folder, tokenizer_class, tokens, **more_keys):
    """Writes tokenizer_config.json.

    Args:
        folder: A `pathlib.Path`.
        tokenizer_class: Name of transformers' class.
        tokens: A dict of the special tokens: "pad", "unk" and so on.
        **more_keys: Further keys of the file.
    """
    token_keys = {f"{name}_token": token for name, token in tokens.items()}
    write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": tokenizer_class, **token_keys, **more_keys})


def check_read_back(given, read_back):
    """Raises `ValueError` where tokenizers that were written and read again have other pieces than the given ones."""
    for tokenizer, other in zip(given, read_back, strict=True):
        added, other_added = (getattr(each, "added_tokens", ()) for each in (tokenizer, other))
        rule = "`tokenizers` must have no added tokens that the family's files do not hold."
        check(added == other_added, rule, added_tokens=added)
        pieces, other_pieces = (each.pieces(range(each.vocab_size)) for each in (tokenizer, other))
        if pieces != other_pieces:
            same = [piece == other for piece, other in zip(pieces, other_pieces, strict=False)]
            first = same.index(False) if False in same else len(same)
            raise ValueError(
                "`tokenizers` must have the ids that the family's files have. "
                f"Received: {len(pieces)} pieces, whose id {first} would be another there."
            )
