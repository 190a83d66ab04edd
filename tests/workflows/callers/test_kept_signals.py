"""Signals under a name that nobody waits for: refused where the flow's version declares its signals, else
kept and shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from eventbus import DefinitionError, EventProvider
from eventbus.lowlevel import JobClient
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

VERDICT = Signal("verdict", bool)


@durable("declares", signals=[VERDICT])
async def declares(ctx: FlowContext[None]) -> bool:
    return await ctx.wait_for(VERDICT)


@durable("declares-none")
async def declares_none(ctx: FlowContext[None]) -> bool:
    return await ctx.wait_for(VERDICT)


def _graph(*, spread: bool) -> Workflow[Any, Any]:
    graph = Workflow[Any, Any]("spread" if spread else "local", spread=spread)
    wait = graph.wait(VERDICT)

    @graph.completed
    async def done(ctx: StepContext[Any]) -> bool:
        return ctx.result(wait)

    return graph


DECLARING: list[Any] = [declares, _graph(spread=False), _graph(spread=True)]


async def _waits(flows: WorkflowProvider, flow_id: str, until: Until) -> None:
    async def has_waits() -> bool:
        return bool(await flows.waits(flow_id))

    await until(has_waits, "it waits")


@pytest.mark.parametrize("definition", DECLARING, ids=["function", "local", "spread"])
async def test_a_wrong_name_is_refused_with_the_close_one_also_where_nobody_knows_the_definition(
    make_provider: MakeProvider, until: Until, definition: Any
) -> None:
    first, second = make_provider(), make_provider()
    flows, strange = WorkflowProvider(first), WorkflowProvider(second)
    flows.register(definition)
    async with first, second, first.worker():
        flow = await flows.execute(definition, None)
        await _waits(flows, flow.id, until)
        for each in (flows, strange):
            with pytest.raises(DefinitionError, match=r"declares no signal 'verdikt'.* mean 'verdict'"):
                await each.signal(flow.id, "verdikt", True)
            with pytest.raises(DefinitionError, match=r"declares no signal 'verdikt'.* mean 'verdict'"):
                await each.handle(flow.id).signal("verdikt", True)
        with pytest.raises(DefinitionError, match="no signal 'verdikt'"):
            await strange.handle(flow.id).signal(Signal("verdikt", bool), True)
        assert await first.jobs.inbox(flow.id) == []
        assert (await flows.report(flow.id)).kept_signals == {}
        await strange.signal(flow.id, "verdict", True)
        assert await flow.result(240) is True


async def test_what_an_older_worker_has_told_of_a_version_refuses_nothing(
    make_provider: MakeProvider, until: Until, admin: Callable[..., Any], prefix: str
) -> None:
    first, second = make_provider(), make_provider()
    flows, strange = WorkflowProvider(first), WorkflowProvider(second)
    flows.register(declares)
    async with first, second, first.worker():
        flow = await flows.execute(declares, None)
        await _waits(flows, flow.id, until)
        (name,) = admin("KEYS", f"{prefix}:*definition*declares*")
        told = msgspec.json.decode(admin("GET", name))
        assert told.pop("signals") == ["verdict"]
        admin("SET", name, msgspec.json.encode(told).decode(), "KEEPTTL")
        await strange.signal(flow.id, "verdikt", True)
        assert (await flows.report(flow.id)).kept_signals == {"verdikt": 1}
        await flow.cancel()


async def test_a_signal_that_nobody_waits_for_is_shown_until_the_end_and_behind_it(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(declares_none)
    async with provider:
        flow = await flows.execute(declares_none, None)
        await flow.signal("verdikt", True)
        await flow.signal("verdikt", False)
        assert (await flow.report()).kept_signals == {"verdikt": 2}
        async with provider.worker():
            await _waits(flows, flow.id, until)
            assert (await flows.tree(flow.id)).report.kept_signals == {"verdikt": 2}
            await flow.signal("verdict", True)
            assert await flow.result(240) is True
        assert (await flow.report()).kept_signals == {"verdikt": 2}


async def test_one_that_is_awaited_is_not_shown_as_kept(make_provider: MakeProvider, until: Until) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(declares_none)
    async with provider:
        async with provider.worker():
            flow = await flows.execute(declares_none, None)
            await _waits(flows, flow.id, until)
        await flow.signal("verdict", True)
        assert (await flow.report()).kept_signals == {}, "a worker only has to come"
        async with provider.worker():
            assert await flow.result(240) is True


async def test_news_of_a_step_of_an_earlier_run_begins_no_wait(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, gate = make_provider(), asyncio.Event()
    flows, graph = WorkflowProvider(provider), Workflow[Any, Any]("later", spread=True)

    @graph.step
    async def first(ctx: StepContext[Any]) -> None:
        await gate.wait()

    wait = graph.wait(VERDICT)

    @graph.completed
    async def done(ctx: StepContext[Any]) -> bool:
        return ctx.result(wait)

    flows.register(graph)
    async with provider, provider.worker():
        flow = await flows.execute(graph, None)
        jobs: JobClient = provider.jobs
        await jobs.signal(flow.id, "@waits", '["verdict", 0]', signal=f"{flow.id}/another run's")

        async def is_read() -> bool:
            return not await jobs.inbox(flow.id)

        await until(is_read, "the root has read it")
        assert await flows.waits(flow.id) == []
        gate.set()
        await _waits(flows, flow.id, until)
        await flow.signal(VERDICT, True)
        assert await flow.result(240) is True
