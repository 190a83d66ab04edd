"""Hooks around each step, and the data that the functions of a flow share."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import DefinitionError, Retry, UsageError
from workflows import StepContext, StepError, Workflow

pytestmark = pytest.mark.virtual

Log = list[Any]


def _hooked(log: Log, *, attempts: int = 2) -> Workflow[Any, Any]:
    workflow = Workflow[Any, Any]("hooked", retry=Retry(attempts=attempts, delay=0.01))

    @workflow.before_each
    async def before(ctx: StepContext[Any]) -> None:
        log.append(("before", ctx.step, ctx.attempt))
        if ctx.input == "before" and ctx.attempt == 1:
            raise ConnectionError("before")

    @workflow.after_each
    def after(ctx: StepContext[Any], result: Any) -> None:
        log.append(("after", ctx.step, result))
        if ctx.input == "after" and ctx.attempt == 1:
            raise ConnectionError("after")

    @workflow.on_error
    async def failed(ctx: StepContext[Any], error: Exception) -> Any:
        log.append(("error", ctx.step, str(error)))
        if ctx.input == "broken hook":
            raise ZeroDivisionError
        return ctx.input != "final"

    @workflow.step
    async def act(ctx: StepContext[Any]) -> int:
        log.append(("act", ctx.step, ctx.attempt))
        if ctx.input in ("final", "broken hook", "act") and ctx.attempt == 1:
            raise ValueError("down")
        return 7

    workflow.step(lambda ctx: None, name="skipped", when=lambda ctx: False)
    workflow.sleep(0.001)
    return workflow


_FIRST = [("before", "act", 1), ("act", "act", 1)]
_SECOND = [("before", "act", 2), ("act", "act", 2), ("after", "act", 7)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", [*_FIRST, ("after", "act", 7)]),
        ("before", [("before", "act", 1), ("error", "act", "before"), *_SECOND]),
        ("after", [*_FIRST, ("after", "act", 7), ("error", "act", "after"), *_SECOND]),
        ("act", [*_FIRST, ("error", "act", "down"), *_SECOND]),
        ("broken hook", [*_FIRST, ("error", "act", "down"), *_SECOND]),
    ],
)
async def test_hooks_run_around_each_attempt_of_each_function(
    runner: Runner, given: str, expected: Log
) -> None:
    log: Log = []
    await (await runner.start(_hooked(log), given)).result()
    assert log == expected


async def test_an_error_is_final_if_on_error_returns_false(runner: Runner) -> None:
    log: Log = []
    handle = await runner.start(_hooked(log, attempts=5), "final")
    with pytest.raises(StepError, match="ValueError: down"):
        await handle.result()
    assert log == [*_FIRST, ("error", "act", "down")]
    assert (await handle.report()).steps["act"].attempts == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_functions_of_a_flow_share_its_data(runner: Runner, *, is_async: bool) -> None:
    workflow, made = Workflow[Any, Any]("shared", retry=Retry(attempts=1)), Log()

    def make(ctx: StepContext[Any]) -> dict[str, Any]:
        made.append((ctx.input, ctx.step, dict(ctx.results)))
        return {"number": ctx.input}

    async def make_later(ctx: StepContext[Any]) -> dict[str, Any]:
        return make(ctx)

    workflow.data(make_later if is_async else make)

    @workflow.step(when=lambda ctx: ctx.data["number"] == 7)
    async def left(ctx: StepContext[Any]) -> int:
        return ctx.data["number"] + 1

    @workflow.step(after=None)
    def right(ctx: StepContext[Any]) -> int:
        return ctx.data["number"] + 2

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> int:
        return ctx.data["number"] + ctx.result(left) + ctx.result(right)

    handle = await runner.start(workflow, 7)
    assert await handle.result() == 7 + 8 + 9
    assert set(map(repr, made)) == {repr((7, "", {}))}
    assert len(made) <= 3, "more often than there are jobs"


async def test_a_failure_to_make_the_data_fails_the_attempt(runner: Runner) -> None:
    workflow, made = Workflow[Any, Any]("poor", retry=Retry(attempts=2, delay=0.01)), Log()

    @workflow.data
    async def make(ctx: StepContext[Any]) -> int:
        made.append(1)
        if len(made) == 1:
            raise ConnectionError("not yet")
        return 3

    @workflow.step
    async def act(ctx: StepContext[Any]) -> int:
        return ctx.data

    handle = await runner.start(workflow, None)
    await handle.result()
    step = (await handle.report()).steps["act"]
    assert (step.result, step.attempts, len(made)) == (3, 1, 2)


async def test_a_workflow_without_data_says_so(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("none", retry=Retry(attempts=1))

    @workflow.step
    async def act(ctx: StepContext[Any]) -> str:
        with pytest.raises(UsageError, match="workflow 'none' has no data"):
            _ = ctx.data
        return "ok"

    await (await runner.start(workflow, None)).result()


def test_hooks_are_checked_when_they_are_defined() -> None:
    workflow = Workflow[int, Any]("checked", input=int)
    with pytest.raises(
        DefinitionError, match="the after_each hook of workflow 'checked' to take 2 parameters"
    ):
        workflow.after_each(lambda ctx: None)  # type: ignore[arg-type, misc]
    workflow.before_each(lambda ctx: None)
    with pytest.raises(DefinitionError, match="has a before_each hook already"):
        workflow.before_each(lambda ctx: None)
    with pytest.raises(DefinitionError, match="write it without parentheses"):
        workflow.data()  # type: ignore[call-arg]

    async def wrong(ctx: StepContext[int], error: int) -> None: ...

    with pytest.raises(DefinitionError, match="gets the error of the attempt; annotate it as Exception"):
        workflow.on_error(wrong)
