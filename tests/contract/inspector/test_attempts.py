"""What a job tells of its attempts: when each was due, began and ended, on which worker, and the timeline
made of that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.records import make_record

from eventbus import EmissionExpired, EventContext, EventProvider, HandlerError, Later, Retry
from eventbus.lowlevel import JobReport
from eventbus.telemetry.failure import describe
from workflows import FlowContext, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Admin = Callable[..., Any]


@durable("nap")
async def nap(ctx: FlowContext[int]) -> None:
    await ctx.sleep("1 hour")


def _whats(report: JobReport) -> list[str]:
    return [each.what for each in report.timeline]


async def _in_state(provider: EventProvider, job_id: str, state: str) -> JobReport:
    """Wait until the job is in a state, and return its report."""
    for _ in range(1000):
        report = await provider.inspector.jobs.get(job_id)
        if report.state == state:
            return report
        await asyncio.sleep(0.01)
    raise TimeoutError(state)


@pytest.mark.parametrize("delay", [0.02, 0])
async def test_a_job_that_failed_twice_and_completed_tells_the_times_and_the_worker_of_each_attempt(
    make_provider: MakeProvider, delay: float
) -> None:
    provider = make_provider()

    @provider.on("a", retry=Retry(attempts=3, delay=delay, backoff="fixed"))
    async def handle(payload: Any, ctx: EventContext) -> None:
        await asyncio.sleep(0.005)
        if ctx.attempt < 3:
            raise ValueError(f"no {ctx.attempt}")

    async with provider, provider.worker() as worker:
        before = time.time() * 1000
        emission = provider.emit("a", None)
        await emission
        report = await provider.inspector.jobs.get(emission.job_id)
    assert abs(report.emitted_ms - before) < 60_000
    assert (report.emitted_ms, report.started_ms) == (report.created_ms, report.claimed_ms)
    assert report.emitted_ms <= report.first_started_ms < report.started_ms < report.ended_ms
    assert report.worker == worker.id
    first, second, third = report.attempts_log
    assert [each.outcome for each in report.attempts_log] == ["failed", "failed", "completed"]
    assert [each.attempt for each in report.attempts_log] == [1, 2, 3]
    assert {each.worker for each in report.attempts_log} == {worker.id}
    assert (first.type, second.message, third.type) == ("ValueError", "no 2", "")
    assert "in handle" in second.traceback
    assert (first.started_ms, third.started_ms) == (report.first_started_ms, report.started_ms)
    assert third.ended_ms == report.ended_ms
    for one, following in ((first, second), (second, third)):
        assert one.started_ms + 4 < one.ended_ms <= following.started_ms
        assert following.due_ms == (one.ended_ms + delay * 1000 if delay else 0)
        assert following.started_ms >= following.due_ms
    retry = ["retry-at"] if delay else []
    run = ["started", "failed", *retry]
    assert _whats(report) == ["emitted", *run, *run, "started", "ended"]
    times = [each.at_ms for each in report.timeline]
    assert times == sorted(times)
    assert report.timeline[2].note == "ValueError: no 1"
    assert (report.timeline[-1].note, report.timeline[-1].worker) == ("completed", worker.id)
    assert [each.started_ms for each in report.failures] == [first.started_ms, second.started_ms]


async def test_a_job_that_completed_at_once_has_one_attempt_and_one_start(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.on("a")
    async def handle(payload: Any) -> None:
        await asyncio.sleep(0.02)

    async with provider, provider.worker() as worker:
        emission = provider.emit("a", None, delay=0.01)
        await emission
        report = await provider.inspector.jobs.get(emission.job_id)
    (only,) = report.attempts_log
    assert (only.outcome, only.attempt, only.worker) == ("completed", 1, worker.id)
    assert report.first_started_ms == report.started_ms == only.started_ms
    assert report.ended_ms - report.started_ms >= 19
    assert _whats(report) == ["emitted", "delayed-until", "started", "ended"]
    assert report.timeline[1].at_ms == only.due_ms > report.emitted_ms


async def test_the_last_failure_has_the_times_of_its_attempt(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("a", retry=Retry(attempts=2, delay=0.001))
    async def handle(payload: Any) -> None:
        raise ValueError("no")

    async with provider, provider.worker() as worker:
        emission = provider.emit("a", None)
        with pytest.raises(HandlerError):
            await emission
        report = await provider.inspector.jobs.get(emission.job_id)
    last = report.attempts_log[-1]
    assert (last.outcome, last.attempt, last.worker) == ("failed", 2, worker.id)
    assert (last.started_ms, last.ended_ms) == (report.started_ms, report.ended_ms)
    assert _whats(report) == ["emitted", "started", "failed", "retry-at", "started", "failed", "ended"]
    assert report.timeline[-1].note == "failed"


async def test_a_running_job_tells_since_when_and_by_whom_and_one_that_waits_has_not_started(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(concurrency=1)
    began, gate = asyncio.Event(), asyncio.Event()

    @provider.on("a")
    async def handle(payload: Any) -> None:
        began.set()
        await gate.wait()

    async with provider, provider.worker() as worker:
        first, second = provider.emit_many("a", [1, 2])
        await began.wait()
        running = await provider.inspector.jobs.get(first.job_id)
        waiting = await provider.inspector.jobs.get(second.job_id)
        gate.set()
        await second
    (only,) = running.attempts_log
    assert (only.outcome, only.worker, only.ended_ms) == ("running", worker.id, 0)
    assert running.first_started_ms == running.started_ms == only.started_ms > 0
    assert _whats(running) == ["emitted", "started"]
    assert (waiting.first_started_ms, waiting.started_ms, waiting.worker) == (0, 0, "")
    assert (waiting.attempts_log, _whats(waiting)) == ([], ["emitted"])


async def test_a_job_that_is_put_off_tells_its_run_and_when_it_is_due(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("a")
    async def handle(payload: Any) -> None:
        raise Later("1 hour")

    async with provider, provider.worker():
        emission = provider.emit("a", None, reply=False)
        await emission
        report = await _in_state(provider, emission.job_id, "delayed")
    (only,) = report.attempts_log
    assert (only.outcome, only.attempt, only.started_ms) == ("put-off", 1, report.first_started_ms)
    assert _whats(report) == ["emitted", "started", "put-off", "delayed-until"]
    assert report.timeline[-1].at_ms == report.due_ms


async def test_a_job_that_a_stopping_worker_gave_back_keeps_its_first_start(
    make_provider: MakeProvider,
) -> None:
    provider, began = make_provider(grace=0.01), asyncio.Event()

    @provider.on("a")
    async def handle(payload: Any) -> None:
        if not began.is_set():
            began.set()
            await asyncio.sleep(60)

    async with provider:
        async with provider.worker():
            emission = provider.emit("a", None)
            await began.wait()
        between = await provider.inspector.jobs.get(emission.job_id)
        assert (between.state, [each.outcome for each in between.attempts_log]) == ("waiting", ["given-back"])
        async with provider.worker() as second:
            await emission
        report = await provider.inspector.jobs.get(emission.job_id)
    assert report.first_started_ms == between.first_started_ms > 0
    assert report.started_ms > report.first_started_ms
    assert report.worker == second.id


async def test_a_sleeping_flow_says_that_it_sleeps_and_until_when(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(nap)
    async with provider, provider.worker():
        handle = await flows.execute(nap, 1)
        report = await _in_state(provider, handle.id, "delayed")
    assert _whats(report) == ["emitted", "started", "suspended", "delayed-until"]
    assert [each.outcome for each in report.attempts_log] == ["suspended"]
    assert report.first_started_ms == report.started_ms > 0


async def test_what_was_cancelled_or_expired_before_a_run_has_no_start(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()

    @provider.on("a")
    async def handle(payload: Any) -> None:
        return None

    async with provider:
        gone, late = provider.emit("a", 1, delay="1 hour"), provider.emit("a", 2, ttl=0.001)
        await gone.enqueued()
        assert await gone.cancel()
        await late.enqueued()
        emitted = time.monotonic()
        await until(lambda: time.monotonic() > emitted + 0.02, "its ttl is over")
        async with provider.worker():
            with pytest.raises(EmissionExpired):
                await late
        for emission, state in ((gone, "cancelled"), (late, "failed")):
            report = await provider.inspector.jobs.get(emission.job_id)
            assert (report.state, report.first_started_ms, report.started_ms) == (state, 0, 0)
            assert report.attempts_log == []
            assert report.timeline[-1].what == "ended"


async def test_a_record_of_an_older_release_is_told_without_what_it_does_not_have(
    make_provider: MakeProvider, admin: Admin, prefix: str, planted: set[str]
) -> None:
    job, log, more = (f"{prefix}:2:{{0}}:{name}" for name in ("job:a", "log:a", "more:a"))
    planted.update([job, log, more])
    fields = {"attempts": 1, "due": 1_800_000_000_900, "began": 1_800_000_000_000, "body": "1"}
    admin(*make_record(job, queue="event.a", state="delayed", **fields))
    admin("RPUSH", log, describe(OSError("gone"), attempts=1), '{"type":"E","due":"x"}', "junk")
    async with make_provider() as provider:
        report = await provider.inspector.jobs.get("a")
    assert [(each.outcome, each.started_ms, each.worker) for each in report.attempts_log] == [
        ("failed", 0, ""),
        ("failed", 0, ""),
        ("failed", 0, ""),
    ]
    assert (report.first_started_ms, report.worker) == (0, "")
    assert _whats(report)[-1] == "retry-at"
