"""Attempts at a request: which failures are worth another one, and until when."""

import random
import time

# A server's refusal of a whole batch, for a request whose shape is unlike its neighbours': not this one's fault.
UNLIKE = "from different tasks have different shapes"


class Failure(Exception):
    """What came instead of an answer.

    Args:
        code: The name of a gRPC status code, such as `NOT_FOUND`, over every transport.
        message: What the server said, or what became of the connection.
    """

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code = "UNAVAILABLE" if UNLIKE in str(message) else code
        self.message = message
        self.attempts = 1


def attempt(call, timeout, retries, backoff):
    """Calls until there is an answer.

    `UNAVAILABLE` alone is worth another attempt: nobody was there, too busy to begin, or a neighbour spoilt the batch.
    Before attempt n + 1 comes a wait of `backoff * 2**(n - 1)` seconds, shortened by up to a half at random, so that
    the clients of a server that comes back do not all call at once. All attempts and waits share one deadline; a wait
    that would not end before it is not begun.

    urllib3 retries, too, but gives each attempt the whole timeout; gRPC knows at most four retries. One loop over both
    keeps the arguments' meaning the same.

    Args:
        call: A function of the deadline (seconds of `time.monotonic`) that returns an answer or raises `Failure`.
        timeout: Seconds for all attempts together.
        retries: How many attempts may follow the first.
        backoff: Seconds before the second attempt.

    Raises:
        Failure: The last one, with the number of attempts.
    """
    deadline = time.monotonic() + timeout
    for number in range(retries + 1):
        try:
            return call(deadline)
        except Failure as failure:
            failure.attempts = number + 1
            wait = backoff * 2**number * random.uniform(0.5, 1.0)
            remaining = deadline - time.monotonic()
            if remaining <= 0 and failure.code == "UNAVAILABLE":
                failure.code = "DEADLINE_EXCEEDED"
            if failure.code != "UNAVAILABLE" or number == retries or wait >= remaining:
                raise
            time.sleep(wait)
