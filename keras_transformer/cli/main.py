"""The entry point of the command line."""

import os
import sys
import warnings

from keras_transformer.cli.commands import EXIT_INPUT, EXIT_INTERRUPTED
from keras_transformer.cli.parser import make_parser

# From here on TensorFlow logs only fatal errors: its notices do not help a user of the command line. The notices of its
# import are printed already, because the package's __init__.py imports Keras.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main(arguments=None):
    """Runs one command.

    Args:
        arguments: The words of the command line after `keras-transformer`, a list of str. None for `sys.argv`.

    Returns:
        The exit code: 0 if the command is done, 2 if its input cannot be used, 3 if the training diverged, 130 if the
        command was interrupted, 143 if SIGTERM stopped it after its state was saved.

    Raises:
        SystemExit: After `--help` with code 0, after a malformed command line with code 2.
    """
    options, unknown = make_parser().parse_known_args(arguments)
    if unknown:  # the command's own parser reports them, because it prints the usage of the command
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        return options.command(options) or 0
    except BrokenPipeError:  # the reader of our output, such as `head`, needs no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"keras-transformer: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0
