"""The options of the search: what `translate`, `evaluate`, `export`, `show` and `generate` have in common."""

import dataclasses
import re

from keras_transformer.cli.command_parser import NO_DEFAULT

# The options of a beam and of sampling, and the arguments of `Beam` and `Sample` that they are.
BEAM_OPTIONS = {
    "beam_width": "width",
    "length_penalty": "length_penalty",
    "normalization": "normalization",
    "n_best": "n_best",
}
SAMPLE_OPTIONS = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "seed": "seed"}
# The options of constraints, and the classes that they make.
CONSTRAINT_OPTIONS = {
    "min_length": "MinLength",
    "repetition_penalty": "RepetitionPenalty",
    "no_repeat_ngram": "NoRepeatNgram",
    "suppress": "SuppressTokens",
}
# Those of `Beam`, whose module imports Keras.
NORMALIZATIONS = ("wu", "length")
# Values of `--suppress` that look like a piece with a meaning, not like a word.
SPECIAL = re.compile(r"<[^<>]*>$|\[[^\[\]]*\]$|\u2581|##|\u0120")
SEARCH_OPTIONS = (*BEAM_OPTIONS, *SAMPLE_OPTIONS, *CONSTRAINT_OPTIONS)


def add_search_options(parser):
    """Adds the options of the search, and returns their group. An option that is not given keeps its saved value."""
    saved = "An option that is left out keeps the value that is saved with the model: after `train`, greedy search."
    group = parser.add_argument_group("search", saved, **NO_DEFAULT)
    group.add_argument(
        "--beam-width", type=int, help="number of open hypotheses at each step; 1 for greedy search"
    )
    group.add_argument(
        "--length-penalty",
        type=float,
        help="with a beam: 0 for none; a larger value favours longer outputs (default: as saved, or 0.6)",
    )
    group.add_argument(
        "--normalization",
        choices=NORMALIZATIONS,
        help="with a beam: how scores are normalized, by the length penalty of Wu et al. or by the length itself "
        "(default: as saved, or wu)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        help="draw the tokens at random, with logits divided by it: below 1 likely tokens get likelier, at 0 only the "
        "likeliest is drawn",
    )
    group.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest tokens; 0 for all")
    group.add_argument(
        "--top-p", type=float, help="draw from the fewest tokens that hold this probability together"
    )
    group.add_argument("--seed", type=int, help="draw the same tokens each time")
    group.add_argument(
        "--min-length", type=int, metavar="N", help="smallest number of tokens in an output, its end included"
    )
    group.add_argument(
        "--repetition-penalty", type=float, help="above 1, tokens that have occurred become less likely"
    )
    group.add_argument(
        "--no-repeat-ngram", type=int, metavar="N", help="no sequence of N tokens occurs twice in an output"
    )
    group.add_argument(
        "--suppress",
        nargs="+",
        metavar="WORD",
        help="words that no output has, in any spelling; and pieces of the vocabulary, such as <unk>",
    )
    return group


def strategy_of(strategy, given):
    """Returns the strategy of the search.

    Args:
        strategy: The saved strategy.
        given: The options that were given, a dict.

    Returns:
        The saved strategy; or a beam or a `Sample` with the given options.

    Raises:
        ValueError: If options of a beam are given without a beam, or with options of sampling.
    """
    from keras_transformer.decoding import Beam, DiverseBeam, Sample

    beam, sample = (
        {options[name]: value for name, value in given.items() if name in options}
        for options in (BEAM_OPTIONS, SAMPLE_OPTIONS)
    )
    if beam and sample:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given if name not in CONSTRAINT_OPTIONS)
        raise ValueError(f"Give options of a beam or of sampling, not both. Received: {names}.")
    if sample:
        return dataclasses.replace(strategy if isinstance(strategy, Sample) else Sample(), **sample)
    if not beam:
        return strategy
    is_beam = isinstance(strategy, (Beam, DiverseBeam))
    if "width" not in beam and not is_beam:
        raise ValueError(
            "--length-penalty, --normalization and --n-best are options of a beam: give --beam-width too."
        )
    return dataclasses.replace(strategy if is_beam else Beam(), **beam)


def constraints_of(servable, given):
    """Returns the constraints of the search: those that were given, and the saved ones of other classes.

    Args:
        servable: A `Translator` or a `TextGenerator`.
        given: The options that were given, a dict.

    Raises:
        ValueError: If `suppress` names a special piece that the vocabulary lacks, or a value is out of range.
    """
    from keras_transformer.decoding import CONSTRAINTS

    made = []
    for option, name in CONSTRAINT_OPTIONS.items():
        if option == "suppress" and option in given:
            made += _suppressed(servable, given[option])
        elif option in given:
            made.append(CONSTRAINTS[name](given[option]))
    # By class: an `ExcludeTokens` is a `SuppressTokens`, too.
    kinds = {type(each) for each in made}
    return [*(each for each in servable.constraints if type(each) not in kinds), *made]


def _suppressed(servable, values):
    """Returns the constraints that forbid words, and pieces of the vocabulary of the outputs.

    A value is a piece where it is one that is not written as it is spelled, such as `<unk>` or `\u2581student`.

    Raises:
        ValueError: For a special piece that the vocabulary lacks.
    """
    from keras_transformer.decoding import ForbidWords, SuppressTokens

    tokenizer = servable.tokenizers[-1]
    known = tokenizer.pieces(range(tokenizer.vocab_size))
    texts = [text.decode("utf-8", "replace").strip() for text in tokenizer.written()]
    ids = {piece: i for i, piece in enumerate(known) if piece != texts[i]}
    words = [value for value in values if value not in ids]
    for word in words:
        if not word.strip() or SPECIAL.match(word):
            raise ValueError(
                f"--suppress must name words or pieces of the vocabulary. Received: {word!r:.200}."
            )
    pieces = [ids[value] for value in values if value in ids]
    return [
        *([SuppressTokens(pieces)] if pieces else []),
        *([ForbidWords.of(words, tokenizer)] if words else []),
    ]
