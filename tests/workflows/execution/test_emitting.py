"""Events that the functions of a flow emit: in the event loop and in threads, distributed and inline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventContext, EventProvider, Retry
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


@pytest.mark.parametrize("is_inline", [False, True], ids=["distributed", "inline"])
async def test_steps_emit_and_wait_also_in_threads(make_provider: MakeProvider, is_inline: bool) -> None:
    workflow = Workflow[Any, Any]("w", retry=Retry(attempts=1))
    heard: list[tuple[str, Any, Any]] = []

    @workflow.step()
    async def native(ctx: StepContext[Any]) -> list[int]:
        return [await ctx.emit("double", 1), *[await each for each in ctx.emit_many("double", [2, 3])]]

    @workflow.step()
    def plain(ctx: StepContext[Any]) -> list[int]:
        several = ctx.emit_many("double", [5, 6])
        return [ctx.emit("double", 4).result(10), *(each.result(240) for each in several)]

    @workflow.completed
    def both(ctx: StepContext[Any]) -> list[int]:
        return [*ctx.result(native), *ctx.result(plain), ctx.emit("double", 7).result(10)]

    provider = make_provider()

    @provider.on("double")
    async def double(number: int, ctx: EventContext) -> int:
        heard.append((ctx.correlation_id, ctx.meta.get("user"), number))
        return 2 * number

    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        if is_inline:
            output = await flows.run_inline(workflow, None, meta={"user": "ada"})
        else:
            handle = await flows.execute(workflow, None, meta={"user": "ada"})
            output = await handle.result()
    assert output == [2, 4, 6, 8, 10, 12, 14]
    assert sorted(number for _, _, number in heard) == [1, 2, 3, 4, 5, 6, 7]
    assert {user for _, user, _ in heard} == {"ada"}
    assert len({chain for chain, _, _ in heard}) == 1
