"""A load test of a running server."""

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from keras_transformer.checks import check, check_count, check_positive, check_range

log = logging.getLogger(__name__)

MOST_CALLERS = 1000  # each has a thread


class LoadReport(NamedTuple):
    """The result of a load test.

    Args:
        seconds: From the first request to the last answer.
        latencies: Seconds that each answered request took, float64 `(answered,)`, in the order of the answers.
        rows: Number of rows that were answered.
        errors: A dict from the name of an exception, such as `"TimeoutError"`, to its number.
        messages: A dict from the name of an exception to the message of the first one.
    """

    seconds: float
    latencies: np.ndarray
    rows: int
    errors: dict
    messages: dict

    @property
    def requests_per_second(self):
        """Answered requests for each second, a float."""
        return len(self.latencies) / self.seconds

    def latency(self, percent):
        """Returns the latency, in seconds, that this percentage of the answered requests does not exceed.

        >>> LoadReport(1.0, np.array([0.1, 0.2, 0.4]), 3, {}, {}).latency(50)
        0.2

        Args:
            percent: Number in [0, 100].

        Returns:
            A float, interpolated linearly between two latencies; NaN if no request was answered.
        """
        return float(np.percentile(self.latencies, percent)) if len(self.latencies) else float("nan")


def load_test(
    client,
    texts,
    signature="serving_default",
    *,
    callers=8,
    rows=1,
    seconds=10.0,
    requests=None,
    on_request=None,
):
    """Sends requests to a server from several threads, and measures the answers.

    Each caller sends its next request when it has the answer to the one before. A first request, which is not counted,
    finds out whether the server answers at all. Set `retries=0` in the client, so that each refused request is counted.

    ```python
    with Client("grpc://localhost:8500", "en_de", retries=0) as client:
        report = load_test(client, ["A dog runs.", "Two children play."], callers=16, seconds=30)
    print(report.requests_per_second, report.latency(99), report.errors)
    ```

    Args:
        client: A `Client`.
        texts: List of str, or of UTF-8 bytes. They are sent in this order, again and again.
        signature: Name of a signature whose only input is `text`.
        callers: Number of requests at the same time, at most 1,000.
        rows: Number of texts in a request, at most the client's `batch_size`.
        seconds: No request begins after this time; None for no limit.
        requests: Largest number of requests; None for no limit.
        on_request: A function without arguments that is called after each request, by one thread at a time.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: If an argument is out of range, or the server refuses the first request.
        OSError: If the first request gets no answer, as in `Client.predict`.
    """
    if isinstance(texts, (str, bytes)) or not (texts := list(texts)):
        raise ValueError(f"`texts` must be a list of at least one string. Received: texts={texts!r:.200}.")
    check_count(1, MOST_CALLERS, callers=callers)
    check_positive(rows=rows)
    rule = f"`rows` must be at most the client's batch_size={client.batch_size}."
    check(rows <= client.batch_size, rule, rows=rows)
    if seconds is None and requests is None:
        raise ValueError("`seconds` or `requests` must limit the test. Received: None for both.")
    if seconds is not None:
        check_range(0, above=True, seconds=seconds)
    if requests is not None:
        check_positive(requests=requests)

    source = itertools.cycle(texts)
    client.predict(signature, text=texts[:rows])
    lock, stopped = threading.Lock(), threading.Event()
    numbers = itertools.count() if requests is None else iter(range(requests))
    latencies, errors, messages = [], {}, {}
    start = time.monotonic()
    end = float("inf") if seconds is None else start + seconds

    def call():
        while time.monotonic() < end and not stopped.is_set():
            with lock:
                if next(numbers, None) is None:
                    return
                batch = list(itertools.islice(source, rows))
            began, error = time.monotonic(), None
            try:
                client.predict(signature, text=batch)
            except (OSError, ValueError) as failed:
                error = failed
            took = time.monotonic() - began
            with lock:
                if error is None:
                    latencies.append(took)
                else:
                    kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
                    errors[kind] = errors.get(kind, 0) + 1
                    messages.setdefault(kind, str(error))
                if on_request is not None:
                    on_request()

    with ThreadPoolExecutor(callers) as pool:
        try:
            for future in [pool.submit(call) for _ in range(callers)]:
                future.result()
        finally:
            stopped.set()  # after Ctrl-C, too
    elapsed = time.monotonic() - start
    log.info(
        "load test ended", extra={"answered": len(latencies), "errors": errors, "seconds": round(elapsed, 3)}
    )
    return LoadReport(elapsed, np.array(latencies), rows * len(latencies), errors, messages)
