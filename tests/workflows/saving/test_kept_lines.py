"""Log lines of durable functions, their tasks, and of the rollbacks of all kinds of flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry, UsageError
from workflows import (
    FlowContext,
    Signal,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    task_context,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

paid = Signal("paid", int)
refusals: list[str] = []


async def _lines(provider: EventProvider, job_id: str) -> list[str]:
    return [each.text for each in (await provider.inspector.jobs.get(job_id)).lines]


@task
async def charge(amount: int) -> str:
    context = task_context()
    context.keep_line(f"charged {amount}")
    return context.worker


@task
def ship(amount: int) -> str:
    context = task_context()
    context.keep_line(f"shipped {amount}")
    return context.worker


@durable("lines", signals=[paid])
async def lines(ctx: FlowContext[int]) -> list[str]:
    ctx.keep_line("begun")
    first = await ctx.step(charge, ctx.input)
    ctx.keep_line("charged")
    await ctx.wait_for(paid)
    ctx.keep_line("paid")
    return [first, await ctx.step(ship, ctx.input), ctx.worker]


async def test_the_code_keeps_a_line_once_over_replays_and_its_tasks_in_the_loop_and_in_threads(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(lines)
    async with provider:
        async with provider.worker() as first:
            flow = await flows.execute(lines, 5)
            while all(  # noqa: ASYNC110
                each.state != "waiting" for each in (await flow.report()).steps.values()
            ):
                await asyncio.sleep(0.01)
        async with provider.worker() as second:  # it repeats the code up to the wait
            await flow.signal(paid, 1)
            assert await flow.result() == [first.id, second.id, second.id]
            assert await _lines(provider, flow.id) == [
                "begun",
                "charge@0: charged 5",
                "charged",
                "paid",
                "ship@2: shipped 5",
            ]


async def test_inline_a_line_goes_nowhere_and_there_is_no_worker() -> None:
    assert await run_inline(lines, 5, signals=[(paid, 1)]) == ["", "", ""]


@charge.rollback(retry=Retry(2, delay=0))
async def refund(_: str) -> None:
    context = task_context()
    assert context.stopping is None
    context.keep_line(f"refunded, attempt {context.attempt}")
    if context.attempt == 1:
        raise ValueError("again")


@ship.rollback
def call_back(_: str) -> None:
    context = task_context()
    context.keep_line("called back")
    for use in (lambda: context.save(1), lambda: context.saved(int).result()):
        try:
            use()
        except UsageError as error:
            refusals.append(str(error))


@durable("inner")
async def inner(ctx: FlowContext[None]) -> None:
    await ctx.step(ship, 2)


@durable("outer", retry=Retry(1))
async def outer(ctx: FlowContext[None]) -> None:
    await ctx.step(charge, 1)
    await ctx.flow(inner, None)
    raise ValueError("down")


async def test_rollbacks_of_a_durable_function_keep_lines_with_the_flow_that_is_undone(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(inner)
    flows.register(outer)
    refusals.clear()
    async with provider, provider.worker():
        flow = await flows.execute(outer, None)
        with pytest.raises(StepError):
            await flow.result()
        *_, back, first, second = await _lines(provider, flow.id)
    assert back.endswith("ship@0: called back"), back
    assert [first, second] == ["charge@0: refunded, attempt 1", "charge@0: refunded, attempt 2"]
    assert len(refusals) == 2
    assert all("has nothing saved" in each for each in refusals), refusals


@pytest.mark.parametrize("spread", [False, True])
async def test_rollbacks_of_a_workflow_and_of_its_sub_workflow_keep_lines_with_the_flow_that_is_undone(
    make_provider: MakeProvider, *, spread: bool
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    part = Workflow[Any, Any]("part")
    whole = Workflow[Any, Any]("whole", retry=Retry(1))

    @part.step(spread=spread)
    async def pick(_: StepContext[Any]) -> None:
        """Pick."""

    @pick.rollback
    def put_back(ctx: StepContext[Any], _: None) -> None:
        ctx.keep_line("put back")

    @whole.step(spread=spread)
    async def reserve(_: StepContext[Any]) -> None:
        """Reserve."""

    @reserve.rollback
    async def release(ctx: StepContext[Any], _: None) -> None:
        ctx.keep_line("released")

    nested = whole.flow(part, after=reserve)

    @whole.step(after=nested, spread=spread)
    async def fail(_: StepContext[Any]) -> None:
        raise ValueError("down")

    @whole.failed
    async def tell(ctx: StepContext[Any], _: Exception) -> None:
        ctx.keep_line("told")

    flows.register(part)
    flows.register(whole)
    async with provider, provider.worker():
        flow = await flows.execute(whole, None)
        with pytest.raises(StepError):
            await flow.result()
        assert await _lines(provider, flow.id) == ["pick: put back", "reserve: released", "told"]
