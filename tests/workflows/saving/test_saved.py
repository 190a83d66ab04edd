"""What a step saves for its next attempt, and how it hears that it should end early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from drivers.runners import Runner

from eventbus import Later, PayloadError, Retry, StoreRefused, UsageError
from workflows import FlowCancelled, StepContext, StepError, Workflow

pytestmark = pytest.mark.virtual

Until = Callable[..., Awaitable[None]]


class Cursor(msgspec.Struct):
    page: int
    seen: list[str] = []


async def test_a_step_goes_on_behind_what_it_saved_and_no_other_step_sees_it(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("crawl", retry=Retry(2, delay=0))
    found: list[Any] = []

    @workflow.step
    async def crawl(ctx: StepContext[Any]) -> list[str]:
        cursor = await ctx.saved(Cursor, default=Cursor(0))
        found.append((cursor.page, ctx.stopping))
        await ctx.save(Cursor(cursor.page + 1, [*cursor.seen, f"p{cursor.page}"]))
        if cursor.page == 0:
            raise Later(0)
        if cursor.page == 1:
            raise ValueError("an attempt that fails")
        now = await ctx.saved(Cursor)
        assert now is not None
        return now.seen

    @workflow.step
    async def after(ctx: StepContext[Any]) -> Any:
        return [await ctx.saved(Cursor), ctx.result(crawl)]

    @workflow.completed
    def output(ctx: StepContext[Any]) -> Any:
        return ctx.result(after)

    handle = await runner.start(workflow, None)
    assert await handle.result() == [None, ["p0", "p1", "p2"]]
    assert found == [(0, None), (1, None), (2, None)]
    other = await runner.start(workflow, None)
    assert await other.result() == [None, ["p0", "p1", "p2"]], "each flow has its own"


async def test_a_plain_function_saves_too(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("in-a-thread", retry=Retry(3, delay=0))

    @workflow.step
    def count(ctx: StepContext[Any]) -> int:
        before = ctx.saved(int, default=0)
        done = before.result(240) + 1
        ctx.save(done)
        assert before.result() == done - 1, "it may be asked for again"
        if ctx.attempt < 3:
            raise ValueError("again")
        return done

    @workflow.completed
    def output(ctx: StepContext[Any]) -> int:
        return ctx.result(count)

    assert await (await runner.start(workflow, None)).result() == 3


async def test_steps_that_run_side_by_side_have_their_own(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("beside", retry=Retry(2, delay=0))
    saved = asyncio.Semaphore(0)

    async def act(ctx: StepContext[Any]) -> str | None:
        if ctx.attempt == 1:
            await ctx.save(ctx.step)
            saved.release()
            raise ValueError("again")
        return await ctx.saved(str)

    for name in ("left", "right"):
        workflow.step(act, name=name, after=None)

    @workflow.completed
    def output(ctx: StepContext[Any]) -> dict[str, Any]:
        return dict(ctx.results)

    assert await (await runner.start(workflow, None)).result() == {"left": "left", "right": "right"}


async def test_a_value_that_cannot_be_saved_or_read_back_is_refused(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("refused", retry=Retry(1))
    errors: list[str] = []

    @workflow.step
    async def save(ctx: StepContext[Any]) -> None:
        for value in ("x" * (1 << 20), float("nan"), [Cursor(1)]):
            with pytest.raises(PayloadError) as caught:
                await ctx.save(value)
            errors.append(str(caught.value))
        await ctx.save(5)
        with pytest.raises(PayloadError, match="saved value"):
            await ctx.saved(str)

    await (await runner.start(workflow, None)).result()
    assert 'saved value of "refused.save"' in errors[0]
    assert "expected at most 1048576 bytes" in errors[0]


@pytest.mark.real  # its thread runs while time passes
async def test_an_attempt_that_outlives_its_end_saves_nothing_for_the_next(
    runner: Runner, until: Until
) -> None:
    workflow = Workflow[Any, Any]("outlives", retry=Retry(2, delay=0))
    go_on, raised = threading.Event(), list[StoreRefused]()
    contexts: list[StepContext[Any]] = []

    def save_late() -> None:
        go_on.wait(240)
        try:
            contexts[0].save("late")
        except StoreRefused as error:
            raised.append(error)

    @workflow.step
    async def act(ctx: StepContext[Any]) -> str | None:
        contexts.append(ctx)
        if ctx.attempt == 1:
            await ctx.save("first")
            threading.Thread(target=save_late, daemon=True).start()
            raise ValueError("again")
        go_on.set()
        await until(lambda: raised, "the late one was answered")
        return await ctx.saved(str)

    @workflow.completed
    def output(ctx: StepContext[Any]) -> Any:
        return ctx.result(act)

    assert await (await runner.start(workflow, None)).result() == "first"
    assert "nothing was saved" in str(raised[0])


async def test_rollbacks_and_hooks_have_nothing_saved(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("at-its-end", retry=Retry(1))
    told: list[Any] = []

    @workflow.step
    async def first(ctx: StepContext[Any]) -> int:
        await ctx.save(1)
        return 1

    @first.rollback
    async def undo(ctx: StepContext[Any], _: int) -> None:
        told.append(ctx.stopping)
        for call in (lambda: ctx.save(2), lambda: ctx.saved(int)):
            with pytest.raises(UsageError, match="is for steps") as caught:
                await call()
            told.append(str(caught.value).split(" ")[0])

    @workflow.step
    async def fails(_: StepContext[Any]) -> None:
        raise ValueError("no")

    with pytest.raises(StepError):
        await (await runner.start(workflow, None)).result()
    assert told == [None, "ctx.save", "ctx.saved"]


@pytest.mark.parametrize("reason", ["cancel", "timeout"])
@pytest.mark.real  # its thread runs while time passes
async def test_a_thread_hears_why_it_should_end(runner: Runner, until: Until, reason: str) -> None:
    workflow = Workflow[Any, Any]("grinds", retry=Retry(1))
    heard: list[Any] = []
    began = threading.Event()

    @workflow.step(timeout="1s" if reason == "timeout" else None)
    def grind(ctx: StepContext[Any]) -> str:
        if reason == "cancel":  # which waits for the beginning; a busy thread may see its timeout at once
            heard.append(ctx.stopping)
        began.set()
        end = threading.Event()
        while not ctx.stopping and not end.wait(0.005):
            pass
        heard.append(ctx.stopping)
        return "ended early"

    handle = await runner.start(workflow, None)
    await until(began.is_set, "the thread runs")
    if reason == "cancel":
        await handle.cancel("enough")
    with pytest.raises(FlowCancelled if reason == "cancel" else StepError):
        await handle.result()
    await until(lambda: reason in heard, "the thread has heard of it")
    assert heard == ([None, reason] if reason == "cancel" else [reason])
