"""Cancels of a step, of a sub-workflow, and of a flow that no worker can end: answer and outcome agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, HandlerError, Retry
from workflows import FlowCancelled, StepContext, StepError, Workflow, WorkflowProvider
from workflows.records.records import revive_flow

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


async def test_a_step_that_is_cancelled_by_its_id_and_completes_all_the_same_is_cancelled_and_undone(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[Any, Any] = Workflow("stubborn", retry=Retry(attempts=1), spread=True)
    is_active, undone, job_ids = asyncio.Event(), list[Any](), list[str]()

    @workflow.step()
    async def work(ctx: StepContext[Any]) -> dict[str, int]:
        job_ids.append(ctx.job_id)
        is_active.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return {"pieces": 3}

    @work.rollback
    async def undo(ctx: StepContext[Any], result: dict[str, int]) -> None:
        undone.append((result, ctx.result(work)))

    @workflow.step()
    async def never(ctx: StepContext[Any]) -> None:
        undone.append("never")

    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        await is_active.wait()
        assert await provider.cancel(job_ids[0], "not this one")
        with pytest.raises(StepError, match="JobCancelled: not this one") as caught:
            await handle.result()
        assert (caught.value.step, caught.value.rollback) == ("work", "complete")
        assert isinstance(caught.value.error, HandlerError)
        assert undone == [({"pieces": 3}, {"pieces": 3})]
        report = await handle.report()
        assert {each.step: each.state for each in report.steps.values()} == {
            "work": "cancelled",
            "never": "cancelled",
        }


async def test_a_sub_workflow_that_is_cancelled_by_its_id_is_cancelled_and_fails_the_outer_flow(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    inner: Workflow[Any, Any] = Workflow("inner", retry=Retry(attempts=1))
    is_active = asyncio.Event()

    @inner.step()
    async def wait(ctx: StepContext[Any]) -> None:
        is_active.set()
        await asyncio.Event().wait()

    outer: Workflow[Any, Any] = Workflow("outer")
    outer.flow(inner, name="nested")
    flows.register(outer)
    async with provider, provider.worker():
        handle = await flows.execute(outer, None)
        await is_active.wait()
        nested = (await flows.tree(handle.id)).nested["nested"][0].report.flow_id
        assert await provider.cancel(nested, "stop the inner one")
        assert not await provider.cancel(nested, "and again")
        with pytest.raises(StepError) as caught:
            await handle.result()
        assert isinstance(caught.value.error, FlowCancelled)
        assert caught.value.error.reason == "stop the inner one"
        with pytest.raises(FlowCancelled):
            await flows.handle(nested).result()


@pytest.mark.parametrize(("stalls", "rollback"), [(4, "incomplete"), (0, "none")])
def test_a_cancelled_flow_that_nobody_could_undo_is_cancelled_with_an_incomplete_rollback(
    stalls: int, rollback: str
) -> None:
    text = f'{{"type":"JobCancelled","message":"enough","stalls":{stalls}}}'
    error = revive_flow("cancelled", text, "checkout", "checkout~0123456789abcdef0123")
    assert isinstance(error, FlowCancelled)
    assert (error.reason, error.rollback) == ("enough", rollback)
