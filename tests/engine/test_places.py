"""Places of a pool: never more than there are, in the order of the requests, and none is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from eventbus.runtime.places import Places
from eventbus.runtime.thread_pool import ThreadPool


async def _wait(places: Places) -> asyncio.Task[None]:
    waiting = asyncio.create_task(places.wait())
    await asyncio.sleep(0)
    return waiting


async def test_who_waits_first_is_given_the_next_place() -> None:
    places = Places(1)
    assert places.enter()
    assert not places.enter()
    first, second = await _wait(places), await _wait(places)
    places.leave()
    await first
    assert not second.done()
    assert places.free == 0
    places.leave()
    await second


async def test_a_wait_that_is_cancelled_takes_no_place() -> None:
    places = Places(1)
    assert places.enter()
    waiting = await _wait(places)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    places.leave()
    assert places.free == 1


async def test_a_place_that_comes_with_the_cancellation_is_given_back() -> None:
    places = Places(1)
    assert places.enter()
    waiting = await _wait(places)
    places.leave()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert places.free == 1


async def test_it_is_told_that_a_line_begins_or_goes_on_and_that_a_place_is_free() -> None:
    told: list[tuple[int, bool]] = []
    places = Places(1, lambda: told.append((places.free, places.has_line)))
    assert places.enter()
    waiting = [await _wait(places) for _ in range(2)]
    assert told == [(0, True)]
    for _ in range(3):
        places.leave()
    await asyncio.gather(*waiting)
    assert told[1:] == [(0, True), (1, False)]


async def test_a_thread_that_outlives_its_caller_keeps_a_place() -> None:
    ended = asyncio.Event()
    places = Places(1, ended.set)
    threads = ThreadPool(1, places)
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert gate.wait(240)

    assert places.enter()
    running = asyncio.create_task(threads.run(hold))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    places.leave()  # as the attempt does
    assert places.free == 0
    assert not ended.is_set()
    gate.set()
    await ended.wait()
    assert places.free == 1
    threads.close()
