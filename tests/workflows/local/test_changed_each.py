"""A release that makes an each step of a plain one, or back, under a fixed version: open flows wait for the
old code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import Signal, StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

GO = Signal("go", int)


def release(kind: str) -> Workflow[None, Any]:
    """Return a release in which the first step is of a kind; the flow waits behind it."""
    workflow: Workflow[None, Any] = Workflow("changes", version="1", retry=Retry(attempts=1))

    async def convert(ctx: StepContext[None], item: int) -> int:
        return item * 10

    if kind == "plain":

        async def first(ctx: StepContext[None]) -> list[int]:
            return [10, 20]

        workflow.step(name="first")(first)
    else:
        items: list[int] = [] if kind == "empty" else [1, 2]
        on_failure: Any = "ignore" if kind == "ignore" else "fail"
        workflow.each(over=lambda ctx: items, name="first", on_failure=on_failure)(convert)
    workflow.wait(GO)

    @workflow.step
    async def told(ctx: StepContext[None]) -> Any:
        return ctx.result("first")

    return workflow


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("each", "plain", "the each step first"),
        ("plain", "each", "the plain step first"),
        ("each", "ignore", "another on_failure of step first"),
        ("ignore", "each", "another on_failure of step first"),
        ("empty", "plain", "the each step first"),
        ("empty", "empty", ""),
    ],
)
async def test_a_flow_whose_record_does_not_fit_a_step_is_parked_until_a_worker_has_the_old_one(
    make_provider: MakeProvider, old: str, new: str, reason: str
) -> None:
    before = WorkflowProvider(make_provider())
    workflow = release(old)
    before.register(workflow)
    async with before.provider, before.provider.worker(), asyncio.timeout(240):
        handle = await before.execute(workflow, None)
        while not (await handle.report()).steps["go"].started_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    after = WorkflowProvider(make_provider())
    after.register(release(new))
    async with after.provider, after.provider.worker(), asyncio.timeout(240):
        handle = after.handle(handle.id)
        await handle.signal(GO, 1)
        if not reason:
            await handle.result()
            return
        while not (found := await after.report(handle.id)).is_parked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert found.error == f"not known here: {reason}"
    again = WorkflowProvider(make_provider())
    again.register(release(old))
    async with again.provider, again.provider.worker(), asyncio.timeout(240):
        await again.handle(handle.id).result()
        assert len((await again.report(handle.id)).steps["told"].result) == (0 if old == "empty" else 2)


@pytest.mark.parametrize("spread", [False, True])
async def test_a_report_tells_which_item_failed_and_why(make_provider: MakeProvider, *, spread: bool) -> None:
    workflow: Workflow[None, None] = Workflow("told", retry=Retry(attempts=1))

    async def convert(ctx: StepContext[None], item: int) -> None:
        if item == 2:
            raise ValueError("broken")

    workflow.each(over=lambda ctx: [1, 2, 3], at_once=1, name="first", spread=spread)(convert)
    flows = WorkflowProvider(make_provider())
    flows.register(workflow)
    async with flows.provider, flows.provider.worker(), asyncio.timeout(240):
        handle = await flows.execute(workflow, None)
        with pytest.raises(StepError):
            await handle.result()
        step = (await handle.report()).steps["first"]
    assert step.state == "failed"
    assert step.error.startswith("first[1]: ValueError: broken"), step.error
