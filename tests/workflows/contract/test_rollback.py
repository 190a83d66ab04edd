"""Completed steps are undone in reverse order of completion, and the outcome is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import HandlerError, Retry, Unrecoverable
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowError, StepError
from workflows.records.report import RollbackReport

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
_SOON = Retry(attempts=3, delay=0.01)
Log = list[Any]


def _add(workflow: Workflow[Any, Any], name: str, log: Log, **options: Any) -> None:
    """A step that logs its name, with a rollback that logs what it is given."""

    async def run(ctx: StepContext[Any]) -> str:
        log.append(name)
        return name

    async def undo(ctx: StepContext[Any], result: Any) -> None:
        log.append(f"undo {result}")

    workflow.step(run, name=name, **options).rollback(undo)


def _add_failing(workflow: Workflow[Any, Any], name: str, log: Log, **options: Any) -> None:
    async def run(ctx: StepContext[Any]) -> None:
        log.append(name)
        raise ValueError(f"{name} is down")

    async def undo(ctx: StepContext[Any], result: Any) -> None:
        log.append(f"undo {name} {result}")

    workflow.step(run, name=name, **options).rollback(undo)


async def _fail(runner: Runner, workflow: Workflow[Any, Any], given: Any = None) -> tuple[StepError, Any]:
    handle = await runner.start(workflow, given)
    with pytest.raises(StepError) as caught:
        await handle.result()
    return caught.value, await handle.report()


async def test_completed_steps_are_undone_in_reverse_and_the_failed_one_is_not(runner: Runner) -> None:
    workflow, log = Workflow("order", retry=_ONCE), Log()
    _add(workflow, "charge", log)
    _add(workflow, "reserve", log)
    _add_failing(workflow, "ship", log)
    _add(workflow, "mail", log)
    error, report = await _fail(runner, workflow)
    assert log == ["charge", "reserve", "ship", "undo reserve", "undo charge"]
    assert (error.rollback, error.rollback_errors) == ("complete", ())
    assert report.order == ["charge", "reserve"]
    assert report.rollbacks == [RollbackReport(step="reserve"), RollbackReport(step="charge")]
    assert (report.state, report.rollback) == ("failed", "complete")


async def test_when_the_first_step_fails_there_is_nothing_to_undo(runner: Runner) -> None:
    workflow, log = Workflow("first", retry=_ONCE), Log()
    _add_failing(workflow, "fall", log)
    _add(workflow, "next", log)
    error, report = await _fail(runner, workflow)
    assert (log, error.rollback, report.rollbacks) == (["fall"], "none", [])


async def test_a_flow_that_completes_undoes_nothing(runner: Runner) -> None:
    workflow, log = Workflow("fine"), Log()
    _add(workflow, "a", log)
    _add(workflow, "b", log)
    handle = await runner.start(workflow, None)
    await handle.result()
    assert log == ["a", "b"]
    assert (await handle.status()).rollback == "none"


async def test_steps_without_rollback_are_fine(runner: Runner) -> None:
    workflow, log = Workflow("gaps", retry=_ONCE), Log()
    _add(workflow, "a", log)

    @workflow.step()
    async def plain(ctx: StepContext[Any]) -> None: ...

    _add_failing(workflow, "fall", log)
    error, report = await _fail(runner, workflow)
    assert (log, error.rollback) == (["a", "fall", "undo a"], "complete")
    assert report.rollbacks == [RollbackReport(step="a")]


async def test_a_failed_step_that_asks_for_it_is_undone_first_without_a_result(runner: Runner) -> None:
    workflow, log = Workflow("asks", retry=_ONCE), Log()
    _add(workflow, "a", log)
    _add_failing(workflow, "fall", log, rollback_on_failure=True)
    error, _ = await _fail(runner, workflow)
    assert (log, error.rollback) == (["a", "fall", "undo fall None", "undo a"], "complete")


async def test_nothing_is_undone_between_attempts(runner: Runner) -> None:
    workflow, log = Workflow("patient", retry=_SOON), Log()
    _add(workflow, "a", log)
    _add_failing(workflow, "fall", log)
    await _fail(runner, workflow)
    assert log == ["a", "fall", "fall", "fall", "undo a"]


async def test_parallel_siblings_are_undone_in_reverse_order_of_completion(runner: Runner) -> None:
    workflow, log = Workflow("siblings", retry=_ONCE), Log()
    _add(workflow, "before", log)
    is_second = asyncio.Event()
    are_done = asyncio.Event()

    async def slow(ctx: StepContext[Any]) -> str:
        await is_second.wait()
        return "slow"

    async def quick(ctx: StepContext[Any]) -> str:
        return "quick"

    async def after_quick(ctx: StepContext[Any]) -> str:
        is_second.set()
        return "after quick"

    async def fall(ctx: StepContext[Any]) -> None:
        are_done.set()
        raise ValueError("down")

    async def undo(ctx: StepContext[Any], result: str | None) -> None:
        log.append(f"undo {result}")

    workflow.step(slow, after="before").rollback(undo)
    workflow.step(quick, after="before").rollback(undo)
    workflow.step(after_quick, after=quick).rollback(undo)
    workflow.step(fall, after=[slow, after_quick]).rollback(undo)
    _, report = await _fail(runner, workflow)
    # Reverse of what really happened, whatever stands first in the definition.
    assert report.order[:2] == ["before", "quick"]
    names = {"slow": "slow", "quick": "quick", "after_quick": "after quick", "before": "before"}
    assert log == ["before", *(f"undo {names[name]}" for name in reversed(report.order))]
    assert len(report.order) == 4


async def test_a_sibling_that_completed_is_undone_and_the_failed_one_is_not(runner: Runner) -> None:
    workflow, log = Workflow("pair", retry=_ONCE), Log()
    sibling_is_done = asyncio.Event()

    async def good(ctx: StepContext[Any]) -> str:
        return "good"

    async def then(ctx: StepContext[Any]) -> str:
        sibling_is_done.set()
        return "then"

    async def bad(ctx: StepContext[Any]) -> None:
        await sibling_is_done.wait()
        raise ValueError("down")

    async def undo(ctx: StepContext[Any], result: str | None) -> None:
        log.append(f"undo {result}")

    workflow.step(good, after=None).rollback(undo)
    workflow.step(then, after=good)
    workflow.step(bad, after=None).rollback(undo)
    await _fail(runner, workflow)
    assert log == ["undo good"]


async def test_a_rollback_that_fails_is_told_and_the_others_still_run(
    runner: Runner, logs: list[dict[str, Any]]
) -> None:
    workflow, log = Workflow("half", retry=_ONCE), Log()
    _add(workflow, "a", log)

    @workflow.step()
    async def b(ctx: StepContext[Any]) -> str:
        return "b"

    @b.rollback
    async def undo_b(ctx: StepContext[Any], result: str) -> None:
        raise KeyError("lost")

    _add(workflow, "c", log)
    _add_failing(workflow, "fall", log)

    @workflow.failed
    async def heard(ctx: StepContext[Any], error: FlowError) -> None:
        log.append((error.rollback, [each.step for each in error.rollback_errors]))

    error, report = await _fail(runner, workflow)
    assert log == ["a", "c", "fall", "undo c", "undo a", ("incomplete", ["b"])]
    assert (error.step, error.rollback, report.rollback) == ("fall", "incomplete", "incomplete")
    assert isinstance(error.error, HandlerError)
    (rollback_error,) = error.rollback_errors
    assert rollback_error.step == "b"
    assert isinstance(rollback_error.error, HandlerError)
    assert rollback_error.error.type_name == "KeyError"
    assert "fall is down" in str(error)
    assert "the rollback of step 'b' failed" in str(error)
    assert [each.step for each in report.rollbacks] == ["c", "b", "a"]
    assert [bool(each.error) for each in report.rollbacks] == [False, True, False]
    (entry,) = [each for each in logs if each["event"] == "rollback failed"]
    assert (entry["step"], entry["flow_id"], entry["error"]) == ("b", error.flow_id, "KeyError: 'lost'")
    (entry,) = [each for each in logs if each["event"] == "rollback ended"]
    assert (entry["flow_id"], entry["succeeded"], entry["failed"]) == (error.flow_id, 2, 1)


async def test_every_rollback_error_is_carried_in_order(runner: Runner) -> None:
    workflow = Workflow("all-bad", retry=_ONCE)

    async def run(ctx: StepContext[Any]) -> str:
        return ctx.step

    async def undo(ctx: StepContext[Any], result: str) -> None:
        raise ValueError(f"cannot undo {result}")

    for name in ("a", "b", "c"):
        workflow.step(run, name=name).rollback(undo)
    _add_failing(workflow, "fall", [])
    error, _ = await _fail(runner, workflow)
    assert [each.step for each in error.rollback_errors] == ["c", "b", "a"]
    assert [str(each).split(" (")[0] for each in error.rollback_errors] == [
        f"the rollback of step '{name}' failed: ValueError: cannot undo {name}" for name in "cba"
    ]


async def test_a_rollback_has_a_retry_of_its_own(runner: Runner) -> None:
    workflow, log = Workflow("again", retry=_ONCE), Log()

    @workflow.step()
    async def a(ctx: StepContext[Any]) -> str:
        return "a"

    @a.rollback(retry=_SOON)
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("lost")

    _add_failing(workflow, "fall", [])
    error, _ = await _fail(runner, workflow)
    assert (log, error.rollback) == ([1, 2, 3], "complete")


async def test_without_one_the_workflows_retry_is_the_rollbacks(runner: Runner) -> None:
    workflow, log = Workflow("default", retry=Retry(attempts=2, delay=0.01)), Log()

    @workflow.step()
    async def a(ctx: StepContext[Any]) -> str:
        return "a"

    @a.rollback
    def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(ctx.attempt)
        raise ConnectionError("lost")

    _add_failing(workflow, "fall", [])
    error, _ = await _fail(runner, workflow)
    assert (log, error.rollback) == ([1, 2], "incomplete")
    assert isinstance(error.rollback_errors[0].error, HandlerError)
    assert error.rollback_errors[0].error.attempts == 2


async def test_a_rollback_error_that_is_final_is_not_tried_again(runner: Runner) -> None:
    workflow, log = Workflow("final", retry=_ONCE), Log()

    @workflow.step()
    async def a(ctx: StepContext[Any]) -> str:
        return "a"

    @a.rollback(retry=_SOON)
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(ctx.attempt)
        raise Unrecoverable("gone")

    _add_failing(workflow, "fall", [])
    error, _ = await _fail(runner, workflow)
    assert (log, error.rollback) == ([1], "incomplete")


async def test_a_rollback_has_a_timeout_of_its_own(runner: Runner) -> None:
    workflow, log = Workflow("slow", retry=_ONCE), Log()
    _add(workflow, "a", log)

    @workflow.step()
    async def b(ctx: StepContext[Any]) -> None: ...

    @b.rollback(timeout=0.05)
    async def undo(ctx: StepContext[Any], result: None) -> None:
        await asyncio.Event().wait()

    _add_failing(workflow, "fall", log)
    error, _ = await _fail(runner, workflow)
    assert (log, error.rollback) == (["a", "fall", "undo a"], "incomplete")
    assert isinstance(error.rollback_errors[0].error, HandlerError)
    assert error.rollback_errors[0].error.type_name == "TimeoutError"


async def test_a_rollback_knows_its_flow(runner: Runner) -> None:
    workflow, log = Workflow("facts", input=int, retry=_ONCE), Log()

    @workflow.step()
    async def a(ctx: StepContext[int]) -> int:
        return ctx.input + 1

    @workflow.step()
    async def b(ctx: StepContext[int]) -> int:
        return ctx.input + 2

    @a.rollback
    async def undo(ctx: StepContext[int], result: int) -> None:
        log.append((ctx.input, result, ctx.step, ctx.workflow, dict(ctx.meta), ctx.flow_id, ctx.result(b)))

    _add_failing(workflow, "fall", [])
    handle = await runner.start(workflow, 10, meta={"tenant": "t"})
    with pytest.raises(StepError):
        await handle.result()
    assert log == [(10, 11, "a", "facts", {"tenant": "t"}, handle.id, 12)]
