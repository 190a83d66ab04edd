"""Plain functions in threads: what happens when their caller is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from eventbus.lowlevel import Places, ThreadPool
from workflows.distributed.thread_calls import call_in_thread
from workflows.execution.attempt import StillRuns


async def test_a_place_is_not_handed_on_while_the_thread_runs() -> None:
    places, begun, gate = Places(1), asyncio.Event(), threading.Event()
    threads, loop = ThreadPool(1, places), asyncio.get_running_loop()

    def hold() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert gate.wait(240)

    async def attempt() -> None:
        try:
            await call_in_thread(threads, hold)
        finally:
            places.leave()

    assert places.enter()
    running = asyncio.create_task(attempt())
    await begun.wait()
    following = asyncio.create_task(places.wait())
    try:
        for _ in range(2):  # the second one ends the wait for the function
            running.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(StillRuns):
            await running
        await asyncio.sleep(0.01)
        assert not following.done()
    finally:
        gate.set()
    await following
    assert places.free == 0
    threads.close()
