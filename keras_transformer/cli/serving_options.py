"""The options of the commands for exports, servers and answers."""

import argparse

OPTIONAL = {"default": argparse.SUPPRESS}
NO_DEFAULT = {"argument_default": argparse.SUPPRESS}  # of a group, whose options are all optional
PAIRS = "each line holds a pair of texts, text<TAB>second, for a model that reads pairs"


def add_sizes(parser):
    """Adds the sizes of batches and windows of lines."""
    parser.add_argument("--batch-size", type=int, default=32, help="number of lines in a batch")
    parser.add_argument(
        "--window",
        type=int,
        default=4096,
        help="number of lines that are sorted by length and written together",
    )


def add_answer_options(parser):
    """Adds the options that every command has that answers lines with a saved model."""
    parser.add_argument("run", metavar="FOLDER", help="folder of a saved model, or of the command `convert`")
    add_sizes(parser)
    parser.add_argument(
        "--max-source-length", type=int, help="number of tokens of a text that are read", **OPTIONAL
    )


def fill_classify(parser):
    """Adds the options of `classify`."""
    add_answer_options(parser)
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="the probability of every class, as a JSON object on each line",
    )


def fill_embed(parser):
    """Adds the options of `embed`."""
    add_answer_options(parser)
    parser.add_argument(
        "--output",
        metavar="FILE.npy",
        help="new file for the vectors, float32 (lines, d_model); a line that failed is NaN",
        **OPTIONAL,
    )


def fill_verify(parser):
    """Adds the options of `verify`."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="folder of a version, or base path of a model with all its versions"
    )


def fill_server_files(parser):
    """Adds the options of `server-files`."""
    parser.add_argument("folder", metavar="FOLDER", help="base path of the model, with exported versions")
    parser.add_argument(
        "--name", help="name of the model in the server (default: the folder's name)", **OPTIONAL
    )
    parser.add_argument(
        "--stable",
        type=int,
        metavar="N",
        help="version with the label `stable` (default: the newest)",
        **OPTIONAL,
    )
    parser.add_argument(
        "--canary", type=int, metavar="N", help="version with the label `canary` (default: none)", **OPTIONAL
    )
    parser.add_argument(
        "--image", help="Docker image of the server (default: tensorflow/serving:2.20.0)", **OPTIONAL
    )


def fill_ask(parser):
    """Adds the options of `ask`."""
    parser.add_argument("url", metavar="URL", help="http://host:8501 for REST, grpc://host:8500 for gRPC")
    parser.add_argument("--model", metavar="NAME", default="model", help="name of the model in the server")
    parser.add_argument("--version", type=int, help="number of a version (default: the newest)", **OPTIONAL)
    parser.add_argument("--label", help="label of a version, instead of its number", **OPTIONAL)
    parser.add_argument("--batch-size", type=int, default=32, help="number of lines in a request")
    parser.add_argument("--pairs", action="store_true", help=PAIRS)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for a request, its retries included"
    )
    parser.add_argument(
        "--retries", type=int, default=3, help="number of further attempts if the server cannot be reached"
    )
    options = parser.add_argument_group(
        "options of the search", "Without any of them, the export's own strategy answers.", **NO_DEFAULT
    )
    options.add_argument("--prefix", metavar="TEXT", help="begin of every answer")
    options.add_argument("--max-length", type=int, help="largest number of tokens in an answer")
    options.add_argument("--min-length", type=int, help="smallest number of tokens in an answer")
    options.add_argument("--temperature", type=float, help="0 for greedy search; above 0, answers are drawn")
    options.add_argument("--top-p", type=float, help="share of the probability that is drawn from")
    options.add_argument(
        "--seed", type=int, help="number that decides what is drawn (default: a new one each time)"
    )
