"""When a flow stops early: what happens to each member, for each cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.runners import FlowHandle, Runner, states_of, wait_states

from eventbus import Retry
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowCancelled, FlowTimeout, StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
Log = list[Any]


class Stage:
    """A flow with a member in each state: done, active, backing off, not started; and one to stop it."""

    def __init__(self, *, timeout: float | None = None) -> None:
        self.log: Log = []
        self.finish_active = asyncio.Event()
        self.fail_now = asyncio.Event()
        self.workflow = workflow = Workflow("stage", retry=_ONCE, timeout=timeout)
        workflow.step(self._done, name="done", after=None).rollback(self._undo)
        workflow.step(self._active, name="active", after="done").rollback(self._undo)
        workflow.step(
            self._backs_off, name="backs-off", after="done", retry=Retry(attempts=9, delay=3600)
        ).rollback(self._undo)
        workflow.step(self._stopper, name="stopper", after="done")
        workflow.step(self._later, name="later", after=["active", "backs-off"]).rollback(self._undo)
        workflow.completed(self._completed)
        workflow.failed(self._failed)

    async def start(self, runner: Runner) -> FlowHandle:
        """Start it; returns when every member is where it should be."""
        handle = await runner.start(self.workflow, None)
        states = {"done": "completed", "active": "active", "backs-off": "delayed", "stopper": "active"}
        await wait_states(handle, {**states, "later": "waiting"})
        return handle

    async def _done(self, ctx: StepContext[Any]) -> Any:
        return "done"

    async def _active(self, ctx: StepContext[Any]) -> Any:
        try:
            await self.finish_active.wait()
        except asyncio.CancelledError:
            self.log.append("active cancelled")
            raise
        return "active"

    async def _backs_off(self, ctx: StepContext[Any]) -> Any:
        self.log.append(f"backs-off {ctx.attempt}")
        raise ConnectionError("not yet")

    async def _stopper(self, ctx: StepContext[Any]) -> Any:
        await self.fail_now.wait()
        raise ValueError("stop")

    async def _later(self, ctx: StepContext[Any]) -> Any:
        self.log.append("later")

    async def _undo(self, ctx: StepContext[Any], result: Any) -> None:
        self.log.append(f"undo {result}")

    async def _completed(self, ctx: StepContext[Any]) -> Any:
        self.log.append("completed")

    async def _failed(self, ctx: StepContext[Any], error: Any) -> None:
        self.log.append(f"failed {type(error).__name__} {error.rollback}")


async def test_at_a_failure_the_active_member_finishes_and_is_undone(runner: Runner) -> None:
    stage = Stage()
    handle = await stage.start(runner)
    stage.fail_now.set()
    await wait_states(handle, {"stopper": "failed", "backs-off": "cancelled", "later": "cancelled"})
    assert (await states_of(handle))["active"] == "active"
    stage.finish_active.set()
    with pytest.raises(StepError, match="ValueError: stop") as caught:
        await handle.result()
    assert (caught.value.step, caught.value.rollback) == ("stopper", "complete")
    assert stage.log == ["backs-off 1", "undo active", "undo done", "failed StepError complete"]
    assert await states_of(handle) == {
        "done": "completed",
        "active": "completed",
        "backs-off": "cancelled",
        "stopper": "failed",
        "later": "cancelled",
    }


async def test_a_member_that_fails_after_the_stop_is_recorded_only(runner: Runner) -> None:
    workflow, log = Workflow("second-failure"), Log()
    first_failed = asyncio.Event()

    async def first(ctx: StepContext[Any]) -> None:
        raise ValueError("the first")

    async def second(ctx: StepContext[Any]) -> None:
        log.append(ctx.attempt)
        await first_failed.wait()
        raise ValueError("the second")

    async def heard(ctx: StepContext[Any], error: Any) -> None:
        log.append(str(error.error).split(" (")[0])

    workflow.step(first, after=None, retry=_ONCE)
    workflow.step(second, after=None, retry=Retry(attempts=5, delay=0.01))
    workflow.failed(heard)
    handle = await runner.start(workflow, None)
    await wait_states(handle, {"first": "failed"})
    first_failed.set()
    with pytest.raises(StepError, match="the first"):
        await handle.result()
    assert log == [1, "ValueError: the first"]
    assert await states_of(handle) == {"first": "failed", "second": "failed"}


async def test_at_a_cancel_active_members_are_cancelled(runner: Runner) -> None:
    stage = Stage()
    handle = await stage.start(runner)
    assert await handle.cancel("changed my mind")
    with pytest.raises(FlowCancelled, match="changed my mind") as caught:
        await handle.result()
    assert (caught.value.reason, caught.value.rollback) == ("changed my mind", "complete")
    assert caught.value.flow_id == handle.id
    assert stage.log == ["backs-off 1", "active cancelled", "undo done", "failed FlowCancelled complete"]
    assert await states_of(handle) == {
        "done": "completed",
        "active": "cancelled",
        "backs-off": "cancelled",
        "stopper": "cancelled",
        "later": "cancelled",
    }
    status = await handle.status()
    assert (status.state, status.rollback) == ("cancelled", "complete")


async def test_at_the_flows_deadline_active_members_are_cancelled(runner: Runner) -> None:
    stage = Stage(timeout=0.3)
    handle = await runner.start(stage.workflow, None)
    with pytest.raises(FlowTimeout) as caught:
        await handle.result()
    assert caught.value.rollback == "complete"
    assert stage.log == ["backs-off 1", "active cancelled", "undo done", "failed FlowTimeout complete"]
    assert await states_of(handle) == {
        "done": "completed",
        "active": "cancelled",
        "backs-off": "cancelled",
        "stopper": "cancelled",
        "later": "cancelled",
    }
    assert (await handle.status()).state == "failed"


async def test_a_value_that_comes_after_a_cancel_is_recorded_and_undone(runner: Runner) -> None:
    workflow, log = Workflow("late", retry=_ONCE), Log()
    is_active = asyncio.Event()

    @workflow.step()
    async def stubborn(ctx: StepContext[Any]) -> str:
        is_active.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("ignored")
        return "late"

    @stubborn.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    @workflow.step()
    async def never(ctx: StepContext[Any]) -> None:
        log.append("never")

    handle = await runner.start(workflow, None)
    await is_active.wait()
    await handle.cancel("enough")
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert log == ["ignored", "undo late"]
    step = (await handle.report()).steps["stubborn"]
    assert (step.state, step.result) == ("completed", "late")


async def test_a_cancel_while_rolling_back_changes_nothing(runner: Runner) -> None:
    workflow, log = Workflow("too-late", retry=_ONCE), Log()
    is_rolling_back, go_on = asyncio.Event(), asyncio.Event()

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> str:
        return "first"

    @first.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        is_rolling_back.set()
        await go_on.wait()
        log.append("undone")

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("down")

    handle = await runner.start(workflow, None)
    await is_rolling_back.wait()
    assert (await handle.status()).state == "rolling_back"
    assert not await handle.cancel("too late")
    go_on.set()
    with pytest.raises(StepError, match="down"):
        await handle.result()
    assert log == ["undone"]
    assert (await handle.status()).state == "failed"


async def test_a_flows_timeout_no_longer_applies_while_rolling_back(runner: Runner) -> None:
    workflow = Workflow("slow-undo", retry=_ONCE, timeout=0.3)
    log: Log = []

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> str:
        return "first"

    @first.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        is_later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.6, is_later.set)
        await is_later.wait()
        log.append("undone")

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("down")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="down") as caught:
        await handle.result()
    assert (log, caught.value.rollback) == (["undone"], "complete")


async def test_a_cancel_of_what_has_ended_changes_nothing(runner: Runner) -> None:
    workflow = Workflow("over", output=int)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> int:
        return 1

    handle = await runner.start(workflow, None)
    assert await handle.result() == 1
    assert not await handle.cancel("late")
    assert await handle.result() == 1
    assert (await handle.status()).state == "completed"


async def test_a_cancel_during_completed_undoes_everything(runner: Runner) -> None:
    workflow, log = Workflow("last-moment", retry=_ONCE), Log()
    is_ending = asyncio.Event()

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> str:
        return "first"

    @first.rollback
    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> None:
        is_ending.set()
        await asyncio.Event().wait()

    handle = await runner.start(workflow, None)
    await is_ending.wait()
    await handle.cancel("now")
    with pytest.raises(FlowCancelled, match="now"):
        await handle.result()
    assert log == ["undo first"]


async def test_a_flow_says_where_it_is(runner: Runner) -> None:
    stage = Stage()
    handle = await stage.start(runner)
    assert (await handle.status()).state in ("running", "waiting")
    await handle.cancel()
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert (await handle.status()).state == "cancelled"


async def test_a_cancel_after_a_failure_does_not_wait_for_a_member_that_hangs(runner: Runner) -> None:
    stage = Stage()
    handle = await stage.start(runner)
    stage.fail_now.set()
    await wait_states(handle, {"stopper": "failed", "later": "cancelled", "active": "active"})
    for _ in range(2):
        assert not await handle.cancel("it hangs")  # the first cause stays, and so does the outcome
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert caught.value.step == "stopper"
    assert (await handle.status()).state == "failed"
    assert "active cancelled" in stage.log
    assert (await states_of(handle))["active"] == "cancelled"
