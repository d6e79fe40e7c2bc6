"""The parser of the command line: the options of each command."""

import argparse

from keras_transformer.cli import (
    answer_options,
    commands,
    logs,
    server_commands,
    server_options,
    show,
    training_commands,
    training_options,
)
from keras_transformer.cli.command_parser import OPTIONAL, CommandParser, InputPath
from keras_transformer.cli.pairs import add_pairs
from keras_transformer.cli.search_options import add_search_options
from keras_transformer.version import __version__


def make_parser():
    """Makes the parser of the whole command line, with one subparser for each command."""
    parser = argparse.ArgumentParser(
        prog="keras-transformer", description="Train a Transformer on sentence pairs, and use it."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    _add_command(
        subparsers,
        "train",
        training_commands.train,
        training_options.fill_train,
        "Train a model on sentence pairs. The same command again resumes the training.",
        epilog="Files are UTF-8 with one sentence in each line, plain or .gz.",
        needs_tensorflow=False,
    )
    _add_command(
        subparsers,
        "tune",
        training_commands.tune,
        training_options.fill_tune,
        "Tune the model of a Hugging Face folder: a language model on chats, an encoder on labels, an embedder on "
        "matches. The same command again resumes the tuning.",
        epilog="RUN/model is the tuned model, a Hugging Face folder too: `convert` makes of it what `export` reads.",
        needs_tensorflow=False,
    )
    _add_command(
        subparsers,
        "average",
        training_commands.average,
        training_options.fill_average,
        "Give a run's translator the mean weights of its newest epochs. `train --average-last` sets how many epochs a "
        "run keeps.",
    )
    _add_command(
        subparsers,
        "ensemble",
        training_commands.ensemble,
        training_options.fill_ensemble,
        "Join translators into one: the probability of each token is the mean of their probabilities.",
    )
    _add_command(
        subparsers,
        "translate",
        commands.translate,
        answer_options.fill_translate,
        "Translate standard input or a file: one line out for each line in, in order.",
        epilog="With --input and --output, the same command continues after it was stopped or killed.",
    )
    _add_command(
        subparsers,
        "classify",
        commands.classify,
        answer_options.fill_classify,
        "Classify standard input: the label of each line, a tab and its probability; of a tagger the entities as JSON.",
    )
    _add_command(
        subparsers,
        "embed",
        commands.embed,
        answer_options.fill_embed,
        "Make the vector of each line of standard input, as a JSON list on each line, or as one file for NumPy.",
    )
    _add_command(
        subparsers,
        "generate",
        commands.generate,
        _fill_generate,
        "Continue the prompts on standard input: one continuation out for each line in, in order.",
    )
    _add_command(
        subparsers,
        "transcribe",
        commands.transcribe,
        answer_options.fill_transcribe,
        "Transcribe recordings: standard input has the path of a WAV file on each line.",
    )
    _add_command(
        subparsers,
        "caption",
        commands.caption,
        answer_options.fill_caption,
        "Write a text about pictures: standard input has the path of a JPEG or PNG file on each line.",
    )
    _add_command(
        subparsers,
        "evaluate",
        commands.evaluate,
        _fill_evaluate,
        "Score the answers to a file: of a translator sacreBLEU and chrF, of a classifier or tagger F1 of each label.",
    )
    _add_command(
        subparsers,
        "show",
        commands.show,
        _fill_show,
        "Write an HTML page that shows what a model attends to. A translator runs in the page.",
    )
    _add_command(
        subparsers,
        "convert",
        commands.convert,
        _fill_convert,
        "Convert a Hugging Face folder to a folder that `export` reads, or the other way round.",
    )
    _add_command(
        subparsers,
        "export",
        commands.export,
        _fill_export,
        "Write a SavedModel for TensorFlow Serving that takes text and returns answers.",
    )
    _add_command(
        subparsers,
        "verify",
        commands.verify,
        server_options.fill_verify,
        "Check exported versions: the bytes of each file, the signatures, and an answer of each signature. It also "
        "times a request on this machine.",
    )
    _add_command(
        subparsers,
        "server-files",
        server_commands.server_files,
        server_options.fill_server_files,
        "Write the configuration files of TensorFlow Serving for a model. Run it again to move the labels `stable` "
        "and `canary` to other versions.",
        needs_tensorflow=False,
    )
    _add_command(
        subparsers,
        "ask",
        server_commands.ask,
        server_options.fill_ask,
        "Send standard input to TensorFlow Serving: one line with an answer out for each line in, in order, as the "
        "lines come.",
        needs_tensorflow=False,
    )
    _add_command(
        subparsers,
        "proxy",
        server_commands.proxy,
        server_options.fill_proxy,
        "Speak OpenAI's API in front of TensorFlow Serving: chats, completions and embeddings.",
        epilog="It needs the extra `proxy`. It listens on this machine alone unless --host says otherwise.",
        needs_tensorflow=False,
    )
    _add_command(
        subparsers,
        "load-test",
        server_commands.load_test,
        server_options.fill_load_test,
        "Send requests to TensorFlow Serving from several callers, and print throughput, latencies and errors.",
        epilog="The texts are those of --text, or the lines of standard input. They are sent again and again.",
        needs_tensorflow=False,
    )
    return parser


def _add_command(subparsers, name, function, fill, explanation, needs_tensorflow=True, **options):
    """Adds a command.

    Args:
        subparsers: The result of `add_subparsers`.
        name: Name of the command.
        function: A function of the parsed options, which `main` calls.
        fill: A function of the command's parser that adds its options.
        explanation: A sentence about the command.
        needs_tensorflow: Whether TensorFlow is imported before the command runs. `train` and `tune` do it themselves.
        **options: Other arguments of `argparse.ArgumentParser`.
    """
    parser = subparsers.add_parser(
        name,
        help=explanation,
        description=explanation,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        **options,
    )
    fill(parser)
    logs.add_options(parser)
    parser.set_defaults(command=function, parser=parser, needs_tensorflow=needs_tensorflow)


def _fill_generate(parser):
    answer_options.add_answer_options(parser)
    answer_options.add_max_length(parser)
    add_search_options(parser)


def _fill_evaluate(parser):
    parser.add_argument("run", metavar="RUN", type=InputPath, help=answer_options.FOLDER_TO_TRANSLATE_WITH)
    data = add_pairs(parser)
    about = (
        "of a classifier or tagger: a table, .csv or .tsv, whose --columns are the text and the label (default: "
        "text,label), or the two texts of pairs and the label; or words and labels in CoNLL's form"
    )
    data.add_argument("--data", metavar="FILE", type=InputPath, help=about)
    about = "with --data: new file with a picture of the scores, such as scores.png"
    data.add_argument("--plot", metavar="FILE", help=about)
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        help="tokenizer of sacreBLEU (default: 13a); `none` for text that is already tokenized",
        **OPTIONAL,
    )
    parser.add_argument("--batch-size", type=int, default=32, help="number of sentences in a batch")
    answer_options.add_max_source_length(parser)
    answer_options.add_max_length(parser)
    add_search_options(parser)


def _fill_show(parser):
    show.add_options(parser)
    add_search_options(parser)


def _fill_convert(parser):
    parser.add_argument(
        "source",
        metavar="SOURCE",
        type=InputPath,
        help="folder with config.json and safetensors files; or folder of a run or of a saved model",
    )
    parser.add_argument("target", metavar="TARGET", help="new folder; appears when it is complete")
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="the model classifies pairs of texts, for example for entailment; a checkpoint does not say",
    )
    parser.add_argument(
        "--tokenizers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write the tokenizers too when the new folder is a Hugging Face folder",
    )
    parser.add_argument("--precision", choices=("float32", "int8"), help="int8: quantize while reading")
    parser.add_argument("--chat", action="store_true", help="prompts come from the chat template")
    text = "folder of the base model of an adapter (PEFT); without it the one that adapter_config.json names"
    parser.add_argument("--base", metavar="FOLDER", type=InputPath, help=text)
    for side in ("source", "target"):
        text = f"{side} language of a multilingual model, as the checkpoint names it: deu_Latn in NLLB"
        parser.add_argument(f"--{side}-language", metavar="NAME", help=text)


def _fill_export(parser):
    parser.add_argument(
        "run",
        metavar="RUN",
        type=InputPath,
        help="folder of a run, of a saved model, or of the command `convert`",
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="base path of the model; the version gets a folder in it"
    )
    parser.add_argument(
        "--version", type=int, default=1, help="number of the version; an existing one is never overwritten"
    )
    parser.add_argument("--xla", action="store_true", help="compile with XLA, which the server must have")
    parser.add_argument(
        "--precision",
        default="float32",
        choices=("float32", "bfloat16", "int8"),
        help="bfloat16 stores matrices in half the bytes; int8 stores and multiplies int8, which is faster on CPUs "
        "with VNNI, and on others for large models or many rows",
    )
    several = {"nargs": "+", **OPTIONAL}
    about = "write these signatures only, which saves memory of the server (default: all, but for words)"
    parser.add_argument("--signatures", metavar="NAME", help=about, **several)
    sizes = {"type": int, "metavar": "N", **several}
    parser.add_argument(
        "--batch-sizes",
        help="numbers of rows of a step: the last is the largest, and with --xla steps are padded to one of them "
        "(default: 1 8 32)",
        **sizes,
    )
    parser.add_argument(
        "--source-lengths",
        help="with --xla: numbers of tokens that texts are padded to (default: 16 32 ...)",
        **sizes,
    )
    answer_options.add_max_source_length(parser)
    answer_options.add_max_length(parser)
    parser.add_argument(
        "--warmup",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write the requests that a server sends to itself when it starts",
    )
    search_options = add_search_options(parser)
    search_options.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="with a beam: number of results of the signature `n_best`, at most the beam width",
    )
