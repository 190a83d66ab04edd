"""Which failures are final, by kind of error; and a step whose final failure is ignored: the flow goes on."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.runners import Runner, states_of
from importable import process_steps

from eventbus import DefinitionError, Retry
from workflows import StepContext, StepError, StepFailed, Workflow, step

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
_KINDS = {"refused": ConnectionError, "missing": FileNotFoundError, "wrong": ValueError}


class OutOfStock(Exception):
    """A declared error."""


async def _fall(ctx: StepContext[Any]) -> int:
    raise OutOfStock("none left") if ctx.input == "declared" else ValueError("down")


def _ignoring(log: list[Any], **options: Any) -> Workflow[Any, Any]:
    """first, then fall, whose failure is ignored, then last."""
    workflow = Workflow[Any, Any]("ignoring", retry=_ONCE, errors=[OutOfStock])

    @workflow.step
    async def first(ctx: StepContext[Any]) -> int:
        return 1

    fall = workflow.step(_fall, name="fall", on_failure="ignore", **options)

    @workflow.step
    async def last(ctx: StepContext[Any]) -> Any:
        try:
            ctx.result(fall)
        except StepFailed as error:
            log.append((error.step, error.workflow, type(error.error).__name__, str(error)))
        return [ctx.result("fall", default=None), dict(ctx.results)]

    return workflow


@pytest.mark.parametrize(("given", "kind"), [("other", "HandlerError"), ("declared", "OutOfStock")])
async def test_the_steps_after_an_ignored_failure_run(runner: Runner, given: str, kind: str) -> None:
    log: list[Any] = []
    handle = await runner.start(_ignoring(log), given)
    await handle.result()
    report = await handle.report()
    assert {name: step.state for name, step in report.steps.items()} == {
        "first": "completed",
        "fall": "failed",
        "last": "completed",
    }
    assert (report.state, report.order) == ("completed", ["first", "last"])
    assert report.steps["last"].result == [None, {"first": 1}]
    assert report.steps["fall"].result is None
    ((step, owner, error, text),) = log
    assert (step, owner, error) == ("fall", "ignoring", kind)
    assert "give a default: ctx.result('fall', default=None)" in text


async def test_a_step_has_all_its_attempts_before_its_failure_is_ignored(runner: Runner) -> None:
    workflow, attempts = Workflow[Any, Any]("often"), list[int]()

    @workflow.step(on_failure="ignore", retry=Retry(attempts=3, delay=0.01))
    async def fall(ctx: StepContext[Any]) -> None:
        attempts.append(ctx.attempt)
        raise ConnectionError

    handle = await runner.start(workflow, None)
    await handle.result()
    assert attempts == [1, 2, 3]
    assert await states_of(handle) == {"fall": "failed"}


@pytest.mark.parametrize("rollback_on_failure", [False, True])
async def test_an_ignored_failure_is_undone_if_its_step_says_so(
    runner: Runner, *, rollback_on_failure: bool
) -> None:
    log: list[Any] = []
    workflow = _ignoring(log, rollback_on_failure=rollback_on_failure)

    @workflow.find("fall").rollback
    async def undo(ctx: StepContext[Any], result: Any) -> None:
        log.append(("undo", result))

    @workflow.step
    async def end(ctx: StepContext[Any]) -> None:
        raise ValueError("the end")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="the end") as caught:
        await handle.result()
    assert caught.value.step == "end"
    assert log[1:] == ([("undo", None)] if rollback_on_failure else [])


async def test_the_failure_of_a_sub_workflow_is_ignored(runner: Runner) -> None:
    inner = Workflow[Any, int]("inner", output=Any, retry=_ONCE)
    inner.step(_fall, name="fall")
    workflow = Workflow[Any, Any]("outer", retry=_ONCE)
    nested = workflow.flow(inner, on_failure="ignore")

    @workflow.step
    async def last(ctx: StepContext[Any]) -> Any:
        with pytest.raises(StepFailed, match="step 'fall' of flow"):
            ctx.result(nested)
        return ctx.result(nested, default=-1)

    handle = await runner.start(workflow, None)
    await handle.result()
    report = await handle.report()
    assert {name: step.state for name, step in report.steps.items()} == {
        "inner": "failed",
        "last": "completed",
    }
    assert report.steps["last"].result == -1


def test_on_failure_is_one_of_two_words() -> None:
    workflow = Workflow[Any, Any]("refused")
    with pytest.raises(DefinitionError, match="on_failure of step 'fall' of workflow 'refused' to be 'fail'"):
        workflow.step(_fall, name="fall", on_failure="skip")  # type: ignore[call-overload]


async def test_an_ignored_sub_workflow_is_undone_once(runner: Runner) -> None:
    log: list[str] = []
    inner = Workflow[Any, Any]("inner", retry=_ONCE)

    @inner.step
    async def work(ctx: StepContext[Any]) -> None:
        log.append("work")

    @work.rollback
    async def undo_work(ctx: StepContext[Any], result: None) -> None:
        log.append("undo work")

    inner.then(step(_fall, name="fall"))
    outer = Workflow[Any, Any]("outer", retry=_ONCE)
    outer.flow(inner, on_failure="ignore")
    outer.then(step(_fall, name="fall"))
    handle = await runner.start(outer, "other")
    with pytest.raises(StepError):
        await handle.result()
    assert log == ["work", "undo work"]


async def test_a_step_is_tried_again_by_kind_of_error(runner: Runner) -> None:
    tried: list[str] = []
    kinds = Workflow("kinds", input=str, retry=Retry(3, delay=0, only=(OSError,), never=(FileNotFoundError,)))

    @kinds.step
    async def run(ctx: StepContext[str]) -> str:
        tried.append(ctx.input)
        raise _KINDS[ctx.input]("no")

    for given, attempts in (("refused", 3), ("missing", 1), ("wrong", 1)):
        with pytest.raises(StepError):
            await (await runner.start(kinds, given)).result()
        assert tried.count(given) == attempts


async def test_a_rollback_is_tried_again_whatever_the_workflow_retries(runner: Runner) -> None:
    undone: list[int] = []
    undoing = Workflow("undoing", input=str, retry=Retry(3, delay=0, never=(ValueError,)))

    @undoing.step
    async def first(ctx: StepContext[str]) -> str:
        return ctx.input

    @first.rollback
    async def undo(ctx: StepContext[str], done: str) -> None:
        undone.append(ctx.attempt)
        if len(undone) < 3:
            raise ValueError("not yet")

    @undoing.step
    async def second(ctx: StepContext[str]) -> str:
        raise ValueError("no")

    with pytest.raises(StepError):
        await (await runner.start(undoing, "x")).result()
    assert undone == [1, 2, 3]


async def test_a_step_in_a_process_is_tried_again_by_kind_of_error(runner: Runner) -> None:
    for given, attempts in (("ConnectionError", 3), ("KeyError", 1)):
        handle = await runner.start(process_steps.raising, given)
        with pytest.raises(StepError):
            await handle.result()
        assert (await handle.report()).steps["give_up"].attempts == attempts
