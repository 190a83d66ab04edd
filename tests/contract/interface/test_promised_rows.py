"""Behaviours of jobs that the tables of `docs/seeds` promise, each by its smallest case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import Event, EventContext, EventProvider, HandlerError, Limit, Retry

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def _has_passed(provider: EventProvider, moment_ms: int) -> bool:
    return await provider.jobs.now() > moment_ms


async def _fail(provider: EventProvider) -> str:
    emission = provider.emit("charge", 1, idempotency_key="k")
    with pytest.raises(HandlerError):
        await emission
    return emission.job_id


def _refuse(provider: EventProvider) -> None:
    @provider.on("charge", retry=Retry(attempts=1))
    async def charge(_: int) -> None:
        raise ValueError("no money")


async def test_what_was_not_given_is_none_in_the_context_and_none_is_a_result(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    seen: list[tuple[Any, ...]] = []

    @provider.on("bare")
    async def bare(payload: None, ctx: EventContext) -> None:
        seen.append((payload, ctx.causation_id, dict(ctx.meta)))

    async with provider, provider.worker():
        emission = provider.emit("bare", None)
        assert await emission is None
        report = await provider.inspector.jobs.get(emission.job_id)
    assert seen == [(None, None, {})]
    assert report.emitted_ms > 0
    assert (report.meta, report.key, report.causation_id) == (None, "", "")


@pytest.mark.parametrize("way", ["purge", "operation"])
async def test_what_ended_more_lately_than_older_than_says_is_not_removed(
    make_provider: MakeProvider, until: Until, way: str
) -> None:
    provider = make_provider()
    _refuse(provider)
    inspector = provider.inspector

    async def remove(older_than: str) -> int:
        if way == "purge":
            return await inspector.queues.purge("charge", "failed", older_than=older_than)
        seen = await inspector.operations.preview("remove", "charge", "failed", older_than=older_than)
        begun = await inspector.operations.begin("remove", "charge", "failed", older_than=older_than)
        await inspector.operations.run()

        async def has_ended() -> bool:
            return (await inspector.operations.get(begun.id)).state == "completed"

        await until(has_ended, "the operation ends")
        done = (await inspector.operations.get(begun.id)).done
        assert done == seen.count
        return done

    async with provider:
        async with provider.worker():
            job = await _fail(provider)
        ended = (await inspector.jobs.get(job)).ended_ms
        assert await remove("1 hour") == 0
        assert (await inspector.jobs.get(job)).state == "failed"
        await until(lambda: _has_passed(provider, ended + 1000), "a second passes")
        assert await remove("1s") == 1
        assert (await inspector.jobs.list("charge", state="failed")).jobs == []


async def test_each_attempt_counts_in_the_window_of_a_rate(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on(Event("charge", retry=Retry(attempts=3, delay=0), limit=Limit(rate="2/1h")))
    async def charge(number: int, ctx: EventContext) -> None:
        runs.append(ctx.attempt)
        raise ValueError("no money")

    async with provider, provider.worker():
        emission = provider.emit("charge", 1, reply=False)
        await emission.enqueued()

        async def waits_for_the_rate() -> bool:
            job = await provider.inspector.jobs.get(emission.job_id)
            is_second = job.attempts == 2 and job.state == "waiting"
            return is_second and (await provider.inspector.jobs.why(emission.job_id)).kind == "limit"

        await until(waits_for_the_rate, "the third attempt waits for the window")
        assert runs == [1, 2]


async def test_a_key_tells_how_its_job_ended(make_provider: MakeProvider) -> None:
    provider = make_provider()
    _refuse(provider)
    provider.on("pay")(_echo)
    async with provider, provider.worker():
        failed = await _fail(provider)
        paid = provider.emit("pay", 1, idempotency_key="k")
        await paid
        ended = [
            (job.id, job.state, job.error)
            for event in ("charge", "pay")
            for job in (await provider.inspector.jobs.find(event, idempotency_key="k")).jobs
        ]
    assert ended == [(failed, "failed", "ValueError: no money"), (paid.job_id, "completed", "")]


async def _echo(number: int) -> int:
    return number


async def test_no_more_jobs_of_a_handler_run_in_a_worker_than_its_concurrency(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    running, most, gate = set[int](), list[int](), asyncio.Event()

    @provider.on("slow", concurrency=2)
    async def slow(number: int) -> None:
        running.add(number)
        most.append(len(running))
        await gate.wait()
        running.discard(number)

    async with provider, provider.worker():
        emissions = [provider.emit("slow", number) for number in range(6)]
        await until(lambda: len(running) == 2, "two run")
        gate.set()
        await asyncio.gather(*emissions)
    assert (max(most), len(most)) == (2, 6)


async def test_a_long_traceback_is_cut_and_ends_with_the_error(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("deep", retry=Retry(attempts=1))
    async def deep(_: int) -> None:
        namespace: dict[str, Any] = {}
        for number in range(120):  # each another line, so that none is folded into the one before
            called = f"f{number - 1}()" if number else "raise ValueError('at the bottom')"
            exec(f"def f{number}():\n{'    #' + 'x' * 200 + chr(10)}    {called}", namespace)
        namespace["f119"]()

    async with provider, provider.worker():
        emission = provider.emit("deep", 1)
        with pytest.raises(HandlerError):
            await emission
        (failure,) = (await provider.inspector.jobs.get(emission.job_id)).failures
    assert "at the bottom" in failure.traceback
    assert len(failure.traceback) < 10_000
