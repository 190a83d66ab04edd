"""Limits of steps, workflows and durable functions in their definitions: they hold over all workers
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, Limit, QueueControls
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable, step, task

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


class Gauge:
    """How many run now, and how many ran at once at most."""

    def __init__(self) -> None:
        self.now = self.most = self.runs = 0

    async def run(self) -> None:
        self.now += 1
        self.runs += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1


async def _run_all(make_provider: MakeProvider, definition: Any, count: int) -> list[QueueControls]:
    """Run flows in two workers; return what is ordered meanwhile."""
    first, second = (WorkflowProvider(make_provider()) for _ in range(2))
    for each in (first, second):
        each.register(definition)
    async with first.provider, first.provider.worker(), second.provider.worker():
        handles = [await first.execute(definition, n) for n in range(count)]
        orders = await first.provider.inspector.queues.controls()
        assert [await each.result() for each in handles] == [*range(count)]
        return orders


@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_a_limited_step_runs_no_more_often_at_once_in_the_whole_fleet(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    workflow, gauge, other = Workflow[Any, Any]("checkout", spread=spread), Gauge(), Gauge()

    @workflow.step(limit=Limit(at_once=2))
    async def charge(ctx: StepContext[Any]) -> Any:
        await gauge.run()
        return ctx.input

    @workflow.step()
    async def ship(ctx: StepContext[Any]) -> None:
        await other.run()

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> Any:
        return ctx.result(charge)

    (order,) = await _run_all(make_provider, workflow, 30)
    assert (order.queue, order.limit, order.is_set) == (
        "workflow.checkout.steps/charge",
        Limit(at_once=2),
        False,
    )
    assert (gauge.most, gauge.runs, other.runs) == (2, 30, 30)


async def test_the_items_of_a_limited_step_count_each(make_provider: MakeProvider) -> None:
    workflow, gauge = Workflow[Any, Any]("checkout"), Gauge()

    @workflow.each(over=lambda ctx: [1, 2, 3, 4], at_once=4, limit=Limit(at_once=2))
    async def charge(ctx: StepContext[Any], item: int) -> int:
        await gauge.run()
        return item

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> Any:
        assert ctx.result(charge) == [1, 2, 3, 4]
        return ctx.input

    await _run_all(make_provider, workflow, 5)
    assert (gauge.most, gauge.runs) == (2, 20)


@pytest.mark.parametrize("kind", ["graph", "function"])
async def test_a_limited_workflow_has_no_more_flows_at_once_in_the_whole_fleet(
    make_provider: MakeProvider, kind: str
) -> None:
    gauge, limit = Gauge(), Limit(at_once=3)
    workflow = Workflow[Any, Any]("checkout", limit=limit)

    @workflow.step()
    async def charge(ctx: StepContext[Any]) -> None:
        await gauge.run()

    @workflow.completed
    async def end(ctx: StepContext[Any]) -> Any:
        return ctx.input

    @task
    async def work() -> None:
        await gauge.run()

    @durable(name="checkout", limit=limit)
    async def function(ctx: FlowContext[int]) -> int:
        await ctx.step(work)
        return ctx.input

    (order,) = await _run_all(make_provider, workflow if kind == "graph" else function, 20)
    assert (order.queue, order.limit) == ("workflow.checkout", limit)
    assert (gauge.most, gauge.runs) == (3, 20)


async def test_a_limit_can_be_changed_at_run_time(make_provider: MakeProvider) -> None:
    workflow, gauge = Workflow[Any, Any]("checkout"), Gauge()

    @workflow.step(limit=Limit(at_once=4))
    async def charge(ctx: StepContext[Any]) -> None:
        await gauge.run()

    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        await flows.set_limit(workflow, Limit(at_once=1), step=charge)
        handles = [await flows.execute(workflow, n) for n in range(8)]
        for each in handles:
            await each.result()
        assert (gauge.most, gauge.runs) == (1, 8)
        await flows.set_limit("checkout", None, step="charge")
        (order,) = await flows.provider.inspector.queues.controls()
        assert (order.limit, order.is_set) == (Limit(at_once=4), False)
        await flows.set_limit(workflow, Limit(at_once=7))
        assert [each.queue for each in await flows.provider.inspector.queues.controls()] == [
            "workflow.checkout",
            "workflow.checkout.steps/charge",
        ]


async def test_flows_that_waited_for_a_paused_step_keep_to_the_limit_that_it_got_meanwhile(
    make_provider: MakeProvider,
) -> None:
    """Their jobs stand beside those of the new release, and a resume sends none of them around the limit."""
    queue, gauge = "workflow.checkout.steps/charge", Gauge()

    def release(limit: Limit | None) -> tuple[WorkflowProvider, Workflow[Any, Any]]:
        workflow, flows = Workflow[Any, Any]("checkout", spread=True), WorkflowProvider(make_provider())

        @workflow.step(limit=limit)
        async def charge(ctx: StepContext[Any]) -> None:
            await gauge.run()

        flows.register(workflow)
        return flows, workflow

    async def wait_held(count: int) -> None:
        async with asyncio.timeout(240):
            while (await new.provider.inspector.queues.controls(queue))[0].waiting != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    (old, before), (new, after) = release(None), release(Limit(at_once=1))
    async with old.provider, new.provider:
        await old.pause(before, step="charge")
        async with old.provider.worker():
            handles = [await old.execute(before, n) for n in range(3)]
            await wait_held(3)
        async with new.provider.worker():
            handles += [await new.execute(after, n) for n in range(5)]
            await wait_held(8)
            await new.resume(after, step="charge")
            for each in handles:
                await each.result()
    assert (gauge.most, gauge.runs) == (1, 8)


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(
        DefinitionError, match=r"expected limit of workflow 'x' to be a Limit, such as .*, got: 5"
    ):
        Workflow("x", limit=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match=r"the limit of step 'charge' has by, each or each_rate"):
        step(lambda ctx: None, name="charge", limit=Limit(by=str, each=2))

    async def function(ctx: FlowContext[int]) -> int:
        return ctx.input

    with pytest.raises(DefinitionError, match=r"the limit of durable function 'f' has by"):
        durable(name="f", limit=Limit(by=str))(function)
    workflow = Workflow[Any, Any]("w" * 128)
    workflow.then(step(lambda ctx: None, name="s" * 128, limit=Limit(at_once=1)))
    with pytest.raises(DefinitionError, match="by which it is limited or paused, would have a name of"):
        workflow.check()
