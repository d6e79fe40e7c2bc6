"""The entry point of the command line. It imports nothing large: a command imports what it needs when it runs."""

import contextlib
import logging
import os
import sys
import time
import warnings

from keras_transformer.cli.exit_codes import DONE, INPUT, INTERRUPTED, UNREACHABLE
from keras_transformer.cli.logs import log_to_stderr, progress
from keras_transformer.cli.parser import make_parser
from keras_transformer.cli.tensorflow_import import import_tensorflow

log = logging.getLogger("keras_transformer.cli")

# Number of characters. A package below may quote a whole file in its error.
LONGEST_ERROR = 3000


def main(arguments=None):
    """Runs one command.

    Args:
        arguments: The arguments of the command line after `keras-transformer`, a list of str. None for `sys.argv`.

    Returns:
        The exit code, one of `cli.exit_codes`.

    Raises:
        SystemExit: After `--help` with code 0, after a malformed command line with code 2.
    """
    # The notices of TensorFlow and gRPC do not help a user of a command, and they are lines outside of its log.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with (
        # It replaces a stream that was closed before the start.
        open(os.devnull, "w") as null,
        contextlib.redirect_stdout(sys.stdout or null),
        contextlib.redirect_stderr(_Messages(sys.stderr or null)),
        log_to_stderr() as configure_log,
    ):
        command, started = None, time.monotonic()
        try:
            options, unknown = make_parser().parse_known_args(arguments)
            # The command's own parser reports them, because it prints the usage of the command.
            if unknown:
                options.parser.refuse(unknown)
            configure_log(getattr(options, "log_level", None), options.log_format, options.parser.spelled)
            warnings.showwarning = lambda message, *_: log.warning("%s", message)
            command = options.parser.prog.split()[-1]
            log.info("started", extra={"command": command})
            options.parser.check_input_paths(options)
            if options.needs_tensorflow:
                import_tensorflow()
            code = options.command(options) or DONE
        except BrokenPipeError as error:
            # A reader such as `head` needs no more of the output.
            code = DONE if _reader_has_left(sys.stdout) else _failed(error, INPUT)
        except (ConnectionError, TimeoutError) as error:
            code = _failed(error, UNREACHABLE)
        except ModuleNotFoundError as error:
            code = _failed(f"{error}. A package is missing that this command needs", INPUT)
        except (ValueError, OSError, ImportError) as error:
            code = _failed(error, INPUT)
        except KeyboardInterrupt:
            progress.info("keras-transformer: interrupted")
            code = INTERRUPTED
        seconds = round(time.monotonic() - started, 3)
        log.info("finished", extra={"command": command, "exit_code": code, "seconds": seconds})
        return code


class _Messages:
    """Standard error. If nobody reads it any more, its messages are lost, and the work goes on."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        try:
            self._stream.write(text)
        except OSError:
            _discard(self._stream)
        return len(text)

    def flush(self):
        try:
            self._stream.flush()
        except OSError:
            _discard(self._stream)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _failed(error, code):
    message = str(error)
    log.error("%s", message if len(message) <= LONGEST_ERROR else f"{message[:LONGEST_ERROR]}...")
    return code


def _reader_has_left(stream):
    """Returns whether the reader of a stream has closed it. If so, the rest of the output is discarded."""
    try:
        # What was not written is still in the buffer.
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return True
    return False


def _discard(stream):
    """Makes the file of a stream the null device. Python writes the rest of the buffer when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
