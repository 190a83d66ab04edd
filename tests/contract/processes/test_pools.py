"""Named pools: handlers share the places of a pool in their worker; what waits for a place holds up nothing
else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from importable import process_handlers

from eventbus import DefinitionError, EventContext, EventProvider, HandlerError, JobCancelled, SyncContext

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class Gate:
    """A plain handler whose calls begin, and end when the test opens the gate."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self._open = threading.Event()

    def hold(self, payload: Any) -> Any:
        self.begun.append(payload)
        assert self._open.wait(240)
        return payload

    def open(self) -> None:
        self._open.set()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()  # whatever failed: a thread cannot be stopped


async def echo(payload: Any) -> Any:
    return payload


async def test_a_pool_runs_as_many_as_it_has_places_and_the_worker_claims_no_more(
    make_provider: MakeProvider, gate: Gate, until: Until
) -> None:
    provider = make_provider(reply_timeout=240)
    provider.pool("narrow", threads=2)
    provider.on("held", pool="narrow")(gate.hold)
    provider.on("free")(echo)
    async with provider, provider.worker() as worker:
        held = [provider.emit("held", number) for number in range(5)]
        await until(lambda: len(gate.begun) == 2, "two run")
        assert [await provider.emit("free", number) for number in range(5)] == [*range(5)]
        assert (len(gate.begun), worker.claimed) == (2, 7), "three jobs wait in their queue, for any worker"
        gate.open()
        assert await asyncio.gather(*held) == [*range(5)]


async def test_handlers_of_one_pool_share_its_places(
    make_provider: MakeProvider, gate: Gate, until: Until
) -> None:
    provider = make_provider(reply_timeout=240)
    provider.pool("narrow", threads=1)
    provider.on("first", pool="narrow")(gate.hold)
    provider.on("second", pool="narrow")(gate.hold)
    provider.on("free")(echo)
    async with provider, provider.worker() as worker:
        first = provider.emit("first", 1)
        await until(lambda: gate.begun == [1], "one runs")
        second = provider.emit("second", 2)
        await second.enqueued()
        assert [await provider.emit("free", number) for number in range(5)] == [*range(5)]
        assert worker.claimed == 6, "the second handler claims nothing while the first has the place"
        gate.open()
        assert await asyncio.gather(first, second) == [1, 2], "the place that became free is noticed"


async def test_the_timeout_of_a_claimed_job_counts_from_its_place(make_provider: MakeProvider) -> None:
    claimed: list[int] = []

    def compute(payload: Any) -> Any:
        claimed.append(worker.claimed)
        time.sleep(2.1)
        return payload

    provider = make_provider(reply_timeout=240, retry=1)
    provider.pool("narrow", threads=1)
    provider.on("first", pool="narrow", timeout=4)(compute)
    provider.on("second", pool="narrow", timeout=4)(compute)
    async with provider:
        jobs = [provider.emit("first", 1), provider.emit("second", 2)]
        await provider.flush()
        async with provider.worker() as worker:  # its first call claims one job for each handler
            assert await asyncio.gather(*jobs) == [1, 2]
    assert claimed == [2, 2], "one of the two waited in the worker"


async def test_a_thread_that_outlives_its_job_keeps_its_place(
    make_provider: MakeProvider, gate: Gate, until: Until
) -> None:
    provider = make_provider(reply_timeout=240, retry=1)
    provider.pool("narrow", threads=1)
    provider.on("held", pool="narrow", timeout=2)(gate.hold)
    provider.on("free")(echo)
    async with provider, provider.worker():
        with pytest.raises(Exception, match="timed out"):
            await provider.emit("held", 1)
        second = provider.emit("held", 2)
        await second.enqueued()
        assert [await provider.emit("free", number) for number in range(5)] == [*range(5)]
        assert gate.begun == [1], "its thread still runs"
        gate.open()
        assert await second == 2
        assert gate.begun == [1, 2]


async def test_a_timeout_still_ends_an_attempt_in_a_pool(make_provider: MakeProvider, tmp_path: Path) -> None:
    provider = make_provider(reply_timeout=60, retry=1)
    provider.pool("render", processes=1)
    provider.on("hold", pool="render", timeout=2)(process_handlers.hold)
    provider.on("pid", pool="render")(process_handlers.pid)
    async with provider, provider.worker():
        with pytest.raises(Exception, match="timed out: it ran longer than its timeout of 2 s"):
            await provider.emit("hold", str(tmp_path))
        assert await provider.emit("pid", 1) != os.getpid()


async def test_a_cancelled_job_frees_its_place(
    make_provider: MakeProvider, tmp_path: Path, until: Until
) -> None:
    provider = make_provider(reply_timeout=60, retry=1)
    provider.pool("render", processes=1)
    provider.on("hold", pool="render")(process_handlers.hold)
    provider.on("pid", pool="render")(process_handlers.pid)
    async with provider, provider.worker():
        held = provider.emit("hold", str(tmp_path))
        await until(lambda: list(tmp_path.glob("*.running")), "it runs")
        after = provider.emit("pid", 1)
        assert await held.cancel("enough")
        with pytest.raises(JobCancelled):
            await held
        assert await after != os.getpid()


async def test_a_pool_has_processes_of_its_own_which_its_handlers_share(make_provider: MakeProvider) -> None:
    provider = make_provider(reply_timeout=240)
    provider.pool("render", processes=1)
    provider.pool("other", processes=1)
    for name, pool in (("a", "render"), ("b", "render"), ("c", "other"), ("d", "process")):
        provider.on(name, pool=pool)(process_handlers.pid)
    async with provider, provider.worker() as worker:
        assert worker._pools["render"].processes.pids == []  # pyright: ignore[reportOptionalMemberAccess]
        first, second, third, fourth = [await provider.emit(name, 1) for name in "abcd"]
        assert first == second
        assert len({os.getpid(), first, third, fourth}) == 4
    for pid in (first, third, fourth):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_the_death_of_a_process_fails_its_attempt_alone(
    make_provider: MakeProvider, tmp_path: Path, until: Until
) -> None:
    provider = make_provider(reply_timeout=60, retry=1)
    provider.pool("render", processes=1)
    provider.on("hold", pool="render")(process_handlers.hold)
    provider.on("pid", pool="render")(process_handlers.pid)
    async with provider, provider.worker() as worker:
        held = provider.emit("hold", str(tmp_path))
        await until(lambda: list(tmp_path.glob("*.running")), "it runs")
        pool = worker._pools["render"].processes
        assert pool is not None
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(HandlerError, match="SIGKILL"):
            await held
        assert await provider.emit("pid", 1) != os.getpid()


async def test_a_job_that_waits_for_its_place_is_given_back_by_a_stop(
    make_provider: MakeProvider, gate: Gate, until: Until
) -> None:
    attempts: list[int] = []

    def note(payload: Any, ctx: SyncContext) -> None:
        attempts.append(ctx.attempt)
        gate.hold(payload)

    provider = make_provider(reply_timeout=240, retry=2, grace=0.1)
    provider.pool("narrow", threads=1)
    provider.on("first", pool="narrow")(note)
    provider.on("second", pool="narrow")(note)
    async with provider:
        jobs = [provider.emit("first", 1), provider.emit("second", 2)]
        await provider.flush()
        async with provider.worker() as worker:  # its first call claims one job for each handler
            await until(lambda: worker.claimed == 2 and gate.begun, "one runs, one waits")
        assert len(gate.begun) == 1
        gate.open()
        async with provider.worker():
            await asyncio.gather(*jobs)
    assert attempts == [1, 1, 1], "one began twice, and no attempt was counted"


async def test_a_stop_begins_no_job_whose_place_is_free_only_then(
    make_provider: MakeProvider, gate: Gate, until: Until
) -> None:
    provider = make_provider(reply_timeout=240)
    provider.pool("narrow", threads=1)
    for name in ("first", "second", "third"):
        provider.on(name, pool="narrow")(gate.hold)
    async with provider:
        jobs = [provider.emit(name, name) for name in ("first", "second", "third")]
        await provider.flush()
        async with provider.worker() as worker:
            await until(lambda: worker.claimed == 3 and gate.begun, "one runs, two wait")
            worker.request_stop()
            gate.open()
        assert len(gate.begun) == 1
        async with provider.worker():
            assert await asyncio.gather(*jobs) == ["first", "second", "third"]
    assert len(gate.begun) == 3


async def test_a_handler_that_subscribes_later_finds_a_pool_that_is_declared_later(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(reply_timeout=240)
    provider.on("free")(echo)
    async with provider, provider.worker():
        provider.pool("late", threads=1)
        await provider.subscribe("named", lambda _: threading.current_thread().name, pool="late")
        assert "eventbus" in await provider.emit("named", 1)


async def test_middleware_runs_within_the_place(make_provider: MakeProvider) -> None:
    provider = make_provider(reply_timeout=240)
    provider.pool("narrow", threads=3)
    seen: list[int] = []

    @provider.use
    async def around(payload: Any, ctx: EventContext, call: Any) -> Any:
        seen.append(worker._pools["narrow"].places.free)
        return await call(payload)

    provider.on("doubled", pool="narrow")(process_handlers.double)
    async with provider, provider.worker() as worker:
        assert await provider.emit("doubled", 4) == 8
        assert seen == [2]
        assert worker._pools["narrow"].places.free == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"either processes=... or threads=... for pool 'render', got: processes=None, threads=None"),
        ({"processes": 1, "threads": 1}, "got: processes=1, threads=1"),
        ({"processes": 0}, "expected processes of pool 'render' to be a positive integer, got: 0"),
        ({"threads": True}, "expected threads of pool 'render' to be a positive integer, got: True"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(
    make_provider: MakeProvider, options: dict[str, Any], message: str
) -> None:
    provider = make_provider()
    with pytest.raises(DefinitionError, match=message):
        provider.pool("render", **options)
    assert provider.pools == ["thread", "process"]


def test_a_name_is_checked_and_taken_once(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.pool("render", threads=1)
    with pytest.raises(DefinitionError, match="pool 'render' is declared already"):
        provider.pool("render", threads=1)
    with pytest.raises(DefinitionError, match="every worker has a pool 'process' already"):
        provider.pool("process", processes=1)
    with pytest.raises(DefinitionError, match="expected a pool name"):
        provider.pool("no spaces", threads=1)
    assert provider.pools == ["thread", "process", "render"]


async def test_an_unknown_pool_is_refused_with_the_known_ones(make_provider: MakeProvider) -> None:
    provider = make_provider()
    provider.pool("render", threads=1)
    with pytest.raises(DefinitionError, match='to be one of "thread", "process", "render", got: \'redner\''):
        provider.on("doubled", pool="redner")(process_handlers.double)
    with pytest.raises(DefinitionError, match="is async and runs in the event loop"):
        provider.on("echoed", pool="render")(echo)
    assert provider.queues == []


async def test_many_jobs_of_several_handlers_pass_through_a_small_pool(make_provider: MakeProvider) -> None:
    running: list[int] = [0]
    most: list[int] = [0]
    lock = threading.Lock()

    def count(payload: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.001)
        with lock:
            running[0] -= 1
        return payload

    provider = make_provider(reply_timeout=240)
    provider.pool("narrow", threads=3)
    for name in ("a", "b", "c"):
        provider.on(name, pool="narrow")(count)
    async with provider, provider.worker() as worker:
        jobs = [provider.emit("abc"[number % 3], number) for number in range(300)]
        assert await asyncio.gather(*jobs) == [*range(300)]
        assert worker._pools["narrow"].places.free == 3
    assert most == [3]


async def test_a_drained_worker_has_no_job_that_waits_for_the_place_of_a_thread(
    make_provider: MakeProvider, gate: Gate
) -> None:
    provider = make_provider(reply_timeout=240, retry=1)
    provider.pool("narrow", threads=1)
    provider.on("held", pool="narrow", timeout=2)(gate.hold)
    async with provider, provider.worker() as worker:
        jobs = [provider.emit("held", number) for number in range(3)]
        drained = asyncio.create_task(worker.wait_drained(provider.flush))
        with pytest.raises(Exception, match="timed out"):
            await jobs[0]
        await asyncio.wait({drained}, timeout=1)
        assert not drained.done(), "its thread still runs, and two jobs wait"
        gate.open()
        await drained
        assert await asyncio.gather(*jobs[1:]) == [1, 2]


async def test_a_worker_is_drained_although_a_thread_runs_on(make_provider: MakeProvider, gate: Gate) -> None:
    provider = make_provider(reply_timeout=240, retry=1)
    provider.pool("narrow", threads=1)
    provider.on("held", pool="narrow", timeout=2)(gate.hold)
    async with provider, provider.worker() as worker:
        with pytest.raises(Exception, match="timed out"):
            await provider.emit("held", 1)
        await asyncio.wait_for(worker.wait_drained(provider.flush), 240)
