"""The counter of flows: each flow that ends in a worker counts once, by how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.telemetry.metering import Meters

from eventbus import EventProvider, Retry
from workflows import FlowContext, FlowError, StepContext, Workflow, WorkflowProvider, durable

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


def _graph(name: str, *, spread: bool) -> Workflow[Any, Any]:
    """A flow that completes, fails and is undone, or fails and cannot be undone."""
    workflow = Workflow[Any, Any](name, retry=Retry(attempts=1), spread=spread)

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> int:
        return 1

    @first.rollback
    async def undo(ctx: StepContext[Any], result: int) -> None:
        if ctx.input == "stuck":
            raise ValueError("cannot be undone")

    @workflow.step(after=first)
    async def second(ctx: StepContext[Any]) -> None:
        if ctx.input:
            raise ValueError("no")

    return workflow


@durable("function", retry=Retry(attempts=1))
async def function(ctx: FlowContext[Any]) -> None:
    if ctx.input:
        raise ValueError("no")


async def test_flows_count_by_workflow_and_by_how_they_ended(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Awaitable[None]]
) -> None:
    meters = Meters(monkeypatch)
    provider = make_provider()
    flows = WorkflowProvider(provider)
    graphs = [_graph("local", spread=False), _graph("spread", spread=True)]
    for workflow in (*graphs, function):
        flows.register(workflow)
    async with provider, provider.worker():
        for workflow in (*graphs, function):
            await (await flows.execute(workflow, None)).result()
            with pytest.raises(FlowError):
                await (await flows.execute(workflow, "no")).result()
        for workflow in graphs:
            with pytest.raises(FlowError):
                await (await flows.execute(workflow, "stuck")).result()
    found = meters.by("workflows.flow.ended", "workflows.workflow", "eventbus.outcome")
    graph = {"completed": 1, "failed": 1, "incomplete": 1}
    assert found == {
        **{(name, outcome): count for name in ("local", "spread") for outcome, count in graph.items()},
        ("function", "completed"): 1,
        ("function", "failed"): 1,
    }
