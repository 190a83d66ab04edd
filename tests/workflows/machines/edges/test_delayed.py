"""Transitions with a delay: they fire when the machine has stood at its place for so long, unless something
else comes before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from drivers.machines.acting import Draft, Open, Until, stands_at

from eventbus import DefinitionError, EventProvider, SignalRefused
from workflows import (
    END,
    FlowContext,
    MachineContext,
    Settled,
    StateMachine,
    WorkflowProvider,
    durable,
    transition,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


class Subscription(StateMachine[Draft], name="subscription", start="active"):
    @transition("active", to="active", delay=0.1)
    async def renew(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.value += 1

    @transition("active", to=END, wait=None)
    async def quit(self, ctx: MachineContext[Draft], nothing: None) -> int:
        return ctx.state.value


async def test_a_machine_moves_by_itself_each_time_until_a_trigger_ends_it(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Subscription)
    flow = await flows.execute(Subscription, Draft())

    async def has_renewed() -> bool:
        state = await flow.state()
        return state is not None and state.value >= 3

    await until(has_renewed, "it has renewed 3 times")
    while True:
        try:
            await flow.trigger(Subscription.quit)
            break
        except SignalRefused:  # it renews at this moment
            await asyncio.sleep(0)
    count = await flow.result(timeout=240)
    machine = (await flow.report()).machine
    assert machine is not None
    assert machine.version == count + 1
    gaps = [
        after.at_ms - before.at_ms for before, after in zip(machine.moves, machine.moves[1:-1], strict=False)
    ]
    assert min(gaps) >= 100, "it never fires early"


class Offer(StateMachine[Draft], name="offer", start="open"):
    @transition("open", to="reminded", delay="700 days")
    async def remind(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.seen.append("reminded")

    @transition("reminded", to="lost", delay="1 day", when=lambda ctx: ctx.state.value > 0)
    async def lose(self, ctx: MachineContext[Draft]) -> None: ...

    @transition("reminded", to=END, delay="2 days")
    async def forget(self, ctx: MachineContext[Draft]) -> str:
        return "forgotten"

    @transition(["open", "reminded"], to=END, wait=str)
    async def take(self, ctx: MachineContext[Draft], by: str) -> str:
        return f"taken by {by} after {ctx.state.seen}"

    @transition("lost", to=END)
    async def end(self, ctx: MachineContext[Draft]) -> str:
        return "lost"


async def test_while_it_waits_a_report_tells_until_when_and_a_trigger_comes_first(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Offer)
    flow = await flows.execute(Offer, Draft())
    await stands_at(flow, "open", until)
    machine = (await flow.report()).machine
    assert machine is not None
    assert machine.due_ms - machine.entered_ms == 700 * 86_400_000
    await flow.trigger(Offer.take, "Ada")
    assert await flow.result(timeout=240) == "taken by Ada after []"
    machine = (await flow.report()).machine
    assert machine is not None
    assert machine.due_ms == 0


async def test_an_inline_machine_sleeps_until_it_is_due() -> None:
    slept: list[float] = []

    async def sleep(duration: float) -> None:
        slept.append(round(duration / 86_400))

    assert await run_inline(Offer, Draft(), sleep=sleep) == "forgotten"
    assert await run_inline(Offer, Draft(1), sleep=sleep) == "lost"
    assert slept == [700, 1, 1, 700, 1], (
        "a guard is asked when the time has come, and not again before something happens"
    )
    assert (
        await run_inline(Offer, Draft(), sleep=sleep, triggers=[(Offer.take, "Ben")])
        == "taken by Ben after []"
    )


@durable("long_check")
async def long_check(ctx: FlowContext[float]) -> float:
    await ctx.sleep(ctx.input)
    return ctx.input


class Checked(StateMachine[float], name="checked", start="a"):
    """Its state is how long its child takes."""

    @transition("a", to="checking")
    async def begin(self, ctx: MachineContext[float]) -> None:
        ctx.children(long_check, [ctx.state])

    @transition("checking", to=END, after="all")
    async def collect(self, ctx: MachineContext[float], settled: Settled) -> str:
        return f"checked {settled.results}"

    @transition("checking", to="late", delay=0.5)
    async def give_up(self, ctx: MachineContext[float]) -> None: ...

    @transition("late", to=END)
    async def end(self, ctx: MachineContext[float]) -> str:
        return "late"


async def test_of_children_and_a_delay_what_comes_first_counts(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Checked, long_check)
    quick, slow = [await flows.execute(Checked, seconds) for seconds in (0.01, 1.5)]
    assert await quick.result(timeout=240) == "checked [0.01]"
    assert await slow.result(timeout=240) == "late", "it ends after its child, with what it was before"
    assert await run_inline(Checked, 0.01) == "checked [0.01]"
    assert await run_inline(Checked, 1.5) == "late"


async def test_a_delay_runs_on_while_no_worker_is_there(
    make_provider: Callable[..., EventProvider], until: Until
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(Subscription)
    async with provider:
        flow = await flows.execute(Subscription, Draft())
        async with provider.worker():
            await stands_at(flow, "active", until)
        before = (await flow.report()).machine
        assert before is not None
        async with provider.worker():

            async def has_renewed() -> bool:
                machine = (await flow.report()).machine
                return machine is not None and machine.version > before.version

            await until(has_renewed, "it was due meanwhile, and renews")


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        (
            {"one": {"delay": "1 day"}, "two": {"delay": "1 day"}},
            "have no guard and the same priority and delay",
        ),
        (
            {"one": {"delay": "1 day"}, "two": {}},
            "'two' has no guard, so it fires at once and 'one' never does",
        ),
        ({"one": {"delay": "1 day", "wait": None}}, "has a delay, and wait or after"),
        ({"one": {"delay": "soon"}}, "delay of transition 'one'"),
        ({"one": {"delay": "1 day"}, "two": {"delay": "2 days"}}, ""),
    ],
)
def test_what_a_delay_may_stand_beside(methods: dict[str, dict[str, Any]], told: str) -> None:
    def define() -> None:
        class Delayed(StateMachine[Draft], start="a"):  # pyright: ignore[reportUnusedClass]
            for name, options in methods.items():

                async def method(self: Any, ctx: MachineContext[Draft], *more: Any) -> None: ...

                method.__name__ = name
                locals()[name] = transition("a", to=END, **options)(method)

    if not told:
        define()
        return
    with pytest.raises(DefinitionError, match=told):
        define()
