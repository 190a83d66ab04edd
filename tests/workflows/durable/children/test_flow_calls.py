"""What the calls of a durable function do in a real server: races, events, many calls, new beginnings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import Event, Retry
from workflows import FlowCancelled, FlowContext, Signal, StepError, WorkflowProvider, durable, step_key, task

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]

approval = Signal("approval", bool)
asked = Event("asked", payload=int, result=int)
did: list[str] = []


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


def note(what: str) -> None:
    did.append(what)


@task
def charge(total: int) -> int:
    note("charge")
    return total


@task
async def hold(name: str) -> None:
    note(f"hold {name}")
    await asyncio.Event().wait()


async def test_a_step_that_completes_although_it_was_cancelled_is_recorded_and_undone(
    open_flows: OpenFlows, until: Until
) -> None:
    @task
    async def stubborn() -> str:
        note("begins")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done all the same"

    @stubborn.rollback
    async def undo(result: str) -> None:
        note(f"undo {result}")

    @durable("stubborn")
    async def function(ctx: FlowContext[None]) -> None:
        await ctx.step(stubborn)

    flows = await open_flows(function)
    flow = await flows.execute(function, None)
    await until(lambda: did == ["begins"], "it runs")
    await flow.cancel()
    with pytest.raises(FlowCancelled):
        await flow.result(240)
    assert did == ["begins", "undo done all the same"]


async def test_a_signal_ends_a_race_while_another_call_of_it_runs(
    open_flows: OpenFlows, until: Until
) -> None:
    @durable("interrupted")
    async def function(ctx: FlowContext[None]) -> int:
        return (await ctx.race(ctx.step(hold, "long"), ctx.wait_for(approval))).number

    flows = await open_flows(function)
    flow = await flows.execute(function, None)
    await until(lambda: "hold long" in did, "it runs")
    await flow.signal(approval, True)
    assert await flow.result(240) == 1


async def test_an_event_is_awaited_and_sent_once(open_flows: OpenFlows) -> None:
    @durable("asks")
    async def function(ctx: FlowContext[None]) -> list[int]:
        ctx.emit(asked, 1)
        return [await ctx.emit(asked, 2), await ctx.step(charge, 3)]

    flows = await open_flows(function, worker=False)

    @flows.provider.on(asked)
    async def answer(number: int) -> int:
        note(f"asked {number}")
        return number * 10

    async with flows.provider.worker():
        assert await (await flows.execute(function, None)).result(240) == [20, 3]
    assert sorted(did) == ["asked 1", "asked 2", "charge"]


async def test_an_error_of_the_code_itself_is_logged_once_with_its_traceback(
    open_flows: OpenFlows, logs: list[MutableMapping[str, Any]]
) -> None:
    @durable("typo")
    async def function(ctx: FlowContext[None]) -> None:
        await ctx.step(charge, 1)
        raise KeyError("typo")

    flows = await open_flows(function)
    flow = await flows.execute(function, None)
    with pytest.raises(StepError):
        await flow.result(240)
    told = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["event"] for entry in told] == ["function failed", "flow failed"]
    assert 'raise KeyError("typo")' in told[0]["exception"]
    assert "exception" not in told[1]
    assert told[0]["flow_id"] == told[1]["flow_id"] == flow.id


async def test_continue_as_new_keeps_the_id_and_the_handle(open_flows: OpenFlows) -> None:
    @durable("loop")
    async def function(ctx: FlowContext[int]) -> str:
        await ctx.step(charge, ctx.input)
        if ctx.input < 3:
            return ctx.continue_as_new(ctx.input + 1)
        return f"{ctx.input} {ctx.flow_id}"

    flows = await open_flows(function)
    flow = await flows.execute(function, 1)
    assert await flow.result(240) == f"3 {flow.id}"
    assert did == ["charge"] * 3


async def test_a_thousand_calls_side_by_side_are_recorded_in_few_appends(open_flows: OpenFlows) -> None:
    @durable("wide")
    async def function(ctx: FlowContext[int]) -> int:
        return sum(await ctx.gather(*(ctx.step(charge_quickly, number) for number in range(ctx.input))))

    async def charge_quickly(number: int) -> int:
        return number

    flows = await open_flows(function)
    assert await (await flows.execute(function, 1500)).result(240) == sum(range(1500))


@task
def in_thread(name: str) -> list[str]:
    """A plain function: it is not in the thread of the event loop."""
    assert threading.current_thread() is not threading.main_thread()
    return [name, step_key()]


@in_thread.rollback
def undo_in_thread(result: list[str]) -> None:
    assert threading.current_thread() is not threading.main_thread()
    undone.append(result[0])


undone: list[str] = []


async def test_plain_functions_run_in_threads_and_see_the_key_of_their_call(open_flows: OpenFlows) -> None:
    @durable("threads", retry=Retry(attempts=1))
    async def threads(ctx: FlowContext[bool]) -> list[list[str]]:
        first = await ctx.step(in_thread, "step")
        both = await ctx.map(in_thread, ["local"], local=True) + await ctx.map(in_thread, ["job"])
        if ctx.input:
            raise ValueError("stop")
        return [first, *both]

    undone.clear()
    flows = await open_flows(threads)
    flow = await flows.execute(threads, False)
    assert await flow.result(240) == [
        ["step", f"{flow.id}/1/0"],
        ["local", f"{flow.id}/1/1.0"],
        ["job", f"{flow.id}/1/2.0"],
    ]
    with pytest.raises(StepError) as caught:
        await (await flows.execute(threads, True)).result(240)
    assert (caught.value.rollback, undone) == ("complete", ["job", "local", "step"])
