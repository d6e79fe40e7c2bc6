"""HTTP requests that end at their deadline, even if the server sends an answer byte by byte.

`requests` and urllib3 limit only how long each read of a socket takes.
"""

import contextlib
import socket
import threading
import time

import requests
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

_this_thread = threading.local()


@contextlib.contextmanager
def deadline_of_this_thread(deadline):
    """Ends the requests of this thread at a deadline: their connection is shut down, and the read raises an error.

    Args:
        deadline: In seconds of `time.monotonic`.
    """
    request = _Request()
    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), request.end)
    timer.daemon = True
    _this_thread.request = request
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        del _this_thread.request


class _Request:
    """A request, whose connection another thread may shut down."""

    def __init__(self):
        self._connection = None
        self._ended = False
        self._lock = threading.Lock()

    def uses(self, connection):
        with self._lock:
            self._connection = connection
            if self._ended:
                self._shut_down()

    def end(self):
        with self._lock:
            self._ended = True
            self._shut_down()

    def _shut_down(self):
        if self._connection is not None:
            # The socket may be closed already.
            with contextlib.suppress(OSError):
                # TLS's own `shutdown` would wait for the server.
                socket.socket.shutdown(self._connection, socket.SHUT_RDWR)


class _Ending:
    """Tells the request of this thread which socket it reads from."""

    def getresponse(self):
        request = getattr(_this_thread, "request", None)
        if request is not None:
            request.uses(self.sock)
        return super().getresponse()

    # It begins the message of a connection that cannot be opened.
    def __str__(self):
        return f"{self.host}:{self.port}"


class _EndingConnection(_Ending, HTTPConnection):
    pass


class _EndingTLSConnection(_Ending, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _EndingConnection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _EndingTLSConnection


class DeadlineAdapter(requests.adapters.HTTPAdapter):
    """An adapter of `requests` whose connections end with `deadline_of_this_thread`."""

    def init_poolmanager(self, *args, **kwargs):
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}
