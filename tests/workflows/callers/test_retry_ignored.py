"""Retries by hand and failures that were ignored: what is recorded is not repeated, wherever the
steps run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]

_SPREADS = pytest.mark.parametrize("spread", [False, True])


def _fails_late(ran: list[Any], *, spread: bool, how: str) -> Workflow[None, str]:
    """A flow whose first step always fails, which is ignored; its last step fails in the first run."""
    workflow: Workflow[None, str] = Workflow("late", output=str, retry=Retry(attempts=1), spread=spread)

    async def greet(ctx: StepContext[None]) -> str:
        ran.append("greet")
        raise ConnectionError("nobody there")

    async def convert(ctx: StepContext[None], item: int) -> int:
        ran.append(item)
        if item == 2:
            raise ValueError("broken")
        return item

    async def undo(ctx: StepContext[None], *_: Any) -> None:
        ran.append("undone")

    if how in ("each", "items undone"):
        first: Any = workflow.each(over=lambda ctx: [1, 2, 3], at_once=1, on_failure="ignore", name="first")(
            convert
        )
        if how == "items undone":
            first.rollback(undo)
    elif how == "undone":
        first = workflow.step(on_failure="ignore", rollback_on_failure=True, name="first")(greet).rollback(
            undo
        )
    elif how == "flow":
        inner: Workflow[None, None] = Workflow("inner", retry=Retry(attempts=1))
        inner.step(name="greet")(greet)
        first = workflow.flow(inner, on_failure="ignore", name="first")
    else:
        first = workflow.step(on_failure="ignore", name="first")(greet)

    @workflow.step(after="first")
    async def late(ctx: StepContext[None]) -> str:
        ran.append("late")
        if ctx.run == 1:
            raise ValueError("late")
        return str(ctx.result("first", default="no answer"))

    @workflow.completed
    async def told(ctx: StepContext[None]) -> str:
        return ctx.result(late)

    return workflow


@_SPREADS
@pytest.mark.parametrize(
    ("how", "first", "again"),
    [
        ("step", ["greet"], []),
        ("flow", ["greet"], []),
        ("each", [1, 2, 3], []),
        ("items undone", [1, 2, 3], [1, 3]),
        ("undone", ["greet"], ["greet"]),  # its rollback ran, so nothing of it counts
    ],
)
async def test_a_step_whose_failure_was_ignored_does_not_run_again_in_a_retry_that_resumes(
    make_provider: MakeProvider, how: str, first: list[Any], again: list[Any], *, spread: bool
) -> None:
    ran: list[Any] = []
    workflow = _fails_late(ran, spread=spread, how=how)
    async with make_provider() as provider:
        flows = WorkflowProvider(provider)
        flows.register(workflow)
        async with provider.worker():
            handle = await flows.execute(workflow, None)
            with pytest.raises(StepError, match="late"):
                await handle.result(240)
            undone = ["undone"] * {"undone": 1, "items undone": 2}.get(how, 0)
            assert ran == [*first, "late", *undone]
            ran.clear()
            retried = await flows.retry(handle.id)
            result = await retried.result(240)
            assert ran == [*again, "late"]
            assert result == "no answer" if "greet" in first else result.startswith("[1, StepFailed")
            report = await retried.report()
            assert report.steps["first"].state == ("failed" if "greet" in first else "completed")
            ran.clear()
            anew = await flows.retry(handle.id, resume=False)
            await anew.result(240)
            assert ran == [*first, "late"]
