"""Errors: of steps, of hooks, after retries; what the caller gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import HandlerError, Retry, Unrecoverable
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowError, StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
_SOON = Retry(attempts=3, delay=0.01)
Log = list[Any]


class OutOfStock(Exception):
    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.item = item
        self.left = left


def _failing(log: Log, *, retry: Retry = _ONCE, error: Exception | None = None) -> Workflow[Any, Any]:
    """first, then second which fails, then third; with hooks that write to the log."""
    workflow = Workflow("failing", retry=retry, errors=[OutOfStock])

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> str:
        return "one"

    @workflow.step()
    async def second(ctx: StepContext[Any]) -> None:
        log.append(("attempt", ctx.attempt))
        raise error or ValueError("no luck")

    @workflow.step()
    async def third(ctx: StepContext[Any]) -> None:
        log.append("third")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> None:
        log.append("completed")

    @workflow.failed
    async def report(ctx: StepContext[Any], error: FlowError) -> None:
        log.append(("failed", error, dict(ctx.results)))

    return workflow


async def test_a_failed_step_ends_the_flow_with_its_name_and_error(runner: Runner) -> None:
    log: Log = []
    handle = await runner.start(_failing(log), None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    error = caught.value
    assert (error.step, error.workflow, error.flow_id, error.rollback) == (
        "second",
        "failing",
        handle.id,
        "none",
    )
    assert error.rollback_errors == ()
    assert str(error).startswith(f"step 'second' of flow {handle.id} failed: ValueError: no luck")
    assert isinstance(error.error, HandlerError)
    assert error.__cause__ is error.error
    assert (error.error.type_name, error.error.remote_message, error.error.attempts) == (
        "ValueError",
        "no luck",
        1,
    )
    assert error.error.event == "failing.second"
    assert error.error.job_id == f"{handle.id}/1/second/0"
    assert 'raise error or ValueError("no luck")' in error.error.remote_traceback
    status = await handle.status()
    assert (status.state, status.rollback) == ("failed", "none")


async def test_the_failed_hook_gets_the_error_and_the_partial_results_once(runner: Runner) -> None:
    log: Log = []
    handle = await runner.start(_failing(log), None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert [each if isinstance(each, str) else each[0] for each in log] == ["attempt", "failed"]
    _, error, results = log[1]
    assert results == {"first": "one"}
    assert isinstance(error, StepError)
    assert (str(error), error.step, error.rollback) == (str(caught.value), "second", "none")
    steps = (await handle.report()).steps
    assert {name: each.state for name, each in steps.items()} == {
        "first": "completed",
        "second": "failed",
        "third": "cancelled",
    }
    assert steps["second"].attempts == 1
    assert "no luck" in steps["second"].error


async def test_a_step_runs_as_often_as_its_retry_says(runner: Runner) -> None:
    log: Log = []
    handle = await runner.start(_failing(log, retry=_SOON), None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert [each[1] for each in log if each[0] == "attempt"] == [1, 2, 3]
    assert isinstance(caught.value.error, HandlerError)
    assert caught.value.error.attempts == 3
    assert (await handle.report()).steps["second"].attempts == 3


async def test_an_error_that_is_final_is_not_tried_again(runner: Runner) -> None:
    log: Log = []
    handle = await runner.start(_failing(log, retry=_SOON, error=Unrecoverable("never")), None)
    with pytest.raises(StepError, match="never"):
        await handle.result()
    assert [each[1] for each in log if each[0] == "attempt"] == [1]


async def test_the_retry_of_a_step_wins_over_the_workflows(runner: Runner) -> None:
    workflow = Workflow("own", retry=_ONCE)
    attempts: list[int] = []

    @workflow.step(retry=_SOON)
    def shaky(ctx: StepContext[Any]) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(ctx.attempt)

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="ValueError: 3"):
        await handle.result()
    assert attempts == [1, 2, 3]


async def test_a_retry_that_succeeds_disturbs_nobody(runner: Runner) -> None:
    workflow = Workflow("second-try", output=str, retry=_SOON)
    log: Log = []

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> str:
        log.append("first")
        return "one"

    @first.rollback
    async def undo_first(ctx: StepContext[Any], result: str) -> None:
        log.append("undone")

    @workflow.step()
    async def second(ctx: StepContext[Any]) -> str:
        log.append(("second", ctx.attempt))
        if ctx.attempt == 1:
            raise ConnectionError("lost")
        return ctx.result(first) + " two"

    @second.rollback
    async def undo_second(ctx: StepContext[Any], result: str) -> None:
        log.append("undone")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> str:
        return ctx.result(second)

    @workflow.failed
    async def report(ctx: StepContext[Any], error: FlowError) -> None:
        log.append("failed")

    handle = await runner.start(workflow, None)
    assert await handle.result() == "one two"
    assert log == ["first", ("second", 1), ("second", 2)]
    report_ = await handle.report()
    assert (report_.state, report_.rollback, report_.rollbacks) == ("completed", "none", [])
    assert (report_.steps["first"].attempts, report_.steps["second"].attempts) == (0, 1)


async def test_a_declared_error_is_raised_as_itself(runner: Runner) -> None:
    log: Log = []
    handle = await runner.start(_failing(log, error=OutOfStock("tea", 2)), None)
    with pytest.raises(OutOfStock) as caught:
        await handle.result()
    assert (caught.value.item, caught.value.left) == ("tea", 2)
    whole = caught.value.__cause__
    assert isinstance(whole, StepError)
    assert (whole.step, whole.error, whole.rollback) == ("second", caught.value, "none")
    hooked = log[-1][1]  # the failed hook gets the whole error, whatever the caller is raised
    assert isinstance(hooked, StepError)
    assert isinstance(hooked.error, OutOfStock)


async def test_an_error_in_completed_undoes_everything(runner: Runner) -> None:
    workflow = Workflow("ends-badly", retry=_ONCE)
    log: Log = []
    for name in ("a", "b"):
        _add_logged(workflow, name, log)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> None:
        log.append("completed")
        raise ValueError("at the very end")

    @workflow.failed
    async def report(ctx: StepContext[Any], error: FlowError) -> None:
        log.append(("failed", dict(ctx.results)))

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match=r"^the completed hook of flow .* at the very end") as caught:
        await handle.result()
    assert (caught.value.step, caught.value.rollback) == ("__completed__", "complete")
    assert log == ["a", "b", "completed", "undo b", "undo a", ("failed", {"a": "a", "b": "b"})]


async def test_a_completed_hook_that_succeeds_at_last_undoes_nothing(runner: Runner) -> None:
    workflow = Workflow("ends-well", output=int, retry=_SOON)
    log: Log = []
    _add_logged(workflow, "a", log)

    @workflow.completed
    def finish(ctx: StepContext[Any]) -> int:
        log.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("lost")
        return ctx.attempt

    handle = await runner.start(workflow, None)
    assert await handle.result() == 3
    assert log == ["a", 1, 2, 3]


@pytest.mark.parametrize("own", [KeyError("second"), asyncio.CancelledError("second"), SystemExit("second")])
async def test_an_error_in_failed_is_logged_and_hides_nothing(
    runner: Runner, logs: list[dict[str, Any]], own: BaseException
) -> None:
    workflow = Workflow("falls-twice", retry=_ONCE)

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("first")

    @workflow.failed
    async def report(ctx: StepContext[Any], error: FlowError) -> None:
        raise own

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="ValueError: first"):
        await handle.result()
    (entry,) = [each for each in logs if each["event"] == "failed hook raised"]
    assert entry["flow_id"] == handle.id
    assert entry["error"].endswith(f"{type(own).__name__}: {own}")
    assert "raise own" in entry["exception"]


async def test_a_strategy_that_raises_is_the_final_error(runner: Runner) -> None:
    def strategy(attempt: int, error: BaseException) -> float:
        raise RuntimeError("no strategy")

    log: Log = []
    handle = await runner.start(_failing(log, retry=Retry(backoff=strategy)), None)
    with pytest.raises(StepError, match="RuntimeError: no strategy"):
        await handle.result()


def _add_logged(workflow: Workflow[Any, Any], name: str, log: Log) -> None:
    async def run(ctx: StepContext[Any]) -> str:
        log.append(name)
        return name

    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    workflow.step(run, name=name).rollback(undo)


class Busy(OutOfStock):
    """A refusal that may pass."""


@pytest.mark.parametrize("place", ["step", "completed"])
async def test_a_declared_error_is_an_answer_and_is_not_tried_again(runner: Runner, place: str) -> None:
    workflow, log = Workflow[Any, Any]("answers", retry=_SOON, errors=[OutOfStock]), Log()

    @workflow.step()
    async def work(ctx: StepContext[Any]) -> str:
        log.append(ctx.attempt)
        if place == "step":
            raise OutOfStock("tea", 0)
        return "done"

    @work.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> None:
        log.append(f"completed {ctx.attempt}")
        raise OutOfStock("tea", 0)

    handle = await runner.start(workflow, None)
    with pytest.raises(OutOfStock) as caught:
        await handle.result()
    assert (caught.value.item, caught.value.left) == ("tea", 0)
    assert log == ([1] if place == "step" else [1, "completed 1", "undo done"])


@pytest.mark.parametrize("error", [Busy("tea", 1), ValueError("no luck")])
async def test_what_is_in_retry_on_and_what_is_not_declared_is_tried_again(
    runner: Runner, error: Exception
) -> None:
    workflow, log = Workflow[Any, Any]("busy", retry=_SOON, errors=[Busy, OutOfStock], retry_on=[Busy]), Log()

    @workflow.step()
    async def work(ctx: StepContext[Any]) -> None:
        log.append(ctx.attempt)
        raise error

    handle = await runner.start(workflow, None)
    with pytest.raises(Busy if isinstance(error, Busy) else StepError):
        await handle.result()
    assert log == [1, 2, 3]


async def test_a_timeout_of_a_step_is_no_answer_though_its_class_is_declared(runner: Runner) -> None:
    workflow, log = Workflow[Any, Any]("slow", retry=_SOON, errors=[TimeoutError]), Log()

    @workflow.step(timeout="50ms")
    async def work(ctx: StepContext[Any]) -> str:
        log.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.sleep(30)
        return "done"

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> str:
        return ctx.result(work)

    assert await (await runner.start(workflow, None)).result() == "done"
    assert log == [1, 2]


async def test_a_rollback_is_tried_again_whatever_it_raises(runner: Runner) -> None:
    workflow, log = Workflow[Any, Any]("undoes", retry=_SOON, errors=[OutOfStock]), Log()

    @workflow.step()
    async def work(ctx: StepContext[Any]) -> str:
        return "done"

    @work.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OutOfStock("tea", 0)

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise OutOfStock("tea", 0)

    handle = await runner.start(workflow, None)
    with pytest.raises(OutOfStock):
        await handle.result()
    assert log == [1, 2, 3]
    assert (await handle.status()).rollback == "complete"


async def test_a_declared_error_of_a_sub_workflow_fails_its_step_at_once(runner: Runner) -> None:
    inner, log = Workflow[Any, Any]("inside", retry=_SOON, errors=[OutOfStock]), Log()

    @inner.step()
    async def work(ctx: StepContext[Any]) -> None:
        log.append(ctx.attempt)
        raise OutOfStock("tea", 0)

    outer = Workflow[Any, Any]("outside", retry=_SOON, errors=[OutOfStock])
    outer.flow(inner)
    handle = await runner.start(outer, None)
    with pytest.raises(OutOfStock, match="tea"):
        await handle.result()
    assert log == [1]
