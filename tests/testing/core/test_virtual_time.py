"""Virtual time: when it moves, in which order, and what a leap skips."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time as real_time
from collections.abc import AsyncIterator

import anyio.to_thread
import pytest

from eventbus import UsageError
from eventbus.model import clock
from eventbus.runtime.upkeep import mark
from eventbus.testing.virtual_time import VirtualTime

START = 1_893_456_000
DAY = 86_400.0


@pytest.fixture
async def time() -> AsyncIterator[VirtualTime]:
    time = VirtualTime(start=START)
    time.install()
    try:
        yield time
    finally:
        time.remove()


async def test_a_sleep_of_a_day_moves_the_time_by_a_day_and_takes_none(time: VirtualTime) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(DAY)
    assert loop.time() - began == pytest.approx(DAY)
    assert (clock.now(), clock.monotonic()) == (pytest.approx(START + DAY), loop.time())
    assert time.server_us() == pytest.approx((START + DAY) * 1e6, abs=1)


async def test_a_sleep_and_a_timeout_without_end_may_be_cancelled(time: VirtualTime) -> None:
    endless = asyncio.create_task(asyncio.sleep(math.inf))
    async with asyncio.timeout(math.inf):
        await asyncio.sleep(DAY)
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert time.now - time.began == pytest.approx(DAY)


async def test_time_stands_while_something_is_ready(time: VirtualTime) -> None:
    ended = asyncio.create_task(asyncio.sleep(0.001))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (time.now, ended.done()) == (time.began, False)
    await ended


async def test_timers_run_in_their_order_and_those_of_one_moment_in_the_order_in_which_they_were_set(
    time: VirtualTime,
) -> None:
    ran: list[tuple[str, float]] = []
    loop = asyncio.get_running_loop()
    for name, delay in [("b", 2), ("a", 1), ("c", 2), ("d", 2), ("z", 3)]:
        loop.call_later(delay, lambda name=name: ran.append((name, round(loop.time() - time.began, 6))))
    await time.advance(2)
    assert ran == [("a", 1), ("b", 2), ("c", 2), ("d", 2)]
    await time.advance(0.5)
    assert len(ran) == 4
    await time.advance(0.5)
    assert ran[4:] == [("z", 3)]


async def test_advance_runs_what_falls_due_on_the_way_and_what_that_begins(time: VirtualTime) -> None:
    async def chain() -> None:
        for _ in range(5):
            await asyncio.sleep(10)
            ran.append(round(time.now - time.began))

    ran: list[int] = []
    task = asyncio.create_task(chain())
    await time.advance(35)
    assert (ran, round(time.now - time.began)) == ([10, 20, 30], 35)
    await task
    assert ran == [10, 20, 30, 40, 50]


async def test_an_advance_that_is_cancelled_leaves_no_bound_behind(time: VirtualTime) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await time.advance(100)
    await asyncio.sleep(1000)
    assert round(time.now - time.began) == 1005


async def test_settle_lets_everything_run_that_needs_no_time(time: VirtualTime) -> None:
    async def work(depth: int) -> None:
        await asyncio.sleep(0)
        ran.append(depth)
        if depth:
            begun.append(asyncio.create_task(work(depth - 1)))

    ran: list[int] = []
    begun = [asyncio.create_task(work(5))]
    later = asyncio.create_task(asyncio.sleep(0.001))
    await time.settle()
    assert (ran, later.done(), time.now) == ([5, 4, 3, 2, 1, 0], False, time.began)
    later.cancel()


async def test_a_cancelled_timer_moves_nothing(time: VirtualTime) -> None:
    loop = asyncio.get_running_loop()
    for delay in (5, 6, 7):
        loop.call_later(delay, int).cancel()
    await asyncio.sleep(10)
    assert round(time.now - time.began) == 10


async def test_time_waits_for_threads(time: VirtualTime) -> None:
    """Each of the usual ways into a thread; a timer of a millisecond fires after all of them."""
    fired: list[bool] = []
    asyncio.get_running_loop().call_later(0.001, fired.append, True)
    for _ in range(20):
        await asyncio.to_thread(real_time.sleep, 0.001)
        await anyio.to_thread.run_sync(real_time.sleep, 0.001)
        await asyncio.get_running_loop().run_in_executor(None, real_time.sleep, 0.001)
        assert (time.now, fired) == (time.began, [])
    await asyncio.sleep(0.001)
    assert fired == [True]


async def test_time_waits_while_somebody_holds_it(time: VirtualTime) -> None:
    came = asyncio.Event()
    loop = asyncio.get_running_loop()
    thread = threading.Timer(0.05, loop.call_soon_threadsafe, [came.set])
    with time.hold():
        thread.start()
        async with asyncio.timeout(0.001):
            await came.wait()
    assert time.now == time.began


async def test_time_waits_for_what_a_foreign_socket_may_bring(time: VirtualTime) -> None:
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)
    for _ in range(3):
        there.sendall(b"answer")
        assert await reader.readexactly(6) == b"answer"
    assert time.now == time.began
    writer.close()
    await writer.wait_closed()
    there.close()


async def test_a_leap_skips_upkeep_which_fires_once_before_it_ends(time: VirtualTime) -> None:
    async def keep() -> None:
        mark("always")
        while True:
            await asyncio.sleep(5)
            kept.append(round(time.now - time.began, 3))

    kept: list[float] = []
    task = asyncio.create_task(keep())
    await asyncio.sleep(DAY)
    assert kept == [round(DAY - 0.001, 3)]
    await asyncio.sleep(4)  # nothing is due on this way
    assert len(kept) == 1
    await asyncio.sleep(2)
    assert len(kept) == 2
    task.cancel()


async def test_without_leaps_upkeep_comes_on_time() -> None:
    async def keep() -> None:
        mark("always")
        while True:
            await asyncio.sleep(5)
            kept.append(round(time.now - time.began, 3))

    kept: list[float] = []
    time = VirtualTime(start=START, leaps=False)
    time.install()
    try:
        task = asyncio.create_task(keep())
        await asyncio.sleep(31)
        assert kept == [5, 10, 15, 20, 25, 30]
        task.cancel()
        await time.settle()
    finally:
        time.remove()


@pytest.mark.parametrize("is_busy", [True, False])
async def test_upkeep_of_the_idle_kind_is_skipped_only_while_nothing_is_busy(
    time: VirtualTime, is_busy: bool
) -> None:
    async def keep() -> None:
        mark("idle")
        while True:
            await asyncio.sleep(5)
            kept.append(round(time.now - time.began, 3))

    kept: list[float] = []
    time.is_busy = lambda: is_busy
    task = asyncio.create_task(keep())
    await asyncio.sleep(21)
    assert kept == ([5, 10, 15, 20] if is_busy else [20.999])
    task.cancel()


async def test_what_the_server_has_to_do_stops_a_leap_and_is_told(time: VirtualTime) -> None:
    due = [time.now + 50, time.now + 70]
    told: list[float] = []
    time.server_due = lambda: min((each for each in due if each > time.now), default=None)
    time.on_due = lambda: told.append(round(time.now - time.began))
    await asyncio.sleep(100)
    assert told == [50, 70]


async def test_a_standstill_is_told_after_upkeep_had_its_chances(time: VirtualTime) -> None:
    async def keep() -> None:
        mark("always")
        while True:
            await asyncio.sleep(60)
            kept.append(time.now)

    def stand() -> None:
        never.set_exception(RuntimeError("stands"))

    kept: list[float] = []
    task = asyncio.create_task(keep())
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    time.on_standstill = stand
    with pytest.raises(RuntimeError, match="stands"):
        await never
    assert len(kept) == 3
    task.cancel()


async def test_the_loop_gets_its_own_time_back_and_it_never_goes_back() -> None:
    loop = asyncio.get_running_loop()
    own = clock.now, clock.monotonic
    for _ in range(3):
        time = VirtualTime(start=START)
        time.install()
        try:
            await asyncio.sleep(1000)
            ended = loop.time()
        finally:
            time.remove()
        assert loop.time() >= ended
        await asyncio.sleep(0.001)  # real
    assert (clock.now, clock.monotonic) == own
    assert not {"call_soon", "call_at", "create_task", "run_in_executor"} & set(vars(loop))


async def test_timers_fire_at_their_moment_also_after_years(time: VirtualTime) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(20):
        await asyncio.sleep(365.25 * DAY + 0.123456789)
        fired: list[float] = []
        timers = [loop.call_at(time.now + each, fired.append, each) for each in (0.0, 1e-7, 0.001, 18.0)]
        await asyncio.sleep(18.001)
        assert (fired, len(timers)) == ([0.0, 1e-7, 0.001, 18.0], 4)


async def test_a_second_one_in_the_same_loop_is_refused(time: VirtualTime) -> None:
    with pytest.raises(UsageError, match="is open in this event loop already"):
        VirtualTime(start=START).install()
    await asyncio.sleep(10)  # the first one goes on
    assert round(time.now - time.began) == 10


def test_a_loop_of_another_kind_is_refused() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        with pytest.raises(UsageError, match=r"got: uvloop\.Loop; run the test without uvloop"):
            VirtualTime(start=START).install()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
