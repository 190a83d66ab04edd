"""Schedules that start flows: of durable functions, and of workflows with steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, PayloadError
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowTimeout,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

ran: list[tuple[int, Any]] = []
report = Workflow("nightly", input=int, output=int)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@durable("nightly-function")
async def summarize(ctx: FlowContext[int]) -> int:
    ran.append((ctx.input, (ctx.meta or {}).get("slot")))
    return ctx.input + 1


@durable("held", timeout="0.5s")
async def held(ctx: FlowContext[int]) -> None:
    ran.append((ctx.input, None))
    await ctx.sleep("1 hour")


@report.step
async def gather(ctx: StepContext[int]) -> int:
    ran.append((ctx.input, (ctx.meta or {}).get("slot")))
    return ctx.input + 1


@report.completed
async def tell(ctx: StepContext[int]) -> int:
    return ctx.result(gather)


async def test_a_slot_starts_a_flow_of_a_function_once_with_two_workers(
    make_provider: MakeProvider, until: Until
) -> None:
    first, second = make_provider(), make_provider()
    for provider in (first, second):
        flows = WorkflowProvider(provider)
        flows.register(summarize)
        flows.schedules.every("0.2s", summarize, id="often", input=7, immediately=True, limit=5)
    flows = WorkflowProvider(first)
    async with first, second, first.worker(), second.worker():
        await until(lambda: len(ran) == 5, "five flows")
        [known] = await first.schedules.list()
        assert (known.fired, known.next, known.event) == (5, 0, "nightly-function")
        assert await flows.handle(known.last_job, summarize).result(timeout=240) == 8
        summaries = await flows.flows("nightly-function")
        assert len(summaries) == 5
    slots = [slot for _, slot in ran]
    assert {number for number, _ in ran} == {7}
    assert sorted(slots) == list(range(min(slots), max(slots) + 1, 200))


async def test_a_schedule_of_a_workflow_triggers_backfills_and_meets_its_slots(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(report)
    async with provider, provider.worker():
        schedule = await flows.schedules.add(report, id="s", cron="0 * * * *", input=3)
        flow_id = await schedule.run_now()
        assert await flows.handle(flow_id, report).result(timeout=240) == 4
        since = datetime(2026, 3, 1, tzinfo=UTC)
        ids = await schedule.backfill(since, since + timedelta(hours=2))
        assert ids == await schedule.backfill(since, since + timedelta(hours=2))
        assert [await flows.handle(each, report).result(timeout=240) for each in ids] == [4, 4, 4]
        assert len(ran) == 4
        first, hour = int(since.timestamp() * 1000), 3_600_000
        assert sorted(slot for _, slot in ran)[:3] == [first, first + hour, first + 2 * hour]


async def test_a_flow_that_still_runs_is_cancelled_by_the_next_slot_and_has_its_timeout(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(lease="0.5s")
    flows = WorkflowProvider(provider)
    flows.register(held)
    async with provider, provider.worker():
        schedule = await flows.schedules.add(
            held, id="s", every="0.3s", input=1, overlap="cancel", immediately=True, limit=2
        )
        await until(lambda: len(ran) == 2, "two flows")
        began = {each.flow_id: each.created_ms for each in await flows.flows("held")}
        oldest, newest = sorted(began, key=began.__getitem__)
        with pytest.raises(FlowCancelled, match="schedule s fired again"):
            await flows.handle(oldest, held).result(timeout=240)
        with pytest.raises(FlowTimeout):
            await flows.handle(newest, held).result(timeout=240)
        await schedule.remove()


async def test_a_flow_that_cannot_be_is_refused_before_anything_is_stored(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    with pytest.raises(DefinitionError, match="not registered"):
        flows.schedules.cron("@daily", report, id="s", input=1)
    flows.register(report)
    wrong: Any = "text"
    with pytest.raises(PayloadError, match="nightly"):
        flows.schedules.cron("@daily", report, id="s", input=wrong)
    with pytest.raises(DefinitionError, match="a workflow"):
        flows.schedules.cron("@daily", wrong, id="s", input=1)
    async with provider:
        with pytest.raises(DefinitionError, match="61"):
            await flows.schedules.add(report, id="s", cron="61 * * * *", input=1)
        assert await provider.schedules.list() == []
