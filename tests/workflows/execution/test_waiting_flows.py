"""A flow of any kind that rests until a time comes, or somebody acts, is `waiting`: in its status, its
report, and lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import (
    END,
    FlowContext,
    FlowHandle,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

approval: Signal[bool] = Signal("approval", bool)


@durable("asks", output=bool)
async def asks(ctx: FlowContext[None]) -> bool:
    return await ctx.wait_for(approval)


@durable("sleeps", output=bool)
async def sleeps(ctx: FlowContext[None]) -> bool:
    await ctx.sleep("1 hour")
    return True


@durable("asks-beside-a-child", output=Any)
async def asks_beside(ctx: FlowContext[None]) -> Any:
    return await ctx.race(ctx.flow(asks, None), ctx.wait_for(approval))


@durable("has-a-child", output=bool)
async def has_child(ctx: FlowContext[None]) -> bool:
    return await ctx.flow(asks, None)


@task(retry=Retry(attempts=2, delay="1 hour"))
async def fails() -> None:
    raise ValueError("not yet")


@durable("tries-later", output=bool)
async def tries_later(ctx: FlowContext[None]) -> bool:
    await ctx.step(fails)
    return True


class Desk(StateMachine[int], name="desk", start="a"):
    @transition("a", to=END, wait=None)
    async def leave(self, ctx: MachineContext[int], payload: None) -> None: ...


def _graph(name: str) -> Workflow[None, Any]:
    workflow: Workflow[None, Any] = Workflow(name, output=Any)

    @workflow.step
    async def first(ctx: StepContext[None]) -> int:
        return 1

    return workflow


graph_asks, graph_sleeps = _graph("graph-asks"), _graph("graph-sleeps")
graph_asks.wait(approval, after="first")
graph_sleeps.sleep("1 hour", after="first")

_KINDS: dict[str, tuple[Any, Any]] = {
    each if isinstance(each, str) else each.name: (workflow, given)
    for each, workflow, given in [
        (asks, asks, None),
        (sleeps, sleeps, None),
        (asks_beside, asks_beside, None),
        (tries_later, tries_later, None),
        ("desk", Desk, 1),
        (graph_asks, graph_asks, None),
        (graph_sleeps, graph_sleeps, None),
    ]
}


async def _open(make_provider: MakeProvider, stack: AsyncExitStack, *workflows: Any) -> WorkflowProvider:
    flows = WorkflowProvider(make_provider())
    for each in workflows:
        flows.register(each)
    await stack.enter_async_context(flows.provider)
    await stack.enter_async_context(flows.provider.worker())
    return flows


async def _rests(flows: WorkflowProvider, flow_id: str, until: Until) -> None:
    async def is_resting() -> bool:
        root = (await flows.provider.jobs.look(flow_id, limit=0)).root
        return root.get("state") in ("delayed", "waiting-children") and bool(root.get("claimed"))

    await until(is_resting, "its root rests")


@pytest.mark.parametrize("kind", _KINDS)
async def test_a_flow_that_waits_is_found_as_one(
    kind: str, make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    workflow, given = _KINDS[kind]
    flows = await _open(make_provider, stack, *{workflow, asks})
    flow: FlowHandle[Any] = await flows.execute(workflow, given)
    await _rests(flows, flow.id, until)
    assert (await flow.status()).state == "waiting"
    assert (await flow.report()).state == "waiting"
    assert [each.flow_id for each in await flows.flows(state="waiting")] == [flow.id]
    assert await flows.flows(state="running") == []
    await flow.cancel()


async def test_a_flow_that_rests_for_another_one_runs(
    make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    flows = await _open(make_provider, stack, has_child, asks)
    flow = await flows.execute(has_child, None)
    await _rests(flows, flow.id, until)
    assert ((await flow.status()).state, (await flow.report()).state) == ("running", "running")
    await flow.cancel()
