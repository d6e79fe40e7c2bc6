"""Repeats requests that failed: which failures are worth another attempt, and for how long."""

import email.utils
import random
import re
import time

from keras_transformer.checks import printable

# TensorFlow Serving refuses a whole batch with one of these messages if its requests differ in shape or dtype. A
# request may be right and its neighbour wrong, so it is sent again.
REFUSED_BATCHES = ("from different tasks have different shapes", "Tensor concat operation failed")
# Largest number of bytes of an answer, unless the caller sets another limit.
MAX_BYTES = 2**26
# Number of characters of a server's message in an error.
LONGEST_MESSAGE = 1000
# No server took the request, or a server had too many of them: later one may answer.
WORTH_ANOTHER_ATTEMPT = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
# Messages of RESOURCE_EXHAUSTED that another attempt does not change: gRPC's for a request that never fits, and
# TensorFlow's for one that its memory cannot hold.
TOO_LARGE = ("larger than max", "OOM when allocating")
# Reading an answer raises one of these if a server sends values of other types, shapes, sizes or depths.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Failure(Exception):
    """A request that was not answered.

    Args:
        code: Name of a gRPC status code, such as `NOT_FOUND`. Both transports use these names.
        message: The server's message, or why the connection failed. It is cut, and its control characters are escaped.
        retry_after: Seconds that the server asks to wait before another attempt, a float.
    """

    def __init__(self, code, message, retry_after=0.0):
        super().__init__(code, message)
        if any(each in str(message) for each in REFUSED_BATCHES):
            code = "UNAVAILABLE"
        elif code == "RESOURCE_EXHAUSTED" and any(each in str(message) for each in TOO_LARGE):
            code = "OUT_OF_RANGE"
        self.code = code
        self.message = printable(str(message), LONGEST_MESSAGE)
        self.retry_after = retry_after
        self.attempts = 1


async def attempt(call, timeout, retries, backoff, sleep):
    """Awaits the answer of a function, again and again until there is one.

    Only `UNAVAILABLE` and `RESOURCE_EXHAUSTED` are worth another attempt: no server answered, it was too busy, a proxy
    limits the rate, or a neighbour spoilt the batch. Before attempt n + 1 there is a wait of `backoff * 2**(n - 1)`
    seconds. A random factor between a half and one shortens it, so that the clients of a restarted server do not all
    call at the same time. A server that asks for a longer wait gets it. All attempts and waits share one deadline; a
    wait that would end after the deadline does not begin.

    urllib3 can retry, but it gives each attempt the whole timeout; gRPC retries at most four times. With one loop over
    both, the arguments mean the same for both transports.

    Args:
        call: A coroutine function of the deadline, in seconds of `time.monotonic`. It returns an answer or raises
            `Failure`.
        timeout: Seconds for all attempts together.
        retries: Largest number of attempts after the first.
        backoff: Seconds before the second attempt.
        sleep: A coroutine function of the seconds that waits.

    Returns:
        The answer of `call`.

    Raises:
        Failure: The failure of the last attempt, with the number of attempts.
    """
    deadline = time.monotonic() + timeout
    for number in range(retries + 1):
        try:
            return await call(deadline)
        except Failure as failure:
            failure.attempts = number + 1
            wait = max(backoff * 2**number * random.uniform(0.5, 1.0), failure.retry_after)
            remaining = deadline - time.monotonic()
            if remaining <= 0 and failure.code in WORTH_ANOTHER_ATTEMPT:
                failure.code = "DEADLINE_EXCEEDED"
            if failure.code not in WORTH_ANOTHER_ATTEMPT or number == retries or wait >= remaining:
                raise
            await sleep(wait)


def seconds_of(retry_after):
    """Reads a `Retry-After` of HTTP, a number of seconds or a date.

    >>> seconds_of("120"), seconds_of("Wed, 21 Oct 2015 07:28:00 GMT"), seconds_of("soon"), seconds_of(None)
    (120.0, 0.0, 0.0, 0.0)

    Args:
        retry_after: The value, a str; None if there is none.

    Returns:
        The seconds from now on, a float; 0.0 for a value that cannot be read.
    """
    if re.fullmatch("[0-9]{1,9}", retry_after or "", re.ASCII):
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
        return max(0.0, moment.timestamp() - time.time())
    except (TypeError, ValueError, OverflowError, OSError):
        # It is not a date, or one that no clock has.
        return 0.0


def finished(coroutine):
    """Runs a coroutine that waits for no event loop, and returns its result.

    >>> async def three():
    ...     return 3
    >>> finished(three())
    3
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("The coroutine must not wait for an event loop. Received: one that does.")
