"""Batches that end in another way: cancelled jobs, timeouts, lost leases, stops, and what all that means for
the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog

from eventbus import (
    Batch,
    BatchContext,
    Event,
    EventProvider,
    HandlerError,
    JobCancelled,
    Retry,
    SyncBatchContext,
)
from eventbus.engine.executor import Executor
from eventbus.model import batch as batches

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

doubled = Event("doubled", payload=int, result=int)
plain = Event("plain", payload=int, result=int)


class Held:
    """A batch handler that notes its calls and holds each of them until `go_on` is set."""

    def __init__(self, provider: EventProvider, size: int, **options: Any) -> None:
        self.calls: list[list[int]] = []
        self.running = 0
        self.cancelled = 0
        self.go_on = asyncio.Event()
        self.context: BatchContext | None = None
        batch = Batch(size=size, wait=options.pop("wait", "5s"))
        provider.on(doubled, batch=batch, **options)(self.handle)

    async def handle(self, numbers: list[int], ctx: BatchContext) -> list[int]:
        self.calls.append(numbers)
        self.context = ctx
        self.running += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return [2 * n for n in numbers]


def _executor(worker: Any) -> Executor:
    return worker._worker.claimer.executor


async def test_a_cancelled_job_leaves_and_the_others_go_on(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    held = Held(provider, 3)
    async with provider, provider.worker():
        emissions = provider.emit_many(doubled, range(3))
        await until(lambda: held.running, "the call runs")
        assert await emissions[1].cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await asyncio.wait_for(emissions[1], 240)
        assert held.context is not None
        assert [item.stopping for item in held.context.items] == [None, "cancel", None]
        assert held.context.stopping is None
        held.go_on.set()
        assert [await emissions[0], await emissions[2]] == [0, 4]
    assert (held.calls, held.cancelled) == ([[0, 1, 2]], 0)


async def test_a_call_that_nobody_waits_for_is_cancelled(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    held = Held(provider, 3)
    async with provider, provider.worker():
        emissions = provider.emit_many(doubled, range(3))
        await until(lambda: held.running, "the call runs")
        for emission in emissions:
            assert await emission.cancel()
        await until(lambda: not held.running, "it was cancelled")
        assert held.context is not None
        assert held.context.stopping == "cancel"
        for outcome in await asyncio.gather(*emissions, return_exceptions=True):
            assert isinstance(outcome, JobCancelled)
    assert held.cancelled == 1


async def test_a_job_that_is_cancelled_while_it_waits_for_others_is_in_no_call(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    held = Held(provider, 2)
    held.go_on.set()
    async with provider, provider.worker() as worker:
        first = provider.emit(doubled, 1)
        await until(lambda: _executor(worker).counts["event.doubled"] == 1, "it waits here")
        assert await first.cancel()
        await until(lambda: not _executor(worker).running, "it is gone")
        assert await asyncio.gather(*provider.emit_many(doubled, [2, 3])) == [4, 6]
    assert held.calls == [[2, 3]]


async def test_the_timeout_of_an_emission_ends_its_job_alone(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(retry=Retry(1))
    held = Held(provider, 3)
    async with provider, provider.worker():
        short = provider.emit(doubled, 1, timeout="50ms")
        others = provider.emit_many(doubled, [2, 3])
        with pytest.raises(HandlerError, match=r"timed out.*0\.05 s"):
            await asyncio.wait_for(short, 240)
        assert held.running == 1, "the others stay"
        held.go_on.set()
        assert [await each for each in others] == [4, 6]
    assert held.cancelled == 0


async def test_the_timeout_of_the_handler_counts_from_the_call_on_and_ends_it(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(retry=Retry(2, delay="1ms"))
    calls: list[list[int]] = []

    @provider.on(doubled, batch=Batch(size=3, wait="200ms"), timeout="100ms")
    async def double(numbers: list[int]) -> list[int]:
        calls.append(sorted(numbers))
        if len(calls) == 1:
            await asyncio.Event().wait()
        return [2 * n for n in numbers]

    async with provider, provider.worker():
        emissions = provider.emit_many(doubled, [1, 2])
        assert await asyncio.wait_for(asyncio.gather(*emissions), 240) == [2, 4]
        report = await provider.inspector.jobs.get(emissions[0].job_id)
        assert report.attempts == 1
        assert "timeout of 0.1 s" in report.failures[0].message
    assert calls == [[1, 2], [1, 2]], "though they waited longer than that for others"


async def test_a_handler_that_ignores_its_cancellation_is_given_up_on_once(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(retry=Retry(1), grace="1s")
    end = asyncio.Event()

    @provider.on(doubled, batch=Batch(size=20, wait="5s"), timeout="50ms")
    async def double(numbers: list[int]) -> list[int]:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return numbers

    async with provider, provider.worker() as worker:
        emissions = provider.emit_many(doubled, range(20))
        outcomes = await asyncio.wait_for(asyncio.gather(*emissions, return_exceptions=True), 240)
        assert all(isinstance(outcome, HandlerError) for outcome in outcomes)
        await until(lambda: not _executor(worker).running, "each has ended")
        assert _executor(worker).abandoned == 1
        assert worker.health().draining is False, "one bad call is one, however many jobs it has"
        end.set()


async def test_a_call_that_is_given_up_on_leaves_its_place_to_others(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(retry=Retry(1), grace="1s")
    end = asyncio.Event()

    @provider.on(doubled, batch=Batch(size=2, wait="20ms"), concurrency=1, timeout="20ms")
    async def double(numbers: list[int]) -> list[int]:
        while 0 in numbers and not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return [2 * n for n in numbers]

    async with provider, provider.worker() as worker:
        bad = provider.emit_many(doubled, [0, 1])
        await asyncio.gather(*bad, return_exceptions=True)
        later = asyncio.gather(*provider.emit_many(doubled, [2, 3]))
        assert await asyncio.wait_for(later, 240) == [4, 6]
        assert _executor(worker).abandoned == 1
        end.set()
        last = asyncio.gather(*provider.emit_many(doubled, [4, 5]))
        assert await asyncio.wait_for(last, 240) == [8, 10]


async def test_a_lost_lease_takes_one_job_out(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    held = Held(provider, 3)
    async with provider, provider.worker() as worker:
        emissions = provider.emit_many(doubled, range(3))
        await until(lambda: held.running, "the call runs")
        job = _executor(worker).running[emissions[0].job_id].job
        _executor(worker).lose([(job.id, job.token)])
        await until(lambda: job.id not in _executor(worker).running, "it is gone")
        assert held.context is not None
        assert [item.stopping for item in held.context.items] == ["lease lost", None, None]
        held.go_on.set()
        assert [await emissions[1], await emissions[2]] == [2, 4]
        report = await provider.inspector.jobs.get(job.id)
        assert report.state == "active", "nothing was settled for it"
        await emissions[0].cancel()


async def test_a_stop_waits_for_calls_and_not_for_others_to_gather(
    make_provider: MakeProvider, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_LONGEST", 3600.0)
    provider = make_provider(grace="1 hour")
    held = Held(provider, 10, wait="1 hour")
    held.go_on.set()
    async with provider:
        async with provider.worker() as worker:
            emissions = provider.emit_many(doubled, range(4))
            await until(lambda: _executor(worker).counts["event.doubled"] == 4, "they wait here")
        assert [await each for each in emissions] == [0, 2, 4, 6]
    assert held.calls == [[0, 1, 2, 3]]


async def test_a_worker_that_ends_by_itself_waits_for_no_others_either(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(grace="30s")
    held = Held(provider, 10, wait="60s")
    held.go_on.set()
    async with provider, provider.worker() as worker:
        emissions = provider.emit_many(doubled, range(4))
        await until(lambda: _executor(worker).counts["event.doubled"] == 4, "they wait here")
        _executor(worker).unhealthy.set()  # as when too many handlers ignore their cancellations
        assert await asyncio.wait_for(asyncio.gather(*emissions), 240) == [0, 2, 4, 6]


async def test_a_stop_without_grace_gives_all_of_them_back_without_an_attempt(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(grace=0)
    held = Held(provider, 4)
    async with provider:
        async with provider.worker():
            emissions = provider.emit_many(doubled, range(4))
            await until(lambda: held.running, "the call runs")
        for emission in emissions:
            report = await provider.inspector.jobs.get(emission.job_id)
            assert (report.state, report.attempts, report.stalls) == ("waiting", 0, 0)
        assert held.cancelled == 1
        held.go_on.set()
        async with provider.worker():
            assert await asyncio.gather(*emissions) == [0, 2, 4, 6]


async def test_a_call_that_ends_well_in_spite_of_a_stop_completes_its_jobs(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(grace=0)
    running = asyncio.Event()

    @provider.on(doubled, batch=Batch(size=3, wait="5s"))
    async def double(numbers: list[int]) -> list[int]:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return [2 * n for n in numbers]
        raise AssertionError

    async with provider:
        async with provider.worker():
            emissions = provider.emit_many(doubled, range(3))
            await running.wait()
        assert await asyncio.gather(*emissions) == [0, 2, 4]


async def test_unsubscribe_does_not_wait_for_others_to_gather(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    held = Held(provider, 10, wait="60s")
    held.go_on.set()
    async with provider, provider.worker() as worker:
        emission = provider.emit(doubled, 1)
        await until(lambda: _executor(worker).counts["event.doubled"] == 1, "it waits here")
        await asyncio.wait_for(provider.unsubscribe(doubled), 240)
        assert await emission == 2
        assert worker.queues == []


@pytest.mark.real
async def test_a_thread_hears_that_its_jobs_were_cancelled(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    heard: list[Any] = []
    running = threading.Event()

    @provider.on(doubled, batch=Batch(size=2, wait="5s"))
    def double(numbers: list[int], ctx: SyncBatchContext) -> list[int]:
        running.set()
        while ctx.stopping is None:
            pass
        heard.append(ctx.stopping)
        return numbers

    async with provider, provider.worker():
        emissions = provider.emit_many(doubled, [1, 2])
        await until(running.is_set, "it runs")
        for emission in emissions:
            assert await emission.cancel()
        await until(lambda: heard == ["cancel"], "the thread heard of it")


async def test_a_call_is_one_slot_of_the_handler(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    held = Held(provider, 10, concurrency=2)
    async with provider, provider.worker() as worker:
        emissions = provider.emit_many(doubled, range(60))
        await until(lambda: held.running == 2, "two calls run")
        await emissions[-1].enqueued()
        await until(lambda: _executor(worker).counts["event.doubled"] == 20, "no more are claimed")
        held.go_on.set()
        assert await asyncio.gather(*emissions) == [2 * n for n in range(60)]
    assert [len(call) for call in held.calls] == [10] * 6


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_call_is_one_slot_of_the_worker_and_other_events_have_the_rest(
    make_provider: MakeProvider, until: Until, slots: int
) -> None:
    provider = make_provider(max_concurrency=slots)
    held = Held(provider, 50)
    running: set[int] = set()
    go_on = asyncio.Event()

    @provider.on(plain)
    async def run(n: int) -> int:
        running.add(n)
        await go_on.wait()
        return n

    async with provider, provider.worker() as worker:
        batch = provider.emit_many(doubled, range(50))
        await until(lambda: held.running == 1, "one full call runs in one slot")
        alone = provider.emit_many(plain, range(5))
        await alone[-1].enqueued()
        if slots == 2:
            await until(lambda: len(running) == 1, "the other slot is free for others")
        held.go_on.set()
        assert await asyncio.gather(*batch) == [2 * n for n in range(50)]
        await until(lambda: len(running) == slots, "all slots are free for others")
        assert len(_executor(worker).running) == slots
        go_on.set()
        assert await asyncio.gather(*alone) == list(range(5))
    assert held.calls == [list(range(50))]


async def test_a_call_runs_in_what_surrounds_its_queue_and_not_in_a_job(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    facts: list[dict[str, Any]] = []

    @provider.lifespan
    async def around() -> AsyncIterator[None]:
        tenant.set("shared")
        yield

    async def double(numbers: list[int]) -> list[int]:
        known = structlog.contextvars.get_contextvars()
        facts.append({name: value for name, value in known.items() if value is not ...})
        facts[-1]["tenant"] = tenant.get()
        return [2 * n for n in numbers]

    held = Held(provider, 2, concurrency=1)
    async with provider, provider.worker():
        first = provider.emit_many(doubled, [1, 2])
        await until(lambda: held.running, "the call runs")
        leaving = asyncio.create_task(provider.unsubscribe(doubled))
        await asyncio.sleep(0)
        await provider.subscribe(doubled, double, batch=Batch(size=2, wait="5s"), retry=Retry(2))
        held.go_on.set()
        assert await asyncio.gather(*first) == [2, 4]
        await leaving
        assert await asyncio.gather(*provider.emit_many(doubled, [3, 4])) == [6, 8]
    assert facts == [{"event_name": "doubled", "tenant": "shared"}]
