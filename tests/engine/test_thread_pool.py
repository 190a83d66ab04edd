"""Threads for sync handlers: the limit holds, and a slot is free again only when its thread has ended."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from eventbus.runtime.thread_pool import ThreadPool

Until = Callable[..., Awaitable[None]]
_place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


@pytest.fixture
async def pair() -> AsyncIterator[ThreadPool]:
    """Two threads."""
    threads = ThreadPool(2)
    yield threads
    threads.close()


async def test_results_and_errors_come_back(pair: ThreadPool) -> None:
    def fails() -> None:
        raise ValueError("in a thread")

    assert await pair.run(lambda: 5) == 5
    with pytest.raises(ValueError, match="in a thread"):
        await pair.run(fails)


async def test_a_stop_iteration_is_an_error_as_in_a_coroutine(pair: ThreadPool) -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        await asyncio.wait_for(pair.run(lambda: next(iter([]))), 240)
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_a_call_sees_what_surrounds_its_caller(pair: ThreadPool) -> None:
    _place.set("here")
    assert await pair.run(_place.get) == "here"
    await pair.run(lambda: _place.set("there"))
    assert _place.get() == "here"


async def test_no_more_run_at_a_time_than_there_are_places(pair: ThreadPool) -> None:
    lock = threading.Lock()
    together = threading.Barrier(2)
    running: list[int] = [0, 0]

    def work() -> None:
        with lock:
            running[0] += 1
            running[1] = max(running)
        together.wait(240)
        with lock:
            running[0] -= 1

    await asyncio.gather(*(pair.run(work) for _ in range(8)))
    assert running == [0, 2]


async def test_a_place_comes_back_when_the_thread_ends_not_when_the_wait_does(pair: ThreadPool) -> None:
    go = threading.Event()
    started: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def work(n: int) -> int:
        loop.call_soon_threadsafe(started.put_nowait, n)
        go.wait(240)
        if n == 0:
            raise ValueError("nobody hears it")
        return n

    tasks = [asyncio.create_task(pair.run(lambda n=n: work(n))) for n in range(3)]
    assert {await started.get(), await started.get()} == {0, 1}
    for each in tasks[:2]:
        each.cancel()
    await asyncio.wait(tasks[:2])
    assert started.empty()
    go.set()
    assert await asyncio.wait_for(started.get(), 240) == 2
    assert await tasks[2] == 2


async def test_a_wait_for_a_place_can_be_cancelled(pair: ThreadPool) -> None:
    go = threading.Event()
    tasks = [asyncio.create_task(pair.run(lambda: go.wait(240))) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    go.set()
    assert await asyncio.gather(*tasks[:2]) == [True, True]
    assert await pair.run(lambda: 1) == 1


async def test_a_closed_pool_takes_no_calls() -> None:
    threads = ThreadPool(1)
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.run(lambda: 1)
    with pytest.raises(RuntimeError):  # the place came back
        await asyncio.wait_for(threads.run(lambda: 1), 240)
