"""What holds for inline runs alone: their interface, their clock, their end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from drivers.runners import states_of, wait_states

from eventbus import DefinitionError, Retry
from workflows.definition.context import StepContext
from workflows.definition.signal import Signal
from workflows.definition.workflow import Workflow
from workflows.errors import FlowCancelled, StepError
from workflows.inline.memory_recorder import MemoryRecorder
from workflows.testing import run_inline, start_inline

_ONCE = Retry(attempts=1)


async def _wait_for_ever(ctx: StepContext[Any]) -> None:
    await asyncio.Event().wait()


async def test_the_waits_between_attempts_are_the_callers() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    workflow = Workflow("w", output=int, retry=Retry(attempts=4, delay="1h"))

    @workflow.step()
    async def shaky(ctx: StepContext[Any]) -> None:
        if ctx.attempt < 4:
            raise ConnectionError

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> int:
        if ctx.attempt < 2:
            raise ConnectionError
        return 9

    assert await run_inline(workflow, None, sleep=sleep, idempotency_key="ignored") == 9
    assert waits == [3600, 7200, 14400, 3600]


async def test_a_wait_that_fails_is_no_error_of_the_flow() -> None:
    async def sleep(seconds: float) -> None:
        raise RuntimeError("no clock")

    workflow = Workflow("w", retry=Retry(attempts=2))

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError

    with pytest.raises(RuntimeError, match="no clock"):
        await run_inline(workflow, None, sleep=sleep)


async def test_a_definition_that_is_not_whole_is_refused() -> None:
    async def step(ctx: StepContext[Any]) -> None: ...

    workflow = Workflow("w")
    workflow.step(step, after="nobody")
    with pytest.raises(DefinitionError, match=r"'w'.*'nobody'"):
        await run_inline(workflow, None)
    for timeout in (-1, "soon"):
        with pytest.raises(DefinitionError, match="timeout"):
            await run_inline(Workflow("w").then(step), None, timeout=timeout)


async def test_cancelling_it_cancels_what_runs_and_undoes_nothing() -> None:
    log: list[str] = []
    is_active = asyncio.Event()
    workflow = Workflow("w", retry=_ONCE)

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> None: ...

    @first.rollback
    async def undo(ctx: StepContext[Any], result: None) -> None:
        log.append("undone")

    @workflow.step()
    async def wait(ctx: StepContext[Any]) -> None:
        is_active.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    running = asyncio.create_task(run_inline(workflow, None))
    await is_active.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log == ["cancelled"]


async def test_a_provider_is_what_steps_emit_with() -> None:
    class Provider:
        def emit(self, event: str, payload: Any, **options: Any) -> Any:
            return [event, payload]

    workflow = Workflow("w")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.emit("told", 1)

    assert await run_inline(workflow, None, provider=Provider()) == ["told", 1]


async def test_a_cancel_before_the_first_step_runs_nothing() -> None:
    log: list[str] = []
    workflow = Workflow("w")

    @workflow.step()
    async def never(ctx: StepContext[Any]) -> None:
        log.append("never")

    handle = start_inline(workflow, None)
    assert (await handle.status()).state == "pending"
    assert await handle.cancel()
    assert not await handle.cancel()
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert log == []


@pytest.mark.slow
async def test_a_member_that_was_given_up_on_is_unknown_and_makes_the_rollback_incomplete() -> None:
    workflow = Workflow("w", retry=_ONCE)
    is_active, let_go = asyncio.Event(), asyncio.Event()

    @workflow.step()
    async def deaf(ctx: StepContext[Any]) -> None:
        is_active.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    @deaf.rollback
    async def undo(ctx: StepContext[Any], result: None) -> None:
        raise AssertionError("nobody knows whether there is something to undo")

    handle = start_inline(workflow, None)
    await is_active.wait()
    await handle.cancel()
    with pytest.raises(FlowCancelled, match="rollback incomplete") as caught:
        await handle.result()
    assert caught.value.rollback == "incomplete"
    assert (await handle.report()).steps["deaf"].state == "unknown"
    let_go.set()


async def test_a_step_that_was_cut_and_asks_for_it_is_undone_without_a_result() -> None:
    undone: list[Any] = []
    workflow = Workflow("w", retry=_ONCE)
    workflow.step(_wait_for_ever, name="wait", rollback_on_failure=True).rollback(
        lambda ctx, result: undone.append(result)
    )
    workflow.step(_wait_for_ever, name="never", rollback_on_failure=True).rollback(
        lambda ctx, result: undone.append("never ran")
    )
    handle = start_inline(workflow, None)
    await wait_states(handle, {"wait": "active"})
    await handle.cancel()
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert undone == [None]


@pytest.mark.slow
async def test_a_thousand_steps_in_a_row_and_side_by_side() -> None:
    async def add(ctx: StepContext[Any]) -> int:
        return 1

    row: Workflow[Any, Any] = Workflow("row")
    for n in range(1000):
        row.step(add, name=f"s{n}")
    wide: Workflow[Any, Any] = Workflow("wide")
    for n in range(1000):
        wide.step(add, name=f"s{n}", after=None)

    async def total(ctx: StepContext[Any]) -> int:
        return sum(ctx.results.values())

    row.completed(total)
    wide.completed(total)
    assert await run_inline(row, None) == await run_inline(wide, None) == 1000


async def test_a_cancel_between_two_steps_keeps_the_next_ones_from_starting() -> None:
    log: list[str] = []

    async def write(ctx: StepContext[Any]) -> None:
        log.append(ctx.step)

    workflow = Workflow("w").parallel(write, Workflow("inner").then(write))
    handle = start_inline(workflow, None)
    await asyncio.sleep(0)  # the flow has begun, its members have not
    assert (await handle.status()).state == "running"
    assert await handle.cancel()
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert log == []
    assert await states_of(handle) == {"write": "cancelled", "inner": "cancelled"}


async def test_a_cancel_ends_a_condition_that_waits() -> None:
    is_asked = asyncio.Event()

    async def when(ctx: StepContext[Any]) -> bool:
        is_asked.set()
        await asyncio.Event().wait()
        return True

    async def never(ctx: StepContext[Any]) -> None: ...

    workflow = Workflow("w")
    workflow.flow(Workflow("inner").then(never), when=when)
    handle = start_inline(workflow, None)
    await is_asked.wait()
    await handle.cancel()
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert await states_of(handle) == {"inner": "cancelled"}


async def test_a_plain_function_that_goes_on_after_its_cancellation_is_unknown() -> None:
    is_running, may_end = threading.Event(), threading.Event()
    workflow = Workflow("w", retry=_ONCE)

    @workflow.step()
    def hang(ctx: StepContext[Any]) -> None:
        is_running.set()
        may_end.wait(240)

    @hang.rollback
    async def undo(ctx: StepContext[Any], result: None) -> None: ...

    handle = start_inline(workflow, None)
    running = asyncio.create_task(handle.result())
    assert await asyncio.to_thread(is_running.wait, 10)
    assert await handle.cancel("no longer wanted")
    with pytest.raises(FlowCancelled) as caught:
        await running
    may_end.set()
    assert caught.value.rollback == "incomplete"
    assert [each.step for each in caught.value.rollback_errors] == ["hang"]
    assert await states_of(handle) == {"hang": "unknown"}


async def test_a_sub_workflow_that_runs_itself_too_deep_fails() -> None:
    workflow = Workflow("again-and-again", retry=_ONCE)
    workflow.flow(workflow, name="deeper", when=lambda _: True)
    with pytest.raises(StepError, match="nest workflows less deep"):
        await run_inline(workflow, None)


async def test_a_signal_that_comes_before_somebody_listens_is_heard() -> None:
    recorder = MemoryRecorder()
    for number in ("1", "2"):
        recorder.take("go-on", number)
        await asyncio.wait_for(recorder.listen(), 240)
    listening = asyncio.create_task(recorder.listen())
    await asyncio.sleep(0)
    assert not listening.done()
    recorder.take("go-on", "3")
    await asyncio.wait_for(listening, 240)


async def test_a_signal_at_the_instant_in_which_a_step_begins_to_wait_ends_the_wait() -> None:
    go_on = Signal("go-on", int)
    for rounds in range(10):  # of the event loop, between the beginning of the wait and the signal
        graph = Workflow[Any, Any]("instant")
        wait = graph.wait(go_on)

        @graph.completed
        async def done(ctx: StepContext[Any], wait: Any = wait) -> Any:
            return ctx.result(wait)

        handle = start_inline(graph, None)
        for _ in range(rounds):
            await asyncio.sleep(0)
        await handle.signal(go_on, rounds)
        assert await asyncio.wait_for(handle.result(), 240) == rounds
