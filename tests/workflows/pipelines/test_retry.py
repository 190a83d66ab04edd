"""`flows.retry` of a pipeline: resumed, it goes on where it failed; cleared, it begins anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import EventProvider, Retry
from workflows import Pipeline, PipelineContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


class Cursor(msgspec.Struct):
    index: int = 0


class Total(msgspec.Struct):
    total: int


async def _run(flows: WorkflowProvider, workflow: Workflow[Any, Any], *resumes: bool | None) -> list[Any]:
    """Execute the workflow, and retry it so often; return each outcome or error."""
    handle = await flows.execute(workflow, {})
    found: list[Any] = []
    for resume in (None, *resumes):
        if found:
            handle = await flows.retry(handle.id, resume=resume)
        try:
            found.append(await handle.result())
        except StepError as error:
            found.append(error.step)
    return found


@pytest.fixture
def flows(make_provider: MakeProvider) -> WorkflowProvider:
    return WorkflowProvider(make_provider(retry=Retry(1)))


def _stored(done: list[int]) -> Pipeline[Any, Total]:
    async def store(ctx: PipelineContext[Cursor]) -> Total:
        for number in range(ctx.progress.index, 4):
            if number == 2 and ctx.run == 1:
                raise ConnectionError("down")
            done.append(number)
            ctx.progress.index = number + 1
            await ctx.save()
        return Total(ctx.progress.index)

    return Pipeline("sync", output=Total, progress=Cursor, retry=Retry(1)).then(store)


async def test_a_resume_does_not_repeat_the_items_that_are_done(flows: WorkflowProvider) -> None:
    done: list[int] = []
    workflow = _stored(done).returns()
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        assert await _run(flows, workflow, None) == ["store", Total(4)]
    assert done == [0, 1, 2, 3]


async def test_a_cleared_run_begins_from_the_first_item(flows: WorkflowProvider) -> None:
    done: list[int] = []
    workflow = _stored(done).returns()
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        assert await _run(flows, workflow, False) == ["store", Total(4)]
    assert done == [0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("failures", "runs"),
    [({"left": 1}, {"left": 2, "right": 1}), ({"left": 1, "right": 1}, {"left": 2, "right": 2})],
)
@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_a_resume_runs_the_siblings_that_failed_alone(
    flows: WorkflowProvider, failures: dict[str, int], runs: dict[str, int], spread: bool
) -> None:
    counted: Counter[str] = Counter()

    def fall(name: str) -> int:
        counted[name] += 1
        if counted[name] <= failures.get(name, 0):
            raise ConnectionError(name)
        return counted[name]

    async def left() -> dict[str, int]:
        return {"left": fall("left")}

    async def right() -> dict[str, int]:
        return {"right": fall("right")}

    workflow = Pipeline("sync", retry=Retry(1), spread=spread).parallel(left, right).returns()
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        first, last = await _run(flows, workflow, None)
    assert first in failures
    assert last == runs
    assert counted == runs


async def test_a_completed_pipeline_runs_from_its_start(flows: WorkflowProvider) -> None:
    seen: list[int] = []

    async def first(ctx: PipelineContext[Cursor]) -> None:
        seen.append(ctx.progress.index)
        ctx.progress.index += 1
        await ctx.save()

    workflow = Pipeline("sync", progress=Cursor).then(first).returns()
    flows.register(workflow)
    async with flows.provider, flows.provider.worker():
        await _run(flows, workflow, None)
    assert seen == [0, 0]


class Both(msgspec.Struct):
    index: int = 0
    other: int = 0


async def test_what_was_saved_does_not_hide_what_earlier_steps_do_anew(flows: WorkflowProvider) -> None:
    seen: list[Both] = []

    async def first(ctx: PipelineContext[Both]) -> None:
        ctx.progress.other = ctx.run

    async def second(ctx: PipelineContext[Both]) -> None:
        seen.append(msgspec.structs.replace(ctx.progress))
        ctx.progress.index += 1
        await ctx.save()
        if ctx.run == 1:
            raise ConnectionError("down")

    workflow = (
        Pipeline("sync", progress=Both, retry=Retry(1)).then(first, rollback=lambda ctx: None).then(second)
    )
    flow = workflow.returns()
    flows.register(flow)
    async with flows.provider, flows.provider.worker():
        await _run(flows, flow, None)
    assert seen == [Both(0, 1), Both(1, 2)]
