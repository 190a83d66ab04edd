"""Steps that wait, in local and inline flows: what is recorded, what holds the worker, and what a definition
says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, UsageError
from eventbus.handlers.worker import EventWorker
from workflows import FlowHandle, Signal, StepContext, Workflow, WorkflowProvider
from workflows.records.entries import read_entries
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

GO = Signal("go", int)


async def _sleeps(handle: FlowHandle[Any], flows: WorkflowProvider, worker: EventWorker) -> None:
    """Wait until the flow sleeps; its worker then has nothing to do, as soon as it knows that the flow
    sleeps.
    """
    while (await flows.provider.inspector.jobs.get(handle.id)).state != "delayed":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    while not worker.is_idle:
        await asyncio.sleep(0.001)
        assert (await flows.provider.inspector.jobs.get(handle.id)).state == "delayed"


async def test_a_flow_that_waits_holds_no_place_and_its_journal_says_what_happened(
    make_provider: MakeProvider,
) -> None:
    workflow = Workflow[Any, Any]("waits")
    workflow.sleep("1200ms")
    workflow.wait(GO, timeout="1 day")
    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker() as worker:
        handle = await flows.execute(workflow, None)
        async with asyncio.timeout(240):
            await _sleeps(handle, flows, worker)
            while (await handle.report()).steps["sleep"].state != "completed":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await _sleeps(handle, flows, worker)
        await handle.signal(Signal("go", str), "no number")
        await handle.signal(GO, 7)
        await handle.result()
        entries = read_entries(handle.id, await flows.provider.jobs.journal(handle.id))
        tree = await flows.tree(handle.id)
    assert [f"{each.kind} {each.place}".strip() for each in entries] == [
        "run",
        "sleep sleep",
        "step sleep",
        "wait go",
        "refused go",
        "step go",
    ]
    assert entries[1].due_ms - entries[1].started_ms == 1200
    assert entries[3].due_ms - entries[3].started_ms == 86_400_000
    assert tree.report.steps["go"].result == 7


async def test_a_condition_that_was_answered_is_not_asked_again_behind_a_wait(
    make_provider: MakeProvider,
) -> None:
    workflow, asked = Workflow[Any, Any]("asked"), list[str]()

    def never(ctx: StepContext[Any]) -> bool:
        asked.append(ctx.step)
        return False

    @workflow.step(when=never)
    async def skipped(ctx: StepContext[Any]) -> None:
        raise AssertionError("it ran")

    workflow.wait(GO)
    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, asyncio.timeout(240):
        handle = await flows.execute(workflow, None)
        async with flows.provider.worker() as worker:
            while (await handle.report()).steps["go"].state != "waiting":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while not worker.is_idle:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await handle.signal(GO, 7)
        async with flows.provider.worker():
            await handle.result()
        report = await handle.report()
    assert (asked, report.steps["skipped"].state) == (["skipped"], "skipped")


async def test_a_short_pause_does_not_end_the_wait_beside_it(make_provider: MakeProvider) -> None:
    """The signal is taken while the other step goes on, in the same activation."""
    workflow, gate = Workflow[Any, Any]("beside"), asyncio.Event()
    workflow.wait(GO, after=None)
    workflow.sleep("100ms", after=None)

    @workflow.step(after="sleep")
    async def long(ctx: StepContext[Any]) -> None:
        await gate.wait()

    @workflow.step(after="go")
    async def react(ctx: StepContext[Any]) -> None:
        gate.set()

    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        handle = await flows.execute(workflow, None)
        async with asyncio.timeout(240):
            while (await handle.report()).steps["long"].state != "active":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await handle.signal(GO, 1)
        await handle.result(240)


async def test_an_inline_wait_that_nothing_ends_is_refused() -> None:
    workflow = Workflow[Any, Any]("alone")
    workflow.wait(GO)
    with pytest.raises(UsageError, match=r"step 'go' of workflow 'alone' waits for signal 'go', which does"):
        await run_inline(workflow, None)
    await run_inline(workflow, None, signals=[(GO, 3)])


async def test_inline_sleeps_use_the_sleep_of_the_caller() -> None:
    workflow, slept = Workflow[Any, Any]("quick"), list[float]()
    workflow.sleep("2 days")
    workflow.wait(GO, timeout="3 days", on_failure="ignore")

    async def pass_time(seconds: float) -> None:
        slept.append(seconds)

    async with asyncio.timeout(240):
        await run_inline(workflow, None, sleep=pass_time)
    assert slept == [2 * 86_400, 3 * 86_400]


def test_what_a_step_waits_for_is_a_part_of_the_version() -> None:
    def version(define: Callable[[Workflow[Any, Any]], object]) -> str:
        workflow = Workflow[Any, Any]("versions")
        define(workflow)
        return workflow.version

    versions = [
        version(lambda workflow: workflow.step(_act, name="pause")),
        version(lambda workflow: workflow.sleep("1s", name="pause")),
        version(lambda workflow: workflow.wait("a", name="pause")),
        version(lambda workflow: workflow.wait("b", name="pause")),
    ]
    assert len(set(versions)) == 4
    assert version(lambda workflow: workflow.sleep("2s", name="pause")) == versions[1]


async def _act(ctx: StepContext[Any]) -> None: ...


def test_what_cannot_wait_is_refused_when_it_is_defined() -> None:
    workflow = Workflow[Any, Any]("refused")
    with pytest.raises(DefinitionError, match="timeout of a wait of workflow 'refused'"):
        workflow.wait("go", timeout="soon")
    with pytest.raises(DefinitionError, match="duration of a sleep of workflow 'refused'"):
        workflow.sleep("soon")
    with pytest.raises(DefinitionError, match="the name of a signal"):
        workflow.wait("@waits")
    workflow.sleep("1s")
    with pytest.raises(DefinitionError, match="has a step 'sleep' already"):
        workflow.sleep("1s")
    wait = workflow.wait(GO)
    with pytest.raises(
        DefinitionError, match="step 'go' of workflow 'refused' only waits, so there is nothing"
    ):
        wait.rollback(lambda ctx, result: None)
    with pytest.raises(DefinitionError, match="only waits and cannot be called"):
        wait(None)  # type: ignore[arg-type]
