"""Workflows with too many steps to load all results: near results are loaded, the others on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider
from workflows import ResultNotLoaded, StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual


async def test_far_results_are_loaded_when_they_are_asked_for(
    make_provider: Callable[..., EventProvider],
) -> None:
    workflow = Workflow("long", spread=True)
    told: dict[str, str] = {}

    async def number(ctx: StepContext[Any]) -> int:
        return int(ctx.step.rpartition("-")[2])

    for place in range(100):
        workflow.step(number, name=f"step-{place}")
    workflow.step(number, name="aside-7", after=None)

    async def reads(ctx: StepContext[Any]) -> list[int]:
        for step in ("step-3", "aside-7"):
            try:
                ctx.result(step)
            except (ResultNotLoaded, DefinitionError) as error:
                told[step] = type(error).__name__
        return [ctx.result("step-99"), ctx.result("step-92"), await ctx.load("step-3")]

    reader = workflow.step(reads, after="step-99")

    @workflow.completed
    async def output(ctx: StepContext[Any]) -> Any:
        return await ctx.load(reader)

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        assert await handle.result() == [99, 92, 3]
    assert told == {"step-3": "ResultNotLoaded", "aside-7": "DefinitionError"}
