"""A client for `asyncio`."""

import asyncio

from keras_transformer.checks import check_positive, warn
from keras_transformer.client.calls import Calls


class AsyncClient(Calls):
    """A client for `asyncio`, with the calls of `Client`; each of them returns an awaitable.

    Example::

        async with AsyncClient("grpc://localhost:8500", "en_de", concurrency=8) as client:
            german = await client.translate(["A dog runs."])

    Any number of tasks of one event loop can share a client. At most `concurrency` requests are on their way at the
    same time, and the others wait for their turn; the batches of a long input travel together. Connections stay open.
    Over gRPC a cancelled task cancels its request. Over REST, `requests` sends each request in a thread, and a request
    whose task is cancelled ends unseen, at its deadline at the latest.

    Args:
        url: `http://host[:port][/path]` for REST, `grpc://host:port` for gRPC, `https://` and `grpcs://` with TLS.
        model: Name of the model in the server.
        concurrency: Largest number of requests at the same time.
        **arguments: The other arguments of `Client`, such as `batch_size`, `timeout`, `retries` and `headers`. The time
            of a request begins with its turn.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, url, model="model", *, concurrency=16, **arguments):
        check_positive(concurrency=concurrency)
        self.concurrency = concurrency
        self._turns = asyncio.Semaphore(concurrency)
        super().__init__(url, model, **arguments)

    def _connected(self, scheme):
        # The other transport would only take time to import.
        if scheme in ("grpc", "grpcs"):
            from keras_transformer.client.rpc import AsyncRpc

            return AsyncRpc(self)
        from keras_transformer.client.rest import AsyncRest

        return AsyncRest(self)

    def _run(self, coroutine):
        return coroutine

    async def _pieces(self, stream):
        while not stream.finished:
            piece, notes = await self._next_piece(stream)
            for note in notes:
                warn(note)
            if piece:
                yield piece

    async def next_piece(self, stream):
        """Sends the next request of a `client.stream.Stream`, for callers that need more of it than its text.

        Args:
            stream: A `Stream` that is not finished.

        Returns:
            The text that it adds, a str, and new warnings, a list of str.

        Raises:
            ValueError: As `stream`.
            OSError: As `stream`.
        """
        return await self._next_piece(stream)

    async def _all(self, request, batches):
        tasks = [asyncio.ensure_future(request(rows)) for rows in batches]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, *arguments, **options):
        async with self._turns:
            return await super()._ask(*arguments, **options)

    async def _send(self, method, *arguments):
        return await getattr(self._transport, method)(*arguments)

    async def _sleep(self, seconds):
        await asyncio.sleep(seconds)

    async def close(self):
        """Closes the connections. `async with AsyncClient(...)` does so at its end."""
        self._transport.closed = True
        await self._transport.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()
