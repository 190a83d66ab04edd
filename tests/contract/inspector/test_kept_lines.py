"""Log lines that a job keeps: from handlers in the loop and in threads, from batches and steps; bounded, and
gone with the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import Batch, BatchContext, EventContext, EventProvider, HandlerError, Retry, SyncContext
from eventbus.lowlevel import JobReport
from eventbus.store.store import Store
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Admin = Callable[..., Any]


def _texts(report: JobReport) -> list[str]:
    return [each.text for each in report.lines]


async def test_lines_of_each_attempt_are_kept_in_order_with_their_times_and_the_worker(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.on("loop", retry=Retry(attempts=2, delay=0))
    async def in_loop(_: Any, ctx: EventContext) -> None:
        ctx.keep_line(f"attempt {ctx.attempt} begins")
        await asyncio.sleep(0)
        ctx.keep_line("and ends\nso")
        if ctx.attempt == 1:
            raise ValueError("no")

    @provider.on("thread")
    def in_thread(_: Any, ctx: SyncContext) -> None:
        for n in range(3):
            ctx.keep_line(f"line {n}")

    async with provider, provider.worker() as worker:
        emissions = [provider.emit(name) for name in ("loop", "thread")]
        await asyncio.gather(*emissions)
        one, other = [await provider.inspector.jobs.get(each.job_id) for each in emissions]
    assert _texts(one) == ["attempt 1 begins", "and ends\nso", "attempt 2 begins", "and ends\nso"]
    assert _texts(other) == ["line 0", "line 1", "line 2"]
    assert {each.worker for each in one.lines} == {worker.id}
    times = [each.at_ms for each in one.lines]
    assert times == sorted(times)
    assert one.emitted_ms <= times[0] + 5
    assert times[-1] <= one.ended_ms + 5


async def test_a_handler_that_fails_or_times_out_has_its_last_lines_too(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=1))

    @provider.on("a", timeout=0.05)
    async def hang(_: Any, ctx: EventContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ctx.keep_line("cut off")

    async with provider, provider.worker():
        emission = provider.emit("a")
        with pytest.raises(HandlerError, match="TimeoutError"):
            await emission
        assert _texts(await provider.inspector.jobs.get(emission.job_id)) == ["cut off"]


async def test_the_newest_hundred_lines_stay_of_64_kib_together(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("a")
    async def many(length: int, ctx: EventContext) -> None:
        for n in range(250):
            ctx.keep_line(f"{n} " + "ä" * length)
            if n % 40 == 0:
                await ctx.progress(n)

    async with provider, provider.worker():
        reports: list[JobReport] = []
        for length in (0, 1000, 100_000):
            emission = provider.emit("a", length)
            await emission
            reports.append(await provider.inspector.jobs.get(emission.job_id))
    short, long, cut = ([text.partition(" ") for text in _texts(report)] for report in reports)
    assert [number for number, _, _ in short] == [str(n) for n in range(150, 250)]
    assert [number for number, _, _ in long] == [str(n) for n in range(250 - len(long), 250)]
    assert 50_000 < sum(len(rest.encode()) for _, _, rest in long) <= 65_536
    assert all(len(f"{number} {rest}".encode()) <= 4096 and rest.endswith("...") for number, _, rest in cut)


async def test_lines_of_many_jobs_travel_in_few_calls(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, calls = make_provider(concurrency=50), list[int]()
    note = Store.note

    async def counted(self: Store, notes: Any, lines: Any = (), **given: Any) -> list[str]:
        calls.append(len(lines))
        return await note(self, notes, lines, **given)

    monkeypatch.setattr(Store, "note", counted)

    @provider.on("a")
    async def handle(_: int, ctx: EventContext) -> None:
        for n in range(10):
            ctx.keep_line(f"line {n}")

    @provider.on("b", batch=Batch(size=10))
    async def together(_: list[int], ctx: BatchContext) -> None:
        for item in ctx.items:
            item.keep_line("in a batch")

    async with provider, provider.worker():
        first = provider.emit_many("a", range(50))
        await asyncio.gather(*first)
        assert sum(calls) == 500
        assert len(calls) <= 50
        second = provider.emit_many("b", range(10))
        await asyncio.gather(*second)
        report = await provider.inspector.jobs.get(second[-1].job_id)
    assert _texts(report) == ["in a batch"]


@pytest.mark.parametrize("spread", [False, True])
async def test_steps_keep_lines_with_the_job_that_they_run_in(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow = Workflow[Any, Any]("lines")
    ids: list[str] = []

    @workflow.step(spread=spread)
    async def charge(ctx: StepContext[Any]) -> None:
        ctx.keep_line("charged")
        ids.append(ctx.job_id)

    @workflow.step(after=charge, spread=spread)
    def ship(ctx: StepContext[Any]) -> None:
        ctx.keep_line("shipped")
        ids.append(ctx.job_id)

    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
        jobs = ids if spread else [handle.id]
        reports = [await provider.inspector.jobs.get(each) for each in jobs]
    assert [text for report in reports for text in _texts(report)] == ["charge: charged", "ship: shipped"]
    await run_inline(workflow, None)


async def test_lines_go_with_their_job_and_a_job_without_lines_has_no_key(
    make_provider: MakeProvider, admin: Admin, prefix: str
) -> None:
    provider = make_provider(keep_completed=0)

    @provider.on("a")
    async def handle(says: bool, ctx: EventContext) -> None:
        if says:
            ctx.keep_line("here")

    async with provider, provider.worker():
        await provider.emit("a", payload=False)
        assert admin("KEYS", f"{prefix}:2:{{0}}:lines:*") == []
        emission = provider.emit("a", payload=True, keep_completed="1 hour")
        await emission
        assert admin("KEYS", f"{prefix}:2:{{0}}:lines:*") == [f"{prefix}:2:{{0}}:lines:{emission.job_id}"]
