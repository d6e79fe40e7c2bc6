"""The options of the commands for TensorFlow Serving."""

import argparse
import os
import re

from keras_transformer.checks import check
from keras_transformer.cli.answer_options import PAIRS, SPLIT_SENTENCES
from keras_transformer.cli.command_parser import NO_DEFAULT, OPTIONAL, InputPath
from keras_transformer.data.files import LONGEST_LINE, UNREADABLE, split_lines

# The options that are arguments of `Client` under the same name.
CLIENT_OPTIONS = (
    "url",
    "model",
    "version",
    "label",
    "timeout",
    "retries",
    "batch_size",
    "max_bytes",
    "certificates",
    "client_certificate",
    "client_key",
)


def fill_verify(parser):
    """Adds the options of `verify`."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=InputPath,
        help="folder of a version, base path of a model with all its versions, or a folder of several models",
    )


def fill_server_files(parser):
    """Adds the options of `server-files` to its parser."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="base path of the model, with exported versions; or a folder of several models",
    )
    parser.add_argument(
        "--name",
        help="name of the model in the server, or of a server of several models (default: as before, at first that of "
        "the folder)",
        **OPTIONAL,
    )
    kept = "a model of several that no option names keeps its labels"
    for label, default in (("stable", f"the newest; {kept}"), ("canary", f"none; {kept}")):
        parser.add_argument(
            f"--{label}",
            type=_version,
            action="append",
            metavar="[NAME=]N",
            help=f"version with the label `{label}`, of several models NAME=N, may be repeated (default: {default})",
            **OPTIONAL,
        )
    parser.add_argument(
        "--image",
        help="Docker image of the server (default: as before, at first tensorflow/serving:2.20.0)",
        **OPTIONAL,
    )


def _version(text):
    """Reads `N` or `NAME=N`: returns a number, or a pair of the name and the number."""
    name, equals, number = text.rpartition("=")
    if not re.fullmatch("[0-9]+", number) or (equals and not name):
        raise argparse.ArgumentTypeError("must be N, or NAME=N for one of several models")
    return (name, int(number)) if equals else int(number)


def labelled_versions(label, versions):
    """Returns the argument of `write_server_files` for the values of an option.

    Args:
        label: `"stable"` or `"canary"`.
        versions: List of numbers, and of pairs of a name and a number.

    Returns:
        A number, or a dict from name to number.

    Raises:
        ValueError: If there are several numbers without a name, or several for one name.
    """
    names = [each[0] for each in versions if isinstance(each, tuple)]
    if len(set(names)) != len(versions) and (names or len(versions) > 1):
        raise ValueError(f"--{label} must be given once, or once for each model as NAME=N.")
    return dict(versions) if names else versions[0]


def fill_ask(parser):
    """Adds the options of `ask` to its parser."""
    _add_server_options(parser, retries=3)
    parser.add_argument("--batch-size", type=int, default=32, help="number of lines in a request")
    parser.add_argument("--pairs", action="store_true", help=PAIRS)
    about = "signature that answers, such as `entities` of a tagger (default: serving_default)"
    parser.add_argument("--signature", metavar="NAME", help=about, **OPTIONAL)
    parser.add_argument("--split-sentences", metavar="LANGUAGE", help=SPLIT_SENTENCES, **OPTIONAL)
    parser.add_argument(
        "--stream", action="store_true", help="write each answer as it grows, a few tokens with each request"
    )
    parser.add_argument(
        "--audio", action="store_true", help="each line is the path of a recording, which a transcriber hears"
    )
    parser.add_argument("--language", help="code of the recordings' language, such as ko", **OPTIONAL)
    parser.add_argument(
        "--task", choices=("transcribe", "translate"), help="what to do with recordings", **OPTIONAL
    )
    parser.add_argument(
        "--image", action="store_true", help="each line is the path of a JPEG or PNG file to write about"
    )
    options = parser.add_argument_group(
        "options of the search", "Without any of them, the export's own strategy answers.", **NO_DEFAULT
    )
    options.add_argument("--prefix", metavar="TEXT", help="text that every answer begins with")
    options.add_argument("--max-length", type=int, help="largest number of tokens in an answer")
    options.add_argument("--min-length", type=int, help="smallest number of tokens in an answer")
    options.add_argument("--temperature", type=float, help="0 for greedy search; above 0, tokens are drawn")
    options.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest tokens")
    options.add_argument("--top-p", type=float, help="share of the probability that is drawn from")
    options.add_argument(
        "--min-p", type=float, help="draw from tokens at least this share as likely as the likeliest"
    )
    options.add_argument(
        "--seed", type=int, help="number that decides what is drawn (default: a new one each time)"
    )
    options.add_argument(
        "--repetition-penalty", type=float, help="above 1, tokens that have occurred become less likely"
    )
    options.add_argument("--presence-penalty", type=float, help="what tokens that have occurred lose")
    options.add_argument(
        "--frequency-penalty", type=float, help="what tokens lose for each time they have occurred"
    )
    options.add_argument(
        "--stop", metavar="TEXT", action="append", help="text before which an answer ends; may be repeated"
    )
    options.add_argument("--n", type=int, help="number of answers to each line, each on a line of its own")


def fill_proxy(parser):
    """Adds the options of `proxy` to its parser."""
    _add_server_options(parser, retries=3)
    parser.add_argument(
        "--embedder",
        metavar="NAME",
        help="name of a second model in the server, which makes vectors",
        **OPTIONAL,
    )
    parser.add_argument(
        "--template",
        metavar="FOLDER",
        type=InputPath,
        help="Hugging Face folder with the chat template (default: no chats)",
        **OPTIONAL,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 for every network")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at")
    parser.add_argument(
        "--key-variable",
        metavar="VARIABLE",
        help="environment variable with the key that callers must send (default: none)",
        **OPTIONAL,
    )
    parser.add_argument(
        "--origin",
        action="append",
        dest="origins",
        metavar="ORIGIN",
        help="origin of web pages that may ask, such as https://my.site; may be repeated (default: none)",
        **OPTIONAL,
    )
    limits = parser.add_argument_group("limits of a request")
    limits.add_argument("--max-tokens", type=int, default=4096, help="largest number of tokens of an answer")
    limits.add_argument(
        "--max-answers", type=int, default=16, help="largest number of answers, of all prompts"
    )
    limits.add_argument(
        "--max-texts", type=int, default=256, help="largest number of messages, and of texts to embed"
    )
    limits.add_argument("--max-request-bytes", type=int, default=2**20, help="largest size of a request")
    parser.add_argument(
        "--concurrency", type=int, default=16, help="largest number of requests to the server at once"
    )


def fill_load_test(parser):
    """Adds the options of `load-test` to its parser."""
    _add_server_options(parser, retries=0)
    parser.add_argument("--signature", metavar="NAME", default="serving_default", help="takes `text`")
    parser.add_argument("--text", action="append", help="a text, instead of standard input; may be repeated")
    parser.add_argument("--callers", type=int, default=8, help="number of requests at the same time")
    parser.add_argument("--batch-size", type=int, default=1, help="number of texts in a request")
    parser.add_argument("--seconds", type=float, default=10.0, help="no request begins after this time")
    parser.add_argument("--requests", type=int, metavar="N", help="largest number of requests")
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="file for a histogram of the latencies, such as latencies.png",
        **OPTIONAL,
    )


def _add_server_options(parser, retries):
    """Adds the options that say which model of which server.

    Args:
        parser: The parser of a command.
        retries: Default of `--retries`.
    """
    parser.add_argument("url", metavar="URL", help="http://host:8501 for REST, grpc://host:8500 for gRPC")
    parser.add_argument("--model", metavar="NAME", default="model", help="name of the model in the server")
    parser.add_argument("--version", type=int, help="number of a version (default: the newest)", **OPTIONAL)
    parser.add_argument("--label", help="label of a version, instead of its number", **OPTIONAL)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for a request, its retries included"
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=retries,
        help="number of further attempts if the server cannot be reached or is too busy",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        metavar="BYTES",
        help="largest size of an answer (default: 67108864)",
        **OPTIONAL,
    )
    access = parser.add_argument_group("access", **NO_DEFAULT)
    access.add_argument(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        help="HTTP header or gRPC metadata of every request; may be repeated. Other users of this machine can read it",
    )
    access.add_argument(
        "--header-file",
        metavar="FILE",
        action="append",
        help="file with a header NAME:VALUE on each line, for a secret; may be repeated",
    )
    access.add_argument(
        "--header-variable",
        metavar="NAME:VARIABLE",
        action="append",
        help="header whose value is in an environment variable, for a secret; may be repeated",
    )
    access.add_argument(
        "--certificates", metavar="FILE", help="PEM file of the authorities to trust with TLS"
    )
    access.add_argument(
        "--client-certificate",
        metavar="FILE",
        help="PEM file with the certificate that is shown to the server, for TLS on both sides",
    )
    access.add_argument(
        "--client-key", metavar="FILE", help="PEM file with its key (default: it is in the same file)"
    )


def client_arguments(options):
    """Returns the arguments of `Client` that the parsed options of a command say, a dict.

    Raises:
        ValueError: If a header is malformed, or a file or a variable with one cannot be read.
    """
    given = vars(options)
    arguments = {name: given[name] for name in CLIENT_OPTIONS if name in given}
    headers = dict(_split("--header", text) for text in given.get("header", ()))
    for path in given.get("header_file", ()):
        headers.update(_split(f"--header-file {path}", line) for line in _lines(path) if line.strip())
    for text in given.get("header_variable", ()):
        name, variable = _split("--header-variable", text)
        if variable not in os.environ:
            # Somebody may have given the secret itself.
            received = repr(variable) if re.fullmatch("[A-Z_][A-Z0-9_]*", variable) else "another text"
            raise ValueError(
                f"--header-variable must name an environment variable that is set. Received: {received:.200}."
            )
        headers[name] = os.environ[variable]
    return {**arguments, **({"headers": headers} if headers else {})}


def _split(source, text):
    """Splits a header at its first colon: returns its name and its value."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # The text may be a secret, so the message does not show it.
        raise ValueError(
            f"{source} must hold a name, a colon and a value. Received: a text without one of them."
        )
    return name.strip(), value.strip()


def _lines(path):
    try:
        # It may be a pipe, such as `<(pass show key)`.
        with open(path, "rb") as file:
            content = file.read(LONGEST_LINE + 1)
        check(len(content) <= LONGEST_LINE, "--header-file must have at most 1 MiB.", file=path)
        return [line.decode("utf-8", "replace") for line in split_lines(content)]
    except UNREADABLE as error:
        raise ValueError(f"--header-file must be a file that can be read. Received: {error}.") from None
