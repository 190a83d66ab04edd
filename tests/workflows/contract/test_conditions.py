"""A step whose condition is false is skipped, and what follows it runs."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import Retry
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
Log = list[Any]


def _three(log: Log, when: Any) -> Workflow[Any, Any]:
    """a, then b on a condition, then c."""
    workflow = Workflow("conditions", retry=_ONCE)

    @workflow.step()
    async def a(ctx: StepContext[Any]) -> int:
        return 7

    @workflow.step(when=when)
    async def b(ctx: StepContext[Any]) -> int:
        log.append("b")
        return 8

    @b.rollback
    async def undo_b(ctx: StepContext[Any], result: int) -> None:
        log.append("undo b")

    @workflow.step()
    async def c(ctx: StepContext[Any]) -> Any:
        log.append("c")
        return [ctx.result(b, default=None), dict(ctx.results)]

    return workflow


async def _async_false(ctx: StepContext[Any]) -> bool:
    return ctx.result("a") != 7


@pytest.mark.parametrize(
    "when", [lambda ctx: False, lambda ctx: ctx.result("a") > 7, lambda ctx: ctx.input, _async_false]
)
async def test_a_false_condition_skips_the_step_alone(runner: Runner, when: Any) -> None:
    log: Log = []
    handle = await runner.start(_three(log, when), None)
    await handle.result()
    report = await handle.report()
    assert log == ["c"]
    assert {name: each.state for name, each in report.steps.items()} == {
        "a": "completed",
        "b": "skipped",
        "c": "completed",
    }
    assert report.steps["c"].result == [None, {"a": 7}]
    assert report.steps["b"].result is None
    assert report.order == ["a", "c"]


@pytest.mark.parametrize("when", [lambda ctx: True, lambda ctx: ctx.result("a"), None])
async def test_a_true_condition_changes_nothing(runner: Runner, when: Any) -> None:
    log: Log = []
    handle = await runner.start(_three(log, when), None)
    await handle.result()
    report = await handle.report()
    assert log == ["b", "c"]
    assert report.steps["c"].result == [8, {"a": 7, "b": 8}]


async def test_reading_a_skipped_result_without_a_default_is_an_error(runner: Runner) -> None:
    log: Log = []
    workflow = _three(log, lambda ctx: False)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.result("b")

    handle = await runner.start(workflow, None)
    with pytest.raises(
        StepError, match="StepSkipped: step 'b' of workflow 'conditions' was skipped"
    ) as caught:
        await handle.result()
    assert caught.value.step == "__completed__"


async def test_a_skipped_step_is_not_undone(runner: Runner) -> None:
    log: Log = []
    workflow = _three(log, lambda ctx: False)

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("down")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert (log, caught.value.rollback) == (["c"], "none")


async def test_an_error_in_a_condition_is_an_error_of_its_step(runner: Runner) -> None:
    workflow = Workflow("bad", retry=Retry(attempts=2, delay=0.01))
    asked: list[int] = []

    def when(ctx: StepContext[Any]) -> bool:
        asked.append(ctx.attempt)
        raise ZeroDivisionError("in the condition")

    @workflow.step(when=when)
    async def never(ctx: StepContext[Any]) -> None:
        asked.append(-1)

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="ZeroDivisionError: in the condition") as caught:
        await handle.result()
    assert (caught.value.step, asked) == ("never", [1, 2])
