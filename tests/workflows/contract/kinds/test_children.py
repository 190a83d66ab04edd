"""Flows of every kind as children of a state machine, and of a durable function: results, failures,
cancels.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.kinds.parts import Parts
from drivers.kinds.rows import given, make_row
from drivers.kinds.running import MakeProvider, Until

from eventbus import Retry
from workflows import (
    END,
    FlowCancelled,
    FlowContext,
    FlowHandle,
    MachineContext,
    Settled,
    StateMachine,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    transition,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


def make_starter(kind: str, row: Any) -> Any:
    """Return a machine that starts a flow of `row`, and ends with its result, or with the name of its
    error.
    """

    class Starter(StateMachine[int], name="starter", start="a"):
        @transition("a", to="b")
        async def begin(self, ctx: MachineContext[int]) -> None:
            ctx.children(row, [given(kind, ctx.state)])

        @transition("b", to=END, after="all_settled")
        async def end(self, ctx: MachineContext[int], settled: Settled) -> Any:
            return [*settled.results, *(type(each).__name__ for each in settled.errors)]

    return Starter


async def open_flows(make_provider: MakeProvider, stack: AsyncExitStack, *workflows: Any) -> WorkflowProvider:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    for each in workflows:
        flows.register(each)
    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    return flows


async def test_a_machine_gets_the_result_of_its_child(
    kind: str, parts: Parts, make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    row = make_row(kind)
    starter = make_starter(kind, row)
    flows = await open_flows(make_provider, stack, row, starter)
    flow = await flows.execute(starter, 10)
    assert await flow.result(240) == [13]
    assert parts.did == ["first", "second", "third"]
    ((tree,),) = (await flows.tree(flow.id)).nested.values()
    assert (tree.report.workflow, tree.report.state) == ("row", "completed")


@pytest.mark.needs("fails")
async def test_a_child_that_fails_has_undone_itself_and_the_machine_goes_on(
    kind: str, parts: Parts, make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    parts.fails["second"] = 1
    row = make_row(kind)
    starter = make_starter(kind, row)
    flows = await open_flows(make_provider, stack, row, starter)
    assert await (await flows.execute(starter, 10)).result(240) == ["StepError"]
    assert parts.did == ["first", "second", "undo first"]


async def test_a_cancel_of_the_machine_undoes_its_child(
    kind: str, parts: Parts, make_provider: MakeProvider, stack: AsyncExitStack, until: Until
) -> None:
    parts.holds.add("second")
    row = make_row(kind)
    starter = make_starter(kind, row)
    flows = await open_flows(make_provider, stack, row, starter)
    flow: FlowHandle[Any] = await flows.execute(starter, 10)
    await until(lambda: parts.did == ["first", "second"], "the child runs")
    await flow.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough"):
        await flow.result(240)
    assert parts.did == ["first", "second", "second cut", "undo first"]


async def test_in_this_process_it_is_the_same(kind: str, parts: Parts) -> None:
    assert await run_inline(make_starter(kind, make_row(kind)), 10) == [13]
    assert parts.did == ["first", "second", "third"]


async def test_what_completed_inside_a_graph_or_a_function_is_undone_in_its_place(
    kind: str, parts: Parts, make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    row = make_row(kind)

    @durable("outer-function")
    async def outer_function(ctx: FlowContext[int]) -> None:
        await ctx.flow(row, given(kind, ctx.input))
        raise ValueError("too bad")

    outer_graph: Workflow[int, None] = Workflow(
        "outer-graph", input=int, output=None, retry=Retry(attempts=1)
    )
    outer_graph.flow(row, input=lambda ctx: given(kind, ctx.input))

    @outer_graph.completed
    async def completed(ctx: Any) -> None:
        raise ValueError("too bad")

    flows = await open_flows(make_provider, stack, row, outer_function, outer_graph)
    undone = ["first", "second", "third", "undo third", "undo second", "undo first"]
    for outer in (outer_function, outer_graph):
        parts.did.clear()
        with pytest.raises(StepError, match="too bad") as caught:
            await (await flows.execute(outer, 10)).result(240)
        assert (parts.did, caught.value.rollback) == (undone, "complete")
        parts.did.clear()
        with pytest.raises(StepError, match="too bad"):
            await run_inline(outer, 10)
        assert parts.did == undone
