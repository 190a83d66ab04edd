"""Steps that only wait: for a time, or for a signal."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from drivers.runners import Runner, states_of, wait_states

from eventbus import DefinitionError, PayloadError, Retry, SignalRefused
from workflows import FlowCancelled, FlowTimeout, Signal, StepContext, StepError, Workflow

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


class Verdict(msgspec.Struct):
    ok: bool
    by: str = ""


approval = Signal("approval", Verdict)


def _approved(**options: Any) -> Workflow[Any, Any]:
    """first, then the wait for the approval, then last."""
    workflow = Workflow[Any, Any]("approved", retry=_ONCE)

    @workflow.step
    async def first(ctx: StepContext[Any]) -> int:
        return 1

    @first.rollback
    async def undo_first(ctx: StepContext[Any], result: int) -> None:
        del ctx, result

    workflow.wait(approval, **options)

    @workflow.step
    async def last(ctx: StepContext[Any]) -> Any:
        verdict = ctx.result("approval", default=None)
        return None if verdict is None else [verdict.ok, verdict.by]

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return ctx.result(last)

    return workflow


async def test_a_wait_gets_the_payload_of_its_signal_in_its_type(runner: Runner) -> None:
    handle = await runner.start(_approved(), None)
    await wait_states(handle, {"first": "completed", "approval": "waiting", "last": "waiting"})
    await handle.signal(approval, Verdict(ok=True, by="Eva"))
    assert await handle.result() == [True, "Eva"]
    report = await handle.report()
    assert report.steps["approval"].result == Verdict(ok=True, by="Eva")
    assert (report.steps["approval"].state, report.order) == ("completed", ["first", "approval", "last"])


async def test_a_signal_that_comes_before_the_wait_begins_is_kept(runner: Runner) -> None:
    workflow, gate = Workflow[Any, Any]("early"), asyncio.Event()

    @workflow.step
    async def slow(ctx: StepContext[Any]) -> None:
        await gate.wait()

    wait = workflow.wait("go", int)

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> int:
        return ctx.result(wait)

    handle = await runner.start(workflow, None)
    await wait_states(handle, {"slow": "active"})
    await handle.signal(Signal("go", int), 7)
    gate.set()
    assert await handle.result() == 7


async def test_a_payload_that_does_not_fit_is_refused_and_the_wait_goes_on(runner: Runner) -> None:
    handle = await runner.start(_approved(), None)
    await wait_states(handle, {"approval": "waiting"})
    with pytest.raises(PayloadError, match="approval"):
        await handle.signal(approval, "yes")
    await handle.signal(Signal("approval", str), "yes")  # of an older release
    await handle.signal(approval, Verdict(ok=False))
    assert await handle.result() == [False, ""]


async def test_each_wait_gets_one_signal_in_the_order_in_which_they_came(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("two")
    workflow.wait("go", int, name="a")
    workflow.wait("go", int, name="b")
    workflow.wait("other", int, name="c")

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return dict(ctx.results)

    handle = await runner.start(workflow, None)
    for name, payload in (("other", 3), ("go", 1), ("go", 2)):
        await handle.signal(Signal(name, int), payload)
    assert await handle.result() == {"a": 1, "b": 2, "c": 3}


async def test_a_wait_fails_after_its_timeout_and_the_flow_is_undone(runner: Runner) -> None:
    handle = await runner.start(_approved(timeout=0.05), None)
    with pytest.raises(StepError, match="TimeoutError: signal 'approval' did not come in time") as caught:
        await handle.result()
    assert (caught.value.step, caught.value.rollback) == ("approval", "complete")
    report = await handle.report()
    assert [each.step for each in report.rollbacks] == ["first"]
    assert (report.steps["approval"].state, report.steps["last"].state) == ("failed", "cancelled")


async def test_a_wait_whose_failure_is_ignored_lets_the_flow_go_on(runner: Runner) -> None:
    handle = await runner.start(_approved(timeout=0.05, on_failure="ignore"), None)
    assert await handle.result() is None
    assert await states_of(handle) == {"first": "completed", "approval": "failed", "last": "completed"}


async def test_a_wait_whose_condition_is_false_is_skipped(runner: Runner) -> None:
    handle = await runner.start(_approved(when=lambda ctx: ctx.result("first") > 1), None)
    assert await handle.result() is None
    assert (await states_of(handle))["approval"] == "skipped"


async def test_a_condition_of_a_wait_is_tried_again_and_asked_before_the_wait(runner: Runner) -> None:
    workflow, asked = Workflow[Any, Any]("asked", retry=Retry(attempts=2, delay=0.01)), list[int]()

    def when(ctx: StepContext[Any]) -> bool:
        asked.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return True

    workflow.wait("go", when=when)
    handle = await runner.start(workflow, None)
    await handle.signal(Signal("go"), None)
    await handle.result()
    assert asked == [1, 2]


async def test_a_sleep_lets_what_follows_it_run_after_its_time(runner: Runner) -> None:
    workflow, loop = Workflow[Any, Any]("slept"), asyncio.get_running_loop()
    times: list[float] = []

    @workflow.step
    async def before(ctx: StepContext[Any]) -> None:
        times.append(loop.time())

    workflow.sleep(0.2)
    workflow.sleep("50ms", name="again")

    @workflow.step
    async def after(ctx: StepContext[Any]) -> None:
        times.append(loop.time())

    handle = await runner.start(workflow, None)
    await wait_states(handle, {"before": "completed", "sleep": "sleeping", "again": "waiting"})
    await handle.result()
    assert times[1] - times[0] + 0.005 >= 0.25
    assert set((await states_of(handle)).values()) == {"completed"}
    assert (await handle.report()).order == ["before", "sleep", "again", "after"]


async def test_other_steps_run_while_one_waits(runner: Runner) -> None:
    workflow, gate = Workflow[Any, Any]("beside"), asyncio.Event()
    wait = workflow.wait("go", int, after=None)

    @workflow.step(after=None)
    async def work(ctx: StepContext[Any]) -> None:
        await gate.wait()

    @workflow.step(after=wait)
    async def react(ctx: StepContext[Any]) -> int:
        gate.set()
        return ctx.result(wait) + 1

    handle = await runner.start(workflow, None)
    await wait_states(handle, {"work": "active", "go": "waiting"})
    await handle.signal(Signal("go", int), 1)
    await handle.result()
    assert (await handle.report()).steps["react"].result == 2


@pytest.mark.parametrize("kind", ["wait", "sleep"])
async def test_a_cancel_ends_a_pause(runner: Runner, kind: str) -> None:
    workflow = Workflow[Any, Any]("ended")

    @workflow.step
    async def first(ctx: StepContext[Any]) -> None:
        pass

    @first.rollback
    async def undo(ctx: StepContext[Any], result: None) -> None:
        pass

    if kind == "wait":
        workflow.wait("go", name="pause", timeout="1 day")
    else:
        workflow.sleep("1 day", name="pause")
    handle = await runner.start(workflow, None)
    await wait_states(handle, {"pause": "waiting" if kind == "wait" else "sleeping", "first": "completed"})
    assert await handle.cancel("enough")
    with pytest.raises(FlowCancelled, match="enough") as caught:
        await handle.result()
    assert caught.value.rollback == "complete"
    assert await states_of(handle) == {"first": "completed", "pause": "cancelled"}
    # Where no step waits for a signal the flow refuses each, whatever has become of it.
    with pytest.raises(SignalRefused if kind == "wait" else DefinitionError):
        await handle.signal(Signal("go"), None)


async def test_the_timeout_of_a_flow_ends_a_pause(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("late", timeout=0.2)
    workflow.wait("go")
    handle = await runner.start(workflow, None)
    with pytest.raises(FlowTimeout):
        await handle.result()
    assert await states_of(handle) == {"go": "cancelled"}


async def test_a_failure_beside_a_pause_ends_it(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("beside", retry=_ONCE)
    workflow.wait("go", after=None)
    workflow.sleep("1 day", after=None)

    @workflow.step(after=None)
    async def fall(ctx: StepContext[Any]) -> None:
        await asyncio.sleep(0.05)
        raise ValueError("down")

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match="ValueError: down"):
        await handle.result()
    assert await states_of(handle) == {"go": "cancelled", "sleep": "cancelled", "fall": "failed"}


async def test_waits_side_by_side_get_their_own_signals(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("side")
    for name in ("a", "b", "c"):
        workflow.wait(name, str, after=None)

    @workflow.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return dict(ctx.results)

    handle = await runner.start(workflow, None)
    await wait_states(handle, {"a": "waiting", "b": "waiting", "c": "waiting"})
    for name in ("c", "a", "b"):
        await handle.signal(Signal(name, str), name.upper())
    assert await handle.result() == {"a": "A", "b": "B", "c": "C"}
