"""Steps that wait while others go on beside them: with a worker and in this process, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eventbus import EventProvider, Retry, Unrecoverable
from eventbus.testing import TestBus
from workflows import FlowError, StepContext, Workflow, WorkflowProvider
from workflows.testing import start_inline


@asynccontextmanager
async def _running(workflow: Workflow[Any, Any]) -> AsyncGenerator[tuple[TestBus, WorkflowProvider]]:
    provider = EventProvider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with TestBus(provider) as bus:
        yield bus, flows


def _seconds() -> Callable[[], int]:
    begun = asyncio.get_running_loop().time()
    return lambda: int(asyncio.get_running_loop().time() - begun)


async def test_other_waits_end_in_time_although_what_follows_a_child_runs_long() -> None:
    when: dict[str, int] = {}
    inner, outer = Workflow("inner", input=int), Workflow("outer", input=int)

    @inner.step
    async def one(_: StepContext[int]) -> None:
        await asyncio.sleep(1)

    outer.flow(inner, name="sub", after=None)
    outer.sleep("5s", name="nap", after=None)
    outer.wait("go", int, name="go", after=None)

    @outer.step(after="sub")
    async def long(_: StepContext[int]) -> None:
        when["long"] = seconds()
        await asyncio.sleep(60)

    @outer.step(after="nap")
    async def rested(_: StepContext[int]) -> None:
        when["rested"] = seconds()

    @outer.step(after="go")
    async def heard(_: StepContext[int]) -> None:
        when["heard"] = seconds()

    @outer.step(after=None, retry=Retry(attempts=2, delay="4s", jitter=0))
    async def flaky(ctx: StepContext[int]) -> None:
        when["flaky"] = seconds()
        if ctx.attempt == 1:
            raise ConnectionError

    async with _running(outer) as (bus, flows):
        seconds = _seconds()
        flow = await flows.execute(outer, 1)
        await bus.advance("10s")
        await flow.signal("go", 1)
        await flow.result()
        assert when["long"] < when["flaky"] < when["rested"] < when["heard"] < 60, when


@pytest.mark.parametrize("is_inline", [False, True])
async def test_a_step_that_waits_for_its_next_attempt_is_undone_if_another_one_fails_meanwhile(
    is_inline: bool,
) -> None:
    undone: list[str] = []
    workflow = Workflow("w", input=int)

    @workflow.step(after=None, retry=Retry(attempts=3, delay="5s", jitter=0), rollback_on_failure=True)
    async def again(_: StepContext[int]) -> None:
        await asyncio.sleep(0.1)
        raise ConnectionError

    @again.rollback
    async def undo(ctx: StepContext[int], _: Any) -> None:
        undone.append(ctx.step)

    @workflow.step(after=None)
    async def final(_: StepContext[int]) -> None:
        await asyncio.sleep(0.1)
        raise Unrecoverable("no")

    async with _running(workflow) as (_, flows):
        flow: Any = start_inline(workflow, 1) if is_inline else await flows.execute(workflow, 1)
        with pytest.raises(FlowError) as caught:
            await flow.result()
        assert (undone, caught.value.rollback) == (["again"], "complete")
        report = await flow.report()
        assert {name: step.state for name, step in report.steps.items()} == {
            "again": "cancelled",
            "final": "failed",
        }


@pytest.mark.parametrize("is_inline", [False, True])
async def test_a_flow_whose_items_all_wait_for_their_next_attempt_is_waiting(is_inline: bool) -> None:
    workflow = Workflow("w", input=int)

    @workflow.each(over=lambda _: [1, 2], after=None, retry=Retry(attempts=2, delay="50s", jitter=0))
    async def act(ctx: StepContext[int], item: int) -> int:
        if ctx.attempt == 1:
            raise ConnectionError
        return item

    async with _running(workflow) as (bus, flows):
        flow: Any = start_inline(workflow, 1) if is_inline else await flows.execute(workflow, 1)
        await bus.advance("10s")
        assert ((await flow.status()).state, (await flow.report()).state) == ("waiting", "waiting")
        await flow.result()


@pytest.mark.parametrize("rounds", range(6))
async def test_a_wait_that_begins_while_another_step_fails_holds_up_no_rollback(rounds: int) -> None:
    workflow = Workflow("w", input=int)

    @workflow.step(after=None)
    async def before(_: StepContext[int]) -> None:
        await asyncio.sleep(0.1)

    workflow.sleep("3 days", name="nap", after="before")

    @workflow.step(after=None)
    async def final(_: StepContext[int]) -> None:
        await asyncio.sleep(0.1)
        for _round in range(rounds):
            await asyncio.sleep(0)
        raise Unrecoverable("no")

    async with _running(workflow):
        seconds = _seconds()
        with pytest.raises(FlowError):
            await start_inline(workflow, 1).result()
        assert seconds() == 0
