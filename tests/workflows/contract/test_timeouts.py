"""Timeouts of a step's attempt and of a whole flow, and functions that ignore them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import HandlerError, Later, Retry
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowCancelled, FlowTimeout, StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
Log = list[Any]


async def _for_ever() -> None:
    await asyncio.Event().wait()


def _with_undone(workflow: Workflow[Any, Any], log: Log) -> None:
    """A first step that leaves a trace when it is undone."""

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> str:
        return "first"

    @first.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")


async def test_a_step_that_is_too_slow_has_failed(runner: Runner) -> None:
    workflow, log = Workflow("slow-step", retry=_ONCE), Log()
    _with_undone(workflow, log)

    @workflow.step(timeout=0.05)
    async def slow(ctx: StepContext[Any]) -> None:
        try:
            await _for_ever()
        finally:
            log.append("cancelled")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match=r"timed out: it ran longer than its timeout of 0\.05 s") as caught:
        await handle.result()
    assert isinstance(caught.value.error, HandlerError)
    assert (caught.value.step, caught.value.error.type_name) == ("slow", "TimeoutError")
    assert log == ["cancelled", "undo first"]  # undone only when the function had ended
    assert (await handle.report()).steps["slow"].state == "failed"


async def test_a_timeout_is_for_one_attempt_and_counts_as_one(runner: Runner) -> None:
    workflow = Workflow("second-time", retry=Retry(attempts=2, delay=0.01))

    @workflow.step(timeout=0.1)
    async def slow_once(ctx: StepContext[Any]) -> int:
        if ctx.attempt == 1:
            await _for_ever()
        return ctx.attempt

    handle = await runner.start(workflow, None)
    await handle.result()
    step = (await handle.report()).steps["slow_once"]
    assert (step.state, step.result, step.attempts) == ("completed", 2, 1)


async def test_a_value_after_the_steps_time_does_not_count(runner: Runner) -> None:
    workflow, log = Workflow("late", retry=_ONCE), Log()

    @workflow.step(timeout=0.05)
    async def stubborn(ctx: StepContext[Any]) -> str:
        try:
            await _for_ever()
        except asyncio.CancelledError:
            log.append("ignored")
        return "late"

    @stubborn.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append("undone")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="timeout"):
        await handle.result()
    assert log == ["ignored"]
    assert (await handle.report()).steps["stubborn"].state == "failed"


async def test_a_member_that_is_too_slow_fails_its_group(runner: Runner) -> None:
    workflow, log = Workflow("group", retry=_ONCE), Log()

    async def quick(ctx: StepContext[Any]) -> None: ...

    async def undo(ctx: StepContext[Any], result: None) -> None:
        log.append("undo quick")

    async def slow(ctx: StepContext[Any]) -> None:
        await _for_ever()

    workflow.step(quick, after=None).rollback(undo)
    workflow.step(slow, after=None, timeout=0.1)
    handle = await runner.start(workflow, None)
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert (caught.value.step, log) == ("slow", ["undo quick"])


async def test_a_step_within_its_time_is_not_disturbed(runner: Runner) -> None:
    workflow = Workflow("in-time", retry=_ONCE)

    @workflow.step(timeout=30)
    async def quick(ctx: StepContext[Any]) -> int:
        return 1

    @workflow.step(timeout=0)
    async def without(ctx: StepContext[Any]) -> int:
        return 2

    handle = await runner.start(workflow, None)
    await handle.result()
    assert [each.result for each in (await handle.report()).steps.values()] == [1, 2]


async def test_a_flow_that_takes_too_long_is_stopped_and_undone(runner: Runner) -> None:
    workflow, log = Workflow("slow-flow", retry=_ONCE, timeout=0.2), Log()
    _with_undone(workflow, log)

    @workflow.step()
    async def slow(ctx: StepContext[Any]) -> None:
        try:
            await _for_ever()
        finally:
            log.append("cancelled")

    @workflow.step()
    async def never(ctx: StepContext[Any]) -> None:
        log.append("never")

    @workflow.failed
    async def heard(ctx: StepContext[Any], error: Any) -> None:
        log.append(type(error).__name__)

    handle = await runner.start(workflow, None)
    with pytest.raises(FlowTimeout, match="timed out") as caught:
        await handle.result()
    assert caught.value.timeout >= 0.2
    assert (caught.value.flow_id, caught.value.rollback) == (handle.id, "complete")
    assert log == ["cancelled", "undo first", "FlowTimeout"]
    report = await handle.report()
    assert (report.state, report.rollback) == ("failed", "complete")
    states = {name: each.state for name, each in report.steps.items()}
    assert states == {"first": "completed", "slow": "cancelled", "never": "cancelled"}


async def test_the_timeout_of_one_flow_wins_over_the_workflows(runner: Runner) -> None:
    workflow = Workflow("override", retry=_ONCE, timeout="1h")

    @workflow.step()
    async def slow(ctx: StepContext[Any]) -> None:
        await _for_ever()

    handle = await runner.start(workflow, None, timeout="100ms")
    with pytest.raises(FlowTimeout):
        await handle.result()


async def test_a_timeout_of_zero_is_none(runner: Runner) -> None:
    workflow = Workflow("endless", retry=_ONCE, timeout=0.01)
    go_on = asyncio.Event()

    @workflow.step()
    async def wait(ctx: StepContext[Any]) -> None:
        asyncio.get_running_loop().call_later(0.1, go_on.set)  # longer than the workflow's own
        await go_on.wait()

    handle = await runner.start(workflow, None, timeout=0)
    await handle.result()
    assert (await handle.status()).state == "completed"


async def test_a_completed_hook_that_takes_too_long_stops_the_flow_for_good(runner: Runner) -> None:
    workflow, log = Workflow("slow-end", retry=_ONCE, timeout=0.2), Log()
    _with_undone(workflow, log)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> str:
        try:
            await _for_ever()
        except asyncio.CancelledError:
            log.append("ignored")
        return "too late"

    handle = await runner.start(workflow, None)
    with pytest.raises(FlowTimeout):
        await handle.result()
    assert log == ["ignored", "undo first"]
    assert (await handle.status()).state == "failed"


async def test_a_value_that_comes_after_the_flows_time_is_recorded_and_undone(runner: Runner) -> None:
    workflow, log = Workflow("late-value", retry=_ONCE, timeout=0.2), Log()

    @workflow.step()
    async def stubborn(ctx: StepContext[Any]) -> str:
        try:
            await _for_ever()
        except asyncio.CancelledError:
            log.append("ignored")
        return "late"

    @stubborn.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    handle = await runner.start(workflow, None)
    with pytest.raises(FlowTimeout):
        await handle.result()
    assert log == ["ignored", "undo late"]
    step = (await handle.report()).steps["stubborn"]
    assert (step.state, step.result) == ("completed", "late")


async def test_a_step_that_asks_for_later_runs_again_without_an_attempt_or_an_error(runner: Runner) -> None:
    attempts: list[tuple[str, int]] = []
    asked: list[BaseException] = []
    waiting = Workflow("waiting", retry=Retry(attempts=1))

    @waiting.on_error
    async def note(_: StepContext[Any], error: BaseException) -> None:
        asked.append(error)

    @waiting.step
    async def poll(ctx: StepContext[Any]) -> int:
        attempts.append((ctx.step, ctx.attempt))
        if attempts.count((ctx.step, 1)) < 3:
            raise Later("10ms")
        return 7

    @waiting.step
    def look(ctx: StepContext[Any]) -> None:
        attempts.append((ctx.step, ctx.attempt))
        if attempts.count((ctx.step, 1)) < 2:
            raise Later(0)

    handle = await runner.start(waiting, None)
    await handle.result()
    assert attempts == [("poll", 1)] * 3 + [("look", 1)] * 2
    assert asked == []
    report = await handle.report()
    assert {name: (step.state, step.error) for name, step in report.steps.items()} == {
        "poll": ("completed", ""),
        "look": ("completed", ""),
    }


async def test_a_flow_is_cancelled_while_its_step_is_put_off(runner: Runner) -> None:
    ran = asyncio.Event()
    waiting = Workflow("put-off")

    @waiting.step
    async def poll(_: StepContext[Any]) -> None:
        ran.set()
        raise Later("1 hour")

    @waiting.step
    async def after(_: StepContext[Any]) -> None: ...

    handle = await runner.start(waiting, None)
    await ran.wait()
    assert await handle.cancel("enough")
    with pytest.raises(FlowCancelled):
        await handle.result()
    states = {name: step.state for name, step in (await handle.report()).steps.items()}
    assert states == {"poll": "cancelled", "after": "cancelled"}
