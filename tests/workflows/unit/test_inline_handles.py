"""Handles of flows in this process, of every kind: they do what the handle of a flow in a worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from drivers.machines.cut import KINDS, effects, forget, meet_with, undone

from eventbus import DefinitionError, PayloadError, SignalRefused, UsageError
from workflows import (
    END,
    FlowCancelled,
    FlowContext,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    StepError,
    Workflow,
    durable,
    transition,
)
from workflows.definition.flow_definition import definition_of
from workflows.testing import InlineHandle, run_inline, start_inline

pytestmark = pytest.mark.virtual

Until = Callable[..., Awaitable[None]]

_INLINE = [kind for kind in KINDS if "-" not in kind]

approval: Signal[bool] = Signal("approval", bool)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    meet_with(_round)
    yield
    forget()


async def _round() -> None:
    await asyncio.sleep(0)


def _given(kind: str) -> Any:
    return {} if kind.startswith("pipeline") else 1


@pytest.mark.parametrize("kind", _INLINE)
async def test_a_flow_of_any_kind_is_started_and_run(kind: str) -> None:
    flow: InlineHandle[Any] = start_inline(KINDS[kind], _given(kind))
    assert (await flow.status()).state == "pending"
    result = await flow.result()
    assert (await flow.status()).state == "completed"
    report = await flow.report()
    assert (report.state, report.workflow, len(report.order)) == (
        "completed",
        definition_of(KINDS[kind], "a workflow").name,
        3,
    )
    assert await run_inline(KINDS[kind], _given(kind)) == result


@pytest.mark.parametrize("kind", _INLINE)
async def test_a_flow_of_any_kind_is_cancelled_and_its_report_has_the_rollbacks(kind: str) -> None:
    answers: list[bool] = []

    async def cancel() -> None:
        if len(effects) == 2 and not answers:
            answers.append(await flow.cancel("enough"))
        await asyncio.sleep(0)

    meet_with(cancel)
    flow: InlineHandle[Any] = start_inline(KINDS[kind], _given(kind))
    with pytest.raises(FlowCancelled, match="enough"):
        await flow.result()
    assert (answers, undone) == ([True], effects[::-1])
    status, report = await flow.status(), await flow.report()
    assert (status.state, status.rollback) == ("cancelled", "complete")
    assert (report.state, report.rollback, len(report.rollbacks)) == ("cancelled", "complete", len(undone))
    assert not await flow.cancel("again")
    # A graph has no such signal at all; a function may wait for any.
    with pytest.raises(SignalRefused if kind in ("function", "machine") else DefinitionError):
        await flow.signal(approval, True)


async def _waits_for(flow: InlineHandle[Any], until: Until) -> None:
    async def is_waiting() -> bool:
        return (await flow.status()).state == "waiting"

    await until(is_waiting, "the flow waits")


async def test_a_function_waits_for_a_signal_that_its_handle_sends(until: Until) -> None:
    @durable("asks", output=bool)
    async def asks(ctx: FlowContext[None]) -> bool:
        return await ctx.wait_for(approval)

    flow = start_inline(asks, None)
    await _waits_for(flow, until)
    assert (await flow.report()).state == "waiting"
    with pytest.raises(PayloadError):
        await flow.signal(approval, "yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not of a state machine"):
        await flow.trigger("approve")
    await flow.signal(approval, True)
    assert await flow.result() is True


async def test_a_graph_that_only_waits_is_waiting(until: Until) -> None:
    workflow: Workflow[None, Any] = Workflow("asks", output=Any)
    asked = workflow.wait(approval)

    @workflow.completed
    async def completed(ctx: StepContext[None]) -> Any:
        return ctx.result(asked)

    flow = start_inline(workflow, None)
    await _waits_for(flow, until)
    await flow.signal(approval, True)
    assert await flow.result() is True
    with pytest.raises(SignalRefused, match="has ended"):
        await flow.signal(approval, True)


@pytest.mark.parametrize("kind", ["function", "graph"])
async def test_of_several_signals_with_one_id_one_counts(kind: str) -> None:
    words = Signal("words", str)

    @durable("hears")
    async def hears(ctx: FlowContext[None]) -> list[str]:
        return [await ctx.wait_for(words) for _ in range(2)]

    graph: Workflow[None, Any] = Workflow("hears-too", output=Any)
    steps = [graph.wait(words, name=f"wait{number}") for number in range(2)]

    @graph.completed
    async def completed(ctx: StepContext[None]) -> Any:
        return [ctx.result(each) for each in steps]

    flow: InlineHandle[Any] = start_inline(hears if kind == "function" else graph, None)
    for number in range(3):
        await flow.signal(words, f"one, {number}", signal_id="1")
    with pytest.raises(PayloadError):
        await flow.signal(words, 2, signal_id="2")  # type: ignore[call-overload]
    await flow.signal(words, "two", signal_id="2", call_timeout=1)
    assert await flow.result() == ["one, 0", "two"]
    await flow.signal(words, "again", signal_id="1")
    with pytest.raises(SignalRefused, match="has ended"):
        await flow.signal(words, "another", signal_id="3")


async def test_of_several_triggers_with_one_id_one_counts(until: Until) -> None:
    flow = start_inline(Door, 7)
    await _waits_for(flow, until)
    with pytest.raises(SignalRefused):
        await flow.trigger(Door.leave, trigger_id="2")
    for _ in range(2):
        await flow.trigger(Door.unlock, 7, trigger_id="1", call_timeout=1)

    async def is_open() -> bool:
        machine = (await flow.report()).machine
        return machine is not None and machine.place == "open"

    await until(is_open, "the door is open")
    await flow.trigger(Door.leave, trigger_id="1")  # what was sent with this id has come there
    assert (await flow.status()).state != "completed"
    await flow.trigger(Door.leave, trigger_id="2")
    assert await flow.result() == "out"


class Door(StateMachine[int], name="door", start="shut"):
    @transition("shut", to="open", wait=int)
    async def unlock(self, ctx: MachineContext[int], code: int) -> None:
        if code != ctx.state:
            raise ValueError("wrong code")

    @transition("open", to=END, wait=None)
    async def leave(self, ctx: MachineContext[int], payload: None) -> str:
        return "out"


async def test_a_machine_waits_for_triggers_that_its_handle_sends(until: Until) -> None:
    flow = start_inline(Door, 7)
    await _waits_for(flow, until)
    with pytest.raises(SignalRefused, match="accepts unlock now"):
        await flow.trigger(Door.leave)
    with pytest.raises(PayloadError):
        await flow.trigger(Door.unlock, "7")
    with pytest.raises(SignalRefused):
        await flow.signal(approval, True)
    await flow.trigger(Door.unlock, 7)

    async def is_open() -> bool:
        machine = (await flow.report()).machine
        return machine is not None and (machine.place, machine.accepts) == ("open", ["leave"])

    await until(is_open, "the door is open")
    await flow.trigger("leave")
    assert await flow.result() == "out"
    with pytest.raises(SignalRefused):
        await flow.trigger("leave")


async def test_a_machine_that_nothing_can_help_fails_as_in_a_run(until: Until) -> None:
    class Broken(StateMachine[int], name="broken-machine", start="a"):
        @transition("a", to=END)
        async def work(self, ctx: MachineContext[int]) -> None:
            raise ValueError("broken")

    flow = start_inline(Broken, 1)
    with pytest.raises(StepError, match="broken"):
        await flow.result()


async def test_triggers_that_are_given_come_first_and_those_that_are_left_are_told() -> None:
    flow = start_inline(Door, 7, triggers=[(Door.unlock, 7), (Door.leave, None)])
    assert await flow.result() == "out"
    flow = start_inline(Door, 7, triggers=[(Door.unlock, 7), (Door.leave, None), (Door.leave, None)])
    with pytest.raises(UsageError, match="before these triggers were sent: leave"):
        await flow.result()
