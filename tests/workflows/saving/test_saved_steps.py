"""What steps save in the job of their flow: by the name of the step, and only until its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import EventProvider, Later, Retry, StoreRefused
from workflows import StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


def _serve(make_provider: MakeProvider, workflow: Workflow[Any, Any], **settings: Any) -> WorkflowProvider:
    flows = WorkflowProvider(make_provider(**settings))
    flows.register(workflow)
    return flows


async def _live(flows: WorkflowProvider, flow_id: str, step: str) -> str | None:
    return await flows.provider.jobs.live(flow_id, f"saved/{step}")


async def test_what_a_step_saved_is_gone_with_the_record_of_its_end(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("ends", retry=Retry(2, delay=0))
    found: list[str | None] = []

    @workflow.step
    async def first(ctx: StepContext[Any]) -> None:
        await ctx.save("here")
        found.append(await _live(flows, ctx.flow_id, "first"))
        if len(found) == 1:
            raise Later(0)

    @workflow.step(on_failure="ignore")
    async def falls(ctx: StepContext[Any]) -> None:
        found.append(await _live(flows, ctx.flow_id, "first"))
        await ctx.save("falls")
        raise ValueError("down")

    @workflow.step
    async def last(ctx: StepContext[Any]) -> None:
        found.append(await _live(flows, ctx.flow_id, "falls"))

    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        await (await flows.execute(workflow, None)).result()
    assert found == ['"here"', '"here"', None, None, None]


@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_each_item_of_a_list_has_its_own(make_provider: MakeProvider, *, spread: bool) -> None:
    workflow = Workflow[Any, Any]("items", retry=Retry(2, delay=0))

    @workflow.each(over=lambda ctx: [1, 2, 3], spread=spread)
    async def convert(ctx: StepContext[Any], item: int) -> int:
        if ctx.attempt == 1:
            assert await ctx.saved(int) is None
            await ctx.save(item * 10)
            raise ValueError("again")
        return await ctx.saved(int, default=0)

    @workflow.completed
    def output(ctx: StepContext[Any]) -> list[int]:
        return ctx.result(convert)

    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        assert await (await flows.execute(workflow, None)).result() == [10, 20, 30]


@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_a_retry_by_hand_begins_without_it(make_provider: MakeProvider, *, spread: bool) -> None:
    workflow = Workflow[Any, Any]("again", retry=Retry(1), spread=spread)
    found: list[int] = []

    @workflow.step
    async def act(ctx: StepContext[Any]) -> None:
        found.append(await ctx.saved(int, default=0))
        await ctx.save(7)
        if ctx.run == 1:
            raise ValueError("broken")

    flows = _serve(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        with pytest.raises(StepError):
            await handle.result()
        await (await flows.retry(handle.id)).result()
    assert found == [0, 0]


async def test_it_is_there_in_the_next_worker_after_a_stop(make_provider: MakeProvider, until: Until) -> None:
    workflow = Workflow[Any, Any]("stops")
    found: list[Any] = []

    @workflow.step
    async def walk(ctx: StepContext[Any]) -> int:
        done = await ctx.saved(int, default=0)
        found.append(done)
        while not ctx.stopping:
            if done == 2:
                return done
            await asyncio.sleep(0.005)
        found.append(ctx.stopping)
        await ctx.save(2)
        raise Later(0)

    flows = _serve(make_provider, workflow, grace="5s")
    async with flows.provider:
        async with flows.provider.worker():
            handle = await flows.execute(workflow, None)
            await until(lambda: found == [0], "it runs")
        assert await _live(flows, handle.id, "walk") == "2"
        async with flows.provider.worker():
            await handle.result()
        assert await _live(flows, handle.id, "walk") is None
    assert found == [0, "stop", 2]


async def test_a_worker_that_lost_the_flow_saves_nothing(make_provider: MakeProvider, until: Until) -> None:
    workflow = Workflow[Any, Any]("lost")
    began, go = asyncio.Event(), asyncio.Event()
    raised: list[Any] = []

    @workflow.step
    async def save(ctx: StepContext[Any]) -> str:
        if await ctx.saved(str) is not None:
            return "again"
        await ctx.save("mine")
        began.set()
        try:
            await go.wait()
            await ctx.save("stale")
        except BaseException as error:
            raised.extend((error, ctx.stopping))
            raise
        return "first"

    flows = _serve(make_provider, workflow, lease="10s")
    async with flows.provider, flows.provider.worker() as worker:
        handle = await flows.execute(workflow, None)
        await began.wait()
        store = flows.provider._life.store
        assert store is not None
        await store._caller.command("HDEL", store.keys.of("held", worker.id), handle.id)
        go.set()
        await until(lambda: len(raised) == 2, "the save was answered")
        assert isinstance(raised[0], StoreRefused)
        assert "its lease is lost" in str(raised[0])
        assert raised[1] == "lease lost"
        assert await _live(flows, handle.id, "save") == '"mine"'
