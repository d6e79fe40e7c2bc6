"""The tokenizers of a run: trained on its pairs, or read from a file or a folder."""

import re
from pathlib import Path

import numpy as np

from keras_transformer.checks import check, warn
from keras_transformer.huggingface import tokenizers_from_huggingface
from keras_transformer.serving import Translator
from keras_transformer.text import ByteTokenizer, SentencePieceTokenizer

NAMES = ("pad_id", "bos_id", "eos_id")
MOST_SYMBOLS = 1000  # that `keep` may find


def make_tokenizers(recipe, pairs):
    """Trains the tokenizers of a recipe, or reads those that its `tokenizer` names.

    Args:
        recipe: The `Recipe`.
        pairs: The training pairs, a sequence of (source, target) str.

    Returns:
        The source tokenizer and the target tokenizer; one object twice if they share a vocabulary.

    Raises:
        ValueError: If no vocabulary can be made from the pairs, or `tokenizer` names no tokenizers.
    """
    recipe = recipe.resolved()
    if recipe.has_own_tokenizers:
        return read_tokenizers(recipe.tokenizer)
    if recipe.tokenizer == "byte":
        shared = ByteTokenizer()
        return shared, shared

    # Of all pairs: a rare placeholder may be in none of the sample.
    both = (
        [[], []]
        if recipe.keep is None
        else [matches(recipe.keep, (pair[side] for pair in pairs)) for side in (0, 1)]
    )
    if recipe.keep is not None and not any(both):
        warn(
            f"`keep` matches nothing in the pairs, so no text is kept whole. Received: keep={recipe.keep!r:.200}."
        )

    def trained_on(sentences, symbols):
        return SentencePieceTokenizer.train(
            sentences,
            recipe.vocab_size,
            model_type=recipe.tokenizer,
            character_coverage=recipe.character_coverage,
            symbols=symbols,
        )

    if len(pairs) > recipe.vocab_sample:
        rng = np.random.default_rng(recipe.seed)
        numbers = rng.choice(len(pairs), recipe.vocab_sample, replace=False, shuffle=False)
        pairs = [pairs[i] for i in np.sort(numbers)]
    sources, targets = zip(*pairs, strict=True)
    if recipe.separate_vocabularies:
        return trained_on(sources, both[0]), trained_on(targets, both[1])
    shared = trained_on([*sources, *targets], dict.fromkeys([*both[0], *both[1]]))
    return shared, shared


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
        ValueError: If it is not a regular expression, matches an empty text, or has more than 1000 different matches.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"`keep` must be a regular expression: {error}. Received: keep={pattern!r}."
        ) from None
    matches = dict.fromkeys(match[0] for sentence in sentences for match in compiled.finditer(sentence))
    check("" not in matches, "`keep` must not match an empty text.", keep=pattern)
    rule = f"`keep` must have at most {MOST_SYMBOLS} different matches: each is an id of the vocabulary."
    check(len(matches) <= MOST_SYMBOLS, rule, keep=pattern, matches=len(matches))
    return list(matches)
