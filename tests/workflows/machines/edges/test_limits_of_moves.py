"""What is too much for one move fails its transition, and never the flow."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.machines.acting import Draft, Open, Until, broken, stands_at

from eventbus import SignalRefused, UsageError
from workflows import END, FlowContext, FlowHandle, MachineContext, Settled, StateMachine, durable, transition

pytestmark = pytest.mark.virtual

MIB = 1 << 20


async def tells(flow: FlowHandle[Any], what: str, until: Until) -> None:
    async def is_told() -> bool:
        report = await flow.report()
        return report.state == "waiting" and what in report.error

    await until(is_told, f"the flow waits, and tells {what}")


@durable("measured")
async def measured(ctx: FlowContext[str]) -> int:
    return len(ctx.input)


class Heavy(StateMachine[int], name="heavy", start="a"):
    """Its state is the number of documents, or with a minus of children, of 100,000 bytes."""

    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[int]) -> None:
        many, ctx.state = ctx.state, 3
        if many < 0:
            ctx.children(measured, ["x" * 100_000] * -many)
        for number in range(many):
            ctx.save(f"{number}", "x" * 1_000_000)

    @transition("b", to=END, after="all_settled")
    async def end(self, ctx: MachineContext[int], settled: Settled) -> int:
        return len(settled.results)


@pytest.mark.parametrize(("many", "told"), [(20, "bytes in one append"), (-20, "have 2000040 bytes")])
async def test_a_move_that_is_too_large_fails_its_transition_and_not_the_flow(
    open_flows: Open, until: Until, many: int, told: str
) -> None:
    flows = await open_flows(Heavy, measured)
    flow = await flows.execute(Heavy, many)
    await tells(flow, told, until)
    report = await flow.report()
    assert report.machine is not None
    assert (report.machine.place, report.machine.documents, report.machine.children) == ("a", {}, [])
    assert await flow.cancel()


class Taking(StateMachine[Draft], name="taking", start="a"):
    @transition("a", to=END, wait=str)
    async def take(self, ctx: MachineContext[Draft], text: str) -> int:
        if "take" in broken:
            raise ValueError("y" * 3 * MIB)
        return len(text)


async def test_the_longest_payload_and_the_longest_error_are_kept_together(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Taking)
    flow = await flows.execute(Taking, Draft())
    await stands_at(flow, "a", until)
    broken.add("take")
    await flow.trigger(Taking.take, "x" * (MIB - 2))
    await tells(flow, "ValueError, whose text is too long", until)
    broken.clear()
    await flow.retry()
    assert await flow.result(timeout=240) == MIB - 2


async def test_an_id_of_a_trigger_that_no_move_could_take_is_refused(open_flows: Open, until: Until) -> None:
    """The flow failed of it, whoever sent it."""
    flows = await open_flows(Taking)
    flow = await flows.execute(Taking, Draft())
    await stands_at(flow, "a", until)
    with pytest.raises(UsageError, match="the id of a signal has 300 bytes; at most 256 are possible"):
        await flow.trigger(Taking.take, "x", trigger_id="t" * 300)
    with pytest.raises(UsageError, match="'t 1' is no id of a trigger: it must not have spaces"):
        await flow.trigger(Taking.take, "x", trigger_id="t 1")
    await flow.trigger(Taking.take, "xy", trigger_id="t" * 256)
    assert await flow.result(timeout=240) == 2
    with pytest.raises(SignalRefused, match=f"trigger take was not sent to flow {flow.id}: "):
        await flow.trigger(Taking.take, "x")
