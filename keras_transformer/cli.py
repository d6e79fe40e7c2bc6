"""The command line: keras-transformer train | average | translate | evaluate | export."""

import argparse
import dataclasses
import os
import sys
import types
import typing
import warnings

# Before TensorFlow loads: its notices are not for who types a command.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

EXIT_INPUT = 2  # what the user gave cannot be used
EXIT_DIVERGED = 3  # the loss or a weight is no number
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143  # SIGTERM, with everything saved


def main(arguments=None):
    """Runs one command and returns its exit code: 0 done, 2 unusable input, 3 diverged, 130 interrupted, 143
    terminated with the state saved."""
    parser = _parser()
    options = parser.parse_args(arguments)
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        return options.command(options) or 0
    except BrokenPipeError:  # whoever read our output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"keras-transformer: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _parser():
    from keras_transformer.recipe import Recipe

    parser = argparse.ArgumentParser(
        prog="keras-transformer", description="Train a Transformer on sentence pairs, and use it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, function, explanation, **more):
        sub = commands.add_parser(
            name,
            help=explanation,
            description=explanation,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            **more,
        )
        sub.set_defaults(command=function)
        return sub

    sub = command(
        "train",
        _train,
        "Train a model on sentence pairs, or go on training it: the same command again resumes.",
        epilog="Files are UTF-8, one sentence a line, plain or .gz.",
    )
    data = sub.add_argument_group("data", argument_default=argparse.SUPPRESS)
    data.add_argument("--source", metavar="FILE", help="source sentences")
    data.add_argument(
        "--target", metavar="FILE", help="target sentences, line by line the source's translations"
    )
    data.add_argument("--pairs", metavar="FILE.tsv", help="instead of both: source<TAB>target lines")
    data.add_argument("--val-source", metavar="FILE", help="source sentences to validate with")
    data.add_argument("--val-target", metavar="FILE", help="their translations")
    data.add_argument("--val-pairs", metavar="FILE.tsv", help="instead of both")
    sub.add_argument(
        "--output", metavar="RUN", required=True, default=argparse.SUPPRESS, help="folder of the run"
    )
    _add_fields(sub.add_argument_group("model and recipe"), Recipe)

    sub = command(
        "average", _average, "Give a run's translator the mean weights of its newest epochs (--average-last)."
    )
    sub.add_argument("run", metavar="RUN", help="folder of a run")
    sub.add_argument("--last", type=int, default=5, help="how many epochs")

    sub = command(
        "translate",
        _translate,
        "Translate standard input or a file, a line for a line, in order.",
        epilog="With --input and --output the same command again goes on after a stop or a kill.",
    )
    sub.add_argument("run", metavar="RUN", help="folder of a run or of a saved translator")
    files = sub.add_argument_group("files", argument_default=argparse.SUPPRESS)
    files.add_argument("--input", metavar="FILE", help="translate this, plain or .gz; not standard input")
    files.add_argument("--output", metavar="FILE", help="where to; must not exist, appears when it is whole")
    files.add_argument(
        "--restart", action="store_true", help="throw away the beginning of another translation"
    )
    sub.add_argument("--batch-size", type=int, default=32, help="sentences at once")
    _add_decoding(sub)

    sub = command(
        "evaluate", _evaluate, "Translate a file and score it: sacreBLEU and chrF, with their signatures."
    )
    sub.add_argument("run", metavar="RUN", help="folder of a run or of a saved translator")
    files = sub.add_argument_group("data", argument_default=argparse.SUPPRESS)
    files.add_argument("--source", metavar="FILE", help="source sentences")
    files.add_argument("--target", metavar="FILE", help="their reference translations")
    files.add_argument("--pairs", metavar="FILE.tsv", help="instead of both: source<TAB>target lines")
    sub.add_argument(
        "--tokenize",
        default="13a",
        metavar="NAME",
        help="sacreBLEU's tokenizer; none for text that is tokenised already",
    )
    sub.add_argument("--batch-size", type=int, default=32, help="sentences at once")
    _add_decoding(sub)

    sub = command("export", _export, "Write a SavedModel for TensorFlow Serving: text in, text out.")
    sub.add_argument("run", metavar="RUN", help="folder of a run or of a saved translator")
    sub.add_argument(
        "folder", metavar="FOLDER", help="the model's base path; gets a folder named after the version"
    )
    sub.add_argument("--version", type=int, default=1, help="number of the version; none is overwritten")
    sub.add_argument("--xla", action="store_true", help="compile decoding; needs a server with XLA enabled")
    _add_decoding(sub)
    return parser


def _add_decoding(sub):
    """The options of the search; what is not given is as it was saved, or as a beam has it by default."""
    from keras_transformer.decoding.beam import NORMALIZATIONS

    group = sub.add_argument_group("decoding", argument_default=argparse.SUPPRESS)
    group.add_argument("--beam-width", type=int, help="open hypotheses at each step; 1 for greedy search")
    group.add_argument(
        "--length-penalty", type=float, help="with a beam: 0 for none, larger for longer outputs"
    )
    group.add_argument(
        "--normalization",
        choices=NORMALIZATIONS,
        help="with a beam: Wu et al.'s length penalty, or plain length",
    )
    group.add_argument("--no-repeat-ngram", type=int, metavar="N", help="no N tokens in a row occur twice")


def _add_fields(group, recipe_class):
    """One option for each field of a dataclass."""
    kinds = typing.get_type_hints(recipe_class)
    for field in dataclasses.fields(recipe_class):
        option = f"--{field.name.replace('_', '-')}"
        kind = kinds[field.name]
        if kind is bool:
            group.add_argument(option, action="store_true", help=field.metadata["help"])
            continue
        if isinstance(kind, types.UnionType):
            kind = next(k for k in kind.__args__ if k is not type(None))
        if kind is bool:  # None: as the library finds best
            group.add_argument(
                option,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=field.metadata["help"],
            )
            continue
        explanation = field.metadata["help"]
        if field.default is None and "(" not in explanation:
            explanation += " (the preset's)"
        group.add_argument(
            option,
            type=kind,
            default=field.default if field.default is not None else argparse.SUPPRESS,
            choices=field.metadata.get("choices"),
            metavar=None if "choices" in field.metadata else kind.__name__.upper(),
            help=explanation,
        )


def _pairs(options, prefix="", required=True):
    """The pairs that the options name: two files or one TSV."""
    from keras_transformer.data import read_parallel, read_tsv

    source, target, pairs = (
        getattr(options, f"{prefix}{name}", None) for name in ("source", "target", "pairs")
    )
    dashed = prefix.replace("_", "-")
    if pairs and (source or target):
        raise ValueError(f"Give --{dashed}pairs, or --{dashed}source and --{dashed}target, not both.")
    if pairs:
        return read_tsv(pairs)
    if source and target:
        return read_parallel(source, target)
    if source or target or required:
        raise ValueError(f"Give --{dashed}source and --{dashed}target, or --{dashed}pairs.")
    return None


def _say(line):
    print(line, file=sys.stderr, flush=True)


def _train(options):
    from keras_transformer.runs import Diverged, Recipe, Terminated, train

    given = vars(options)
    recipe = Recipe(**{f.name: given[f.name] for f in dataclasses.fields(Recipe) if f.name in given})
    pairs, val_pairs = _pairs(options), _pairs(options, "val_", required=False)
    try:
        train(recipe, pairs, options.output, val_pairs, say=_say)
    except Terminated as end:
        print(f"keras-transformer: {end}; the same command goes on", file=sys.stderr)
        return EXIT_TERMINATED
    except Diverged as error:
        print(f"keras-transformer: error: {error}", file=sys.stderr)
        return EXIT_DIVERGED
    print(options.output)
    return 0


def _average(options):
    from keras_transformer.runs import average

    average(options.run, options.last, say=_say)


def _loaded(options):
    from keras_transformer.decoding import Beam, NoRepeatNgram
    from keras_transformer.serving import Translator

    translator = Translator.load(options.run)
    given = vars(options)
    names = {"beam_width": "width", "length_penalty": "length_penalty", "normalization": "normalization"}
    changes = {field: given[name] for name, field in names.items() if name in given}
    strategy, constraints = translator.strategy, list(translator.constraints)
    if changes and "width" not in changes and not isinstance(strategy, Beam):
        raise ValueError("--length-penalty and --normalization are for a beam: give --beam-width too.")
    if changes:
        strategy = dataclasses.replace(strategy if isinstance(strategy, Beam) else Beam(), **changes)
    if "no_repeat_ngram" in given:
        constraints = [c for c in constraints if not isinstance(c, NoRepeatNgram)]
        constraints.append(NoRepeatNgram(options.no_repeat_ngram))
    return translator.searching(strategy, constraints)


def _translate(options):
    from keras_transformer.data import LONGEST_LINE, iterate_lines
    from keras_transformer.serving import translate_file, translate_lines
    from keras_transformer.training import Terminated

    files = {name for name in ("input", "output", "restart") if name in options}
    if files and not {"input", "output"} <= files:
        raise ValueError("Give --input and --output, with or without --restart, or none of them.")
    translator, size = _loaded(options), options.batch_size
    if not files:
        lines = iterate_lines(sys.stdin.buffer, LONGEST_LINE)
        for line in translate_lines(translator, lines, size, verbose=sys.stderr.isatty()):
            sys.stdout.buffer.write(line.encode() + b"\n")
            sys.stdout.buffer.flush()
        return 0
    more = {"batch_size": size, "restart": "restart" in files, "say": _say, "verbose": True}
    try:
        print(translate_file(translator, options.input, options.output, **more))
    except Terminated as end:
        print(f"keras-transformer: {end}; the same command goes on", file=sys.stderr)
        return EXIT_TERMINATED
    return 0


def _evaluate(options):
    from keras_transformer.training.scores import check_tokenize, corpus_scores

    check_tokenize(options.tokenize)  # before the work of translating
    sources, references = zip(*_pairs(options), strict=True)
    translations = _loaded(options).translate(list(sources), options.batch_size, verbose=sys.stderr.isatty())
    scores = corpus_scores(translations, list(references), tokenize=options.tokenize)
    print(f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}")
    print(f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}")


def _export(options):
    print(_loaded(options).export(options.folder, options.version, options.xla))


if __name__ == "__main__":
    sys.exit(main())
