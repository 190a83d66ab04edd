"""Pages of flows: each flow once, whatever its filter and however many come and go meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, PayloadError, Retry
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

Make = Callable[..., EventProvider]
go = Signal("go", int)


def _workflow(name: str, gate: asyncio.Event, version: str | None = None) -> Workflow[int, Any]:
    workflow: Workflow[int, Any] = Workflow(name, input=int, retry=Retry(attempts=1), version=version)

    @workflow.step()
    async def work(ctx: StepContext[int]) -> int:
        if ctx.input == 1:
            raise ValueError("no")
        if ctx.input == 2:
            await gate.wait()
        return 1

    return workflow


@durable("waits", signals=[go])
async def waits(ctx: FlowContext[int]) -> int:
    return await ctx.wait_for(go)


async def _pages(flows: WorkflowProvider, limit: int = 4, **given: Any) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page = await flows.flow_page(limit=limit, cursor=cursor, **given)
        assert len(page.flows) <= limit
        found += [flow.flow_id for flow in page.flows]
        cursor = page.cursor
        if not cursor:
            return found


async def _until(flows: WorkflowProvider, flow_id: str, *states: str) -> None:
    while (await flows.status(flow_id)).state not in states:
        pass


async def test_every_flow_stands_on_one_page_and_a_filter_finds_the_one_among_many(
    make_provider: Make,
) -> None:
    provider, gate = make_provider(), asyncio.Event()
    flows = WorkflowProvider(provider)
    one, two = _workflow("one", gate), _workflow("two", gate)
    flows.register(one)
    flows.register(two)
    async with provider, provider.worker():
        handles = [await flows.execute(one if n % 2 else two, 2 if n == 0 else n % 3 // 2) for n in range(30)]
        for handle in handles[1:]:
            await _until(flows, handle.id, "completed", "failed")
        await _until(flows, handles[0].id, "running")
        everything = {handle.id for handle in handles}
        for limit in (1, 4, 200):
            listed = await _pages(flows, limit=limit)
            assert (len(listed), set(listed)) == (30, everything)
        assert listed[0] == handles[0].id, "what is open comes first"
        assert await _pages(flows, limit=1, state="running") == [handles[0].id]
        failed = {handles[n].id for n in range(1, 30) if n % 3 == 2}
        assert set(await _pages(flows, state="failed")) == failed
        assert set(await _pages(flows, workflow="one")) == {handles[n].id for n in range(30) if n % 2}
        gate.set()
        await handles[0].result()
        assert await _pages(flows, state="running") == []


async def test_flows_that_begin_and_end_between_two_pages_hide_none(make_provider: Make) -> None:
    provider, gate = make_provider(), asyncio.Event()
    flows = WorkflowProvider(provider)
    flows.register(workflow := _workflow("busy", gate))
    async with provider, provider.worker():
        held = [await flows.execute(workflow, 2) for _ in range(6)]
        done = [await flows.execute(workflow, 0) for _ in range(6)]
        for handle in done:
            await handle.result()
        page = await flows.flow_page(limit=3)
        found = [flow.flow_id for flow in page.flows]
        gate.set()
        for handle in held:
            await handle.result()
        await (await flows.execute(workflow, 0)).result()
        while page.cursor:
            page = await flows.flow_page(limit=3, cursor=page.cursor)
            found += [flow.flow_id for flow in page.flows]
    assert {handle.id for handle in (*held, *done)} <= set(found)
    assert len([each for each in found if each in {handle.id for handle in done}]) == 6


async def test_a_flow_that_completed_and_runs_again_stands_once(make_provider: Make) -> None:
    provider, gate = make_provider(), asyncio.Event()
    flows = WorkflowProvider(provider)
    flows.register(workflow := _workflow("again", gate))
    async with provider, provider.worker():
        handle = await flows.execute(workflow, 0)
        await handle.result()
        await (await flows.retry(handle.id)).result()
        assert await _pages(flows) == [handle.id]


@pytest.mark.parametrize("cursor", ["x", "!", "WzksMSwiYSJd", "WyJ4Il0"])
async def test_a_cursor_that_is_none_is_refused(make_provider: Make, cursor: str) -> None:
    async with make_provider() as provider:
        with pytest.raises(DefinitionError, match="cursor of a page of flows"):
            await WorkflowProvider(provider).flow_page(cursor=cursor)


async def test_versions_say_how_many_flows_are_open_and_how_many_workers_know_them(
    make_provider: Make,
) -> None:
    provider, gate = make_provider(), asyncio.Event()
    old, new = _workflow("shop", gate, "1"), _workflow("shop", gate, "2")
    first, second = WorkflowProvider(provider), WorkflowProvider(later := make_provider())
    first.register(old)
    second.register(new)
    async with provider, later:
        async with provider.worker():
            handles = [await first.execute(old, 2) for _ in range(3)]
            async with later.worker():
                handles.append(await second.execute(new, 2))
                found = {(each.version, each.open, each.workers) for each in await second.versions()}
                assert found == {("1", 3, 1), ("2", 1, 1)}
                gate.set()
                for handle in handles:
                    await handle.result()
        found = {(each.version, each.open, each.workers) for each in await second.versions()}
        assert found == set(), "nobody is there, and nothing is open"


async def test_a_wait_is_told_and_its_signal_is_checked_before_it_is_sent(make_provider: Make) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(waits)
    async with provider, provider.worker():
        handle = await flows.execute(waits, 1)
        while not (found := await flows.waits(handle.id)):
            pass
        assert [(each.place, each.signal) for each in found] == [("0", "go")]
        with pytest.raises(PayloadError, match="signal 'go' failed its validation"):
            await flows.signal(handle.id, "go", "no")
        with pytest.raises(DefinitionError, match="declares no signal 'other'"):
            await flows.signal(handle.id, "other", 1)
        await flows.signal(handle.id, "go", 7)
        assert await handle.result() == 7
        assert await flows.waits(handle.id) == []
