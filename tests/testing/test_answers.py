"""Signals and triggers that a bus sends when a flow has come to a point of its story."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import Event, EventProvider, PayloadError, SignalRefused, UsageError
from eventbus.testing import TestBus, TimeStandsStill
from workflows import (
    END,
    FlowContext,
    FlowHandle,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

provider = EventProvider(name="shop")
flows = WorkflowProvider(provider)

asked = Event("asked", payload=int, reply=False)
approved = Signal("approved", type=bool)


@task()
async def remind(number: int) -> int:
    return number


@durable("approval", signals=[approved])
async def approval(ctx: FlowContext[int]) -> str:
    for number in range(ctx.input):
        await ctx.step(remind, number)
        try:
            answer = await ctx.wait_for(approved, timeout="1 day")
        except TimeoutError:
            continue
        return f"{answer} after {number + 1}"
    return "nobody answered"


graph = Workflow("graph", input=int, output=bool)


@graph.step()
async def ask(ctx: StepContext[int]) -> None:
    ctx.emit(asked, ctx.input)


answer = graph.wait(approved, name="answer", after=ask)


@graph.completed
async def tell(ctx: StepContext[int]) -> bool:
    return ctx.result(answer)


class Review(StateMachine[int], name="review", start="open"):
    @transition("open", to="open", delay="1 day")
    async def remind(self, ctx: MachineContext[int]) -> None:
        ctx.state += 1

    @transition("open", to=END, wait=str)
    async def approve(self, ctx: MachineContext[int], by: str) -> str:
        return f"approved by {by} after {ctx.state}"


for definition in (approval, graph, Review):
    flows.register(definition)


@pytest.mark.parametrize("after", [remind, "approval.remind"])
async def test_a_flow_is_answered_after_two_reminders(after: Any) -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(approval, 5)
        sent = bus.signal_when(flow, approved, True, after=after, times=2)
        await bus.advance("23 hours")
        assert not sent.is_sent
        await bus.advance("1 hour")
        assert sent.is_sent
        assert await flow.result() == "True after 2"


async def test_what_a_flow_did_before_the_call_counts() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(approval, 5)
        await bus.advance("25 hours")
        bus.signal_when(flow, approved, False, after=remind, times=2)
        await bus.settle()
        assert await flow.result() == "False after 2"


async def test_another_flow_is_not_answered() -> None:
    async with TestBus(provider) as bus:
        flow, other = await flows.execute(approval, 2), await flows.execute(approval, 2)
        bus.signal_when(flow, approved, True, after=remind)
        assert await flow.result() == "True after 1"
        assert await other.result() == "nobody answered"


@pytest.mark.parametrize("after", [asked, "asked", ask])
async def test_a_graph_is_answered_when_it_has_emitted_an_event(after: Any) -> None:
    listener = EventProvider(name="listener")

    @listener.on(asked)
    async def hear(_: int) -> None: ...

    async with TestBus(provider, listener) as bus:
        flow = await flows.execute(graph, 1)
        bus.signal_when(flow, approved, True, after=after)
        assert await flow.result() is True


async def test_a_machine_is_triggered_after_a_reminder() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(Review, 0)
        bus.trigger_when(flow, Review.approve, "ada", after=Review.remind, times=3)
        began = bus.now
        assert await flow.result() == "approved by ada after 3"
        assert 3 * 86_400 <= (bus.now - began).total_seconds() < 3 * 86_400 + 10


async def test_an_answer_that_is_refused_reaches_the_test() -> None:
    async with TestBus(provider) as bus:
        flow: FlowHandle[str] = await flows.execute(approval, 1)
        await bus.advance("24h1m")
        bus.signal_when(flow, approved, True, after=remind)
        with pytest.raises(SignalRefused):
            await bus.settle()
        await bus.settle()  # it is told once


async def test_an_answer_that_is_refused_reaches_a_test_that_ends() -> None:
    bus = TestBus(provider)
    await bus.__aenter__()
    flow = await flows.execute(approval, 1)
    await flow.result()
    sent = bus.signal_when(flow, approved, True, after=remind)
    with pytest.raises(SignalRefused):
        await bus.__aexit__(None, None, None)
    assert not sent.is_sent


async def test_an_answer_whose_point_does_not_come_is_named_where_all_waits() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(graph, 1)
        bus.signal_when(flow, approved, True, after=ask, times=2)
        with pytest.raises(
            TimeStandsStill, match="the answer <signal approved after 2 x ask: 1 to come before it>"
        ):
            await flow.result()


async def test_what_cannot_be_an_answer_is_refused() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(approval, 1)
        with pytest.raises(PayloadError):
            bus.signal_when(flow, approved, "yes", after=remind)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match=r"did you mean '(approval|review)\.remind'"):
            bus.signal_when(flow, approved, True, after="remind")
        with pytest.raises(UsageError, match="expected times to be 1 or more"):
            bus.signal_when(flow, approved, True, after=remind, times=0)
        with pytest.raises(PayloadError):
            bus.trigger_when(flow, Review.approve, 7, after=remind)  # pyright: ignore[reportArgumentType]
