"""The progress of steps: seen in reports while the attempt runs, from async functions and from threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from drivers.runners import FlowHandle, Runner, wait_states

from eventbus import Retry
from workflows import StepContext, StepError, Workflow

pytestmark = pytest.mark.virtual


async def _progress(handle: FlowHandle) -> dict[str, Any]:
    return {name: step.progress for name, step in (await handle.report()).steps.items()}


async def test_progress_of_async_steps_is_reported_while_they_run(runner: Runner) -> None:
    workflow = Workflow("tells")
    told, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def tell(ctx: StepContext[Any]) -> str:
        await ctx.progress(1)
        await ctx.progress({"by": ctx.step})
        told.release()
        await go_on.wait()
        return ctx.step

    async def keep_quiet(_: StepContext[Any]) -> None:
        told.release()
        await go_on.wait()

    for name in ("left", "right"):
        workflow.step(tell, name=name, after=None)
    workflow.step(keep_quiet, name="quiet", after=None)
    handle = await runner.start(workflow, None)
    for _ in range(3):
        await told.acquire()
    assert await _progress(handle) == {"left": {"by": "left"}, "right": {"by": "right"}, "quiet": None}
    go_on.set()
    await handle.result()
    assert await _progress(handle) == {"left": None, "right": None, "quiet": None}


@pytest.mark.real  # its thread waits for what the test does later
async def test_progress_of_threads_is_recorded_when_the_call_returns(runner: Runner) -> None:
    workflow = Workflow("tells-in-a-thread")
    told, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @workflow.step
    def tell(ctx: StepContext[Any]) -> int:
        for percent in (10, 20):
            ctx.progress(percent)
        loop.call_soon_threadsafe(told.set)
        go_on.wait(240)
        return 1

    handle = await runner.start(workflow, None)
    await told.wait()
    try:
        assert await _progress(handle) == {"tell": 20}
    finally:
        go_on.set()
    await handle.result()


@pytest.mark.real  # its thread waits for what the test does later
async def test_a_thread_that_outlives_its_attempt_tells_nothing_about_the_next(runner: Runner) -> None:
    workflow = Workflow("outlives", retry=Retry(attempts=2, delay=0))
    go_on, done = threading.Event(), asyncio.Event()
    told, end = asyncio.Event(), asyncio.Event()
    loop, contexts = asyncio.get_running_loop(), list[StepContext[Any]]()

    def tell_late() -> None:
        go_on.wait(240)
        contexts[0].progress("late")
        loop.call_soon_threadsafe(done.set)

    @workflow.step
    async def tell(ctx: StepContext[Any]) -> None:
        contexts.append(ctx)
        await ctx.progress(ctx.attempt)
        if ctx.attempt == 1:
            threading.Thread(target=tell_late, daemon=True).start()
            raise ValueError("again")
        told.set()
        await end.wait()

    handle = await runner.start(workflow, None)
    await told.wait()
    go_on.set()
    await done.wait()
    assert await _progress(handle) == {"tell": 2}
    end.set()
    await handle.result()


@pytest.mark.parametrize("value", [{1, 2}, "x" * 20_000])
async def test_progress_that_is_no_json_or_too_long_fails_the_step(runner: Runner, value: Any) -> None:
    workflow = Workflow("tells-too-much")

    @workflow.step
    async def tell(ctx: StepContext[Any]) -> None:
        await ctx.progress(value)

    with pytest.raises(StepError, match="progress"):
        await (await runner.start(workflow, None)).result()


async def test_rollbacks_and_hooks_have_no_progress(runner: Runner) -> None:
    workflow = Workflow("tells-at-its-end", retry=Retry(attempts=1))
    told: list[str] = []

    @workflow.step
    async def first(_: StepContext[Any]) -> int:
        return 1

    @first.rollback
    async def undo(ctx: StepContext[Any], _: int) -> None:
        try:
            await ctx.progress(1)
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
            raise

    @workflow.step
    async def fails(_: StepContext[Any]) -> None:
        raise ValueError("no")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError):
        await handle.result()
    await wait_states(handle, {"fails": "failed"})
    assert [text.split(":")[0] for text in told] == ["UsageError"]


async def test_plain_functions_load_results(runner: Runner) -> None:
    workflow = Workflow("loads-in-a-thread")
    steps = 100

    async def number(ctx: StepContext[Any]) -> int:
        return int(ctx.step.rpartition("-")[2])

    for place in range(steps):
        workflow.step(number, name=f"step-{place}", after=None)

    @workflow.step(after=[f"step-{place}" for place in range(steps)])
    def add(ctx: StepContext[Any]) -> int:
        return sum(ctx.load(f"step-{place}").result(10) for place in range(steps))

    @workflow.completed
    def output(ctx: StepContext[Any]) -> list[int]:
        return [ctx.load(add).result(), ctx.load("step-7").result()]

    assert await (await runner.start(workflow, None)).result() == [sum(range(steps)), 7]


async def test_the_outer_report_has_the_progress_of_what_runs_elsewhere(runner: Runner) -> None:
    told, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def tell(ctx: StepContext[Any]) -> None:
        await ctx.progress(f"{ctx.step} of {ctx.workflow}")
        told.release()
        await go_on.wait()

    innermost, inner, outer = (Workflow[Any, Any](name) for name in ("innermost", "inner", "outer"))
    innermost.step(tell, name="deep")
    inner.step(tell, name="left", after=None)
    inner.step(tell, name="away", after=None, spread=True)
    inner.flow(innermost, after=None)
    outer.step(tell, name="here", after=None)
    outer.step(tell, name="away", after=None, spread=True)
    outer.flow(inner, after=None)
    handle = await runner.start(outer, None)
    for _ in range(5):
        await told.acquire()
    nested = {"left": "left of inner", "away": "away of inner", "innermost": {"deep": "deep of innermost"}}
    assert await _progress(handle) == {"here": "here of outer", "away": "away of outer", "inner": nested}
    go_on.set()
    await handle.result()
    assert await _progress(handle) == {"here": None, "away": None, "inner": None}
