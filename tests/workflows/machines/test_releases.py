"""Releases of a state machine side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import EventProvider
from workflows import END, MachineContext, StateMachine, WorkflowProvider, transition

pytestmark = pytest.mark.virtual

Open = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]

did: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    did.clear()


class Old(StateMachine[int], name="order", start="a"):
    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[int]) -> None:
        did.append("old begin")

    @transition("b", to=END, wait=str)
    async def end(self, ctx: MachineContext[int], payload: str) -> str:
        return f"old {payload}"


class New(StateMachine[int], name="order", start="a"):
    @transition("a", to="checked")
    async def check(self, ctx: MachineContext[int]) -> None:
        did.append("new check")

    @transition("checked", to="b", wait=None)
    async def go_on(self, ctx: MachineContext[int], payload: None) -> None: ...

    @transition("b", to=END, wait=str)
    async def end(self, ctx: MachineContext[int], payload: str) -> str:
        return f"new {payload}"


async def _rests(flow: Any, place: str) -> bool:
    report = await flow.report()
    return report.state == "waiting" and report.machine.place == place


async def test_a_worker_knows_the_flows_of_a_machine_that_had_other_places(
    make_provider: Callable[..., EventProvider],
) -> None:
    first, second = make_provider(), make_provider()
    old, new = WorkflowProvider(first), WorkflowProvider(second)
    old.register(Old)
    new.register(New)
    async with first, second:
        await old.execute(Old, 1)
        assert [(each.version, each.open, each.workers) for each in await new.versions()] == [
            ("places:a,b", 1, 0)
        ]
        async with second.worker():
            found = {each.version: (each.open, each.workers, each.is_newest) for each in await new.versions()}
    assert found == {"places:a,b": (1, 1, False), "places:a,b,checked": (0, 1, True)}


async def test_a_flow_of_an_old_release_goes_on_in_the_new_one_that_knows_its_place(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Old, worker=False)
    flow = await flows.execute(Old, 1)
    async with flows.provider.worker():
        await until(lambda: _rests(flow, "b"), "it waits in the old release")
    await open_flows(New)
    await flow.trigger(Old.end, "x")
    assert await flow.result(timeout=240) == "new x"


async def test_a_flow_at_a_place_that_is_not_known_is_parked_until_a_worker_knows_it(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(New, worker=False)
    flow = await flows.execute(New, 1)
    async with flows.provider.worker():
        await until(lambda: _rests(flow, "checked"), "it waits in the new release")
    old = await open_flows(Old, worker=False)
    async with old.provider.worker():
        await flow.trigger(New.go_on)

        async def is_parked() -> bool:
            report = await flow.report()
            return report.is_parked and "place checked" in report.error

        await until(is_parked, "the old release sets it aside")
        async with flows.provider.worker():
            await until(lambda: _rests(flow, "b"), "a worker of the new release takes it up")
    assert did == ["new check"]


async def test_two_releases_with_other_transitions_work_side_by_side(open_flows: Open, until: Until) -> None:
    old, new = await open_flows(Old), await open_flows(New)
    some = [await flows.execute(machine, 1) for flows, machine in ((old, Old), (new, New)) for _ in range(5)]

    async def all_rest() -> bool:
        reports = [await each.report() for each in some]
        return all(
            each.state == "waiting" and each.machine is not None and each.machine.accepts for each in reports
        )

    await until(all_rest, "all wait")
    for flow in some:
        report = await flow.report()
        assert report.machine is not None
        if report.machine.place == "checked":
            await new.handle(flow.id).trigger(New.go_on)
    await until(lambda: _all_at(some, "b"), "all wait at b")
    for flow in some:
        await flow.trigger(Old.end, "x")
    assert {await each.result(timeout=240) for each in some} <= {"old x", "new x"}
    assert set(did) <= {"old begin", "new check"}
    assert len(did) == 10


async def _all_at(flows: list[Any], place: str) -> bool:
    return all([await _rests(each, place) for each in flows])
