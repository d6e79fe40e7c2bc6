"""Tokenizers that a run does not make, from a file or a folder; and the symbols of those that it makes."""

import re
from pathlib import Path

from keras_transformer.checks import check
from keras_transformer.huggingface import tokenizers_from_huggingface
from keras_transformer.serving import Translator
from keras_transformer.text import SentencePieceTokenizer

NAMES = ("pad_id", "bos_id", "eos_id")
MOST_SYMBOLS = 1000  # that `keep` may find


def read_tokenizers(path):
    """Reads tokenizers.

    Args:
        path: A SentencePiece model, or a file that `SentencePieceTokenizer.save` wrote; the folder of a run, of a saved
            translator or of a Hugging Face checkpoint.

    Returns:
        The source tokenizer and the target tokenizer; one object twice if they share a vocabulary.

    Raises:
        ValueError: If there is no such file or folder, or it holds no tokenizers.
    """
    path = Path(path)
    if (path / Translator.DESCRIPTION).is_file():
        tokenizers = Translator.load_tokenizers(path)
    elif path.is_dir():
        rule = (
            "A folder as `tokenizer` must be that of a run, a saved translator or a Hugging Face checkpoint."
        )
        check((path / "config.json").is_file(), rule, tokenizer=str(path))
        tokenizers = tokenizers_from_huggingface(path)
    else:
        rule = "`tokenizer` must be unigram, bpe, byte, the file of a SentencePiece model, or a folder."
        check(path.is_file(), rule, tokenizer=str(path))
        tokenizers = (SentencePieceTokenizer.load(path),)
    return tokenizers[0], tokenizers[-1]


def ids_and_sizes(source, target):
    """Returns the special ids and the numbers of ids of a model for two tokenizers.

    A special id that the tokenizers lack is a new one after their vocabularies.

    Args:
        source: The source tokenizer.
        target: The target tokenizer, which may be the same object.

    Returns:
        A dict of `pad_id`, `bos_id` and `eos_id`; and the pair of the source's and the target's number of ids.

    Raises:
        ValueError: If the tokenizers have different ids for padding or for the end.

    >>> from keras_transformer.text import ByteTokenizer
    >>> ids_and_sizes(ByteTokenizer(), ByteTokenizer())
    ({'pad_id': 0, 'bos_id': 2, 'eos_id': 3}, (260, 260))
    """
    ids, sizes = {}, (source.vocab_size, target.vocab_size)
    for name in NAMES:
        own = (
            [getattr(target, name)]
            if name == "bos_id"
            else [getattr(each, name) for each in (source, target)]
        )
        rule = f"Both tokenizers must have the same `{name}`."
        check(len(set(own)) == 1, rule, source=own[0], target=own[-1])
        ids[name] = own[0]
        if own[0] is None:
            ids[name] = max(sizes)
            sizes = (max(sizes) + 1,) * 2
    return ids, sizes


def matches(pattern, sentences):
    r"""Returns the different matches of a regular expression in sentences, in the order of their first occurrence.

    >>> matches(r"\{\w+\}", ["Hi {name}", "{name} of {place}"])
    ['{name}', '{place}']

    Args:
        pattern: The regular expression, a str.
        sentences: Iterable of str.

    Raises:
        ValueError: If it is no regular expression, matches an empty text, or has more than 1000 different matches.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"`keep` must be a regular expression: {error}. Received: keep={pattern!r}."
        ) from None
    found = dict.fromkeys(match[0] for sentence in sentences for match in compiled.finditer(sentence))
    check("" not in found, "`keep` must not match an empty text.", keep=pattern)
    rule = f"`keep` must have at most {MOST_SYMBOLS} different matches: each is an id of the vocabulary."
    check(len(found) <= MOST_SYMBOLS, rule, keep=pattern, matches=len(found))
    return list(found)
