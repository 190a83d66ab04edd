"""Children of machines over time: who waits for whom, how often, and which of them a later transition hears
of.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.machines.acting import Draft, Open, Until, did, stands_at

from eventbus import Retry, Unrecoverable
from workflows import END, FlowContext, MachineContext, Settled, StateMachine, durable, transition
from workflows.machines.choosing import Chooser

pytestmark = pytest.mark.virtual


@durable("sleeper")
async def sleeper(ctx: FlowContext[float]) -> float:
    if ctx.input < 0:
        raise Unrecoverable("no time is negative")
    await ctx.sleep(ctx.input)
    return ctx.input


class Waiting(StateMachine[list[float]], name="waiting", start="a"):
    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[list[float]]) -> None:
        ctx.children(sleeper, ctx.state)

    @transition("b", to=END, after="all_settled", when=lambda _, settled: settled.has_error, priority=1)
    async def some(self, ctx: MachineContext[list[float]], settled: Settled) -> str:
        return f"{len(settled.errors)} failed"

    @transition("b", to=END, after="all")
    async def collect(self, ctx: MachineContext[list[float]], settled: Settled) -> str:
        return f"{len(settled.results)} completed"


@pytest.mark.parametrize(
    ("given", "told"), [([0.0, 0.1, 1.0], "3 completed"), ([-1.0, 0.1, 1.0], "1 failed")]
)
async def test_a_child_that_has_ended_does_not_wake_the_machine_again_and_again(
    open_flows: Open, monkeypatch: pytest.MonkeyPatch, given: list[float], told: str
) -> None:
    asked: list[str] = []
    choose = Chooser.choose

    async def count(self: Chooser, snapshot: Any, *facts: Any, **more: Any) -> Any:
        asked.append(snapshot.place)
        return await choose(self, snapshot, *facts, **more)

    monkeypatch.setattr(Chooser, "choose", count)
    flows = await open_flows(Waiting, sleeper)
    flow = await flows.execute(Waiting, given)
    assert await flow.result(timeout=240) == told
    assert asked.count("b") <= 2 + len(given), (
        "one look for each end, one for the move, and one that may come early"
    )


class Repeated(StateMachine[Draft], name="repeated", start="a"):
    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.value += 1
        ctx.children(sleeper, [-1.0 if ctx.state.value == 1 else 0.0])

    @transition("b", to=END, after="all", error_place="lost")
    async def collect(self, ctx: MachineContext[Draft], settled: Settled) -> int:
        return len(settled.results)

    @transition("lost", to="a", wait=None)
    async def again(self, ctx: MachineContext[Draft], nothing: None) -> None: ...


async def test_children_that_a_transition_failed_of_make_way_for_those_of_a_later_move(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Repeated, sleeper)
    flow = await flows.execute(Repeated, Draft())
    await stands_at(flow, "lost", until)
    await flow.trigger(Repeated.again)
    assert await flow.result(timeout=240) == 1, "the child that failed before is not among them"


class Standing(StateMachine[Draft], name="standing", start="a"):
    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[Draft]) -> None:
        ctx.children(sleeper, [0.0, 0.0])

    @transition("b", to=END, after="all_settled", retry=Retry(attempts=1))
    async def collect(self, ctx: MachineContext[Draft], settled: Settled) -> int:
        did.append("collect")
        if len(did) == 1:
            raise ConnectionError("away")
        return len(settled.results)

    @transition("b", to="pause", wait=None)
    async def rest(self, ctx: MachineContext[Draft], nothing: None) -> None: ...

    @transition("pause", to="b", wait=None)
    async def go_on(self, ctx: MachineContext[Draft], nothing: None) -> None: ...


async def test_children_that_a_transition_failed_of_are_kept_while_no_move_starts_others(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Standing, sleeper)
    flow = await flows.execute(Standing, Draft())
    await until(lambda: did == ["collect"], "it failed")
    await stands_at(flow, "b", until)
    await flow.trigger(Standing.rest)
    await stands_at(flow, "pause", until)
    await flow.trigger(Standing.go_on)
    assert await flow.result(timeout=240) == 2


class Ticking(StateMachine[Draft], name="ticking", start="a"):
    """It never hears of its children, as a subscription that sends a letter each month."""

    @transition("a", to="b")
    async def tick(self, ctx: MachineContext[Draft]) -> None:
        ctx.children(sleeper, [0.0])
        ctx.state.value += 1

    @transition("b", to="a", wait=None)
    async def renew(self, ctx: MachineContext[Draft], nothing: None) -> None:
        await asyncio.sleep(0)


async def test_children_that_nobody_hears_of_do_not_grow_in_number(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Ticking, sleeper)
    flow = await flows.execute(Ticking, Draft())

    async def is_alone() -> bool:
        children = [child for some in (await flows.tree(flow.id)).nested.values() for child in some]
        return all(child.report.state == "completed" for child in children)

    for count in range(1, 8):
        await stands_at(flow, "b", until)
        assert (await flow.state()).value == count
        await until(is_alone, "its children have ended")
        await flow.trigger(Ticking.renew)
    report = await flow.report()
    assert report.machine is not None
    assert len(report.machine.children) == 1
