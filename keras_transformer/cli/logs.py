"""The log of the command line, on standard error: lines of text, or one JSON object in each line."""

import argparse
import contextlib
import datetime
import io
import json
import logging
import re

from keras_transformer.checks import printable

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
PREFIXES = {logging.WARNING: "warning: ", logging.ERROR: "keras-transformer: error: "}

# The lines that tell a user how far a command is. They are shown unless the user asks for a higher level.
progress = logging.getLogger("keras_transformer.progress")
# The lines that something else writes to standard error: bars of progress, tracebacks of threads. No level hides them.
other = logging.getLogger("keras_transformer.stderr")


def add_options(parser):
    """Adds the options of the log to the parser of a command."""
    group = parser.add_argument_group("log")
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        help="lowest level of the events to log on standard error (default: warning, and lines of progress)",
        default=argparse.SUPPRESS,
    )
    group.add_argument("--log-format", choices=FORMATS, default="text", help="format of the log")


@contextlib.contextmanager
def log_to_stderr():
    """Sends the log of the library to standard error inside.

    Returns:
        A context. Its value is a function of the level, one of `LEVELS` or None, of the format, one of `FORMATS`, and
        of a function that changes each message. With the format json, everything that is written to `sys.stderr`
        inside becomes an event.
    """
    logger, handler = logging.getLogger("keras_transformer"), logging.StreamHandler()
    levels = [(each, each.level) for each in (logger, progress, other)]
    propagate = logger.propagate

    def configure(level=None, kind="text", spelled=str):
        logger.setLevel((level or "warning").upper())
        progress.setLevel((level or "info").upper())
        handler.setFormatter((JSONFormatter if kind == "json" else TextFormatter)(spelled))
        if kind == "json":
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(EventStream())))

    with contextlib.ExitStack() as stack:
        configure()
        other.setLevel(logging.INFO)
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield configure
        finally:
            # It logs the rest of the last line.
            stack.close()
            logger.removeHandler(handler)
            logger.propagate = propagate
            for each, before in levels:
                each.setLevel(before)


class EventStream(io.TextIOBase):
    """A text file whose lines become events of the log."""

    _rest = ""

    def write(self, text):
        *lines, self._rest = re.split("[\r\n]", self._rest + text)
        for line in filter(None, map(str.strip, lines)):
            other.info("%s", line)
        return len(text)

    def close(self):
        self.write("\n")
        super().close()


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def _fields(record):
    """Returns the fields of an event: the `extra` of the logging call, a dict."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _Formatter(logging.Formatter):
    """Base class of the formatters. `spelled` is a function that changes each message."""

    def __init__(self, spelled):
        super().__init__()
        self.spelled = spelled


class TextFormatter(_Formatter):
    """Formats an event as its message and its fields, on one line."""

    def format(self, record):
        fields = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        return printable(f"{PREFIXES.get(record.levelno, '')}{self.spelled(record.getMessage())}{fields}")


class JSONFormatter(_Formatter):
    """Formats an event as one JSON object: its time in UTC, level, logger, message and fields."""

    def format(self, record):
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        event = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.spelled(record.getMessage()),
            **_fields(record),
        }
        return json.dumps(event, default=str)
