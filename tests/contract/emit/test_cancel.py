"""Cancelling jobs: from the emission, from another process by its id, and by a newer one of the same key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventContext, EventProvider, JobCancelled, Retry, UnknownJob

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]

_LEASE = "1 hour"
"""No renewal tells in time what was cancelled: the message to the worker does, or nothing."""


class Slow:
    """A handler that runs until its cancellation, and notes both."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []

    async def run(self, payload: Any, ctx: EventContext) -> None:
        self.began.append(ctx.job_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(ctx.job_id)
            raise


async def test_a_job_that_waits_ends_at_once_and_all_who_wait_hear_why(make_provider: MakeProvider) -> None:
    async with make_provider() as provider, make_provider() as other:
        emission = provider.emit("work", 1)
        assert await emission.cancel("user left")
        with pytest.raises(JobCancelled, match="user left") as caught:
            await emission
        assert (caught.value.reason, caught.value.job_id) == ("user left", emission.job_id)
        assert emission.cancelled()
        with pytest.raises(JobCancelled, match="user left"):
            await other.result(emission.job_id)


async def test_what_is_delayed_is_found_by_its_key_and_cancelled(make_provider: MakeProvider) -> None:
    provider = make_provider()
    ran: list[int] = []
    provider.on("remind")(ran.append)
    async with provider, provider.worker():
        reminder = provider.emit("remind", 1, idempotency_key="o-1", delay="1 hour")
        await reminder.enqueued()
        (found,) = (await provider.inspector.jobs.find("remind", idempotency_key="o-1")).jobs
        assert (found.id, found.state) == (reminder.job_id, "delayed")
        assert await provider.cancel(found.id, "paid")
        with pytest.raises(JobCancelled, match="paid"):
            await reminder
        again = provider.emit("remind", 2, idempotency_key="o-1")
        await again
        assert again.job_id != reminder.job_id
    assert ran == [2]


async def test_a_running_handler_is_cancelled_from_another_process_before_its_lease_is_renewed(
    make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    worker, emitter, third = make_provider(lease=_LEASE), make_provider(), make_provider()
    slow = Slow()
    worker.on("slow", concurrency=5)(slow.run)
    await stack.enter_async_context(worker.worker())
    for each in (emitter, third):
        await stack.enter_async_context(each)
    emissions = emitter.emit_many("slow", range(3))
    await until(lambda: len(slow.began) == 3, "all run")
    assert await third.cancel(emissions[1].job_id, "changed")
    with pytest.raises(JobCancelled, match="changed"):
        await emissions[1]
    assert slow.cancelled == [emissions[1].job_id]
    assert not await third.cancel(emissions[1].job_id)  # it has ended
    for each in (emissions[0], emissions[2]):
        assert await each.cancel()
        with pytest.raises(JobCancelled):
            await each


async def test_a_handler_is_reached_while_its_worker_is_busy_with_others(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(concurrency=20, lease=_LEASE, reply_timeout=120)
    slow = Slow()
    provider.on("slow")(slow.run)
    is_over = False

    @provider.on("work")
    async def work(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    async def keep_busy() -> None:
        while not is_over:
            await provider.emit("work", 1)

    async with provider.worker():
        busy = [asyncio.create_task(keep_busy()) for _ in range(30)]
        emission = provider.emit("slow", None)
        await until(lambda: slow.began, "it runs")
        assert await emission.cancel()
        await until(lambda: slow.cancelled, "it is cancelled")
        is_over = True
        await asyncio.gather(*busy)


async def test_a_handler_that_finishes_in_a_stopping_worker_is_reached_too(
    make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    worker, emitter = make_provider(grace=600, lease=_LEASE), make_provider()
    slow = Slow()
    worker.on("slow")(slow.run)
    await stack.enter_async_context(emitter)
    serving = AsyncExitStack()
    await serving.enter_async_context(worker.worker())
    emission = emitter.emit("slow", None)
    await until(lambda: slow.began, "it runs")
    stopping = asyncio.create_task(serving.aclose())
    await until(lambda: worker._life.worker and worker._life.worker.health().draining, "it stops")
    assert await emission.cancel("no longer")
    with pytest.raises(JobCancelled):
        await emission
    await stopping


async def test_a_handler_that_completes_all_the_same_is_recorded_as_cancelled(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    began = asyncio.Event()

    @provider.on("stubborn")
    async def stubborn(payload: Any) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done"

    async with provider.worker():
        emission = provider.emit("stubborn")
        await began.wait()
        assert await emission.cancel()
        with pytest.raises(JobCancelled):
            await emission


@pytest.mark.real
async def test_the_waiting_for_a_thread_ends_with_its_job(make_provider: MakeProvider) -> None:
    provider = make_provider()
    began, gate = threading.Event(), threading.Event()

    @provider.on("sync")
    def sync(payload: Any) -> None:
        began.set()
        gate.wait(240)

    async with provider.worker():
        emission = provider.emit("sync")
        await asyncio.to_thread(began.wait, 10)
        assert await emission.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            await emission
        gate.set()


async def test_a_job_between_two_attempts_is_not_tried_again(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on("flaky", retry=Retry(attempts=5, delay="1 h"))
    async def flaky(payload: Any, ctx: EventContext) -> None:
        runs.append(ctx.attempt)
        raise ValueError

    async with provider.worker() as worker:
        emission = provider.emit("flaky")
        await until(lambda: runs and worker.is_idle, "it backs off")
        assert await emission.cancel()
        with pytest.raises(JobCancelled):
            await emission
    assert runs == [1]


async def test_all_groups_are_cancelled_with_the_emission_or_one_by_its_id(
    make_provider: MakeProvider, until: Until
) -> None:
    event = Event("placed", default=False)
    provider = make_provider()
    async with provider:
        for group in ("a", "b"):
            await provider.add_group(event, group)
        emission = provider.emit(event, 1)
        await emission.enqueued()
        assert await provider.cancel(f"{emission.job_id}@a", "one")
        assert not await provider.cancel(f"{emission.job_id}@a")
        with pytest.raises(UnknownJob):
            await provider.cancel(emission.job_id)
        assert await provider.cancel(emission.job_id, event=event)
        assert not await emission.cancel()


async def test_what_was_never_there_and_what_was_not_sent(make_provider: MakeProvider) -> None:
    provider = make_provider(max_waiting=1)
    async with provider:
        with pytest.raises(UnknownJob, match="0-none"):
            await provider.cancel("0-none")
        for text in ("", "x" * 513, "\ud800"):
            with pytest.raises(UnknownJob, match=r"is no id of a job; expected a job id, such as"):
                await provider.cancel(text)
            with pytest.raises(UnknownJob, match="is no id of a job"):
                await provider.result(text)
        for value in (None, 5):
            for ask in (provider.cancel, provider.result):
                with pytest.raises(DefinitionError, match="expected a job id"):
                    await ask(value)  # type: ignore[arg-type]
        first, second = provider.emit("work", reply=False), provider.emit("work", reply=False)
        await first.enqueued()
        assert not await second.cancel()  # refused: the queue is full
        assert await first.cancel()


@pytest.mark.real
async def test_threads_cancel_too(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:

        def work() -> tuple[bool, bool]:
            emission = provider.sync.emit("work")
            return emission.cancel("a"), provider.sync.cancel(emission.job_id, "b")

        assert await asyncio.to_thread(work) == (True, False)


async def test_cancelling_the_task_that_awaits_an_emission_does_not_cancel_its_job(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    gate = asyncio.Event()

    @provider.on("work")
    async def work(payload: Any) -> int:
        await gate.wait()
        return 1

    async with provider.worker():
        emission = provider.emit("work")

        async def wait() -> None:
            await emission

        task = asyncio.create_task(wait())
        await emission.enqueued()
        task.cancel()
        await asyncio.wait([task])
        gate.set()
        assert await emission == 1


async def test_a_newer_emission_of_the_key_supersedes_the_running_one(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on("index")
    async def index(n: int) -> int:
        runs.append(n)
        if n == 1:
            await asyncio.Event().wait()
        return n

    async with provider.worker():
        first = provider.emit("index", 1, idempotency_key="doc", supersede=True)
        await until(lambda: runs == [1], "the first runs")
        second = provider.emit("index", 2, idempotency_key="doc", supersede=True)
        assert await second == 2
        with pytest.raises(JobCancelled, match=f"superseded by job {second.job_id}"):
            await first
        third = provider.emit("index", 3, idempotency_key="doc", supersede=True)
        assert await third == 3  # after a completed one too
    assert runs == [1, 2, 3]


async def test_superseding_needs_a_key_and_does_not_go_with_reusing(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        with pytest.raises(DefinitionError, match="supersede needs a key"):
            provider.emit("index", 1, supersede=True)
        with pytest.raises(DefinitionError, match="either supersede or reuse_failure"):
            provider.emit("index", 1, idempotency_key="k", supersede=True, reuse_failure=True)
