"""Histories of flows that had children elsewhere: what a server recorded is replayed without one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from drivers.recorded import RecordedFlow

from eventbus import Retry
from workflows import (
    Durable,
    FlowContext,
    NonDeterminismError,
    Signal,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)
from workflows.client.histories import read_history
from workflows.functions.endings import Completed
from workflows.functions.history_check import FlowHistory, redacted
from workflows.testing import replay

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]

go = Signal("go", int)
did: list[Any] = []


class Odd(Exception):
    pass


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


@task(retry=Retry(attempts=1))
async def analyse(number: int) -> int:
    did.append(number)
    if number < 0:
        raise Odd(number)
    return number * 10


@task
async def judge(number: int) -> int:
    return number


@durable("inner", errors=[Odd])
async def inner(ctx: FlowContext[int]) -> int:
    if ctx.input == 0:
        return await ctx.wait_for(go)
    if ctx.input < 0:
        raise Odd(ctx.input)
    return await ctx.step(analyse, ctx.input)


graph: Workflow[int, int] = Workflow("graph", input=int, output=int)


@graph.completed
async def done(ctx: StepContext[int]) -> int:
    return ctx.input * 2


@durable("outer", errors=[Odd])
async def outer(ctx: FlowContext[int]) -> Any:
    """Has a map, a failed map, flows of both kinds, one that fails, one that loses a race, and at last one
    that waits.
    """
    found: list[Any] = [await ctx.map(analyse, [1, 2, 3], limit=2)]
    found.append(len(await ctx.map(analyse, [4, -4], return_exceptions=True)))
    found += await ctx.gather(ctx.flow(graph, 5), ctx.flow(inner, 6))
    try:
        await ctx.flow(inner, -1)
    except Odd as error:
        found.append(error.args[0])
    found.append((await ctx.race(ctx.step(judge, 7), ctx.flow(inner, 0))).value)
    if ctx.input < 0:
        raise Odd("late")
    return [*found, await ctx.flow(inner, ctx.input)]


def changed(code: Callable[[FlowContext[int]], Awaitable[Any]]) -> Durable[int, Any]:
    @durable("outer", errors=[Odd])
    async def other(ctx: FlowContext[int]) -> Any:
        return await code(ctx)

    return other


async def _local(ctx: FlowContext[int]) -> None:
    await ctx.map(analyse, [1, 2, 3], limit=2, local=True)


async def _other_task(ctx: FlowContext[int]) -> None:
    await ctx.map(judge, [1, 2, 3])


async def _fewer_items(ctx: FlowContext[int]) -> None:
    await ctx.map(analyse, [1, 2])


async def _no_map(ctx: FlowContext[int]) -> None:
    await ctx.step(judge, 1)


async def _other_flow(ctx: FlowContext[int]) -> None:
    await ctx.map(analyse, [1, 2, 3])
    await ctx.map(analyse, [4, -4], return_exceptions=True)
    await ctx.gather(ctx.flow(inner, 5), ctx.flow(inner, 6))


async def _history(flows: WorkflowProvider, flow_id: str) -> FlowHistory:
    history = await read_history(flows.provider.jobs, flow_id)
    assert history is not None
    return history


async def test_what_ran_as_jobs_and_flows_is_replayed_and_changed_code_is_refused(
    open_flows: OpenFlows,
) -> None:
    flows = await open_flows(outer, inner, graph)  # type: ignore[arg-type]
    flow = await flows.execute(outer, 8)
    assert await flow.result(240) == [[10, 20, 30], 2, 10, 60, -1, 7, 80]
    history = await _history(flows, flow.id)
    ran = list(did)
    await replay(outer, msgspec.json.encode(history))
    await replay(outer, redacted(history))
    for code, position in (
        (_local, "0.0"),
        (_other_task, "0.0"),
        (_fewer_items, "0"),
        (_no_map, "0"),
        (_other_flow, "2"),
    ):
        with pytest.raises(NonDeterminismError) as caught:
            await replay(changed(code), history)
        assert caught.value.position == position, code
    assert did == ran, "a replay runs nothing"


async def test_a_flow_that_waits_for_its_children_or_failed_is_replayed(open_flows: OpenFlows) -> None:
    flows = await open_flows(outer, inner, graph)  # type: ignore[arg-type]
    waiting, failed = await flows.execute(outer, 0), await flows.execute(outer, -1)
    with pytest.raises(Odd) as caught:
        await failed.result(240)
    assert isinstance(caught.value.__cause__, StepError)
    await replay(outer, await _history(flows, failed.id))

    async with asyncio.timeout(240):
        while all(  # noqa: ASYNC110
            entry.place != "9" for entry in (await _history(flows, waiting.id)).read()
        ):
            await asyncio.sleep(0.01)
    history = await _history(flows, waiting.id)
    await replay(outer, history)
    with pytest.raises(NonDeterminismError):
        await replay(changed(_no_map), history)
    await waiting.cancel()


async def test_a_map_that_began_in_its_worker_or_without_a_server_ends_there() -> None:
    @task
    async def twice(number: int) -> int:
        did.append(number)
        return number * 2

    @durable("mapped")
    async def local(ctx: FlowContext[None]) -> list[int]:
        return await ctx.map(twice, [1, 2, 3], local=True, limit=1)

    @durable("mapped")
    async def anywhere(ctx: FlowContext[None]) -> list[int]:
        return await ctx.map(twice.using(timeout=5), [1, 2, 3], limit=1)

    flow = RecordedFlow(local)
    await flow.activate()
    history = FlowHistory(
        flow_id="mapped~0123456789abcdef0123",
        version="1",
        input=msgspec.Raw(b"null"),
        created_ms=1,
        entries=tuple(msgspec.Raw(text.encode()) for text in flow.journal),
    )
    await replay(anywhere, history)
    flow.has_children = True
    flow.journal = flow.journal[:1]
    assert await flow.activate(anywhere) == Completed("[2,4,6]")
    assert did == [1, 2, 3, 2, 3]
