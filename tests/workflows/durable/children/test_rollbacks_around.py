"""The report of a nested flow tells what the flow around it has undone of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import Retry
from eventbus.lowlevel import clock
from workflows import FlowContext, FlowError, StepContext, Workflow, WorkflowProvider, durable, step, task
from workflows.client.inspection import _rollbacks_around

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]
ONCE = Retry(attempts=1)


async def _run(ctx: StepContext[Any]) -> str:
    return "done"


async def _undo(ctx: StepContext[Any], result: str) -> None: ...


async def _cannot(ctx: StepContext[Any], result: str) -> None:
    raise ValueError("stuck")


async def _fail(ctx: StepContext[Any]) -> None:
    raise ValueError("no")


def _three_deep(*, spread: bool) -> list[Workflow[Any, Any]]:
    """`outer` has `middle` as a step, which has `inner`; then it fails."""
    inner: Workflow[Any, Any] = Workflow("inner", retry=ONCE, spread=spread)
    inner.then(step(_run, name="first", rollback=_undo)).then(step(_run, name="second", rollback=_cannot))
    middle: Workflow[Any, Any] = Workflow("middle", retry=ONCE, spread=spread)
    middle.then(step(_run, name="own", rollback=_undo)).then(inner)
    outer: Workflow[Any, Any] = Workflow("outer", retry=ONCE, spread=spread)
    outer.then(middle).then(step(_fail, name="fail"))
    return [outer, middle, inner]


@pytest.mark.parametrize("spread", [False, True])
async def test_a_nested_flow_tells_what_the_flows_around_it_have_undone(
    open_flows: OpenFlows, spread: bool
) -> None:
    known = _three_deep(spread=spread)
    flows = await open_flows(*known)
    flow = await flows.execute(known[0], None)
    with pytest.raises(FlowError):
        await flow.result(240)
    (middle,) = (await flows.tree(flow.id)).nested["middle"]
    (inner,) = middle.nested["inner"]
    told = {
        each.report.flow_id: [
            (line.step, bool(line.error)) for line in (await flows.tree(each.report.flow_id)).report.rollbacks
        ]
        for each in (middle, inner)
    }
    assert list(told.values()) == [
        [("inner/second", True), ("inner/first", False), ("own", False)],
        [("second", True), ("first", False)],
    ]
    assert (await flows.report(inner.report.flow_id)).rollbacks[0].error == "ValueError: stuck"
    nodes = (await flows.graph(inner.report.flow_id)).nodes
    assert [(node.name, node.state) for node in nodes] == [("first", "undone"), ("second", "undo_failed")]
    assert middle.report.rollbacks == [], "in the tree they stand with the flow that ran them"


@task
async def act(name: str) -> str:
    return name


@act.rollback
async def undo(name: str) -> None: ...


@durable("child")
async def child(ctx: FlowContext[str]) -> str:
    return await ctx.step(act, ctx.input)


async def test_a_child_of_a_durable_function_tells_what_its_parent_has_undone(open_flows: OpenFlows) -> None:
    (_, _, inner) = _three_deep(spread=False)

    @durable("parent", retry=ONCE)
    async def parent(ctx: FlowContext[None]) -> None:
        await ctx.flow(child, "one")
        await ctx.flow(child, "two")
        await ctx.flow(inner, None)
        raise ValueError("no")

    flows = await open_flows(parent, child, inner)
    flow = await flows.execute(parent, None)
    with pytest.raises(FlowError):
        await flow.result(240)
    nested = (await flows.tree(flow.id)).nested
    told = {
        label: [line.step for line in (await flows.report(each.report.flow_id)).rollbacks]
        for label, (each,) in nested.items()
    }
    assert told == {"child@0": ["act@0"], "child@1": ["act@0"], "inner@2": ["second", "first"]}


async def test_a_flow_around_it_that_is_gone_tells_nothing(open_flows: OpenFlows) -> None:
    flows = await open_flows(worker=False)
    gone = "outer~0123456789abcdef0123"
    for flow_id in (gone, f"{gone}/1/middle/0/middle~0", f"{gone}/1/middle/0/middle~0/1/inner/0/inner~0"):
        assert await _rollbacks_around(flows._jobs, flow_id, clock.monotonic() + 5) == []
