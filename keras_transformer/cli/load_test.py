"""The command `load-test`."""

import itertools
import logging
import sys
from pathlib import Path

from keras_transformer.checks import check, printable
from keras_transformer.cli.answers import standard_input
from keras_transformer.cli.exit_codes import DONE, SOME_FAILED, UNREACHABLE
from keras_transformer.cli.server_options import client_arguments
from keras_transformer.client import Client, load_test

log = logging.getLogger(__name__)
# Number of lines that are read from standard input, so that its size does not limit the test.
MOST_LINES = 100_000


def run(options):
    """Loads a server and prints what was measured.

    Args:
        options: The parsed options of the command.

    Returns:
        The exit code.
    """
    import tqdm

    texts = options.text or _lines(standard_input())
    if not texts:
        raise ValueError("Standard input must hold at least one line, or --text a text. Received: no line.")
    if "picture" in options:
        _check_picture(options.picture)
    bar = tqdm.tqdm(unit="request", total=options.requests, disable=not sys.stderr.isatty(), leave=False)
    with Client(**client_arguments(options)) as client, bar:
        report = load_test(
            client,
            texts,
            options.signature,
            callers=options.callers,
            rows=options.batch_size,
            seconds=options.seconds,
            requests=options.requests,
            on_request=bar.update,
        )
    for line in report_lines(report):
        print(line)
    if "picture" in options:
        _draw(report, options.picture)
    if not report.errors:
        return DONE
    unreachable = report.errors.keys() <= {"ConnectionError", "TimeoutError"}
    return UNREACHABLE if unreachable and not len(report.latencies) else SOME_FAILED


def _check_picture(path):
    """Raises an error if no histogram could be written to a path: before the test, which takes long."""
    from keras_transformer.plots import latencies

    kinds = latencies([1.0]).canvas.get_supported_filetypes()  # raises ImportError without matplotlib
    rule = f"`--picture` must be a file that ends with one of {', '.join(f'.{kind}' for kind in kinds)}."
    check(Path(path).suffix[1:].lower() in kinds, rule, picture=path)


def _draw(report, path):
    from keras_transformer.plots import latencies

    if len(report.latencies):
        latencies(report.latencies).savefig(path)
    else:
        log.warning("no request was answered: no picture")


def report_lines(report):
    """Returns the lines that describe a `LoadReport`.

    >>> import numpy as np
    >>> from keras_transformer.client import LoadReport
    >>> report = LoadReport(2.0, np.array([0.01, 0.02]), 2, {"TimeoutError": 1}, {"TimeoutError": "no answer"})
    >>> print(*report_lines(report), sep="\\n")
    answered      2 requests, 2 rows, in 2.00 s
    throughput    1.0 requests/s, 1.0 rows/s
    latency       p50 15.0 ms, p90 19.0 ms, p99 19.9 ms
    failed        1 request
    TimeoutError  1: no answer

    Args:
        report: A `LoadReport`.

    Returns:
        A list of str.
    """
    answered, failed = len(report.latencies), sum(report.errors.values())
    lines = [
        f"answered      {_count(answered, 'request')}, {_count(report.rows, 'row')}, in {report.seconds:.2f} s",
        f"throughput    {report.requests_per_second:.1f} requests/s, {report.rows / report.seconds:.1f} rows/s",
    ]
    if answered:
        percentiles = ", ".join(f"p{each} {1000 * report.latency(each):.1f} ms" for each in (50, 90, 99))
        lines.append(f"latency       {percentiles}")
    lines.append(f"failed        {_count(failed, 'request')}")
    for kind, number in sorted(report.errors.items()):
        lines.append(f"{kind:13} {number}: {printable(report.messages[kind])}")
    return lines


def _count(number, thing):
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _lines(file):
    """Reads the first lines of a file that are not blank, a list of bytes."""
    from keras_transformer.data import LONGEST_LINE, iterate_lines

    lines = (line for line in iterate_lines(file, LONGEST_LINE) if line.strip())
    return list(itertools.islice(lines, MOST_LINES))
