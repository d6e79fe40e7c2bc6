"""The client for asyncio, over both protocols: many requests at the same time, and the errors of `Client`."""

import asyncio
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_serving")
from servers import refuse, served_function

from keras_transformer.client import AsyncClient, Client


def echo(text):
    return {"translation": text, "truncated": tf.strings.length(text) > 5}


@pytest.fixture(scope="module")
def models():
    return {"echo": {1: served_function(echo)}}


@pytest.fixture
def run(url):
    """Runs a coroutine function of a client."""

    def run(task, **options):
        async def main():
            async with AsyncClient(url, "echo", **{"backoff": 1e-4, **options}) as client:
                return await task(client)

        return asyncio.run(main())

    return run


def meeting(number):
    """A fault that ends when `number` requests wait in it; `BrokenBarrierError` if fewer come."""
    return threading.Barrier(number, timeout=20).wait


def test_calls_answer_as_those_of_client(run, url):
    def calls(client):
        yield client.translate(["b", "a"])
        yield client.predict(text=["ab"])
        yield client.answer(["c"])
        yield client.status()
        yield client.ready()
        yield client.translate([])

    async def ask(client):
        return [await call for call in calls(client)]

    with Client(url, "echo") as client:
        np.testing.assert_equal(run(ask), list(calls(client)))


def test_batches_and_tasks_travel_together_and_keep_their_order(run, backend):
    backend.faults += [meeting(3)] * 3  # they pass only together
    texts = ["d", "bb", "a", "ccc", "e"]
    assert run(lambda client: client.translate(texts), batch_size=2) == texts
    backend.faults += [meeting(3)] * 3

    async def several(client):
        return await asyncio.gather(*(client.translate([text]) for text in "xyz"))

    assert run(several) == [["x"], ["y"], ["z"]]


def test_no_more_requests_are_on_their_way_than_allowed(run, backend):
    now, most, lock = [0], [0], threading.Lock()

    def count():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1

    backend.faults += [count] * 12
    run(lambda client: client.translate(list("abcdef")), batch_size=1, concurrency=2)
    assert most == [2]


def test_requests_share_connections(run, backend):
    async def twice(client):
        return [await client.translate(["a"]), await client.translate(["b"])]

    run(twice)
    assert len(backend.peers) == 1


def test_a_request_is_sent_again_and_its_error_is_that_of_client(run, backend, url):
    backend.faults += [refuse("UNAVAILABLE")] * 2
    assert run(lambda client: client.translate(["a"]), retries=2) == ["a"]
    backend.faults += [refuse("UNAVAILABLE")] * 2
    with pytest.raises(ConnectionError, match=f"{url} is not available after 2 attempts: no"):
        run(lambda client: client.translate(["a"]), retries=1)
    with pytest.raises(ValueError, match=r"refuses .*signature='other'"):
        run(lambda client: client.predict("other", text=["a"]))


def test_one_failed_batch_is_an_error_and_no_task_is_left(run, backend):
    async def ask(client):
        with pytest.raises(PermissionError):
            await client.translate(list("abcd"))
        return asyncio.all_tasks() - {asyncio.current_task()}

    backend.faults += [refuse("UNAUTHENTICATED")]
    assert run(ask, batch_size=1) == set()


def test_a_slow_server_is_a_timeout_while_the_loop_goes_on(run, backend, url):
    end, ticks = threading.Event(), []
    # More than one: over REST a request of a test before, whose task was cancelled, may still arrive.
    backend.faults += [lambda: end.wait(30)] * 9

    async def ask(client):
        async def tick():
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.01)

        ticking = asyncio.ensure_future(tick())
        with pytest.raises(TimeoutError, match=f"{url} must answer within timeout=0.3 seconds"):
            await client.predict(text=["a"])
        ticking.cancel()

    try:
        run(ask, timeout=0.3)
    finally:
        end.set()
    assert len(ticks) > 3


def test_a_cancelled_call_leaves_its_turn_to_the_next(run, backend):
    end = threading.Event()
    backend.faults += [lambda: end.wait(30)]

    async def ask(client):
        first = asyncio.ensure_future(client.translate(["a"]))
        while not backend.calls:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        end.set()
        return await client.translate(["b"])

    try:
        assert run(ask, concurrency=1) == ["b"]
    finally:
        end.set()


def test_a_cut_text_is_a_warning_at_the_line_of_the_caller(run):
    async def ask(client):
        return await client.translate(["too long"])

    with pytest.warns(UserWarning, match="1 of 1 sentences are longer") as warned:
        run(ask)
    assert [warning.filename for warning in warned] == [__file__]


def test_a_document_is_translated_sentence_by_sentence(run):
    pytest.importorskip("sentencex")

    async def ask(client):
        return await client.translate_document("One. Two.\n\nA longer one.\n", "en")

    with pytest.warns(UserWarning, match="1 of 3 sentences are longer") as warned:
        assert run(ask) == "One. Two.\n\nA longer one.\n"
    assert [warning.filename for warning in warned] == [__file__]


def test_a_closed_client_and_a_wrong_argument_are_named(run):
    async def ask(client):
        await client.close()
        with pytest.raises(ValueError, match="The client must be open"):
            await client.status()

    run(ask)
    with pytest.raises(ValueError, match="`concurrency` must be"):
        AsyncClient("http://localhost", concurrency=0)
