"""Flows that a durable function starts: awaited without a worker, stopped and undone with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import DefinitionError, PayloadError, Retry
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowTimeout,
    Signal,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]

go = Signal("go", int)
did: list[str] = []


class Sold(Exception):
    pass


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


@task
async def act(name: str) -> str:
    did.append(name)
    return name


@act.rollback
async def undo(name: str) -> None:
    did.append(f"undo {name}")


@task(retry=Retry(attempts=1))
async def fail() -> None:
    raise Sold("out")


@durable("inner", errors=[Sold])
async def inner(ctx: FlowContext[int]) -> int:
    await ctx.step(act, f"inner {ctx.input}")
    if ctx.input < 0:
        await ctx.step(fail)
    if ctx.input == 0:
        return await ctx.wait_for(go)
    return ctx.input * 10


def graph(*, spread: bool = False) -> Workflow[int, int]:
    workflow = Workflow("graph", input=int, output=int, spread=spread, errors=[Sold], retry=Retry(attempts=1))

    @workflow.step
    async def pack(ctx: StepContext[int]) -> str:
        did.append(f"pack {ctx.input}")
        return "box"

    @pack.rollback
    async def unpack(ctx: StepContext[int], box: str) -> None:
        did.append(f"unpack {box}")

    @workflow.step
    async def post(ctx: StepContext[int]) -> None:
        if ctx.input < 0:
            raise Sold("no stamp")

    @workflow.completed
    async def done(ctx: StepContext[int]) -> int:
        return ctx.input * 2

    return workflow


@pytest.mark.parametrize("spread", [False, True])
async def test_flows_of_any_kind_are_awaited_and_their_output_is_typed(
    open_flows: OpenFlows, spread: bool
) -> None:
    workflow = graph(spread=spread)

    @durable("outer")
    async def outer(ctx: FlowContext[int]) -> list[int]:
        first = await ctx.flow(inner, ctx.input)
        return [first, *await ctx.gather(ctx.flow(workflow, first), ctx.flow(inner, first))]

    flows = await open_flows(outer, inner, workflow)
    flow = await flows.execute(outer, 1)
    assert await flow.result(240) == [10, 20, 100]
    assert sorted(did) == ["inner 1", "inner 10", "pack 10"]
    report = await flow.report()
    assert [(step.step, step.state, step.result) for step in report.steps.values()] == [
        ("inner@0", "completed", 10),
        ("graph@1", "completed", 20),
        ("inner@2", "completed", 100),
    ]
    tree = await flows.tree(flow.id)
    assert [nested.report.state for nested in tree.nested["inner@0"]] == ["completed"]
    assert set(tree.nested) == {"inner@0", "graph@1", "inner@2"}


async def test_the_error_of_a_flow_is_raised_where_it_is_awaited_and_it_has_undone_itself(
    open_flows: OpenFlows,
) -> None:
    workflow, caught = graph(), list[BaseException]()

    @durable("outer")
    async def outer(ctx: FlowContext[None]) -> str:
        for child in (inner, workflow):
            try:
                await ctx.flow(child, -1)
            except Sold as error:
                caught.append(error)
        return await ctx.step(act, "goes on")

    flows = await open_flows(outer, inner, workflow)
    assert await (await flows.execute(outer, None)).result(240) == "goes on"
    assert {str(error) for error in caught} == {"out", "no stamp"}
    assert isinstance(caught[-1].__cause__, StepError)
    assert did == ["inner -1", "undo inner -1", "pack -1", "unpack box", "goes on"]


@pytest.mark.parametrize("spread", [False, True])
async def test_a_completed_flow_is_undone_with_its_parent_in_reverse_order(
    open_flows: OpenFlows, spread: bool
) -> None:
    workflow = graph(spread=spread)

    @durable("outer", errors=[Sold])
    async def outer(ctx: FlowContext[None]) -> None:
        await ctx.step(act, "first")
        await ctx.flow(inner, 1)
        await ctx.flow(workflow, 2)
        await ctx.step(act, "last")
        raise Sold("at the end")

    flows = await open_flows(outer, inner, workflow)
    flow = await flows.execute(outer, None)
    with pytest.raises(Sold) as caught:
        await flow.result(240)
    assert did[4:] == ["undo last", "unpack box", "undo inner 1", "undo first"]
    assert isinstance(caught.value.__cause__, StepError)
    assert caught.value.__cause__.rollback == "complete"
    report = await flow.report()
    assert [each.step for each in report.rollbacks] == ["act@3", "graph@2/pack", "inner@1/act@0", "act@0"]
    did.clear()
    assert (await flows.retry(flow.id)).id == flow.id
    with pytest.raises(Sold):
        await flow.result(240)
    assert did == [
        "first",
        "inner 1",
        "pack 2",
        "last",
        "undo last",
        "unpack box",
        "undo inner 1",
        "undo first",
    ]


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_stop_reaches_the_flows_that_run(open_flows: OpenFlows, until: Until, how: str) -> None:
    @durable("outer")
    async def outer(ctx: FlowContext[None]) -> int:
        await ctx.step(act, "first")
        return await ctx.flow(inner, 0)

    flows = await open_flows(outer, inner, lease=0.5)
    flow = await flows.execute(outer, None, timeout=1 if how == "timeout" else None)
    await until(lambda: "inner 0" in did, "it runs")
    if how == "cancel":
        await flow.cancel()
    with pytest.raises(FlowCancelled if how == "cancel" else FlowTimeout) as caught:
        await flow.result(240)
    assert did == ["first", "inner 0", "undo inner 0", "undo first"]
    assert caught.value.rollback == "complete"


@pytest.mark.parametrize("is_gathered", [False, True])
async def test_a_flow_that_loses_a_race_is_stopped_and_undone_before_its_parent_ends(
    open_flows: OpenFlows, until: Until, *, is_gathered: bool
) -> None:
    @durable("outer")
    async def outer(ctx: FlowContext[None]) -> list[Any]:
        child: Any = ctx.flow(inner, 0)
        number, value = await ctx.race(ctx.gather(child) if is_gathered else child, ctx.wait_for(go))
        return [number, value, await ctx.step(act, "goes on")]

    flows = await open_flows(outer, inner)
    flow = await flows.execute(outer, None)
    await until(lambda: "inner 0" in did, "it runs")
    await flow.signal(go, 7)
    assert await flow.result(240) == [1, 7, "goes on"]
    assert did[0] == "inner 0"
    assert sorted(did[1:]) == ["goes on", "undo inner 0"]
    assert (await flow.report()).steps["inner@0"].state == "cancelled"


async def test_the_timeout_of_a_flow_is_that_of_its_call(open_flows: OpenFlows) -> None:
    @durable("outer")
    async def outer(ctx: FlowContext[None]) -> str:
        try:
            await ctx.flow(inner, 0, timeout=0.2)
        except FlowTimeout as error:
            return error.rollback
        return "no"

    flows = await open_flows(outer, inner, lease=0.5)
    assert await (await flows.execute(outer, None)).result(240) == "complete"


async def test_what_cannot_be_started_is_refused_at_the_call(open_flows: OpenFlows) -> None:
    @durable("other")
    async def other(ctx: FlowContext[None]) -> None: ...

    @durable("outer")
    async def outer(ctx: FlowContext[None]) -> int:
        any_ctx: Any = ctx
        with pytest.raises(DefinitionError, match="'other' is not registered"):
            ctx.flow(other, None)
        with pytest.raises(PayloadError):
            any_ctx.flow(inner, "no number")
        with pytest.raises(
            DefinitionError,
            match=r"expected what ctx\.flow runs to be a Workflow, a durable function or a StateMachine",
        ):
            any_ctx.flow(act, 1)
        return await ctx.flow(inner, 1)

    flows = await open_flows(outer, inner)
    assert await (await flows.execute(outer, None)).result(240) == 10


async def test_a_worker_waits_for_no_flow(open_flows: OpenFlows, until: Until) -> None:
    @durable("outer")
    async def outer(ctx: FlowContext[int]) -> int:
        return await ctx.flow(inner, ctx.input)

    flows = await open_flows(outer, inner, concurrency=1)
    started = await asyncio.gather(*(flows.execute(outer, 0) for _ in range(5)))
    await until(lambda: did.count("inner 0") == 5, "all run, though there is one slot")
    await asyncio.gather(*(flow.cancel() for flow in started))
