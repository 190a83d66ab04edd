"""The flows of functions and machines that are parts of a flow that stops: in a worker as in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import (
    END,
    FlowContext,
    MachineContext,
    StateMachine,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)
from workflows.testing import run_inline, start_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

_ONCE = Retry(attempts=1)
_log: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    _log.clear()


async def _charge() -> None:
    _log.append("charge begins")
    await asyncio.sleep(3)
    _log.append("charged")


@task
async def charge(n: int) -> int:
    await _charge()
    return n


@charge.rollback
async def refund(n: int) -> None:
    _log.append("refund")


@durable("function")
async def function(ctx: FlowContext[int]) -> int:
    await ctx.step(charge, ctx.input)
    _log.append("after it")
    return await ctx.step(charge, ctx.input)


@durable("sleeper")
async def sleeper(ctx: FlowContext[int]) -> int:
    await ctx.sleep("1 day")
    return ctx.input


@durable("outer")
async def outer(ctx: FlowContext[int]) -> int:
    return await ctx.flow(function, ctx.input)


class Machine(StateMachine[int], name="machine", start="a"):
    @transition("a", to="b")
    async def move(self, ctx: MachineContext[int]) -> None:
        await _charge()

    @move.rollback
    async def back(self, ctx: MachineContext[int]) -> None:
        _log.append("refund")

    @transition("b", to=END)
    async def end(self, ctx: MachineContext[int]) -> None:
        _log.append("after it")


async def _run(workflow: Any, make_provider: MakeProvider, *known: Any, inline: bool) -> None:
    if inline:
        await run_inline(workflow, 1)
        return
    flows = WorkflowProvider(make_provider())
    for each in (workflow, *known):
        flows.register(each)
    async with flows.provider, flows.provider.worker():
        await (await flows.execute(workflow, 1)).result()


@pytest.mark.parametrize("inline", [False, True], ids=["worker", "inline"])
@pytest.mark.parametrize("part", [function, outer, Machine], ids=["function", "function in one", "machine"])
async def test_a_part_ends_its_active_step_when_another_step_fails_and_undoes_it(
    make_provider: MakeProvider, part: Any, *, inline: bool
) -> None:
    workflow = Workflow("w", input=int, retry=_ONCE)
    workflow.flow(part, after=None)

    @workflow.step(after=None)
    async def falls(ctx: StepContext[int]) -> None:
        await asyncio.sleep(1)
        raise ValueError("down")

    with pytest.raises(StepError) as caught:
        await _run(workflow, make_provider, function, outer, Machine, inline=inline)
    assert (caught.value.step, _log) == ("falls", ["charge begins", "charged", "refund"])


@pytest.mark.parametrize("inline", [False, True], ids=["worker", "inline"])
async def test_a_part_that_sleeps_stops_at_once_when_another_step_fails(
    make_provider: MakeProvider, *, inline: bool
) -> None:
    workflow = Workflow("w", input=int, retry=_ONCE)
    workflow.flow(sleeper, after=None)

    @workflow.step(after=None)
    async def falls(ctx: StepContext[int]) -> None:
        await asyncio.sleep(1)
        raise ValueError("down")

    with pytest.raises(StepError, match="falls"):
        async with asyncio.timeout(3600):  # of the day that it would sleep
            await _run(workflow, make_provider, sleeper, inline=inline)


@task
async def hang() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _log.append("cut")
        raise


@durable("hangs")
async def hangs(ctx: FlowContext[int]) -> None:
    await ctx.step(hang)


@durable("around-hanging")
async def around_hanging(ctx: FlowContext[int]) -> None:
    await ctx.flow(hangs, ctx.input)


async def test_a_cancel_cuts_a_part_that_was_to_end_its_step_however_deep_it_is() -> None:
    workflow = Workflow("w", input=int, retry=_ONCE)
    workflow.flow(around_hanging, name="part", after=None)

    @workflow.step(after=None)
    async def falls(ctx: StepContext[int]) -> None:
        await asyncio.sleep(1)
        raise ValueError("down")

    flow = start_inline(workflow, 1)
    await asyncio.sleep(10)
    assert ((await flow.status()).state, _log) == ("rolling_back", [])
    assert not await flow.cancel()
    with pytest.raises(StepError, match="falls"):
        async with asyncio.timeout(3600):
            await flow.result()
    assert _log == ["cut"]


class Stuck(StateMachine[int], name="stuck", start="a"):
    @transition("a", to="b")
    async def move(self, ctx: MachineContext[int]) -> None:
        await _charge()

    @move.rollback
    async def back(self, ctx: MachineContext[int]) -> None:
        _log.append("moved back")

    @transition("b", to=END, retry=_ONCE)
    async def end(self, ctx: MachineContext[int]) -> None:
        raise ValueError("stuck")


async def test_a_machine_that_stands_in_this_process_ends_and_is_undone_with_what_is_around_it() -> None:
    @durable("around")
    async def around(ctx: FlowContext[int]) -> None:
        await ctx.step(charge, ctx.input)
        try:
            await ctx.flow(Stuck, ctx.input)
        except StepError as error:
            _log.append(f"{error.step} fell")
            raise

    with pytest.raises(StepError) as caught:
        await run_inline(around, 1)
    charged = ["charge begins", "charged"]
    assert _log == [*charged, *charged, "moved back", "end fell", "refund"]
    assert caught.value.rollback == "complete"
