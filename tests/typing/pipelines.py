# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of pipelines, as a type checker sees them; nothing here is run."""

from __future__ import annotations

from typing import Any, assert_type

import msgspec

from workflows import Pipeline, PipelineContext, Workflow, WorkflowProvider


class Given(msgspec.Struct):
    numbers: list[int]


class Total(msgspec.Struct):
    total: int


class Cursor(msgspec.Struct):
    index: int = 0


async def add(given: Given, ctx: PipelineContext[Cursor]) -> Total:
    assert_type(ctx.progress, Cursor)
    assert_type(ctx.step, str)
    await ctx.save()
    return Total(sum(given.numbers))


def show(given: Total) -> None:
    assert_type(given.total, int)


adding = Pipeline("adding", input=Given, output=Total, progress=Cursor).then(add, timeout="10s")
assert_type(adding, Pipeline[Given, Total])
assert_type(adding.parallel(show, lambda: None).returns(), Workflow[Given, Total])
assert_type(Pipeline("loose").then(add).returns(), Workflow[Any, Any])
assert_type(Pipeline("open", input=Given).then(add).returns(), Workflow[Given, Any])
adding.then(add, pool=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def run(flows: WorkflowProvider) -> None:
    """Run one."""
    handle = await flows.execute(adding.returns(), Given([1]))
    assert_type(await handle.result(), Total)
