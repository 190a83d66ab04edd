"""Steps whose items are jobs of their own: what holds for them alone. `test_each` has what holds for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.logged_flows import MakeProvider, kinds_of, members_of, serve_flows

from eventbus import Retry
from workflows import StepContext, Workflow

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


def _wide(place: int = 0, at_once: int = 8) -> Workflow[Any, Any]:
    """A flow whose input is a list of texts; the result of an item says which worker ran it."""
    workflow = Workflow[Any, Any]("wide", retry=_ONCE)

    @workflow.each(over=lambda ctx: ctx.input, spread=True, at_once=at_once)
    async def convert(ctx: StepContext[Any], item: str) -> list[Any]:
        await asyncio.sleep(0.001)
        return [item[:3], len(ctx.input), place]

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return ctx.result(convert)

    return workflow


async def test_the_items_of_a_long_list_run_in_all_workers_and_do_not_repeat_its_input(
    make_provider: MakeProvider,
) -> None:
    workflow = _wide()
    given = [f"{number:03}" + "x" * 200 for number in range(60)]
    flows = serve_flows(make_provider, workflow, concurrency=4)
    other = serve_flows(make_provider, _wide(1), concurrency=4)
    async with flows.provider, other.provider, flows.provider.worker(), other.provider.worker():
        handle = await flows.execute(workflow, given)
        found = await handle.result()
        page = await flows.provider.jobs.look(handle.id)
        bodies = [(await flows.provider.inspector.jobs.get(each.id)).payload for each in page.members]
    assert [(item, total) for item, total, _ in found] == [(f"{n:03}", 60) for n in range(60)]
    assert {place for _, _, place in found} == {0, 1}
    assert len(bodies) == 60
    assert max(len(str(body)) for body in bodies) < 600


async def test_an_item_is_a_job_and_an_entry_and_its_failed_attempts_are_shown(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("tried", retry=Retry(attempts=2, delay=0.01))

    @workflow.each(over=lambda ctx: [5, 6], spread=True, at_once=1, concurrency=1)
    async def convert(ctx: StepContext[Any], item: int) -> int:
        if (ctx.step, ctx.attempt) == ("convert[1]", 1):
            raise ConnectionError("not yet")
        return item

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
        assert await members_of(flows, handle.id) == ["/1/convert/1", "/1/convert/2"]
        assert await kinds_of(flows, handle.id) == [
            "run",
            "each convert",
            "child convert[0]",
            "step convert[0]",
            "child convert[1]",
            "step convert[1]",
            "step convert",
        ]
        tree = await flows.tree(handle.id)
    assert tree.errors == {"convert[1]": ["ConnectionError: not yet"]}
    assert list(tree.report.steps) == ["convert"]


async def test_a_spread_workflow_with_items_runs_every_step_as_a_job(make_provider: MakeProvider) -> None:
    workflow = Workflow[Any, Any]("all", retry=_ONCE, spread=True)

    @workflow.step
    async def find(ctx: StepContext[Any]) -> list[int]:
        return [1, 2]

    @workflow.each(over=find)
    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item

    @workflow.step
    async def last(ctx: StepContext[Any]) -> int:
        return sum(ctx.result(convert))

    flows = serve_flows(make_provider, workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
        members = await members_of(flows, handle.id)
        report = await handle.report()
    assert members == ["/1/find/0", "/1/convert/1", "/1/convert/2", "/1/last/0"]
    assert (report.order, report.steps["last"].result) == (["find", "convert", "last"], 3)
