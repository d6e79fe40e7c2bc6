"""SIGTERM ends long work at a point where nothing is lost."""

import signal
import threading


class Terminated(Exception):
    """The process received SIGTERM, saved its state and stopped."""


class Termination:
    """A context in which SIGTERM sets `requested` to True instead of ending the process.

    The work inside looks at `requested`, saves its state and raises `Terminated`. A second SIGTERM ends the process
    at once. Python receives signals in the main thread only, so in another thread SIGTERM keeps its usual effect.

    Attributes:
        requested: Whether SIGTERM has arrived.

    >>> import os, signal
    >>> with Termination() as termination:
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     termination.requested
    True
    """

    requested = False

    def __enter__(self):
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._previous = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *exception):
        if self._listens:
            signal.signal(signal.SIGTERM, self._previous)

    def _request(self, number, frame):
        self.requested = True
        signal.signal(signal.SIGTERM, self._previous)
