"""The command line: keras-transformer train, average, translate, evaluate, convert, export, server-files, ask."""

import argparse
import dataclasses
import os
import sys
import types
import typing
import warnings

from keras_transformer import commands
from keras_transformer.commands import EXIT_INPUT, EXIT_INTERRUPTED

# Before TensorFlow loads: its notices are not for who types a command.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main(arguments=None):
    """Runs one command and returns its exit code: 0 done, 2 unusable input, 3 diverged, 130 interrupted, 143
    terminated with the state saved."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:  # said by the command's own parser, which shows what it knows
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
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
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, function, explanation, **more):
        sub = subparsers.add_parser(
            name,
            help=explanation,
            description=explanation,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            **more,
        )
        sub.set_defaults(command=function, parser=sub)
        return sub

    sub = command(
        "train",
        commands.train,
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
        "average",
        commands.average,
        "Give a run's translator the mean weights of its newest epochs (--average-last).",
    )
    sub.add_argument("run", metavar="RUN", help="folder of a run")
    sub.add_argument(
        "--last", type=int, default=argparse.SUPPRESS, help="how many epochs (all whose checkpoints are kept)"
    )

    sub = command(
        "translate",
        commands.translate,
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
    sub.add_argument(
        "--window", type=int, default=4096, help="lines that are sorted by length, and saved, together"
    )
    _add_decoding(sub)

    sub = command(
        "evaluate",
        commands.evaluate,
        "Translate a file and score it: sacreBLEU and chrF, with their signatures.",
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

    sub = command(
        "convert",
        commands.convert,
        "Make a folder that `export` takes of a Hugging Face folder, or the other way round.",
    )
    sub.add_argument(
        "source",
        metavar="SOURCE",
        help="with config.json and safetensors files; or of a run or what `save` wrote",
    )
    sub.add_argument("target", metavar="TARGET", help="new folder; appears when it is whole")
    sub.add_argument(
        "--pairs", action="store_true", help="the classes are those of pairs of texts, such as entailment"
    )
    sub.add_argument(
        "--tokenizers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on the way back, write the tokenizers too",
    )

    sub = command(
        "export", commands.export, "Write a SavedModel for TensorFlow Serving: text in, answers out."
    )
    sub.add_argument("run", metavar="RUN", help="folder of a run, of `convert` or of what `save` wrote")
    sub.add_argument(
        "folder", metavar="FOLDER", help="the model's base path; gets a folder named after the version"
    )
    sub.add_argument("--version", type=int, default=1, help="number of the version; none is overwritten")
    sub.add_argument("--xla", action="store_true", help="compile decoding; needs a server with XLA enabled")
    optional = {"default": argparse.SUPPRESS}
    sub.add_argument(
        "--weights", default="float32", choices=("float32", "bfloat16", "int8"), help="how they are stored"
    )
    sizes = {"type": int, "nargs": "+", "metavar": "N", **optional}
    sub.add_argument("--batch-sizes", help="rows that are computed at once (1 8 32)", **sizes)
    sub.add_argument(
        "--source-lengths", help="with --xla: tokens that texts are padded to (16 32 ...)", **sizes
    )
    sub.add_argument("--max-source-length", type=int, help="tokens of a text that are read", **optional)
    sub.add_argument("--max-length", type=int, help="tokens of the longest text that is written", **optional)
    sub.add_argument(
        "--warmup",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write the requests with which a server warms up",
    )
    decoding = _add_decoding(sub)
    decoding.add_argument(
        "--n-best", type=int, metavar="N", help="with a beam: results of `n_best`, at most its width"
    )

    sub = command(
        "server-files",
        commands.server_files,
        "Write what TensorFlow Serving runs a model's versions with; again to roll forward or back.",
    )
    sub.add_argument("folder", metavar="FOLDER", help="the model's base path, with exported versions")
    sub.add_argument("--name", help="the model's name in the server (the folder's)", **optional)
    sub.add_argument(
        "--stable", type=int, metavar="N", help="version that `stable` names (the newest)", **optional
    )
    sub.add_argument("--canary", type=int, metavar="N", help="second version, `canary` (none)", **optional)
    sub.add_argument("--image", default="tensorflow/serving:latest", help="Docker image of the server")

    sub = command(
        "ask",
        commands.ask,
        "Have TensorFlow Serving translate standard input, a line for a line, in order, as it comes.",
    )
    sub.add_argument("url", metavar="URL", help="http://host:8501 for REST, grpc://host:8500 for gRPC")
    sub.add_argument("--model", metavar="NAME", default="model", help="the model's name in the server")
    sub.add_argument("--version", type=int, help="number of a version instead of the newest", **optional)
    sub.add_argument("--label", help="label of a version instead of its number", **optional)
    sub.add_argument("--batch-size", type=int, default=32, help="sentences in a request")
    sub.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for a request, its retries included"
    )
    sub.add_argument("--retries", type=int, default=3, help="attempts after the first, if no server is there")
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
    return group


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


if __name__ == "__main__":
    sys.exit(main())
